//! Why a request was not sent, or has no response.

use std::error::Error as StdError;

use crate::api::refusal::Refusal;
use crate::error::Error;
use crate::message::debug_is_message;

/// Why a request has no response. It tells a refusal by the limits of this host from responses of the upstream and
/// from errors of the inner client.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ClientError<E: StdError + 'static> {
    /// The limits refused the request, and it was not sent. The refusal's `retry_after` says when it would be
    /// admitted.
    #[error("the request was not sent: {0}")]
    Refused(#[source] Refusal),
    /// The limits could not be asked, and the request was not sent: see [`OnError`](crate::layer::OnError).
    #[error("the request was not sent: {0}")]
    Limits(#[source] Error),
    /// The error of the inner client.
    #[error(transparent)]
    Client(E),
}

debug_is_message!([E: StdError + 'static] ClientError<E>);

impl<E: StdError + 'static> ClientError<E> {
    /// The refusal, if it is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}
