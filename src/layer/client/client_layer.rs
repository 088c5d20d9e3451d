//! The layer for clients.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, StatusCode};

use super::client_service::ClientLimitService;
use super::not_sent::NotSent;
use super::outgoing_permit::OutgoingPermit;
use super::upstream::Settings;
use crate::layer::callback::Callback;
use crate::layer::extract::demand::Extractor;
use crate::layer::settings::OnError;
use crate::layer::shared_layer::shared_layer;

/// Puts limits in front of a client, so that the requests of all processes of the host stay within the limits of an
/// upstream.
///
/// - A request that the limits refuse is not sent. It fails with
///   [`ClientError::Refused`](super::ClientError::Refused), which cannot be mistaken for an answer of the upstream.
///   With [`wait`](Self::wait), it waits in the queue first.
/// - A gRPC call, recognized by its content type, that is not sent ends with a status instead, as its clients expect:
///   `RESOURCE_EXHAUSTED`, with the time after which to try again as `google.rpc.RetryInfo`; if the limits could not
///   be asked, `INTERNAL`, and if the call itself is invalid, `INVALID_ARGUMENT`. The message says that nothing was
///   sent. The [`Refusal`](crate::Refusal), or the error as an `Arc<`[`Error`](crate::Error)`>`, is in the extensions
///   of the response.
/// - If a client's layer further in refuses the request, everything that this one took comes back, holds and rates.
/// - Responses pass through unchanged, including `RateLimit` fields. The permit is held until the body has ended.
/// - If the upstream answers 429, 529, or a 503 or 403 that says when to try again, no process sends anything before
///   then: see [`throttled_by`](super::throttled_by) and [`Permit::throttled`](crate::Permit::throttled). The response
///   passes through; retrying is up to the caller. With [`wait`](Self::wait), requests made in the meantime wait until
///   then.
/// - If the segment was [removed](crate::SegmentError::Removed), it continues with the segment that is now at the
///   path, if that has a set of the same name.
/// - The [`Permits`](crate::layer::Permits) are in the extensions of request and response, to settle what a request has
///   cost.
/// - A client that is not a `tower` service can use the layer through [`take`](Self::take).
///
/// If a client's errors are boxed, as in axum, put `tower`'s `map_err` in between.
///
/// ```
/// # use std::convert::Infallible;
/// # use std::time::Duration;
/// # use http_body_util::Full;
/// # use hyper::body::Bytes;
/// use http::{Request, Response};
/// use shmlimit::layer::{ClientError, ClientLimitLayer, Demand};
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
/// assert_eq!(answered.status(), 429); // from the upstream, which accepts nothing for 30 seconds
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

    /// Takes what a request with this head demands. For clients that are not `tower` services: their own kind of
    /// middleware calls this before it sends the request.
    ///
    /// ```
    /// # use std::io;
    /// use http::{Request, Response};
    /// use shmlimit::layer::{ClientLimitLayer, Extractor, LimitBody};
    ///
    /// # async fn send(_: Request<String>) -> io::Result<Response<String>> { Ok(Response::default()) }
    /// async fn limited<E: Extractor>(
    ///     limits: &ClientLimitLayer<E>,
    ///     request: Request<String>,
    /// ) -> Result<Response<LimitBody<String>>, Box<dyn std::error::Error>> {
    ///     let (mut head, body) = request.into_parts();
    ///     let permit = limits.take(&head).await?; // or why it is not sent
    ///     permit.announce(&mut head.extensions);
    ///     match send(Request::from_parts(head, body)).await {
    ///         Ok(response) => Ok(permit.answered(response)),
    ///         Err(error) => {
    ///             permit.failed(&error);
    ///             Err(error.into())
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotSent`] says why the request must not be sent.
    pub fn take(
        &self,
        head: &Parts,
    ) -> impl Future<Output = Result<OutgoingPermit, NotSent>> + Send + use<E> {
        let demand = self.extractor.extract(head);
        self.settings.clone().take(demand)
    }
}

impl<E> ClientLimitLayer<E> {
    /// Lets requests wait up to this long instead of refusing them at once, in the queue that all processes share. By
    /// default, requests do not wait.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.settings.wait = Some(longest);
        self
    }

    /// What to do with a request when the limits cannot be asked. By default it is not sent and fails with
    /// [`ClientError::Limits`](super::ClientError::Limits), as do requests that are invalid themselves, whatever is
    /// set here.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.settings.on_error = on_error;
        self
    }

    /// Which responses mean that the upstream accepts nothing for a while, and for how long;
    /// [`throttled_by`](fn@super::throttled_by) by default. [`retry_after`](fn@super::retry_after) reads the usual
    /// fields.
    pub fn throttled_by<F>(mut self, throttled_by: F) -> Self
    where
        F: Fn(StatusCode, &HeaderMap) -> Option<Duration> + Send + Sync + 'static,
    {
        self.settings.throttled_by = Callback(Arc::new(throttled_by));
        self
    }

    /// Which other responses mean that the work failed: see
    /// [`LimitLayer::fails_with`](crate::layer::LimitLayer::fails_with).
    pub fn fails_with<F>(mut self, is_failure: F) -> Self
    where
        F: Fn(StatusCode) -> bool + Send + Sync + 'static,
    {
        self.settings.is_failure = Callback(Arc::new(is_failure));
        self
    }
}

shared_layer!(ClientLimitLayer, ClientLimitService);
