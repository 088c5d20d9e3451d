//! Why a segment's file cannot be created, opened or removed.

use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::PathBuf;

use super::difference::Difference;
use super::listing;
use super::listing::{joined, live_processes};
use super::process_id::ProcessId;
use crate::message::debug_is_message;

/// A segment cannot be created, opened or removed. May also occur in a forked child, which opens the segment again on
/// first use.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refused an operation on the segment file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// This process may not use the file, or may not enter its directory or write to it.
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
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be at this path: its directory does not exist, or its file system is read-only.
    #[error("cannot {action} {}: {source}: {why}", path.display())]
    NoPlace {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What is missing, and what to do.
        why: String,
        /// The system's error.
        source: io::Error,
    },
    /// A system call that is needed is not allowed here: a filter of the container or of the service (seccomp) forbids it.
    #[error(
        "cannot {action} {}: {source}: a filter forbids the system call {call} here: allow it (`--security-opt seccomp=PROFILE` of a \
         container, `SystemCallFilter=` of systemd)",
        path.display()
    )]
    CallForbidden {
        /// What was tried, as a verb.
        action: &'static str,
        /// The system call.
        call: &'static str,
        /// The file.
        path: PathBuf,
        /// What the filter answers instead of the system.
        source: io::Error,
    },
    /// There is no file at the path.
    #[error("there is no segment at {}: create it with `limitctl create` or open_or_create", path.display())]
    NotFound {
        /// The requested path.
        path: PathBuf,
    },
    /// There is already a file at the path.
    #[error("{} exists already: open it, or remove it with `limitctl remove`", path.display())]
    AlreadyExists {
        /// The requested path.
        path: PathBuf,
    },
    /// The path ends in `/` or `.d`, as that of a directory with a file for each set does, but there is something else.
    #[error(
        "{} is a file, and a path that ends in `/` or `.d` names a directory with a file for each set: give another \
         path, or delete the file once no process uses it",
        path.display()
    )]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// A file in a directory with a file for each set is not that of the set for which it is named.
    #[error("{} does not belong where it is: {why}", path.display())]
    Misplaced {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// The file system has no room for the segment, or this process may not use that much: its memory cgroup or its
    /// maximum file size (`ulimit -f`) is in the way. Nothing was created.
    #[error("no room for {bytes} bytes at {}: {why}", path.display())]
    NoSpace {
        /// The requested path.
        path: PathBuf,
        /// The size of the segment in bytes.
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
    /// The file is not a checkpoint.
    #[error(
        "{} is not a checkpoint: it starts with {found:#018x}; declare another path, or move the file away",
        path.display()
    )]
    NotACheckpoint {
        /// The file.
        path: PathBuf,
        /// The first eight bytes found, as a number of this host.
        found: u64,
    },
    /// The segment was made by a build with a different layout.
    #[error("{} has another {what}: {}", path.display(), disagreement(what, *found, *expected))]
    Incompatible {
        /// The file.
        path: PathBuf,
        /// What differs: format, layout fingerprint, word size, byte order, C library, lock kind, clock, features.
        what: &'static str,
        /// The file's value.
        found: u64,
        /// This build's value.
        expected: u64,
    },
    /// Processes of another namespace, in which process ids or clocks mean something else, are using the segment.
    #[error("{} is in use in {}", path.display(), foreign_namespace(what, *found, *expected))]
    ForeignNamespace {
        /// The file.
        path: PathBuf,
        /// `PID` or `time`.
        what: &'static str,
        /// The namespace in the header; zero if the processes that use the segment could not tell, for want of
        /// `/proc`.
        found: u64,
        /// This process's namespace; zero if it cannot tell.
        expected: u64,
    },
    /// The file cannot be opened again. A forked child that has inherited it must do that, and so must a process
    /// whose descriptor of it was closed. But its path leads to another file or to none by now, and `/proc/self/fd`
    /// does not lead to it either.
    #[error("{} cannot be opened again: its path leads elsewhere by now, and /proc/self/fd does not lead to it ({source}). Mount /proc where \
             this process runs, or open the segment after what renames it, mounts over it or changes the root directory", path.display())]
    Moved {
        /// The path that it was opened by.
        path: PathBuf,
        /// Why it cannot be opened by its descriptor.
        source: io::Error,
    },
    /// What was asked for needs a segment with a path. See [`Segment::anonymous`](crate::Segment::anonymous).
    #[error("{}: {why}", path.display())]
    Anonymous {
        /// The path of its descriptor in `/proc`, or what such a segment is called before it has one.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: &'static str,
    },
    /// The segment is from another boot or a copy, yet processes are attached to it.
    #[error("{} was copied or comes from another boot, but processes are attached to it: end them, then open it again", path.display())]
    ForeignBoot {
        /// The file.
        path: PathBuf,
    },
    /// The file's size does not match its header.
    #[error("{} has {found} bytes, its header says {expected}: it was truncated or is not a whole copy; copy it again whole, or create it anew", path.display())]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// The expected size in bytes.
        expected: u64,
        /// The actual size in bytes.
        found: u64,
    },
    /// The file must not be trusted.
    #[error("{} is not trusted: {why}", path.display())]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
    /// Locks or mappings do not work reliably on this file system.
    #[error("{} is on {file_system}, {why}: create it in /dev/shm or on a local disk", path.display())]
    UnsupportedFileSystem {
        /// The file.
        path: PathBuf,
        /// The file system.
        file_system: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A process shows that it is alive by a file lock, and this file system releases that lock while the process is
    /// alive, as an overlay does. Every process would look dead. Nothing was created or changed.
    #[error(
        "{} is on {file_system}, where the lock by which a process shows that it lives ends too early, so that live processes would \
         count as dead: create it in /dev/shm, or in a volume (a directory of the host, or a tmpfs, that is mounted into the container)",
        path.display()
    )]
    LocksNotKept {
        /// The file.
        path: PathBuf,
        /// The file system.
        file_system: String,
    },
    /// A process, which may have no more than permission to read the file, has a read lock where others have to put
    /// their locks.
    #[error(
        "{} is locked for reading by {}, so no other process can join: end the process that has that lock, or stop it from reading \
         the file (mode 0600)",
        path.display(),
        readers(processes)
    )]
    LockedByReader {
        /// The file.
        path: PathBuf,
        /// The processes, as far as this one can see them.
        processes: Vec<ProcessId>,
    },
    /// Parts of the file have no space on its file system, so changing them could fail. Nothing was changed.
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
        /// The number of participants declared, all of which are attached.
        capacity: u64,
        /// The number of processes attached. A process with several copies of this library takes a slot for each of
        /// them.
        processes: u64,
    },
    /// Processes are attached to the segment to be removed.
    #[error("{} is in use by {}: end what uses it first, or remove it all the same with `limitctl remove --force`", path.display(), listing::processes(processes))]
    InUse {
        /// The file.
        path: PathBuf,
        /// The processes.
        processes: Vec<ProcessId>,
    },
    /// Another process is initialising the segment or attaching to it, and does not finish.
    #[error(
        "{} is being created or attached by {}, which does not finish within 10 s: if that is stopped, continue it \
         (kill -CONT) or end it",
        path.display(),
        attaching_processes(processes)
    )]
    AttachStuck {
        /// The file.
        path: PathBuf,
        /// The process, if this one can see it, and those that have inherited its file.
        processes: Vec<ProcessId>,
    },
    /// The kernel lacks something that correctness needs.
    #[error("this kernel cannot {what}: {source}; Linux 4.14 or later is needed")]
    Unsupported {
        /// What it cannot do.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The segment's declaration differs from the one asked for.
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

debug_is_message!(OpenError);

/// Names the processes that have a read lock.
fn readers(processes: &[ProcessId]) -> String {
    if processes.is_empty() {
        "a process that this one cannot see".to_owned()
    } else {
        listing::processes(processes)
    }
}

/// Names the processes that create a segment or attach to it.
pub(crate) fn attaching_processes(processes: &[ProcessId]) -> String {
    if processes.is_empty() {
        "another process, which this one cannot see".to_owned()
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

/// The namespace of a segment, and what to do.
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

/// What to do if processes of two namespaces are to use one segment.
fn way_out(what: &str) -> &'static str {
    if what == "PID" {
        "share it, for example with `--pid=host` or `shareProcessNamespace`, or declare the segment with `lock = \"slot\"`, \
         which processes of several PID namespaces can use"
    } else {
        "share it, or use a segment of its own here"
    }
}

// Errors are read and never changed, so a panic elsewhere cannot leave one half changed. Not derived, because
// `std::io::Error` is neither.
impl UnwindSafe for OpenError {}
impl RefUnwindSafe for OpenError {}
