//! What can go wrong. What the limits say is never an error: see [`Refusal`](crate::Refusal).

mod declaration;
mod difference;
mod parse_error;

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::PathBuf;
use std::{fmt, io};

pub use declaration::DeclarationError;
pub(crate) use difference::Assignment;
pub use difference::Difference;
pub use parse_error::ParseError;

/// What happened to a segment that was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemovalCause {
    /// It was [retired](crate::Segment::retire), by `limitctl remove` or
    /// [`RecreateIfUnused`](crate::OnMismatch::RecreateIfUnused) for instance.
    Retired,
    /// Its file was deleted (`rm`), or another was moved over it (`mv`), and no path leads to it any more.
    Deleted,
    /// The path that this process opened it by leads to another segment: this one was moved elsewhere.
    Replaced,
}

impl fmt::Display for RemovalCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retired => "it was retired, by `limitctl remove` for instance",
            Self::Deleted => "its file was deleted",
            Self::Replaced => "another segment is at its path",
        })
    }
}

/// Everything that can go wrong with a segment, a declaration or a request.
///
/// Each message names what was wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
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
        /// Whose the file or the directory is, and as whom this process runs.
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
    /// The file system has no room for the segment. Nothing was created.
    #[error(
        "no room for {bytes} bytes at {}: make room (/dev/shm of a container has 64 MB unless it is started with \
         --shm-size), or declare fewer keys, holds, entries or participants",
        path.display()
    )]
    NoSpace {
        /// The path asked for.
        path: PathBuf,
        /// The size of the segment.
        bytes: u64,
    },
    /// The file is not a segment at all.
    #[error("{} is not a shmlimit segment: it starts with {found:#018x}, a segment with {expected:#018x}", path.display())]
    NotASegment {
        /// The file.
        path: PathBuf,
        /// The first eight bytes found, as a number of this host.
        found: u64,
        /// The first eight bytes of a segment.
        expected: u64,
    },
    /// The segment was made by a build whose layout differs.
    #[error("{} has another {what}: found {found}, this build expects {expected}; use one build for all processes, or create a new segment", path.display())]
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
    #[error("{} is in use in another {what} namespace (found {found}, this process is in {expected}): share it, for example with `--pid=host` or `shareProcessNamespace`, or use a segment of its own here", path.display())]
    ForeignNamespace {
        /// The file.
        path: PathBuf,
        /// `PID` or `time`.
        what: &'static str,
        /// The namespace in the header.
        found: u64,
        /// The namespace of this process.
        expected: u64,
    },
    /// The segment is of another boot or a copy, and processes are attached to it nevertheless.
    #[error("{} was copied or comes from another boot, but processes are attached to it: end them, then open it again", path.display())]
    ForeignBoot {
        /// The file.
        path: PathBuf,
    },
    /// The file's size is not what its header says.
    #[error("{} has {found} bytes, its header says {expected}: it was truncated or is not a whole copy", path.display())]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// Bytes expected.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// Something in the file cannot be right.
    #[error("{} is damaged: {what}; create a new segment", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong and where.
        what: String,
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
    /// Parts of the file have no place on its file system, so a change of them could fail. Nothing was changed.
    #[error("{} has holes, where a change may need space and fail: copy it again with `cp --sparse=never`, or create a new segment", path.display())]
    Sparse {
        /// The file.
        path: PathBuf,
    },
    /// Every participant slot is taken by a live process.
    #[error("{} has no room for another process: its {capacity} participants are all taken, by {}; declare more in a new segment, or end some of those", path.display(), live_processes(*processes))]
    TooManyParticipants {
        /// The file.
        path: PathBuf,
        /// The participants declared, all of which are attached.
        capacity: u64,
        /// How many processes they are: one with several copies of this library is attached by each of them.
        processes: u64,
    },
    /// Processes are attached to the segment that is to be removed.
    #[error("{} is in use by {}: end what uses it first, or remove it by force", path.display(), processes(pids))]
    InUse {
        /// The file.
        path: PathBuf,
        /// The processes, as their ids are in the segment's PID namespace.
        pids: Vec<u64>,
    },
    /// Another process is initialising or attaching and does not come to an end.
    #[error("{} is being attached by another process that does not finish", path.display())]
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
    /// What differs from the live segment cannot change in place. Nothing was changed.
    #[error("{} cannot be changed in place to this: {}; create a new segment for it", path.display(), joined(differences))]
    CannotApply {
        /// The file.
        path: PathBuf,
        /// Each difference that cannot change in place.
        differences: Vec<Difference>,
    },
    /// The segment is not to be used any more: it was retired, its file was deleted, or another segment is at its path.
    /// Handles of it admit nothing from then on; permits that are out are settled and released as ever.
    #[error("the segment at {} was removed: {cause}; open the path again to use its successor", path.display())]
    Removed {
        /// The path that it was opened by.
        path: PathBuf,
        /// What happened to it.
        cause: RemovalCause,
    },
    /// The holder of a set's lock is alive and does not release it: it is stopped, or writes a core dump.
    #[error("the lock of set `{set}` is held by {} and was not released in time: see whether it is stopped", holder(*pid))]
    LockStuck {
        /// The set.
        set: String,
        /// The process that holds it, where the system says.
        pid: Option<u32>,
    },
    /// The lock of a set can never be taken again.
    #[error("the lock of set `{set}` is beyond recovery: create a new segment")]
    LockLost {
        /// The set.
        set: String,
    },
    /// A recovery could not make sense of the set.
    #[error("set `{set}` is poisoned: run `limitctl recover`, and `limitctl reset` if that does not help")]
    Poisoned {
        /// The set.
        set: String,
    },
    /// The segment has no set of that name.
    #[error("there is no set `{name}`; the segment has {}", some_of(known))]
    UnknownSet {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The set has no limit of that name.
    #[error("set `{set}` has no limit `{limit}`; it has {}", join(known))]
    UnknownLimit {
        /// The set.
        set: String,
        /// The name asked for.
        limit: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The set has no tier of that name.
    #[error("set `{set}` has no tier `{tier}`; it has {}", join(known))]
    UnknownTier {
        /// The set.
        set: String,
        /// The name asked for.
        tier: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A key cannot be given a capacity of its own.
    #[error("set `{set}`, limit `{limit}`: no key can have the capacity {capacity} of its own: {reason}")]
    CannotOverride {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
        /// The capacity asked for, in units.
        capacity: u64,
        /// Why not, and what to do about it.
        reason: String,
    },
    /// A key cannot be assigned to a tier, or given a capacity of its own, because its set has no row for it.
    #[error(
        "the table of set `{set}` has no row for another key: declare a larger `max_keys`, or what `when_full` evicts"
    )]
    TableFull {
        /// The set.
        set: String,
    },
    /// A rate limit has no default cost, and the request names nothing.
    #[error(
        "limit `{limit}` of set `{set}` is a rate: the request must name a cost (`forecast` says without one what is left)"
    )]
    CostRequired {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
    },
    /// The cost is more than the limit can ever admit. Nothing was taken.
    #[error(
        "a cost of {cost} on limit `{limit}` of set `{set}` can never be admitted: the most at once is {max}"
    )]
    NeverAdmissible {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
        /// The cost asked for.
        cost: u64,
        /// The most that can be taken at once.
        max: u64,
    },
    /// A reservation takes rate and calls limits only.
    #[error(
        "limit `{limit}` of set `{set}` cannot be reserved: name it with a cost of 0, or reserve from a set of rate and calls limits"
    )]
    NotReservable {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
    },
    /// A decimal amount that is not a whole number of the limit's units.
    #[error("`{given}` is no amount of limit `{limit}` of set `{set}`: {why}")]
    InvalidAmount {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
        /// The amount given.
        given: String,
        /// Why not.
        why: String,
    },
    /// The set is keyed, so the limits are those of one key.
    #[error("set `{set}` is keyed: say whose limits are meant with `key`")]
    KeyRequired {
        /// The set.
        set: String,
    },
    /// The set is not keyed, so there are no limits of a key.
    #[error("set `{set}` is not keyed: use it without a key, or declare it with `keyed`")]
    NotKeyed {
        /// The set.
        set: String,
    },
    /// What is held must be given back, which needs a permit.
    #[error(
        "limit `{limit}` of set `{set}` is held until it is given back: take it with try_acquire or acquire, or ask zero of it"
    )]
    MustBeHeld {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
    },
    /// Only budgets are debited.
    #[error(
        "limit `{limit}` of set `{set}` is no budget: a budget is debited what was used, other limits take a cost"
    )]
    NotABudget {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
    },
    /// The limits of the set count networks, which are found by an address.
    #[error("the limits of set `{set}` count networks: say whose limits are meant with `address`")]
    AddressRequired {
        /// The set.
        set: String,
    },
    /// The limits of the set do not count networks.
    #[error("no limit of set `{set}` counts networks: declare `prefix` on each of them, or use a key")]
    NoPrefixes {
        /// The set.
        set: String,
    },
    /// Keys have from one byte to 64 KiB.
    #[error("a key for set `{set}` has {bytes} bytes: it must have from 1 to {max}")]
    InvalidKey {
        /// The set.
        set: String,
        /// What the key has.
        bytes: usize,
        /// The most that it may have.
        max: usize,
    },
    /// The request was prepared for another set, or for the set of that name in another segment. Any handle of the same
    /// set of the same segment will do.
    #[error(
        "the request was prepared for {prepared_for} and used on set `{set}` of {}: prepare it with `request` of the set \
         that it is used on",
        path.display()
    )]
    ForeignRequest {
        /// The set it was used on.
        set: String,
        /// The segment of that set.
        path: PathBuf,
        /// What it was prepared for, in words.
        prepared_for: String,
    },
    /// Only rate and calls limits are spent as local credit: what is held is held by a permit, and what a budget will
    /// be debited is not known before.
    #[error(
        "limit `{limit}` of set `{set}` has no local credit: take it with try_acquire; rate and calls limits have"
    )]
    NoLocalCredit {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
    },
    /// A batch that is empty, or of which the least is above the most.
    #[error(
        "a batch between {min} and {max} units cannot be: the least must be positive, and the most no less"
    )]
    InvalidBatch {
        /// The least that was given.
        min: u64,
        /// The most that was given.
        max: u64,
    },
    /// A pool of no sets.
    #[error("a pool needs at least one set: none was given")]
    EmptyPool,
    /// The permit was settled before.
    #[error("the permit of set `{set}` was settled already")]
    AlreadySettled {
        /// The set.
        set: String,
    },
    /// The permit was released before.
    #[error("the permit of set `{set}` was released already")]
    AlreadyReleased {
        /// The set.
        set: String,
    },
    /// The permit was taken by the parent of this process; it stays the parent's.
    #[error("the permit of set `{set}` belongs to the process that forked this one")]
    InheritedPermit {
        /// The set.
        set: String,
    },
    /// What was held was given back because a lease had run out, or its process was taken for dead.
    #[error("what the permit of set `{set}` held was reclaimed")]
    Reclaimed {
        /// The set.
        set: String,
    },
    /// The declaration does not make sense.
    #[error(transparent)]
    Declaration(#[from] DeclarationError),
    /// A mistake in this library; the operation was undone.
    #[error("internal error in set `{set}`: {what}; nothing was changed, please report it")]
    Internal {
        /// The set.
        set: String,
        /// What happened.
        what: &'static str,
    },
}

// An error is read, and not changed: a panic elsewhere leaves it whole. Not derived, because `std::io::Error` is neither.
impl UnwindSafe for Error {}
impl RefUnwindSafe for Error {}

impl From<Box<Error>> for Error {
    fn from(error: Box<Error>) -> Self {
        *error
    }
}

fn join(items: &[String]) -> String {
    items.join(", ")
}

fn joined(differences: &[Difference]) -> String {
    let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
    join(&differences)
}

/// The first of the items, as many as a line bears, and how many more there are.
fn some_of(items: &[String]) -> String {
    const MAX: usize = 10;
    match items.get(..MAX) {
        Some(first) if items.len() > MAX => format!("{} and {} more", join(first), items.len() - MAX),
        _ => join(items),
    }
}

pub(crate) fn processes(pids: &[u64]) -> String {
    let noun = if pids.len() == 1 { "process" } else { "processes" };
    let pids: Vec<String> = pids.iter().map(u64::to_string).collect();
    format!("{noun} {}", join(&pids))
}

fn live_processes(count: u64) -> String {
    match count {
        1 => "one live process".to_owned(),
        count => format!("{count} live processes"),
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(
        || "a process that cannot be named".to_owned(),
        |pid| format!("process {pid}"),
    )
}
