//! Open file description locks on single bytes far beyond the end of the segment file.
//!
//! The kernel releases them when nothing refers to the open file any more, neither a descriptor nor a mapping, as
//! when the process dies. Unlike with POSIX record locks, closing another descriptor of the same file does not
//! release them.
//!
//! Every lock that carries meaning is a *write* lock, which takes permission to write. Anybody who can read the file
//! can put read locks anywhere. Probes do not see those, and they keep no dead process alive, but they do prevent
//! write locks on the same bytes.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// The byte of participant slot 0; the others follow.
const FIRST_PARTICIPANT_BYTE: i64 = 1 << 40;

/// Locked exclusively while a process joins the segment or its state is initialised.
const ATTACH_BYTE: i64 = FIRST_PARTICIPANT_BYTE - 1;

/// Locked exclusively on a file under construction while its creator lives.
const CONSTRUCTION_BYTE: i64 = FIRST_PARTICIPANT_BYTE - 2;

/// Locked exclusively by the process that writes to a checkpoint file. Not the construction byte: a child forked
/// during construction has the file description that owns that lock.
const CHECKPOINT_BYTE: i64 = FIRST_PARTICIPANT_BYTE - 3;

/// The bytes for trials of whether locks last: so many that two trials seldom collide.
const FIRST_TRIAL_BYTE: i64 = FIRST_PARTICIPANT_BYTE - (1 << 31);
const TRIAL_BYTES: u64 = 1 << 30;

/// One byte, or a range of bytes, to lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteRange {
    start: i64,
    length: i64,
}

impl ByteRange {
    /// The byte for attaching.
    pub(crate) const ATTACH: Self = Self {
        start: ATTACH_BYTE,
        length: 1,
    };

    /// The byte for creating.
    pub(crate) const CONSTRUCTION: Self = Self {
        start: CONSTRUCTION_BYTE,
        length: 1,
    };

    /// The byte for writing a checkpoint.
    pub(crate) const CHECKPOINT: Self = Self {
        start: CHECKPOINT_BYTE,
        length: 1,
    };

    /// The bytes of all participants, however many a segment has.
    pub(crate) const ALL_PARTICIPANTS: Self = Self {
        start: FIRST_PARTICIPANT_BYTE,
        // Up to the largest offset.
        length: 0,
    };

    /// The byte of one participant.
    pub(crate) fn participant(slot: u64) -> Self {
        Self {
            start: FIRST_PARTICIPANT_BYTE + slot as i64,
            length: 1,
        }
    }

    /// One of the bytes for trials.
    pub(crate) fn trial(number: u64) -> Self {
        Self {
            start: FIRST_TRIAL_BYTE + (number % TRIAL_BYTES) as i64,
            length: 1,
        }
    }

    /// Where it starts.
    pub(crate) fn start(self) -> i64 {
        self.start
    }

    /// The bytes of the first `count` participants.
    pub(crate) fn participants(count: u64) -> Self {
        Self {
            start: FIRST_PARTICIPANT_BYTE,
            length: count as i64,
        }
    }

    /// The request for an exclusive lock. Any other lock conflicts with it.
    fn write_lock(self) -> libc::flock {
        self.request(libc::F_WRLCK)
    }

    /// The request for a shared lock. Only an exclusive one conflicts with it.
    pub(crate) fn read_lock(self) -> libc::flock {
        self.request(libc::F_RDLCK)
    }

    fn request(self, kind: libc::c_int) -> libc::flock {
        libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: self.start,
            l_len: self.length,
            l_pid: 0,
        }
    }
}

/// Takes an exclusive lock, if no other open file has a lock there.
pub(crate) fn try_lock(file: BorrowedFd<'_>, range: ByteRange) -> Result<bool, Errno> {
    is_taken(fcntl(file, FcntlArg::F_OFD_SETLK(&range.write_lock())))
}

/// Takes a shared lock, if no other open file has an exclusive one there. Permission to read the file is enough.
pub(crate) fn try_read_lock(file: BorrowedFd<'_>, range: ByteRange) -> Result<bool, Errno> {
    is_taken(fcntl(file, FcntlArg::F_OFD_SETLK(&range.read_lock())))
}

fn is_taken(answer: Result<i32, Errno>) -> Result<bool, Errno> {
    match answer {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes an exclusive lock for this process, if no other has a lock there. Unlike an open file's lock, it is not kept
/// by forked children, and it ends when this process closes any descriptor of the file.
pub(crate) fn try_lock_for_process(file: BorrowedFd<'_>, range: ByteRange) -> Result<bool, Errno> {
    is_taken(fcntl(file, FcntlArg::F_SETLK(&range.write_lock())))
}

/// Releases this open file's lock.
pub(crate) fn unlock(file: BorrowedFd<'_>, range: ByteRange) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&range.request(libc::F_UNLCK))).map(drop)
}

/// Whether another open file has an exclusive lock there.
pub(crate) fn is_locked_by_others(file: BorrowedFd<'_>, range: ByteRange) -> Result<bool, Errno> {
    let mut request = range.read_lock();
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut request))?;
    Ok(is_locked(&request))
}

/// A lock that another open file or process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundLock {
    pub(crate) is_exclusive: bool,
    /// The process, if the lock belongs to a process and not to an open file.
    pub(crate) pid: Option<u32>,
}

/// A lock of any kind that another open file has there; one of them if there are several.
pub(crate) fn lock_of_others(file: BorrowedFd<'_>, range: ByteRange) -> Result<Option<FoundLock>, Errno> {
    let mut request = range.write_lock();
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut request))?;
    Ok(is_locked(&request).then(|| FoundLock {
        is_exclusive: request.l_type == libc::F_WRLCK as libc::c_short,
        pid: u32::try_from(request.l_pid).ok().filter(|pid| *pid > 0),
    }))
}

/// Whether F_OFD_GETLK found a lock.
pub(crate) fn is_locked(answer: &libc::flock) -> bool {
    answer.l_type != libc::F_UNLCK as libc::c_short
}
