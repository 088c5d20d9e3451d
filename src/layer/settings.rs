//! The settings of a service.

use std::sync::Arc;
use std::time::Duration;

use super::answer::Shape;
use super::callback::{Callback, FailureRule, RefundRule};
use super::refused_inside::refused_inside;
use crate::headers::Advertise;
use crate::words::words;

/// The settings of a service, apart from which limits to ask.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) advertise: Advertise,
    pub(super) on_error: OnError,
    pub(super) wait: Option<Duration>,
    pub(super) is_failure: Callback<FailureRule>,
    pub(super) is_unused: Callback<RefundRule>,
    pub(super) shape: Option<Callback<Shape>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            advertise: Advertise::default(),
            on_error: OnError::default(),
            wait: None,
            is_failure: Callback(Arc::new(|status| status.is_server_error())),
            is_unused: Callback(Arc::new(refused_inside)),
            shape: None,
        }
    }
}

/// What to do with a request when the limits cannot be asked: the lock of the set is
/// [stuck](crate::SegmentError::LockStuck), the segment was [removed](crate::SegmentError::Removed) and has no
/// [successor](crate::Segment::successor) yet, or a rate limit was given [no
/// cost](crate::RequestError::CostRequired). The store of limits that [hosts share](crate::Limit::fleet) being out is a
/// refusal instead, answered 503.
///
/// The error is in the response's extensions, as an `Arc<`[`Error`](crate::Error)`>`, for a layer around this one to
/// report; with the feature `tracing` it is also an event. If a request to a keyed set has [no
/// key](crate::RequestError::KeyRequired), or an [invalid](crate::RequestError::InvalidKey) one, that is the client's
/// mistake: it is answered 400 in either case and is not an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnError {
    /// Answers 500 and does not call the service: what the limits protect stays protected.
    #[default]
    Refuse,
    /// Calls the service as if the request were not limited: the service stays up.
    Admit,
}

words!(OnError, "what can be done when the limits cannot be asked", {
    Refuse = "refuse",
    Admit = "admit",
});
