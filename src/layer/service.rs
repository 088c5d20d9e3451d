//! The service: what is decided for each request.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::admission::Decision;
use super::body::LimitBody;
use super::extract::demand::Extractor;
use super::future::LimitFuture;
use super::settings::Settings;

/// A service behind limits, as built by a [`LimitLayer`](super::LimitLayer).
///
/// It is ready when the inner service is. The limits are asked in `call`, when there is a request: a service that is
/// merely ready holds nothing, and a caller that never calls it keeps no place from others. A request that may
/// [wait](super::LimitLayer::wait) enters the queue when the future is first polled.
#[derive(Debug)]
pub struct LimitService<S, E> {
    inner: S,
    extractor: Arc<E>,
    settings: Settings,
}

impl<S, E> LimitService<S, E> {
    pub(super) fn new(inner: S, extractor: Arc<E>, settings: Settings) -> Self {
        Self {
            inner,
            extractor,
            settings,
        }
    }
}

// Not derived: the extractor is shared and need not be `Clone`.
impl<S: Clone, E> Clone for LimitService<S, E> {
    fn clone(&self) -> Self {
        Self::new(
            self.inner.clone(),
            Arc::clone(&self.extractor),
            self.settings.clone(),
        )
    }
}

impl<S, E, Q, B> Service<Request<Q>> for LimitService<S, E>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone,
    E: Extractor,
{
    type Response = Response<LimitBody<B>>;
    type Error = S::Error;
    type Future = LimitFuture<S, Q>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (head, body) = request.into_parts();
        let extracted = self.extractor.extract(&head);
        let request = Request::from_parts(head, body);
        let settings = &self.settings;
        let decision = match extracted
            .map(|demand| demand.map(|demand| (settings.wait.or_else(|| demand.wait_for_store()), demand)))
        {
            Ok(None) => Decision::unlimited(),
            Ok(Some((None, demand))) => Decision::at_once(&demand, settings),
            Ok(Some((Some(longest), demand))) => {
                let settings = settings.clone();
                let shape = settings.shape.clone();
                let decision = Box::pin(async move { Decision::in_queue(&demand, longest, &settings).await });
                // Call the service that was polled ready, not its clone.
                let next = self.inner.clone();
                let ready = mem::replace(&mut self.inner, next);
                return LimitFuture::waiting(decision, ready, request, shape);
            }
            Err(error) => Decision::not_extracted(error, settings),
        };
        LimitFuture::decided(decision, &mut self.inner, request, self.settings.shape.as_deref())
    }
}
