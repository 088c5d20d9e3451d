//! Tells a process from the children it forks, for the price of one load.
//!
//! A page marked `MADV_WIPEONFORK` (Linux 4.14) holds the identity of the process. A child finds zero there and
//! gives itself a new one.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

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
    word: &'static AtomicU64,
}

/// Copied into every child, so a child's next number is one that no ancestor has used.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl IdentityPage {
    /// The page of this process; made on first use.
    ///
    /// # Errors
    ///
    /// What the kernel says where it cannot wipe a page on fork.
    pub(crate) fn get() -> Result<Self, Errno> {
        static PAGE: OnceLock<Result<IdentityPage, Errno>> = OnceLock::new();
        *PAGE.get_or_init(Self::map)
    }

    /// Who is asking.
    #[inline]
    pub(crate) fn current(self) -> ProcessIdentity {
        match self.word.load(Ordering::Relaxed) {
            0 => self.assign(),
            identity => ProcessIdentity(identity),
        }
    }

    #[cold]
    fn assign(self) -> ProcessIdentity {
        let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
        match self
            .word
            .compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => ProcessIdentity(fresh),
            // Another thread of this process was first.
            Err(identity) => ProcessIdentity(identity),
        }
    }

    fn map() -> Result<Self, Errno> {
        let size = NonZeroUsize::new(4096).ok_or(Errno::EINVAL)?;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let page = unsafe {
            mmap_anonymous(
                None,
                size,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_PRIVATE,
            )
        }?;
        // SAFETY: the page was mapped by the call above and is not used yet.
        if let Err(error) = unsafe { madvise(page, size.get(), MmapAdvise::MADV_WIPEONFORK) } {
            // SAFETY: as above; nothing refers to the page.
            unsafe { munmap(page, size.get()) }?;
            return Err(error);
        }
        // SAFETY: the page is readable, writable, zeroed, aligned to more than eight bytes and never unmapped, so
        // a reference for the life of the process is sound; it is only ever used as this one atomic.
        let word = unsafe { page.cast::<AtomicU64>().as_ref() };
        Ok(Self { word })
    }
}

/// A value that every process has one of its own of: made at its first use, never dropped. A forked child that uses it
/// gets a fresh one, whatever state the fork caught its parent's in.
#[derive(Debug)]
pub(crate) struct PerProcess<T: 'static> {
    latest: AtomicPtr<Owned<T>>,
}

#[derive(Debug)]
struct Owned<T> {
    process: ProcessIdentity,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self {
            latest: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// This process's value.
    ///
    /// # Errors
    ///
    /// As [`IdentityPage::get`].
    pub(crate) fn get(&self) -> Result<&'static T, Errno>
    where
        T: Default,
    {
        self.get_or(|_| T::default())
    }

    /// This process's value, which is made of what the process that forked this one had, if that had one: whatever state
    /// the fork caught it in.
    ///
    /// # Errors
    ///
    /// As [`IdentityPage::get`].
    pub(crate) fn get_or(&self, make: impl Fn(Option<&T>) -> T) -> Result<&'static T, Errno> {
        let process = IdentityPage::get()?.current();
        loop {
            let latest = self.latest.load(Ordering::Acquire);
            // SAFETY: the pointer is null or came out of `Box::leak` below, was published with release after the value
            // was complete, and is never freed once it was published.
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
                // SAFETY: the box was made above and no other process has seen it: another thread was first.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
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
}
