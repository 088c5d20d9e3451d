//! The layer: what is decided once, when a service is built.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Response, StatusCode, response};

use super::answer::Rejection;
use super::callback::Callback;
use super::extract::demand::Extractor;
use super::service::LimitService;
use super::settings::{OnError, Settings};
use super::shared_layer::shared_layer;
use crate::headers::Advertise;

/// Puts limits in front of a service. See the [module](super).
///
/// The layer and its services are cheap to clone. All of them, in all processes, share the limits.
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
    /// Which responses show the limits; [all](Advertise::Always) by default.
    pub fn advertise(mut self, advertise: Advertise) -> Self {
        self.settings.advertise = advertise;
        self
    }

    /// Lets requests wait up to this long instead of refusing them at once, in the queue that they share with all
    /// processes: first in, first out; keys that wait for limits of [all keys](crate::Limit::scope) are served in
    /// proportion to their weights. By default, requests do not wait.
    ///
    /// A client that goes away while it waits leaves the queue. The number of waiters is bounded by the set's queue,
    /// and by the connections that the server accepts.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.settings.wait = Some(longest);
        self
    }

    /// Which responses of the service mean that it could not do the work; an [adaptive](crate::Limit::adaptive)
    /// concurrency limit then lowers its capacity. By default, status 500 and above. An error in place of a response,
    /// or in the middle of its body, always counts. Trailers, as used by gRPC, are not examined.
    ///
    /// ```
    /// # use http::StatusCode;
    /// # use shmlimit::layer::{Demand, LimitLayer};
    /// # fn adapt(demand: Demand) -> LimitLayer<Demand> {
    /// // Here a 500 is a bug in the service, not a sign of overload.
    /// LimitLayer::new(demand).fails_with(|status| status == StatusCode::SERVICE_UNAVAILABLE)
    /// # }
    /// ```
    pub fn fails_with<F>(mut self, is_failure: F) -> Self
    where
        F: Fn(StatusCode) -> bool + Send + Sync + 'static,
    {
        self.settings.is_failure = Callback(Arc::new(is_failure));
        self
    }

    /// Which responses of the service mean that the request never happened: everything that it took comes back (holds,
    /// and rates if their algorithms still [refund](crate::Algorithm#what-comes-back) it), and an
    /// [adaptive](crate::Limit::adaptive) limit learns nothing from it. By default, refusals by limits further in:
    /// [`refused_inside`](super::refused_inside()). `is_unused` takes the place of that default.
    ///
    /// Networks ([`Demand::address`](super::Demand::address)) hold nothing, and what they were charged stays.
    ///
    /// This layer then does not slow down a client whose requests are refused inside. If it should, because refusing
    /// has a cost too, say `refund_when(|_| false)`.
    ///
    /// ```
    /// # use http::StatusCode;
    /// # use shmlimit::layer::{Demand, LimitLayer, refused_inside};
    /// # fn priced(demand: Demand) -> LimitLayer<Demand> {
    /// // Nobody pays for a backend that was not reached.
    /// LimitLayer::new(demand)
    ///     .refund_when(|head| refused_inside(head) || head.status == StatusCode::BAD_GATEWAY)
    /// # }
    /// ```
    pub fn refund_when<F>(mut self, is_unused: F) -> Self
    where
        F: Fn(&response::Parts) -> bool + Send + Sync + 'static,
    {
        self.settings.is_unused = Callback(Arc::new(is_unused));
        self
    }

    /// Lets the application shape answers in place of the service. `shape` receives the head of the request, the
    /// reason why the service was not called, and the response that would be sent, with its status and fields such as
    /// `Retry-After`. What it returns is sent.
    ///
    /// In any case, the response's extensions contain the [`Refusal`](crate::Refusal), or the error as an
    /// `Arc<`[`Error`](crate::Error)`>`, for layers around this one that log or count.
    ///
    /// ```
    /// use shmlimit::layer::{Demand, LimitLayer, Rejection};
    ///
    /// # fn shaped(demand: Demand) -> LimitLayer<Demand> {
    /// LimitLayer::new(demand).on_rejection(|_head, why, mut response| {
    ///     if let Rejection::Refused(refusal) = why {
    ///         *response.body_mut() = format!("{{\"error\":\"rate_limited\",\"limit\":{:?}}}", refusal.binding());
    ///     }
    ///     response // with its status and fields
    /// })
    /// # }
    /// ```
    pub fn on_rejection<F>(mut self, shape: F) -> Self
    where
        F: Fn(&Parts, Rejection<'_>, Response<String>) -> Response<String> + Send + Sync + 'static,
    {
        self.settings.shape = Some(Callback(Arc::new(shape)));
        self
    }

    /// What to do with a request when the limits cannot be asked; [refuse](OnError::Refuse) it by default.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.settings.on_error = on_error;
        self
    }
}

shared_layer!(LimitLayer, LimitService);
