//! Why a segment's file cannot be created, opened or removed.

use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::PathBuf;

use super::difference::Difference;
use super::listing;
use super::listing::{joined, live_processes};
use super::process_id::ProcessId;

/// A segment cannot be created, opened or removed. A forked child opens it again, at its first use there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refused an operation on the segment file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// This process may not use the file, or not enter or write its directory.
    #[error(
        "cannot {action} {}: {source}: {why}; run all its users as one user, or let a group have it: created as root \
         with mode 0660, in a directory of that group with mode 2750. A process that changes its user opens it after that",
        path.display()
    )]
    Denied {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The owner of the file or the directory, and the user of this process.
        why: String,
        /// The system's answer.
        source: io::Error,
    },
    /// There is no file at the path.
    #[error("there is no segment at {}: create it with `limitctl create` or open_or_create", path.display())]
    NotFound {
        /// The path asked for.
        path: PathBuf,
    },
    /// There is a file at the path already.
    #[error("{} exists already: open it, or remove it with `limitctl remove`", path.display())]
    AlreadyExists {
        /// The path asked for.
        path: PathBuf,
    },
    /// The file system has no room for the segment, or this process may not take as much: its memory cgroup or its largest file size
    /// (`ulimit -f`) is in the way. Nothing was created.
    #[error("no room for {bytes} bytes at {}: {why}", path.display())]
    NoSpace {
        /// The path asked for.
        path: PathBuf,
        /// The size of the segment.
        bytes: u64,
        /// What is in the way, and what to do.
        why: String,
    },
    /// The file is not a segment at all.
    #[error("{} is not a shmlimit segment: it starts with {found:#018x}, a segment with {expected:#018x}; give the path of a segment, or move the file away", path.display())]
    NotASegment {
        /// The file.
        path: PathBuf,
        /// The first eight bytes found, as a number of this host.
        found: u64,
        /// The first eight bytes of a segment.
        expected: u64,
    },
    /// The file is not one of checkpoints.
    #[error(
        "{} is no checkpoint: it starts with {found:#018x}; declare another path, or move the file away",
        path.display()
    )]
    NotACheckpoint {
        /// The file.
        path: PathBuf,
        /// The first eight bytes found, as a number of this host.
        found: u64,
    },
    /// The segment was made by a build whose layout differs.
    #[error("{} has another {what}: {}", path.display(), disagreement(what, *found, *expected))]
    Incompatible {
        /// The file.
        path: PathBuf,
        /// What differs: format, layout fingerprint, word size, byte order, C library, lock kind, clock, features.
        what: &'static str,
        /// What the file says.
        found: u64,
        /// What this build is.
        expected: u64,
    },
    /// The segment is in use by processes of another namespace, in which process ids or clocks mean something else.
    #[error("{} is in use in {}", path.display(), foreign_namespace(what, *found, *expected))]
    ForeignNamespace {
        /// The file.
        path: PathBuf,
        /// `PID` or `time`.
        what: &'static str,
        /// The namespace in the header; zero where the processes that use it cannot tell, for want of `/proc`.
        found: u64,
        /// The namespace of this process; zero where it cannot tell.
        expected: u64,
    },
    /// The file cannot be opened once more, which a forked child must do that has inherited it, and a process whose descriptor of it
    /// was closed: its path leads to another file or to none by now, and `/proc/self/fd` does not lead to it either.
    #[error("{} cannot be opened again: its path leads elsewhere by now, and /proc/self/fd is no way to it ({source}). Mount /proc where \
             this process runs, or open the segment after what renames it, mounts over it or changes the root directory", path.display())]
    Moved {
        /// The path by which it was opened.
        path: PathBuf,
        /// Why it cannot be opened by its descriptor.
        source: io::Error,
    },
    /// The segment is of another boot or a copy, and processes are attached to it nevertheless.
    #[error("{} was copied or comes from another boot, but processes are attached to it: end them, then open it again", path.display())]
    ForeignBoot {
        /// The file.
        path: PathBuf,
    },
    /// The file's size is not what its header says.
    #[error("{} has {found} bytes, its header says {expected}: it was truncated or is not a whole copy; copy it again whole, or create it anew", path.display())]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// Bytes expected.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The file must not be trusted.
    #[error("{} is not to be trusted: {why}", path.display())]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
    /// Locks or mappings do not hold on this file system.
    #[error("{} lies on {file_system}, {why}: create it in /dev/shm or on a local disk", path.display())]
    UnsupportedFileSystem {
        /// The file.
        path: PathBuf,
        /// The file system.
        file_system: &'static str,
        /// What is wrong with that.
        why: &'static str,
    },
    /// The file system gives up the lock by which a process shows that it lives while the process is alive, as an overlay does:
    /// all would count as dead. Nothing was created or changed.
    #[error(
        "{} lies on {file_system}, where the lock by which a process shows that it lives ends too early, so that live processes would \
         count as dead: create it in /dev/shm, or in a volume (a directory of the host, or a tmpfs, that is mounted into the container)",
        path.display()
    )]
    LocksNotKept {
        /// The file.
        path: PathBuf,
        /// The file system.
        file_system: String,
    },
    /// A process that may read the file, and perhaps no more, has a lock for reading where others have to put theirs.
    #[error(
        "{} is locked for reading by {}, so that no process can join those who use it: end what has that lock, or take it the right \
         to read the file (mode 0600)",
        path.display(),
        readers(processes)
    )]
    LockedByReader {
        /// The file.
        path: PathBuf,
        /// The processes, as far as this one may see them.
        processes: Vec<ProcessId>,
    },
    /// Parts of the file have no place on its file system, so a change of them could fail. Nothing was changed.
    #[error("{} has holes, where a change may need space and fail: copy it again with `cp --sparse=never`, or create a new segment", path.display())]
    Sparse {
        /// The file.
        path: PathBuf,
    },
    /// Every participant slot is taken by a live process.
    #[error("{} has no room for another process: its {capacity} participants are all taken, by {}; declare more (`participants = ...` under [segment]) in a new segment, or end some of those", path.display(), live_processes(*processes))]
    TooManyParticipants {
        /// The file.
        path: PathBuf,
        /// The participants declared, all of which are attached.
        capacity: u64,
        /// How many processes they are: one with several copies of this library is attached by each of them.
        processes: u64,
    },
    /// Processes are attached to the segment that is to be removed.
    #[error("{} is in use by {}: end what uses it first, or remove it all the same with `limitctl remove --force`", path.display(), listing::processes(processes))]
    InUse {
        /// The file.
        path: PathBuf,
        /// The processes.
        processes: Vec<ProcessId>,
    },
    /// Another process is initialising or attaching and does not come to an end.
    #[error("{} is being attached by another process that does not finish: if that is stopped, continue it (kill -CONT) or end it", path.display())]
    AttachStuck {
        /// The file.
        path: PathBuf,
    },
    /// The kernel lacks something that correctness needs.
    #[error("this kernel cannot {what}: {source}; Linux 4.14 or later is needed")]
    Unsupported {
        /// What it cannot do.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The segment's declaration is not the one asked for.
    #[error("{} has another declaration: {}; {remedy}", path.display(), joined(differences))]
    ConfigMismatch {
        /// The file.
        path: PathBuf,
        /// Each difference.
        differences: Vec<Difference>,
        /// What to do, with the commands.
        remedy: String,
    },
}

/// Who has a lock for reading.
fn readers(processes: &[ProcessId]) -> String {
    if processes.is_empty() {
        "a process that this one cannot see".to_owned()
    } else {
        listing::processes(processes)
    }
}

/// What differs, and what to do about it.
fn disagreement(what: &str, found: u64, expected: u64) -> String {
    if what == "C library" {
        let name = |library| match library {
            1 => "glibc".to_owned(),
            2 => "musl".to_owned(),
            other => other.to_string(),
        };
        let (found, expected) = (name(found), name(expected));
        return format!(
            "found {found}, this build has {expected}; use images with one C library, or declare the segment with `lock = \"slot\"`, \
             which processes with several can use"
        );
    }
    format!(
        "found {found}, this build expects {expected}; use one build for all processes, or create a new segment"
    )
}

/// Of which namespace a segment is, and what to do.
fn foreign_namespace(what: &str, found: u64, expected: u64) -> String {
    match (found, expected) {
        (_, 0) => format!(
            "{what} namespace {found}, and this process cannot tell which one it is in, because /proc is not mounted where it runs: \
             mount it there"
        ),
        (0, _) => format!(
            "a {what} namespace that its processes cannot tell, because /proc is not mounted where they run: mount it there, then \
             start them again"
        ),
        _ => format!(
            "another {what} namespace (found {found}, this process is in {expected}): {}",
            way_out(what)
        ),
    }
}

/// What to do where processes of two namespaces are to use one segment.
fn way_out(what: &str) -> &'static str {
    if what == "PID" {
        "share it, for example with `--pid=host` or `shareProcessNamespace`, or declare the segment with `lock = \"slot\"`, \
         which processes of several PID namespaces can use"
    } else {
        "share it, or use a segment of its own here"
    }
}

// An error is read, and not changed: a panic elsewhere leaves it whole. Not derived, because `std::io::Error` is neither.
impl UnwindSafe for OpenError {}
impl RefUnwindSafe for OpenError {}
