//! Tells a process from the children it forks, for the price of one load.
//!
//! A page marked `MADV_WIPEONFORK` (Linux 4.14) holds the identity of the process. A child finds zero there and gives
//! itself a new identity.
//!
//! This file also has replacements for the standard library's cells and mutexes, for use in all code that a forked
//! child may run: those of the standard library stay locked for ever in a child that was forked while another thread
//! had them locked.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::mutex::{lock, try_lock};

/// A number that a process shares with none of its ancestors. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessIdentity(u64);

impl ProcessIdentity {
    /// The bare number; never zero.
    pub(crate) fn as_u64(self) -> u64 {
        self.0
    }
}

/// The page that a fork wipes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdentityPage {
    words: &'static Words,
}

/// The contents of the page: zeros in a child that has not looked yet.
#[derive(Debug)]
#[repr(C)]
struct Words {
    identity: AtomicU64,
    /// The era of the clocks: only readings of the same era may be compared.
    clock_era: AtomicU64,
}

const PAGE_SIZE: NonZeroUsize = NonZeroUsize::MIN.saturating_add(4095);

/// Copied into every child, so a child's next number is one that no ancestor has used.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl IdentityPage {
    /// This process's page, made on first use.
    ///
    /// # Errors
    ///
    /// The kernel's error, if it cannot wipe a page on fork.
    pub(crate) fn get() -> Result<Self, Errno> {
        static PAGE: AtomicPtr<Words> = AtomicPtr::new(std::ptr::null_mut());
        let known = PAGE.load(Ordering::Acquire);
        let words = if known.is_null() {
            let fresh = Self::map()?;
            match PAGE.compare_exchange(
                std::ptr::null_mut(),
                fresh.as_ptr(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => fresh.as_ptr(),
                Err(known) => {
                    // SAFETY: another thread was first, so nothing refers to the page that was mapped just now.
                    unsafe { munmap(fresh.cast(), PAGE_SIZE.get()) }?;
                    known
                }
            }
        } else {
            known
        };
        // SAFETY: what was published is a page that is readable, writable, zeroed, aligned to more than eight bytes
        // and never unmapped, so a reference for the life of the process is sound; it is only ever used as these
        // atomics.
        let words = unsafe { &*words };
        Ok(Self { words })
    }

    /// The identity of the calling process.
    #[inline]
    pub(crate) fn current(self) -> ProcessIdentity {
        match self.words.identity.load(Ordering::Relaxed) {
            0 => ProcessIdentity(assign(&self.words.identity)),
            identity => ProcessIdentity(identity),
        }
    }

    /// The era of the clocks as last noted: zero in a process that has not asked for it since it was forked.
    #[inline]
    pub(crate) fn clock_era_so_far(self) -> u64 {
        self.words.clock_era.load(Ordering::Relaxed)
    }

    /// The era of the clocks; never zero. It changes with a fork, and when a [new one](Self::begin_clock_era) is
    /// begun.
    pub(crate) fn clock_era(self) -> u64 {
        match self.clock_era_so_far() {
            0 => assign(&self.words.clock_era),
            era => era,
        }
    }

    /// Begins a new era: this process's clocks show another time from now on.
    pub(crate) fn begin_clock_era(self) {
        let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
        self.words.clock_era.store(fresh, Ordering::Relaxed);
    }

    fn map() -> Result<NonNull<Words>, Errno> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let page = unsafe {
            mmap_anonymous(
                None,
                PAGE_SIZE,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_PRIVATE,
            )
        }?;
        // SAFETY: the page was mapped by the call above and is not used yet.
        if let Err(error) = unsafe { madvise(page, PAGE_SIZE.get(), MmapAdvise::MADV_WIPEONFORK) } {
            // SAFETY: as above; nothing refers to the page.
            unsafe { munmap(page, PAGE_SIZE.get()) }?;
            return Err(error);
        }
        Ok(page.cast())
    }
}

/// Gives a zero word of the page a number that no ancestor has used. Returns the word's value.
#[cold]
fn assign(word: &AtomicU64) -> u64 {
    let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
    match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh,
        // Another thread of this process was first.
        Err(number) => number,
    }
}

/// A value of which every process has its own, made on first use. A forked child that uses it gets a fresh one,
/// whatever state its parent's was in at the fork; the parent's is left alone.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    latest: AtomicPtr<Owned<T>>,
    /// It drops a value, perhaps in a thread other than the one that made it.
    owns: PhantomData<T>,
}

#[derive(Debug)]
struct Owned<T> {
    process: ProcessIdentity,
    value: T,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self {
            latest: AtomicPtr::new(std::ptr::null_mut()),
            owns: PhantomData,
        }
    }
}

impl<T: Send + Sync> PerProcess<T> {
    /// This process's value.
    ///
    /// # Errors
    ///
    /// Those of [`IdentityPage::get`].
    pub(crate) fn get(&self) -> Result<&T, Errno>
    where
        T: Default,
    {
        self.get_or(|_| T::default())
    }

    /// This process's value. `make` gets the value of the process that forked this one, if it had one, in whatever
    /// state the fork caught it.
    ///
    /// # Errors
    ///
    /// Those of [`IdentityPage::get`].
    fn get_or(&self, make: impl Fn(Option<&T>) -> T) -> Result<&T, Errno> {
        let process = IdentityPage::get()?.current();
        loop {
            let latest = self.latest.load(Ordering::Acquire);
            // SAFETY: the pointer is null or came out of `Box::into_raw` below and was published with release
            // ordering after the value was complete. What was published is freed only by `drop`, which cannot run
            // while anything borrows `self`.
            let owned = unsafe { latest.as_ref() };
            if let Some(owned) = owned.filter(|owned| owned.process == process) {
                return Ok(&owned.value);
            }
            let fresh = Box::into_raw(Box::new(Owned {
                process,
                value: make(owned.map(|owned| &owned.value)),
            }));
            let published = self
                .latest
                .compare_exchange(latest, fresh, Ordering::AcqRel, Ordering::Acquire);
            if published.is_err() {
                // SAFETY: the box was made above and no other thread has seen it: another one was first.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let latest = *self.latest.get_mut();
        // SAFETY: as in `get_or`.
        let owned = unsafe { latest.as_ref() };
        let is_own = |owned: &Owned<T>| IdentityPage::get().is_ok_and(|page| page.current() == owned.process);
        if owned.is_some_and(is_own) {
            // SAFETY: the box was made by `get_or` in this very process, and nothing borrows it any more. A parent's
            // stays: another thread may have been in the middle of using it.
            drop(unsafe { Box::from_raw(latest) });
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// A mutex that no fork leaves locked. A forked child finds what its parent had in it, unless another thread held the
/// lock at the fork: then it starts with the default value.
#[derive(Debug, Default)]
pub(crate) struct ProcessMutex<T> {
    own: PerProcess<Mutex<T>>,
}

impl<T: Clone + Default + Send> ProcessMutex<T> {
    pub(crate) const fn new() -> Self {
        Self {
            own: PerProcess::new(),
        }
    }

    /// Waits for the lock. A panic under the lock does not matter: users change the value in steps, each of which
    /// leaves it consistent.
    ///
    /// # Errors
    ///
    /// Those of [`IdentityPage::get`].
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, T>, Errno> {
        let own = self
            .own
            .get_or(|parent| Mutex::new(parent.map(inherited).unwrap_or_default()))?;
        Ok(lock(own))
    }
}

/// The contents of a mutex copied by a fork; the default value if it was locked.
fn inherited<T: Clone + Default>(mutex: &Mutex<T>) -> T {
    try_lock(mutex).map(|value| value.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    use super::super::fork_identity::*;

    #[test]
    fn a_child_is_another_process_and_stays_so() {
        let page = IdentityPage::get().expect("Linux 4.14 or later");
        let parent = page.current();
        assert_eq!(page.current(), parent);
        // SAFETY: the child only compares numbers and leaves without running destructors.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                let child = page.current();
                let sound = child != parent && page.current() == child;
                // SAFETY: ends the child at once, as a forked child of a threaded program must.
                unsafe { libc::_exit(i32::from(!sound)) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
                assert_eq!(page.current(), parent);
            }
        }
    }

    /// Runs `look` in a child. Returns whether it ended by itself within a minute and returned true.
    fn is_right_in_child(look: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls what is to be shown to work there, and leaves without running destructors.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                nix::unistd::alarm::set(60);
                let is_right = look();
                // SAFETY: ends the child at once, as a forked child of a threaded program must.
                unsafe { libc::_exit(i32::from(!is_right)) }
            }
            ForkResult::Parent { child } => waitpid(child, None) == Ok(WaitStatus::Exited(child, 0)),
        }
    }

    #[test]
    fn the_clocks_of_a_child_are_of_another_era() {
        let page = IdentityPage::get().expect("Linux 4.14 or later");
        let parents = page.clock_era();
        assert!(is_right_in_child(|| page.clock_era_so_far() == 0
            && page.clock_era() != parents
            && page.clock_era() == page.clock_era_so_far()));
        assert_eq!(page.clock_era(), parents);
        page.begin_clock_era();
        assert_ne!(page.clock_era(), parents);
    }

    #[test]
    fn a_child_has_what_its_parent_had_and_none_of_what_the_fork_caught_another_thread_with() {
        let mutex = ProcessMutex::<Vec<u8>>::new();
        mutex.lock().expect("a page").push(1);
        assert!(is_right_in_child(|| mutex
            .lock()
            .is_ok_and(|found| *found == [1])));
        let held = mutex.lock();
        assert!(is_right_in_child(|| mutex
            .lock()
            .is_ok_and(|found| found.is_empty())));
        drop(held);
        assert_eq!(*mutex.lock().expect("a page"), [1]);
        // After a panic under the lock, too.
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _held = mutex.lock();
                panic!("with the lock");
            });
            assert!(panics.join().is_err());
        });
        assert!(is_right_in_child(|| mutex
            .lock()
            .is_ok_and(|found| *found == [1])));
    }

    #[test]
    fn what_a_process_made_for_itself_is_dropped_and_what_its_parent_made_is_not() {
        let (value, count) = (std::sync::Arc::new(()), std::sync::Arc::strong_count);
        let mutex = ProcessMutex::<Vec<std::sync::Arc<()>>>::new();
        mutex.lock().expect("a page").push(value.clone());
        assert!(is_right_in_child(|| {
            // SAFETY: the child has its own copy of the memory, and what it does with that copy concerns no other
            // process.
            let copy = unsafe { std::ptr::read(&raw const mutex) };
            let had = copy.lock().map(|found| found.len());
            let before = count(&value);
            drop(copy);
            // The child's own copy is gone; its parent's stays.
            had == Ok(1) && before == 3 && count(&value) == 2
        }));
        drop(mutex);
        assert_eq!(count(&value), 1);
    }
}
