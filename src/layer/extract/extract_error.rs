//! Why an extractor does not say what a request takes.

use http::Response;

use crate::error::Error;
use crate::message::debug_is_message;

/// Why an [`Extractor`](crate::layer::Extractor) does not say what a request takes. The operator `?` converts an
/// [`Error`] or a response into it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ExtractError {
    /// The limits could not be asked: see [`OnError`](crate::layer::OnError). A request that names no key or an invalid
    /// one is always answered 400.
    #[error(transparent)]
    Failed(#[from] Error),
    /// The extractor answers the request itself, for example 401 because nobody knows its key. This response is sent as
    /// it is, in place of the service's; nothing is taken from the limits, and neither
    /// [`OnError`](crate::layer::OnError) nor [`on_rejection`](crate::layer::LimitLayer::on_rejection) has a say.
    #[error("the extractor answers the request itself, with status {}", .0.status())]
    Answered(Box<Response<String>>),
}

debug_is_message!(ExtractError);

impl From<Response<String>> for ExtractError {
    fn from(response: Response<String>) -> Self {
        Self::Answered(Box::new(response))
    }
}
