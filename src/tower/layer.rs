//! The layer: what is decided once, when a service is built.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Response, StatusCode};
use tower_layer::Layer;

use super::extract::demand::Extractor;
use super::service::LimitService;
use super::settings::{OnError, Settings};
use crate::http::Advertise;
use crate::tower::answer::{Rejection, Shape};

/// Puts limits before a service: see the [module](super).
///
/// It is cheap to clone, and so are its services. All of them, in all processes, share the limits.
#[derive(Debug)]
#[must_use]
pub struct LimitLayer<E> {
    extractor: Arc<E>,
    settings: Settings,
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
