//! Why a live segment cannot be changed in some way.

use std::path::PathBuf;

use super::difference::Difference;
use super::listing::joined;
use crate::message::debug_is_message;

/// A live segment cannot be changed like this. Nothing was changed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// Some of the differences from the live segment cannot be applied in place. Nothing was changed.
    #[error("{} cannot be changed in place to this: {}; create a new segment for it", path.display(), joined(differences))]
    CannotApply {
        /// The file.
        path: PathBuf,
        /// Each difference that cannot change in place.
        differences: Vec<Difference>,
    },
    /// A key cannot be given this capacity of its own.
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
    /// A key cannot be assigned to a tier or given a capacity of its own, because its set has no row for it.
    #[error(
        "the table of set `{set}` has no row for another key: declare a larger `max_keys`, or what `when_full` evicts"
    )]
    TableFull {
        /// The set.
        set: String,
    },
}

debug_is_message!(ChangeError);
