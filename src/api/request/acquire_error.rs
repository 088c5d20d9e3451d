//! Why there is no permit, as one error.

use std::time::Duration;

use crate::api::refusal::Refusal;
use crate::error::Error;
use crate::message::debug_is_message;

/// Why there is no permit: the limits refused, or they could not be asked. See
/// [`Request::try_permit`](crate::Request::try_permit).
///
/// `?` converts either into it, so a function that returns it can use every verb:
///
/// ```
/// # use std::time::Duration;
/// use shmlimit::{AcquireError, Declaration, Limit, LimitSet, Segment, SetDeclaration};
///
/// fn connect(pool: &LimitSet) -> Result<(), AcquireError> {
///     let _connection = pool.request().acquire(Duration::from_millis(1))?.into_result()?;
///     Ok(())
/// }
///
/// # let directory = tempfile::tempdir()?;
/// # let declaration = Declaration::new().add_set(
/// #     SetDeclaration::new("pool").add_limit(Limit::concurrency("connections", 1)));
/// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
/// let pool = segment.set("pool")?;
/// let _only = pool.request().try_permit()?;
/// let error = connect(&pool).expect_err("one at a time");
/// assert_eq!(error.refusal().and_then(|refusal| refusal.binding()), Some("connections"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The limits refused. Nothing was taken.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The limits could not be asked, or no waiting could help.
    #[error(transparent)]
    Failed(#[from] Error),
}

debug_is_message!(AcquireError);

impl AcquireError {
    /// The refusal, if the limits refused.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Failed(_) => None,
        }
    }

    /// How long until the request would be admitted: see [`Refusal::retry_after`]. Also `None` if it was not refused.
    pub fn retry_after(&self) -> Option<Duration> {
        self.refusal().and_then(Refusal::retry_after)
    }
}
