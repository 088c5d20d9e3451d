//! Why a request did not go out, or has no response.

use std::error::Error as StdError;

use crate::api::refusal::Refusal;
use crate::error::Error;

/// Why a request has no response. That the limits of this host refused it is distinguished from what the upstream
/// answers, and from what the client behind the layer fails with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError<E: StdError + 'static> {
    /// The limits refused the request: it was not sent. `retry_after` of the refusal says when it would be admitted.
    #[error("the request was not sent: {0}")]
    Refused(#[source] Refusal),
    /// The limits could not be asked, and the request was not sent: see [`OnError`](crate::tower::OnError).
    #[error("the request was not sent: {0}")]
    Limits(#[source] Error),
    /// What the client behind the layer failed with.
    #[error(transparent)]
    Client(E),
}

impl<E: StdError + 'static> ClientError<E> {
    /// The refusal, where it is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}
