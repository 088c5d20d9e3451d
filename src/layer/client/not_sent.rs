//! Why a request is not sent.

use std::sync::Arc;

use http::Response;

use crate::api::refusal::Refusal;
use crate::error::{Error, RequestError};
use crate::layer::answer::grpc::{Code, end_call};
use crate::layer::extract::extract_error::ExtractError;
use crate::message::debug_is_message;

/// Why a request must not be sent, as returned by [`ClientLimitLayer::take`](super::ClientLimitLayer::take).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NotSent {
    /// The limits refused the request. The refusal's `retry_after` says when it would be admitted.
    #[error("the request was not sent: {0}")]
    Refused(#[source] Refusal),
    /// The limits could not be asked: see [`OnError`](crate::layer::OnError).
    #[error("the request was not sent: {0}")]
    Failed(#[source] Error),
    /// The extractor [answers](ExtractError::Answered) the request in place of the upstream.
    #[error("the request was not sent: the extractor answers it, with status {}", .0.status())]
    Answered(Box<Response<String>>),
}

debug_is_message!(NotSent);

impl NotSent {
    /// The answer to a gRPC client in place of the upstream's. The reason is in the extensions.
    pub(super) fn into_grpc(self) -> Response<String> {
        let message = self.to_string();
        let ended = |code, retry_after| {
            let mut response = Response::new(String::new());
            end_call(response.headers_mut(), code, &message, retry_after);
            response
        };
        match self {
            Self::Refused(refusal) => {
                let mut response = ended(Code::ResourceExhausted, refusal.retry_after());
                response.extensions_mut().insert(refusal);
                response
            }
            Self::Failed(error) => {
                let code = match &error {
                    Error::Request(RequestError::NeverAdmissible { .. }) => Code::ResourceExhausted,
                    Error::Request(_) => Code::InvalidArgument,
                    _ => Code::Internal,
                };
                let mut response = ended(code, None);
                response.extensions_mut().insert(Arc::new(error));
                response
            }
            Self::Answered(response) => *response,
        }
    }
}

impl From<Error> for NotSent {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<ExtractError> for NotSent {
    fn from(error: ExtractError) -> Self {
        match error {
            ExtractError::Failed(error) => Self::Failed(error),
            ExtractError::Answered(response) => Self::Answered(response),
        }
    }
}
