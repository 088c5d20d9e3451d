//! A client behind limits.

use std::error::Error as StdError;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::client_error::ClientError;
use super::not_sent::NotSent;
use super::upstream::Settings;
use crate::layer::answer::grpc::Caller;
use crate::layer::body::LimitBody;
use crate::layer::extract::demand::Extractor;

/// A client behind limits, as built by a [`ClientLimitLayer`](super::ClientLimitLayer).
///
/// It is ready when the inner client is; the limits are asked in `call`.
#[derive(Debug)]
pub struct ClientLimitService<S, E> {
    inner: S,
    extractor: Arc<E>,
    settings: Settings,
}

/// The future of a response. Dropping it gives back what the request took, or its place in the queue if it is
/// waiting.
pub type ClientLimitFuture<B, E> =
    Pin<Box<dyn Future<Output = Result<Response<LimitBody<B>>, ClientError<E>>> + Send>>;

impl<S, E> ClientLimitService<S, E> {
    pub(super) fn new(inner: S, extractor: Arc<E>, settings: Settings) -> Self {
        Self {
            inner,
            extractor,
            settings,
        }
    }
}

// Not derived: the extractor is shared and need not be `Clone`.
impl<S: Clone, E> Clone for ClientLimitService<S, E> {
    fn clone(&self) -> Self {
        Self::new(
            self.inner.clone(),
            Arc::clone(&self.extractor),
            self.settings.clone(),
        )
    }
}

impl<S, E, Q, B> Service<Request<Q>> for ClientLimitService<S, E>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: StdError + 'static,
    S::Future: Send,
    E: Extractor,
    Q: Send + 'static,
{
    type Response = Response<LimitBody<B>>;
    type Error = ClientError<S::Error>;
    type Future = ClientLimitFuture<B, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(ClientError::Client)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (head, body) = request.into_parts();
        let demand = self.extractor.extract(&head);
        let caller = Caller::of(&head);
        let mut request = Request::from_parts(head, body);
        let settings = self.settings.clone();
        // Call the service that was polled ready, not its clone.
        let next = self.inner.clone();
        let mut ready = mem::replace(&mut self.inner, next);
        Box::pin(async move {
            let permit = match settings.take(demand).await {
                Ok(permit) => permit,
                Err(not_sent) if caller == Caller::Grpc => {
                    return Ok(not_sent.into_grpc().map(LimitBody::problem));
                }
                Err(NotSent::Refused(refusal)) => return Err(ClientError::Refused(refusal)),
                Err(NotSent::Failed(error)) => return Err(ClientError::Limits(error)),
                Err(NotSent::Answered(response)) => return Ok(response.map(LimitBody::problem)),
            };
            permit.announce(request.extensions_mut());
            let answered = ready.call(request).await;
            // Dropped before the permit is in the answer: a panic at the end of this block would leave the answer
            // without an owner.
            drop(ready);
            match answered {
                Ok(response) => Ok(permit.answered(response)),
                Err(error) => {
                    permit.failed(&error);
                    Err(ClientError::Client(error))
                }
            }
        })
    }
}
