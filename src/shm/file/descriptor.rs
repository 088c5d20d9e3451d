//! The descriptor used to ask who has locks on a segment file. Other code may close it behind our back.
//!
//! Libraries that daemonise close every descriptor they do not know. So the number is kept, not owned: it is only
//! ever passed to system calls as a number, and before and after each use we check that it is still the same file.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::fstat;

use super::memory_file::is_anonymous;
use crate::shm::file::file_lock::{ByteRange, is_locked};
use crate::shm::time::clock::utc_nanos;
use crate::units::NANOS_PER_SECOND;

/// Lower numbers are the standard streams: output to a closed one must not end up in the segment.
const FIRST_PRIVATE_NUMBER: RawFd = 3;

/// How old the file of a segment in use may look, in seconds.
const MAX_AGE: u64 = 60;

/// Device and inode: the identity of the file behind a descriptor or a path.
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

    /// The file that has this number now; `None` if there is none.
    fn of_number(number: RawFd) -> Option<Self> {
        status_of_number(number).map(|status| status.file)
    }
}

/// What the system says about an open file.
#[derive(Clone, Copy, Debug)]
struct Status {
    file: FileIdentity,
    has_name: bool,
    /// Permission bits.
    mode: u32,
    /// When its contents last changed, as far as the system knows, in seconds since the Unix epoch.
    modified: i64,
}

/// The status of what has this number now; `None` if nothing has.
fn status_of_number(number: RawFd) -> Option<Status> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the pointer is to memory for one structure. The number may be closed or belong to any file: fstat then
    // fails or describes that file, and changes neither a file nor a descriptor.
    if unsafe { libc::fstat(number, status.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: fstat has succeeded, so it has filled the structure in.
    let status = unsafe { status.assume_init() };
    let file = FileIdentity {
        device: status.st_dev,
        inode: status.st_ino,
    };
    Some(Status {
        file,
        has_name: status.st_nlink != 0,
        mode: status.st_mode & 0o777,
        modified: status.st_mtime,
    })
}

/// Opens the file behind this number again, as a new open file, if it is the expected one.
pub(super) fn open_number(number: RawFd, expected: FileIdentity) -> io::Result<File> {
    let bad_number = || io::Error::from(Errno::EBADF);
    // Check first: if other code closed the number, it may now belong to a file that must not simply be opened.
    if FileIdentity::of_number(number) != Some(expected) {
        return Err(bad_number());
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{number}"))?;
    if FileIdentity::of(&file)? == expected {
        Ok(file)
    } else {
        Err(bad_number())
    }
}

/// A descriptor that other code may close at any time.
#[derive(Debug)]
pub(crate) struct Descriptor {
    /// The number in the low half, all ones once closed; in the high half, how often it was replaced.
    slot: AtomicU64,
    file: FileIdentity,
    is_anonymous: bool,
}

/// Moves an open file to a number above the standard streams.
pub(crate) fn above_standard_streams(file: File) -> Result<File, Errno> {
    if file.as_raw_fd() >= FIRST_PRIVATE_NUMBER {
        return Ok(file);
    }
    let number = fcntl(&file, FcntlArg::F_DUPFD_CLOEXEC(FIRST_PRIVATE_NUMBER))?;
    // SAFETY: the number was just made by fcntl and belongs to nothing else.
    Ok(unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(number) })
}

const CLOSED: RawFd = -1;

fn number_in(slot: u64) -> RawFd {
    slot as u32 as RawFd
}

/// The slot that follows `slot`, with another number.
fn next_slot(slot: u64, number: RawFd) -> u64 {
    ((slot >> 32).wrapping_add(1) << 32) | u64::from(number as u32)
}

impl Descriptor {
    /// Keeps the number of an open file.
    pub(crate) fn adopt(file: File) -> Result<Self, Errno> {
        let identity = FileIdentity::of(&file)?;
        let is_anonymous = is_anonymous(&file);
        Ok(Self {
            slot: AtomicU64::new(next_slot(0, file.into_raw_fd())),
            file: identity,
            is_anonymous,
        })
    }

    /// The file it stands for.
    pub(crate) fn file(&self) -> FileIdentity {
        self.file
    }

    /// Whether the file has a name, at any path, or never needed one; `None` if the descriptor is gone.
    ///
    /// If it has one and its modification time is more than a minute old, updates the time. Stores into a mapping do
    /// not change the time of a file on tmpfs, and programs that remove what has not been used for long, such as
    /// systemd-tmpfiles, judge by it.
    pub(crate) fn look(&self) -> Option<bool> {
        if self.is_anonymous {
            return Some(true);
        }
        let number = self.number();
        let status = status_of_number(number).filter(|status| status.file == self.file)?;
        let now = i64::try_from(utc_nanos() / NANOS_PER_SECOND).unwrap_or(i64::MAX);
        if status.has_name && now.abs_diff(status.modified) >= MAX_AGE {
            // SAFETY: no memory is involved. If other code has closed the number since it was compared and opened
            // another file by it, then that file is marked as used, and a program does have it open. The call may
            // fail if the file belongs to another user: then that user's processes update the time.
            unsafe { libc::futimens(number, std::ptr::null()) };
        }
        Some(status.has_name)
    }

    /// The permission bits of the file; `None` if the descriptor is gone.
    pub(crate) fn mode(&self) -> Option<u32> {
        let status = status_of_number(self.number()).filter(|status| status.file == self.file)?;
        Some(status.mode)
    }

    /// The number, which may stand for another file by now.
    pub(crate) fn number(&self) -> RawFd {
        number_in(self.slot.load(Ordering::Acquire))
    }

    /// Whether another open file has an exclusive lock in the range; `None` if the descriptor is gone or the kernel
    /// does not say.
    pub(crate) fn is_locked_by_others(&self, range: ByteRange) -> Option<bool> {
        let number = self.number();
        if FileIdentity::of_number(number) != Some(self.file) {
            return None;
        }
        let mut request = range.read_lock();
        // SAFETY: the pointer is to a live structure. The number may have been closed, or given to another file,
        // since it was compared: F_OFD_GETLK fails then or answers for that file, and changes neither a file nor a
        // lock.
        let answer = unsafe { libc::fcntl(number, libc::F_OFD_GETLK, &mut request) };
        // An answer for another file is useless: it could make a live process look dead.
        if answer != 0 || FileIdentity::of_number(number) != Some(self.file) {
            return None;
        }
        Some(is_locked(&request))
    }

    /// Replaces a descriptor that is gone with another open file of the same identity. If another thread was faster,
    /// closes `file`.
    pub(crate) fn replace(&self, file: File) {
        let slot = self.slot.load(Ordering::Acquire);
        // The new file may have got the number of the old one.
        if FileIdentity::of_number(number_in(slot)) == Some(self.file) && number_in(slot) != file.as_raw_fd()
        {
            return;
        }
        let replaced = self.slot.compare_exchange(
            slot,
            next_slot(slot, file.as_raw_fd()),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if replaced.is_ok() {
            // The descriptor closes it, by its number.
            let _ = file.into_raw_fd();
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let slot = self.slot.swap(next_slot(0, CLOSED), Ordering::AcqRel);
        let number = number_in(slot);
        if FileIdentity::of_number(number) == Some(self.file) {
            // SAFETY: closing touches no memory of this process. The number was given to this descriptor by
            // `into_raw_fd` and still stands for the same file, so unless other code closed it and opened the very
            // same file under the same number since, the number is this descriptor's own.
            unsafe { libc::close(number) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::FileTimes;
    use std::time::{Duration, SystemTime};

    use super::super::descriptor::*;
    use crate::shm::file::file_lock::try_lock;

    #[test]
    fn a_number_that_other_code_closed_and_reused_is_no_answer_until_it_is_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, "content").expect("a file");
        let open = || File::options().read(true).write(true).open(&path).expect("opens");
        let byte = ByteRange::participant(0);
        let holder = open();
        assert_eq!(try_lock(holder.as_fd(), byte), Ok(true));
        let descriptor = Descriptor::adopt(open()).expect("a descriptor");
        assert_eq!(descriptor.is_locked_by_others(byte), Some(true));
        let number = number_in(descriptor.slot.load(Ordering::Relaxed));
        // What other code and then the kernel do, with a number that no concurrent test can take.
        let other = tempfile::tempfile().expect("another file");
        // SAFETY: both numbers are open, and the first one is used by nothing but the descriptor.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert_eq!(descriptor.is_locked_by_others(byte), None);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::dup2(open().as_raw_fd(), number) }, number);
        // SAFETY: the number was made just now, and the descriptor does not know of it.
        let replacement = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(number) };
        descriptor.replace(replacement);
        assert_eq!(number_in(descriptor.slot.load(Ordering::Relaxed)), number);
        assert_eq!(descriptor.is_locked_by_others(byte), Some(true));
        let file = descriptor.file();
        drop(descriptor);
        assert_ne!(FileIdentity::of_number(number), Some(file), "it was left open");
    }

    #[test]
    fn a_file_in_use_is_made_to_look_used_once_its_time_is_a_minute_old() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, "content").expect("a file");
        let file = File::options().read(true).write(true).open(&path).expect("opens");
        let set_age = |seconds| {
            let instant = SystemTime::now() - Duration::from_secs(seconds);
            let times = FileTimes::new().set_modified(instant).set_accessed(instant);
            file.set_times(times).expect("our own file");
            instant
        };
        let looks_modified = || {
            file.metadata()
                .and_then(|found| found.modified())
                .expect("a time")
        };
        let descriptor = Descriptor::adopt(file.try_clone().expect("a descriptor")).expect("adopted");
        let recent = set_age(MAX_AGE / 2);
        assert_eq!(descriptor.look(), Some(true));
        assert_eq!(looks_modified(), recent, "it was touched for nothing");
        let old = set_age(10 * MAX_AGE);
        assert_eq!(descriptor.look(), Some(true));
        assert!(looks_modified() > old, "a cleaner would remove it");
        // Nobody cleans up what has no name.
        let old = set_age(10 * MAX_AGE);
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(descriptor.look(), Some(false));
        assert_eq!(looks_modified(), old);
    }
}
