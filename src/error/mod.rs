//! What can go wrong. A decision of the limits is never an error: see [`Refusal`](crate::Refusal).

mod change_error;
mod declaration_error;
mod difference;
mod listing;
mod open_error;
mod permit_error;
mod process_id;
mod removal_cause;
mod request_error;
mod segment_error;

use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::message::debug_is_message;

pub use change_error::ChangeError;
pub use declaration_error::DeclarationError;
pub(crate) use difference::Assignment;
pub use difference::Difference;
pub(crate) use listing::processes;
pub use open_error::OpenError;
pub(crate) use open_error::attaching_processes;
pub use permit_error::PermitError;
pub use process_id::ProcessId;
pub use removal_cause::RemovalCause;
pub use request_error::RequestError;
pub use segment_error::SegmentError;

/// Everything that can go wrong, grouped by what was being done.
///
/// Each message says what is wrong, where, and what to do.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A segment could not be created, opened or removed.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A declaration does not make sense.
    #[error(transparent)]
    Declaration(#[from] DeclarationError),
    /// A request does not fit the set it was used on. Nothing was taken.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A live segment cannot be changed like this. Nothing was changed.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// A permit has nothing left to give back or settle.
    #[error(transparent)]
    Permit(#[from] PermitError),
    /// A segment, or one of its sets, cannot be used now or any more.
    #[error(transparent)]
    Segment(#[from] SegmentError),
}

debug_is_message!(Error);

// Errors are read and never changed, so a panic elsewhere cannot leave one half changed. Not derived, because
// `std::io::Error` is neither.
impl UnwindSafe for Error {}
impl RefUnwindSafe for Error {}

impl From<Box<Error>> for Error {
    fn from(error: Box<Error>) -> Self {
        *error
    }
}
