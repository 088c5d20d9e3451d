//! What a request that is sent holds, until its response has ended.

use std::error::Error as StdError;

use http::{Extensions, Response};

use crate::layer::body::LimitBody;
use crate::layer::callback::{Callback, ThrottleRule};
use crate::layer::permit_handle::SharedPermit;
use crate::layer::permits::Permits;
use crate::layer::refused_inside::{carries_refusal, is_refusal};

/// What an outgoing request holds, [taken](super::ClientLimitLayer::take) before it is sent. Report how it went with
/// [`answered`](Self::answered) or [`failed`](Self::failed). If you give up the request, drop this: concurrency then
/// comes back, and rates stay charged.
#[derive(Debug)]
#[must_use = "what the request holds is given back as soon as this is dropped"]
pub struct OutgoingPermit {
    held: Option<SharedPermit>,
    throttled_by: Callback<ThrottleRule>,
}

impl OutgoingPermit {
    pub(super) fn new(held: Option<SharedPermit>, throttled_by: Callback<ThrottleRule>) -> Self {
        Self { held, throttled_by }
    }

    /// Adds the permit to the [`Permits`] in the extensions of the request, where clients further in find it.
    pub fn announce(&self, extensions: &mut Extensions) {
        Permits::announce(self.held.as_ref(), extensions);
    }

    /// Reports the upstream's response to the limits. The response that this returns holds the permit until its body has
    /// ended, and has the [`Permits`] in its extensions.
    pub fn answered<B>(self, mut response: Response<B>) -> Response<LimitBody<B>> {
        self.announce(response.extensions_mut());
        let Self { held, throttled_by } = self;
        let held = held.and_then(|held| {
            if carries_refusal(response.extensions()) {
                // A client further in refused the request, so nothing was sent.
                held.abandon();
                return None;
            }
            let Some(wait) = throttled_by(response.status(), response.headers()) else {
                held.note_status(response.status());
                return Some(held);
            };
            if let Err(_error) = held.throttled(wait) {
                held.note_failure();
                #[cfg(feature = "tracing")]
                tracing::warn!(
                    error = %_error,
                    "the limits are not throttled although the upstream asks for it, and go on admitting: see `error`"
                );
            }
            None
        });
        // Dropped here and not by the compiler at the end, where a panic would leave the response without an owner.
        drop(throttled_by);
        response.map(|body| LimitBody::new(body, held))
    }

    /// Records that there was no response. If the error or one of its sources is the refusal of a client further in,
    /// the request was never sent, so everything that was taken for it is given back.
    pub fn failed(self, error: &(dyn StdError + 'static)) {
        match &self.held {
            Some(held) if is_refusal(error) => held.abandon(),
            Some(held) => held.note_failure(),
            None => {}
        }
    }
}
