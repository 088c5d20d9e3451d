//! The layer: what is decided once, when a service is built.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Response, StatusCode};
use tower_layer::Layer;

use super::answer::{Rejection, Shape};
use super::extract::demand::Extractor;
use super::service::LimitService;
use crate::http::Advertise;

/// Puts limits before a service: see the [module](super).
///
/// It is cheap to clone, and so are its services. All of them, in all processes, share the limits.
#[derive(Debug)]
#[must_use]
pub struct LimitLayer<E> {
    extractor: Arc<E>,
    settings: Settings,
}

/// What a service does beyond asking the limits.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) advertise: Advertise,
    pub(super) on_error: OnError,
    pub(super) wait: Option<Duration>,
    pub(super) is_failure: fn(StatusCode) -> bool,
    pub(super) shape: Option<Shape>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            advertise: Advertise::default(),
            on_error: OnError::default(),
            wait: None,
            is_failure: |status| status.is_server_error(),
            shape: None,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("advertise", &self.advertise)
            .field("on_error", &self.on_error)
            .field("wait", &self.wait)
            .field("is_failure", &self.is_failure)
            .field("shape", &self.shape.as_ref().map(|_| ".."))
            .finish()
    }
}

/// What to do with a request when the limits cannot be asked: the lock of the set is [stuck](crate::Error::LockStuck),
/// the segment was [removed](crate::Error::Removed) and has no [successor](crate::Segment::successor) yet, a rate limit
/// was given [no cost](crate::Error::CostRequired).
///
/// The error is in the response's extensions, as an `Arc<`[`Error`](crate::Error)`>`, for a layer around this one to
/// report; with the feature `tracing` it is an event as well. That a request to a keyed set has
/// [no key](crate::Error::KeyRequired), or one that [cannot be](crate::Error::InvalidKey), is the client's affair: it is
/// answered 400 in either case and is no event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// Answers 500 and does not call the service: what the limits protect stays protected.
    #[default]
    Refuse,
    /// Calls the service as though the request were not limited: the service stays up.
    Admit,
}

impl<E: Extractor> LimitLayer<E> {
    /// A layer that limits requests as the extractor says.
    pub fn new(extractor: E) -> Self {
        Self {
            extractor: Arc::new(extractor),
            settings: Settings::default(),
        }
    }
}

impl<E> LimitLayer<E> {
    /// Which responses tell how the limits stand; [all](Advertise::Always) unless set.
    pub fn advertise(mut self, advertise: Advertise) -> Self {
        self.settings.advertise = advertise;
        self
    }

    /// Lets requests wait their turn for this long instead of refusing them at once, in the queue that they share with
    /// all processes: first in, first out. No request waits unless set.
    ///
    /// A client that goes away while it waits leaves the queue. What waits is bounded by the set's queue, and by how
    /// many connections the server lets in.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.settings.wait = Some(longest);
        self
    }

    /// Which answers of the service say that it could not do the work: an [adaptive](crate::Limit::adaptive) concurrency
    /// limit lowers its capacity by them. Those from 500 on unless set; an error in the place of an answer, or in the
    /// middle of its body, does in any case. What a service says in trailers, as in gRPC, is not looked at.
    ///
    /// ```
    /// # use http::StatusCode;
    /// # use shmlimit::tower::{Demand, LimitLayer};
    /// # fn adapt(demand: Demand) -> LimitLayer<Demand> {
    /// // A 500 is a mistake of the service here, and no sign of too much work.
    /// LimitLayer::new(demand).fails_with(|status| status == StatusCode::SERVICE_UNAVAILABLE)
    /// # }
    /// ```
    pub fn fails_with(mut self, is_failure: fn(StatusCode) -> bool) -> Self {
        self.settings.is_failure = is_failure;
        self
    }

    /// Has the application shape what is answered in place of the service. `shape` is given the head of the request, why
    /// the service was not called, and the response that would be sent, with its status and fields such as `Retry-After`;
    /// what it returns is sent.
    ///
    /// The [`Refusal`](crate::Refusal) is in the response's extensions in any case, and an error as an
    /// `Arc<`[`Error`](crate::Error)`>`, for layers around this one that log or count.
    ///
    /// ```
    /// use shmlimit::tower::{Demand, LimitLayer, Rejection};
    ///
    /// # fn shaped(demand: Demand) -> LimitLayer<Demand> {
    /// LimitLayer::new(demand).on_rejection(|_head, why, mut response| {
    ///     if let Rejection::Refused(refusal) = why {
    ///         *response.body_mut() = format!("{{\"error\":\"rate_limited\",\"limit\":{:?}}}", refusal.binding());
    ///     }
    ///     response // with the status and the fields that it has
    /// })
    /// # }
    /// ```
    pub fn on_rejection<F>(mut self, shape: F) -> Self
    where
        F: Fn(&Parts, Rejection<'_>, Response<String>) -> Response<String> + Send + Sync + 'static,
    {
        self.settings.shape = Some(Shape::new(shape));
        self
    }

    /// What to do with a request when the limits cannot be asked; [refuse](OnError::Refuse) it unless set.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.settings.on_error = on_error;
        self
    }
}

// Not derived: an extractor is shared, and need not be one that can be cloned.
impl<E> Clone for LimitLayer<E> {
    fn clone(&self) -> Self {
        Self {
            extractor: Arc::clone(&self.extractor),
            settings: self.settings.clone(),
        }
    }
}

impl<S, E> Layer<S> for LimitLayer<E> {
    type Service = LimitService<S, E>;

    fn layer(&self, service: S) -> Self::Service {
        LimitService::new(service, Arc::clone(&self.extractor), self.settings.clone())
    }
}
