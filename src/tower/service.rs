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

/// A service behind limits: what a [`LimitLayer`](super::LimitLayer) makes of a service.
///
/// It is ready when the service behind it is. The limits are asked in `call`, when there is a request to ask for: a
/// service that is ready holds nothing, and a caller that never calls it keeps no place from others. A request that
/// may [wait](super::LimitLayer::wait) takes its place in the queue when the future is polled first.
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

// Not derived: an extractor is shared, and need not be one that can be cloned.
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
        let decision = match (extracted, settings.wait) {
            (Ok(None), _) => Decision::unlimited(),
            (Ok(Some(demand)), None) => Decision::at_once(&demand, settings),
            (Ok(Some(demand)), Some(longest)) => {
                let settings = settings.clone();
                let shape = settings.shape.clone();
                let decision = Box::pin(async move { Decision::in_queue(&demand, longest, &settings).await });
                // The one that was asked whether it is ready is the one to be called.
                let next = self.inner.clone();
                let ready = mem::replace(&mut self.inner, next);
                return LimitFuture::waiting(decision, ready, request, shape);
            }
            (Err(error), _) => Decision::failed(error, settings),
        };
        LimitFuture::decided(decision, &mut self.inner, request, self.settings.shape.as_ref())
    }
}
