//! Why a permit can give nothing back.

use crate::message::debug_is_message;

/// A permit or a reservation has nothing left to give back or settle.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PermitError {
    /// The permit was already settled.
    #[error("the permit of set `{set}` was settled already: settle each permit once")]
    AlreadySettled {
        /// The set.
        set: String,
    },
    /// The permit was already released.
    #[error("the permit of set `{set}` was released already: settle before the release")]
    AlreadyReleased {
        /// The set.
        set: String,
    },
    /// The permit was taken by the process that forked this one, and stays with it.
    #[error(
        "the permit of set `{set}` belongs to the process that forked this one: acquire another in this process"
    )]
    Inherited {
        /// The set.
        set: String,
    },
    /// What the permit held was given back, because its lease had run out or its process was taken for dead.
    #[error(
        "what the permit of set `{set}` held was reclaimed: renew its lease in time, or declare a longer one"
    )]
    Reclaimed {
        /// The set.
        set: String,
    },
}

debug_is_message!(PermitError);
