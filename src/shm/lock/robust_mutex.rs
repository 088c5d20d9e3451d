//! The process-shared robust mutex: a thin layer over pthread.
//!
//! The mutex of the crate raw_sync is process-shared but not robust: a killed holder leaves it locked forever. So
//! pthread is called directly here. The type is always NORMAL, robust, without priority inheritance: the other types
//! compare thread ids, which collide between PID namespaces.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libc::pthread_mutex_t;

use super::guard::{Guard, LockError};
use super::spin::{Look, spin};
use crate::shm::layout::records::LockArea;

/// The longest single wait in the kernel. Some kernels can lose a wake-up when an owner dies, so waiters check for
/// themselves now and then.
const SLICE: Duration = Duration::from_millis(50);

/// glibc's mark for "the last owner left the data inconsistent for good".
#[cfg(not(target_env = "musl"))]
const OWNER_OF_UNRECOVERABLE: u32 = (i32::MAX - 1) as u32;

/// The position of the lock word in `pthread_mutex_t`, in units of four bytes.
const LOCK_WORD_INDEX: usize = if cfg!(target_env = "musl") { 1 } else { 0 };

/// The state of the lock, read from its word without touching it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MutexWord {
    /// The thread id of the holder.
    pub(crate) holder: Option<u32>,
    /// The holder died with the lock, and nobody has taken it since.
    pub(crate) owner_died: bool,
}

impl LockArea {
    /// Makes an unlocked mutex, whatever the area held before. No other thread or process may be using it as a lock.
    pub(super) fn initialise_mutex(&self) -> io::Result<()> {
        self.clear();
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        // SAFETY: the attribute object is initialised by the first call before the others use it, and destroyed by
        // the last. The mutex lies in `self`, which is large enough and aligned (asserted in `records.rs`) and made
        // of atomics, so writing through a shared reference is allowed; and by this function's contract it is not in
        // use.
        #[allow(clippy::multiple_unsafe_ops_per_block)]
        let outcome = unsafe {
            let attributes = attributes.as_mut_ptr();
            let mut outcome = libc::pthread_mutexattr_init(attributes);
            if outcome == 0 {
                outcome = [
                    libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED),
                    libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST),
                    libc::pthread_mutexattr_settype(attributes, libc::PTHREAD_MUTEX_NORMAL),
                    libc::pthread_mutex_init(self.raw(), attributes),
                ]
                .into_iter()
                .find(|answer| *answer != 0)
                .unwrap_or(0);
                libc::pthread_mutexattr_destroy(attributes);
            }
            outcome
        };
        if outcome == 0 {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(outcome))
        }
    }

    /// Takes the lock, waiting no longer than `timeout`; `None` if it could not be taken in that time. If
    /// [`Guard::owner_died`] is true, the protected data may be half changed.
    #[inline]
    pub(super) fn lock_mutex(&self, timeout: Duration) -> Result<Option<Guard<'_>>, LockError> {
        match self.try_lock_mutex()? {
            None if !timeout.is_zero() => self.lock_contended(timeout),
            guard => Ok(guard),
        }
    }

    /// Takes the lock if nobody holds it.
    #[inline(always)]
    pub(super) fn try_lock_mutex(&self) -> Result<Option<Guard<'_>>, LockError> {
        if self.is_unrecoverable() {
            return Err(LockError::Unrecoverable);
        }
        // SAFETY: `self` holds a mutex made by `initialise_mutex`: attach has checked the segment's lock kind, C
        // library and word size, and processes that may write the file are trusted to leave the lock area to the C
        // library. The mapping outlives `self`, hence the guard. The thread that locks is the one that unlocks,
        // because the guard is not `Send`; a guard that is forgotten is a lock that is held for as long as its thread
        // lives.
        let answer = unsafe { libc::pthread_mutex_trylock(self.raw()) };
        self.guard(answer)
    }

    /// Reads the lock word.
    pub(crate) fn mutex_word(&self) -> MutexWord {
        let word = self.futex_word(LOCK_WORD_INDEX).load(Ordering::Relaxed);
        let holder = word & libc::FUTEX_TID_MASK;
        MutexWord {
            // musl marks an unrecoverable lock with all ones in the thread id.
            holder: (holder != 0 && holder != libc::FUTEX_TID_MASK).then_some(holder),
            owner_died: word & libc::FUTEX_OWNER_DIED != 0,
        }
    }

    #[cold]
    fn lock_contended(&self, timeout: Duration) -> Result<Option<Guard<'_>>, LockError> {
        if let Some(guard) = self.spin_mutex()? {
            return Ok(Some(guard));
        }
        // `None` if it is so far away that no clock reaches it.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let slice = match deadline {
                None => SLICE,
                Some(deadline) => deadline.saturating_duration_since(Instant::now()).min(SLICE),
            };
            if slice.is_zero() {
                // The lock may have been released while the processor was busy with others.
                return self.try_lock_mutex();
            }
            if self.is_unrecoverable() {
                return Err(LockError::Unrecoverable);
            }
            let answer = self.timed_lock(slice);
            if answer != libc::ETIMEDOUT
                && let Some(guard) = self.guard(answer)?
            {
                return Ok(Some(guard));
            }
        }
    }

    fn spin_mutex(&self) -> Result<Option<Guard<'_>>, LockError> {
        let word = self.futex_word(LOCK_WORD_INDEX);
        let look = || {
            let word = word.load(Ordering::Relaxed);
            Look {
                word: word.into(),
                is_free: word & libc::FUTEX_TID_MASK == 0,
            }
        };
        spin(look, || self.try_lock_mutex())
    }

    #[cfg(not(target_env = "musl"))]
    fn timed_lock(&self, slice: Duration) -> libc::c_int {
        unsafe extern "C" {
            // In glibc since 2.30; the libc crate does not declare it. Unlike that of pthread_mutex_timedlock, its
            // deadline does not move with the wall clock.
            fn pthread_mutex_clocklock(
                mutex: *mut pthread_mutex_t,
                clock: libc::clockid_t,
                deadline: *const libc::timespec,
            ) -> libc::c_int;
        }
        let deadline = deadline_on(libc::CLOCK_MONOTONIC, slice);
        // SAFETY: as in `try_lock_mutex`; the deadline is a valid timespec that outlives the call.
        unsafe { pthread_mutex_clocklock(self.raw(), libc::CLOCK_MONOTONIC, &deadline) }
    }

    /// musl can only wait by the wall clock. If that is set back while a thread waits, and the thread is then woken
    /// without getting the lock, it would wait on for as long as the clock was set back, whatever the slice. So poll
    /// with trylock instead.
    #[cfg(target_env = "musl")]
    fn timed_lock(&self, slice: Duration) -> libc::c_int {
        const FIRST_PAUSE: Duration = Duration::from_micros(20);
        const LONGEST_PAUSE: Duration = Duration::from_millis(1);
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            // SAFETY: as in `try_lock_mutex`.
            let answer = unsafe { libc::pthread_mutex_trylock(self.raw()) };
            let left = slice.saturating_sub(begun.elapsed());
            if answer != libc::EBUSY {
                return answer;
            }
            if left.is_zero() {
                return libc::ETIMEDOUT;
            }
            std::thread::sleep(pause.min(left));
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    #[inline(always)]
    fn guard(&self, answer: libc::c_int) -> Result<Option<Guard<'_>>, LockError> {
        if answer == 0 {
            // SAFETY: the C library has just said that this thread holds the mutex.
            return Ok(Some(unsafe { Guard::of_mutex(self, false) }));
        }
        self.guard_unless_taken(answer)
    }

    #[cold]
    fn guard_unless_taken(&self, answer: libc::c_int) -> Result<Option<Guard<'_>>, LockError> {
        match answer {
            // SAFETY: the C library has just said that this thread holds the mutex, and that its owner died.
            libc::EOWNERDEAD => Ok(Some(unsafe { Guard::of_mutex(self, true) })),
            libc::EBUSY | libc::EAGAIN => Ok(None),
            libc::ENOTRECOVERABLE => Err(LockError::Unrecoverable),
            other => Err(LockError::System(io::Error::from_raw_os_error(other))),
        }
    }

    /// glibc's trylock on an unrecoverable mutex leaves it owned for ever, so check the word first. An unrecoverable
    /// mutex stays unrecoverable, and this value is stored only when it becomes so: a stale value found here means a
    /// mutex that can be taken, or that could be a moment ago.
    #[cfg(not(target_env = "musl"))]
    #[inline(always)]
    pub(crate) fn is_unrecoverable(&self) -> bool {
        const OWNER_INDEX: usize = 2;
        self.futex_word(OWNER_INDEX).load(Ordering::Relaxed) == OWNER_OF_UNRECOVERABLE
    }

    /// musl marks it with all ones in the thread id.
    #[cfg(target_env = "musl")]
    #[inline]
    pub(crate) fn is_unrecoverable(&self) -> bool {
        self.futex_word(LOCK_WORD_INDEX).load(Ordering::Relaxed) & libc::FUTEX_TID_MASK
            == libc::FUTEX_TID_MASK
    }

    #[inline(always)]
    fn futex_word(&self, index: usize) -> &AtomicU32 {
        let words = std::ptr::from_ref(self).cast::<AtomicU32>();
        debug_assert!(index < size_of::<LockArea>() / 4);
        // SAFETY: `index` is one of the constants of this file, all below the 16 four-byte words of the area, which
        // is aligned to eight bytes and lives as long as `self`. Rust code accesses these words only through the
        // returned reference, and only to load; `initialise_mutex` alone stores to them, and by its contract nobody
        // looks at the same time. Everything else is done by the C library and the kernel, which the compiler knows
        // nothing about: they change the lock word with atomic four-byte instructions, and `__owner` with plain
        // stores of an aligned `int`, each of which is a single four-byte store on every processor that Linux runs
        // on. So a load finds some value that was stored, perhaps a stale one, and callers rely on no more than that.
        unsafe { &*words.add(index) }
    }

    /// # Safety
    ///
    /// This thread must hold the mutex.
    #[inline(always)]
    pub(super) unsafe fn unlock_mutex(&self) {
        // SAFETY: this thread holds the mutex, by the contract of this function.
        unsafe { libc::pthread_mutex_unlock(self.raw()) };
    }

    /// # Safety
    ///
    /// This thread must hold the mutex, having got EOWNERDEAD for it.
    #[cold]
    pub(super) unsafe fn unlock_mutex_of_dead(&self) {
        // SAFETY: this thread holds the mutex and got EOWNERDEAD for it, by the contract of this function.
        unsafe { libc::pthread_mutex_consistent(self.raw()) };
        // SAFETY: as above.
        unsafe { self.unlock_mutex() };
    }

    #[inline]
    fn raw(&self) -> *mut pthread_mutex_t {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

#[cfg(not(target_env = "musl"))]
fn deadline_on(clock: libc::clockid_t, slice: Duration) -> libc::timespec {
    let now =
        nix::time::clock_gettime(nix::time::ClockId::from_raw(clock)).map_or(Duration::ZERO, Duration::from);
    let deadline = now + slice;
    libc::timespec {
        tv_sec: deadline.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: libc::c_long::from(deadline.subsec_nanos() as i32),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use raw_sync::Timeout;
    use raw_sync::locks::{LockInit, Mutex};

    use super::super::robust_mutex::*;

    fn area() -> LockArea {
        let area = LockArea {
            words: [const { AtomicU64::new(0) }; 8],
        };
        area.initialise_mutex().expect("a mutex");
        area
    }

    fn take(area: &LockArea) -> Guard<'_> {
        let taken = area.lock_mutex(Duration::from_secs(10));
        taken.expect("no error").expect("free or handed on")
    }

    #[test]
    fn a_second_taker_waits_until_the_deadline_and_names_the_holder() {
        let area = area();
        let held = take(&area);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let taken = area.lock_mutex(Duration::from_millis(5));
                assert!(taken.expect("no error").is_none());
                assert!(area.mutex_word().holder.is_some());
            });
        });
        drop(held);
        assert_eq!(
            area.mutex_word(),
            MutexWord {
                holder: None,
                owner_died: false
            }
        );
    }

    #[test]
    fn a_thread_that_dies_with_the_lock_hands_it_on_and_it_stays_usable() {
        let area = area();
        std::thread::scope(|scope| {
            scope.spawn(|| std::mem::forget(take(&area)));
        });
        let found = take(&area);
        assert!(found.owner_died());
        drop(found);
        for _ in 0..2 {
            assert!(!take(&area).owner_died());
        }
    }

    #[test]
    fn ours_and_raw_syncs_mutex_exclude_each_other_on_the_same_word() {
        let mut memory = [0_u64; size_of::<LockArea>() / 8];
        assert!(Mutex::size_of(None) <= size_of_val(&memory));
        let base = memory.as_mut_ptr().cast::<u8>();
        let mut counter = 0_u8;
        // raw_sync puts its pthread mutex at the first aligned address of the memory it is given. SAFETY: the memory
        // is as large as a lock area and as raw_sync requires, is aligned to eight bytes, and outlives the mutex.
        let area = unsafe { &*base.cast::<LockArea>() };
        area.initialise_mutex().expect("a mutex");
        // SAFETY: as above; the area was just initialised as a pthread mutex.
        let (theirs, _) =
            unsafe { Mutex::from_existing(base, std::ptr::from_mut(&mut counter)) }.expect("a mutex");
        let held = take(area);
        assert!(theirs.try_lock(Timeout::Val(Duration::from_millis(5))).is_err());
        drop(held);
        let held = theirs.lock().expect("free");
        assert!(area.try_lock_mutex().expect("no error").is_none());
        drop(held);
        assert!(area.try_lock_mutex().expect("no error").is_some());
    }
}
