//! The layer before a client.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tower_layer::Layer;

use super::client_service::ClientLimitService;
use super::upstream::Settings;
use crate::tower::extract::demand::Extractor;
use crate::tower::settings::OnError;

/// Puts limits before a client: requests go out as the limits of an upstream allow, over all processes of the host.
///
/// - A request that the limits refuse is not sent: the answer is the error
///   [`ClientError::Refused`](super::ClientError::Refused), which no answer of the upstream is mistaken for. With
///   [`wait`](Self::wait) it waits its turn first.
/// - Responses pass through as they are, `RateLimit` fields included. The permit is held until the body has ended.
/// - Where the upstream answers 429, or 503 with `Retry-After`, nothing is sent before the instant that it says, by any
///   process: see [`Permit::throttled`](crate::Permit::throttled). The response passes through; whether the request is
///   sent again is up to the caller. With [`wait`](Self::wait), what is sent meanwhile waits until then.
/// - Where the segment was [removed](crate::SegmentError::Removed), it goes on with the segment that is at the path by then, if
///   there is one with a set of the same name.
/// - The [`PermitHandle`](crate::tower::PermitHandle) is in the extensions of request and response, to settle what a
///   request has cost.
///
/// Clients whose errors are boxed, as of axum, are put behind `tower`'s `map_err`.
///
/// ```
/// # use std::convert::Infallible;
/// # use std::time::Duration;
/// # use http_body_util::Full;
/// # use hyper::body::Bytes;
/// use http::{Request, Response};
/// use shmlimit::tower::{ClientError, ClientLimitLayer, Demand};
/// # use shmlimit::{Declaration, Limit, RefusalReason, Segment, SetDeclaration};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # let directory = tempfile::tempdir()?;
/// # let declaration = Declaration::new().add_set(SetDeclaration::new("provider")
/// #     .add_limit(Limit::calls("requests", 500, Duration::from_secs(60))));
/// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
/// # let client = service_fn(async |_: Request<()>| Response::builder()
/// #     .status(429).header("retry-after", "30").body(Full::<Bytes>::default()));
/// let every_request = Demand::new(segment.set("provider")?.request())?;
/// let client = ServiceBuilder::new().layer(ClientLimitLayer::new(every_request)).service(client);
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let answered = client.clone().oneshot(Request::new(())).await?;
/// assert_eq!(answered.status(), 429); // the upstream's, which says that it takes nothing for 30 seconds
/// match client.oneshot(Request::new(())).await {
///     Err(ClientError::Refused(refusal)) => println!("not sent, for {:?}", refusal.retry_after()),
///     answered => println!("{answered:?}"),
/// }
/// # assert_eq!(segment.snapshot()?.sets[0].counts.refused_throttled, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct ClientLimitLayer<E> {
    pub(super) extractor: Arc<E>,
    pub(super) settings: Settings,
}

impl<E: Extractor> ClientLimitLayer<E> {
    /// A layer that limits requests as the extractor says.
    pub fn new(extractor: E) -> Self {
        Self {
            extractor: Arc::new(extractor),
            settings: Settings::default(),
        }
    }
}

impl<E> ClientLimitLayer<E> {
    /// Lets requests wait their turn for this long instead of refusing them at once, in the queue that all processes
    /// share. No request waits unless set.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.settings.wait = Some(longest);
        self
    }

    /// What to do with a request when the limits cannot be asked; it is not sent unless set, which is
    /// [`ClientError::Limits`](super::ClientError::Limits). What is wrong with the request itself is that in any case.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.settings.on_error = on_error;
        self
    }

    /// Which answers say that the upstream takes nothing for a while, and for how long;
    /// [`throttled_by`](fn@super::throttled_by) unless set. [`retry_after`](fn@super::retry_after) reads the usual fields.
    pub fn throttled_by(mut self, throttled_by: fn(StatusCode, &HeaderMap) -> Option<Duration>) -> Self {
        self.settings.throttled_by = throttled_by;
        self
    }

    /// Which other answers say that the work failed: see
    /// [`LimitLayer::fails_with`](crate::tower::LimitLayer::fails_with).
    pub fn fails_with(mut self, is_failure: fn(StatusCode) -> bool) -> Self {
        self.settings.is_failure = is_failure;
        self
    }
}

// Not derived: an extractor is shared, and need not be one that can be cloned.
impl<E> Clone for ClientLimitLayer<E> {
    fn clone(&self) -> Self {
        Self {
            extractor: Arc::clone(&self.extractor),
            settings: self.settings,
        }
    }
}

impl<S, E> Layer<S> for ClientLimitLayer<E> {
    type Service = ClientLimitService<S, E>;

    fn layer(&self, service: S) -> Self::Service {
        ClientLimitService::new(service, Arc::clone(&self.extractor), self.settings)
    }
}
