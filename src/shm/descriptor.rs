//! The private descriptor of a segment file, which other code of the process may close under us.
//!
//! Libraries that daemonise close every descriptor they do not know. So the number is kept, not owned, and before
//! it is trusted or closed it is asked whether it still is the same file.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::fstat;

/// Numbers below are the standard streams: whoever prints to a closed one must not print into the segment.
const FIRST_PRIVATE_NUMBER: RawFd = 3;

/// Device and inode: which file a descriptor or a path stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl FileIdentity {
    pub(crate) fn of(file: impl AsFd) -> Result<Self, Errno> {
        let status = fstat(file)?;
        Ok(Self {
            device: status.st_dev,
            inode: status.st_ino,
        })
    }
}

/// A descriptor that may turn out to be gone.
#[derive(Debug)]
pub(crate) struct Descriptor {
    number: AtomicI32,
    file: FileIdentity,
}

/// Moves an open file to a number above the standard streams.
pub(crate) fn above_standard_streams(file: File) -> Result<File, Errno> {
    if file.as_fd().as_raw() >= FIRST_PRIVATE_NUMBER {
        return Ok(file);
    }
    let number = fcntl(&file, FcntlArg::F_DUPFD_CLOEXEC(FIRST_PRIVATE_NUMBER))?;
    // SAFETY: the number was just made by fcntl and belongs to nobody else.
    Ok(unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(number) })
}

trait AsRaw {
    fn as_raw(&self) -> RawFd;
}

impl AsRaw for BorrowedFd<'_> {
    fn as_raw(&self) -> RawFd {
        std::os::fd::AsRawFd::as_raw_fd(self)
    }
}

impl Descriptor {
    /// Keeps the number of an open file.
    pub(crate) fn adopt(file: File) -> Result<Self, Errno> {
        let identity = FileIdentity::of(&file)?;
        Ok(Self {
            number: AtomicI32::new(file.into_raw_fd()),
            file: identity,
        })
    }

    /// Which file it stands for.
    pub(crate) fn file(&self) -> FileIdentity {
        self.file
    }

    /// The descriptor, if it still is the same file.
    pub(crate) fn get(&self) -> Option<BorrowedFd<'_>> {
        let number = self.number.load(Ordering::Acquire);
        if number < 0 {
            return None;
        }
        // SAFETY: the number is not negative. It may have been closed, or reused, by code that closes what it does
        // not own; the calls made with it then fail or answer for another file, which the comparison finds out.
        // Nothing is read, written or closed through it.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        (FileIdentity::of(descriptor) == Ok(self.file)).then_some(descriptor)
    }

    /// Puts another open file of the same identity in its place, and closes the old one if it is still ours: the
    /// new one may have been given the number of an old one that something else closed.
    pub(crate) fn replace(&self, file: File) {
        if self.number.load(Ordering::Acquire) != file.as_fd().as_raw() {
            self.close();
        }
        self.number.store(file.into_raw_fd(), Ordering::Release);
    }

    /// Closes the descriptor if it still is the same file. Never unlocks: the lock belongs to the open file, which
    /// a parent process may still have open.
    pub(crate) fn close(&self) {
        if let Some(descriptor) = self.get() {
            let number = descriptor.as_raw();
            // Whoever takes the number out is the one that closes it.
            if self
                .number
                .compare_exchange(number, -1, Ordering::AcqRel, Ordering::Relaxed)
                == Ok(number)
            {
                // SAFETY: the number stands for the file that was adopted, and was this descriptor's until now, so
                // nothing else in this library closes it.
                unsafe { libc::close(number) };
            }
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_that_was_given_the_number_of_the_closed_one_stays_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "content").expect("a file");
        let open = || File::open(&path).expect("opens");
        let descriptor = Descriptor::adopt(open()).expect("a descriptor");
        let number = descriptor.get().expect("open").as_raw();
        // What other code and then the kernel do, with a number that no test running beside this one can take.
        let second = open();
        // SAFETY: both numbers are open, and the first one is used by nothing but the descriptor.
        assert_eq!(unsafe { libc::dup2(second.as_fd().as_raw(), number) }, number);
        // SAFETY: the number was made just now; the descriptor does not know of it.
        let replacement = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(number) };
        descriptor.replace(replacement);
        assert_eq!(descriptor.get().map(|it| it.as_raw()), Some(number));
    }
}
