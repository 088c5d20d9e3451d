/* Preloaded, shows a program a wall clock that is SHIFT_WALL_CLOCK seconds ahead, or behind. The monotonic clocks stay.
 *
 * What a program asks of the C library is answered from here; the kernel's own answers, such as the times of files, are
 * not shifted. A deadline by the wall clock is handed to the kernel in the kernel's time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t shift;

__attribute__((constructor)) static void read_shift(void)
{
    const char *text = getenv("SHIFT_WALL_CLOCK");
    shift = text ? strtoll(text, NULL, 10) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    static int (*next)(clockid_t, struct timespec *);
    if (!next)
        next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int answer = next(clock, time);
    if (answer == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
        time->tv_sec += shift;
    return answer;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) == 0) {
        time->tv_sec = now.tv_sec;
        time->tv_usec = now.tv_nsec / 1000;
    }
    return 0;
}

time_t time(time_t *place)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (place)
        *place = now.tv_sec;
    return now.tv_sec;
}

static struct timespec in_the_time_of_the_kernel(const struct timespec *deadline)
{
    struct timespec real = *deadline;
    real.tv_sec -= shift;
    return real;
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict deadline)
{
    struct timespec real = in_the_time_of_the_kernel(deadline);
    return pthread_mutex_clocklock(mutex, CLOCK_REALTIME, &real);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline)
{
    struct timespec real = in_the_time_of_the_kernel(deadline);
    return sem_clockwait(semaphore, CLOCK_REALTIME, &real);
}
