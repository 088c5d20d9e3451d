//! The least that an operation on shared limits needs: a lock that survives its holder, and the time.
//!
//! It makes nothing but calls to the C library, so that the difference from it is the cost of everything else.
#![allow(
    unsafe_code,
    reason = "the C library's own lock and clock are what is measured"
)]

use std::fs::OpenOptions;
use std::mem::MaybeUninit;
use std::path::Path;

use memmap2::MmapRaw;
use raw_sync::locks::{LockImpl, LockInit, Mutex};

/// Where raw_sync's mutex lies in the mapping; ours lies at the start.
const PLAIN_OFFSET: usize = 512;

/// A mapped file with two process-shared mutexes: a robust one, and raw_sync's plain one.
pub struct Floor {
    // Declared before the mapping that it points into, so that it is dropped before it.
    plain: Box<dyn LockImpl>,
    mapping: MmapRaw,
}

impl Floor {
    /// Makes the file and both mutexes.
    pub fn create(path: &Path) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .expect("a new file");
        file.set_len(4096).expect("a page");
        let mapping = MmapRaw::map_raw(&file).expect("a mapping");
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        // SAFETY: the attribute object is initialised before its use and destroyed after it; the mutex lies at the
        // start of a fresh page, aligned, which nothing else uses yet.
        let answers = unsafe {
            let attributes = attributes.as_mut_ptr();
            [
                libc::pthread_mutexattr_init(attributes),
                libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED),
                libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST),
                libc::pthread_mutexattr_settype(attributes, libc::PTHREAD_MUTEX_NORMAL),
                libc::pthread_mutex_init(mapping.as_mut_ptr().cast(), attributes),
                libc::pthread_mutexattr_destroy(attributes),
            ]
        };
        assert_eq!(answers, [0; 6], "a robust mutex");
        let place = mapping.as_mut_ptr().wrapping_add(PLAIN_OFFSET);
        // SAFETY: the page has room for raw_sync's mutex at that offset, and for the data it guards behind it; both
        // stay mapped for longer than the mutex lives.
        let (plain, _) =
            unsafe { Mutex::new(place, place.wrapping_add(PLAIN_OFFSET)) }.expect("a plain mutex");
        Self { plain, mapping }
    }

    /// Maps the file that another process has made.
    pub fn open(path: &Path) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .expect("a file");
        let mapping = MmapRaw::map_raw(&file).expect("a mapping");
        let place = mapping.as_mut_ptr().wrapping_add(PLAIN_OFFSET);
        // SAFETY: as in `create`, which made the mutex at that offset.
        let (plain, _) =
            unsafe { Mutex::from_existing(place, place.wrapping_add(PLAIN_OFFSET)) }.expect("a plain mutex");
        Self { plain, mapping }
    }

    /// Takes and releases the robust lock without waiting. No other process may be using it.
    #[inline]
    pub fn try_lock_and_unlock(&self) {
        // SAFETY: `create` made a mutex there; the process that locks here unlocks before it returns.
        let answers = unsafe {
            let mutex = self.mapping.as_mut_ptr().cast();
            [
                libc::pthread_mutex_trylock(mutex),
                libc::pthread_mutex_unlock(mutex),
            ]
        };
        debug_assert_eq!(answers, [0, 0]);
    }

    /// Waits for the robust lock, does `work`, and releases the lock.
    #[inline]
    pub fn with_lock<T>(&self, work: impl FnOnce() -> T) -> T {
        let mutex = self.mapping.as_mut_ptr().cast();
        // SAFETY: `create` made a mutex there; this thread unlocks it below.
        let answer = unsafe { libc::pthread_mutex_lock(mutex) };
        debug_assert_eq!(answer, 0);
        let outcome = work();
        // SAFETY: this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(mutex) };
        outcome
    }

    /// Takes and releases raw_sync's mutex, which no process could take again if its holder were killed.
    #[inline]
    pub fn lock_and_unlock_plain(&self) {
        drop(self.plain.lock().expect("a lock"));
    }

    /// Reads the clock that the library reads, in the same way.
    #[inline]
    pub fn now() -> u64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the call fills in the time it is given.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}
