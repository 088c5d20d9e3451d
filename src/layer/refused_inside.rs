//! Which requests never happened, so that everything they took comes back.

use std::error::Error as StdError;
use std::iter;
use std::sync::Arc;

use http::Extensions;
use http::response::Parts;

use crate::api::refusal::Refusal;
use crate::error::{Error, RequestError};

/// Whether the limits of a layer further in, of this process, refused the request: the service behind them did no
/// work.
///
/// A [`LimitLayer`](super::LimitLayer) then gives back all that it took, unless [`refund_when`] says otherwise. The
/// response is recognized by its extensions, which no peer can write: they contain the [`Refusal`], or an
/// `Arc<`[`Error`]`>` that is [`RequestError::NeverAdmissible`]. A service that asks limits itself says the same by
/// putting the refusal into the extensions of its response.
///
/// [`refund_when`]: super::LimitLayer::refund_when
pub fn refused_inside(head: &Parts) -> bool {
    carries_refusal(&head.extensions)
}

/// Whether a response says that limits of this process refused its request.
pub(super) fn carries_refusal(extensions: &Extensions) -> bool {
    extensions.get::<Refusal>().is_some()
        || extensions
            .get::<Arc<Error>>()
            .is_some_and(|error| is_never_admissible(error))
}

/// Whether an error or one of its sources says that limits of this process refused the request.
pub(super) fn is_refusal(error: &(dyn StdError + 'static)) -> bool {
    iter::successors(Some(error), |error| (*error).source())
        .any(|error| error.is::<Refusal>() || error.downcast_ref().is_some_and(is_never_admissible))
}

fn is_never_admissible(error: &Error) -> bool {
    matches!(error, Error::Request(RequestError::NeverAdmissible { .. }))
}
