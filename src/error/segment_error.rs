//! Why a segment, or one of its sets, cannot be used.

use std::path::PathBuf;

use super::process_id::ProcessId;
use super::removal_cause::RemovalCause;
use crate::message::debug_is_message;

/// A segment, or one of its sets, cannot be used now or any more.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// Something in the file cannot be right. Noticed when the segment is opened or used.
    #[error("{} is damaged: {what}; create a new segment", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong and where.
        what: String,
    },
    /// The segment must not be used any more: it was retired, its file was deleted, or another segment is at its
    /// path. Its handles admit nothing any more; permits can still be settled and released.
    #[error("the segment at {} was removed: {}; open the path again to use its successor", path.display(), cause.in_a_sentence())]
    Removed {
        /// The path that it was opened by.
        path: PathBuf,
        /// What happened to it.
        cause: RemovalCause,
    },
    /// The holder of a set's lock is alive but does not release it: it is stopped, or is writing a core dump.
    #[error("the lock of set `{set}` is held by {} and was not released in time: if that process is stopped, continue it (kill -CONT) or end it", holder(*process))]
    LockStuck {
        /// The set.
        set: String,
        /// The process that holds it, if known.
        process: Option<ProcessId>,
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
    /// A bug in this library; the operation was undone.
    #[error("internal error in set `{set}`: {what}; nothing was changed, please report it")]
    Internal {
        /// The set.
        set: String,
        /// What happened.
        what: &'static str,
    },
}

debug_is_message!(SegmentError);

fn holder(process: Option<ProcessId>) -> String {
    process.map_or_else(
        || "a process that cannot be named".to_owned(),
        |process| format!("process {process}"),
    )
}
