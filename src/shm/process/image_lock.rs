//! A file lock that lives exactly as long as the process image that took it.
//!
//! The kernel releases an open file's lock when nothing refers to the open file any more. So one page of the file is
//! mapped through it, and its descriptor is closed. Code that closes every descriptor it does not know cannot lose
//! the lock; a forked child does not get the page (`MADV_DONTFORK`) and cannot keep the lock; and death and exec end
//! the mapping, and the lock with it.
#![allow(unsafe_code)]

use std::fs::File;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};

use crate::shm::process::fork_identity::ProcessIdentity;

/// Bytes mapped: one page, or the part of a larger page that the kernel rounds up.
const PAGE: NonZeroUsize = NonZeroUsize::MIN.saturating_add(4095);

/// An open file without a descriptor, kept for its locks.
#[derive(Debug)]
pub(crate) struct ImageLock {
    /// The process that has the mapping: in a forked child there is none at this address, or another one.
    process: AtomicU64,
    page: AtomicPtr<libc::c_void>,
}

impl ImageLock {
    /// Keeps the locks that were taken through `file` until this process ends, executes another program, or
    /// [`release`](Self::release)s them. Closes the descriptor, and then calls `is_locked`, which goes through
    /// another open file, to see whether they are still there: `None` if not, because this file system does not keep
    /// the locks of what is only mapped.
    ///
    /// A child that another thread forks during this call, or since the file was opened, may inherit the descriptor
    /// or the mapping. It then keeps the locks until it ends or executes another program.
    pub(crate) fn keep(
        file: File,
        process: ProcessIdentity,
        is_locked: impl FnOnce() -> Result<bool, Errno>,
    ) -> Result<Option<Self>, Errno> {
        // SAFETY: a mapping at an address of the kernel's choice touches no memory of ours, and without any
        // permission nothing can be read or written through it.
        let page = unsafe { mmap(None, PAGE, ProtFlags::PROT_NONE, MapFlags::MAP_SHARED, &file, 0) }?;
        let kept = Self {
            process: AtomicU64::new(process.as_u64()),
            page: AtomicPtr::new(page.as_ptr()),
        };
        // SAFETY: the page was mapped by the call above; the advice changes nothing for this process.
        let advised = unsafe { madvise(page, PAGE.get(), MmapAdvise::MADV_DONTFORK) };
        drop(file);
        let is_kept = advised.and_then(|()| is_locked());
        if is_kept != Ok(true) {
            kept.release(process);
        }
        Ok(is_kept?.then_some(kept))
    }

    /// Takes over what `fresh` keeps. Only for a child of the process that kept something here before, of which the
    /// child has nothing; and only by one thread at a time.
    pub(crate) fn replace(&self, fresh: Self) {
        let page = fresh.page.swap(std::ptr::null_mut(), Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.process
            .store(fresh.process.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Releases the locks, if they belong to `process`, the calling process.
    pub(crate) fn release(&self, process: ProcessIdentity) {
        if self.process.load(Ordering::Acquire) != process.as_u64() {
            return;
        }
        let page = self.page.swap(std::ptr::null_mut(), Ordering::Relaxed);
        if let Some(page) = NonNull::new(page) {
            // SAFETY: the page was mapped by `keep` in this very process, as was just compared, and the swap has made
            // this the only call that unmaps it. Nothing refers to memory without permissions. Unmapping cannot fail
            // for a whole mapping.
            let _ = unsafe { munmap(page, PAGE.get()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork, pipe, read};

    use super::*;
    use crate::shm::file::file_lock::{ByteRange, is_locked_by_others, try_lock};
    use crate::shm::process::fork_identity::IdentityPage;

    fn open(path: &std::path::Path) -> File {
        File::options().read(true).write(true).open(path).expect("opens")
    }

    #[test]
    fn the_lock_is_kept_without_a_descriptor_until_it_is_released_and_no_child_keeps_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, [0; 4096]).expect("a file");
        let byte = ByteRange::participant(3);
        let process = IdentityPage::get().expect("Linux 4.14 or later").current();
        let file = open(&path);
        assert_eq!(try_lock(file.as_fd(), byte), Ok(true));
        let probe = open(&path);
        let is_locked = || is_locked_by_others(probe.as_fd(), byte);
        let lock = ImageLock::keep(file, process, is_locked)
            .expect("a mapping")
            .expect("kept");
        let is_locked = || is_locked() == Ok(true);
        assert!(is_locked());
        let (reader, writer) = pipe().expect("a pipe");
        // SAFETY: the child only waits for the end of the pipe and leaves without running destructors.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                drop(writer);
                let answer = read(&reader, &mut [0]);
                // SAFETY: ends the child at once, as a forked child of a threaded program must.
                unsafe { libc::_exit(i32::from(answer != Ok(0))) }
            }
            ForkResult::Parent { child } => {
                lock.release(process);
                let was_released = !is_locked();
                drop(writer);
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
                assert!(was_released, "the child kept it");
            }
        }
    }
}
