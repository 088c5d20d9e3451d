//! The future of a response.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::{fmt, mem};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::admission::{Admission, Decision};
use super::answer::Shape;
use super::body::LimitBody;
use super::callback::Callback;

/// A decision that may have to be waited for.
pub(super) type PendingDecision = Pin<Box<dyn Future<Output = Decision> + Send>>;

pin_project! {
    /// The future of a response to a limited request.
    ///
    /// Dropping it gives back what the request took, or its place in the queue if it is still waiting.
    pub struct LimitFuture<S, Q>
    where
        S: Service<Request<Q>>,
    {
        #[pin]
        state: State<S, Q, S::Future>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, Q, F> {
        Waiting { decision: PendingDecision, call: Option<Call<S, Q>> },
        // The response before the admission: the service must drop the request before others may have its place.
        Working { #[pin] response: F, admission: Admission },
        Answered { response: Response<String> },
    }
}

/// A service that is ready, and the request to call it with.
struct Call<S, Q> {
    service: S,
    request: Request<Q>,
    shape: Option<Callback<Shape>>,
}

impl<S, Q> LimitFuture<S, Q>
where
    S: Service<Request<Q>>,
{
    pub(super) fn waiting(
        decision: PendingDecision,
        service: S,
        request: Request<Q>,
        shape: Option<Callback<Shape>>,
    ) -> Self {
        let call = Some(Call {
            service,
            request,
            shape,
        });
        Self {
            state: State::Waiting { decision, call },
        }
    }

    pub(super) fn decided(
        decision: Decision,
        service: &mut S,
        request: Request<Q>,
        shape: Option<&Shape>,
    ) -> Self {
        Self {
            state: State::decided(decision, service, request, shape),
        }
    }
}

impl<S, Q> State<S, Q, S::Future>
where
    S: Service<Request<Q>>,
{
    fn decided(decision: Decision, service: &mut S, mut request: Request<Q>, shape: Option<&Shape>) -> Self {
        match decision {
            Decision::Admitted(admission) => {
                admission.announce(request.extensions_mut());
                Self::Working {
                    response: service.call(request),
                    admission,
                }
            }
            Decision::Answered(answer) => {
                let (head, _) = request.into_parts();
                let response = answer.into_response(&head, shape);
                Self::Answered { response }
            }
        }
    }
}

impl<S, Q, B> Future for LimitFuture<S, Q>
where
    S: Service<Request<Q>, Response = Response<B>>,
{
    type Output = Result<Response<LimitBody<B>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProjection::Waiting { decision, call } => {
                    let decision = ready!(decision.as_mut().poll(context));
                    // Taken only once: the state changes right after.
                    let Some(Call {
                        mut service,
                        request,
                        shape,
                    }) = call.take()
                    else {
                        return Poll::Pending;
                    };
                    state.set(State::decided(decision, &mut service, request, shape.as_deref()));
                }
                StateProjection::Working { response, admission } => {
                    let response = ready!(response.poll(context));
                    // Taken out, so that nothing is held after an error, however long this future is kept.
                    let admission = mem::take(admission);
                    return Poll::Ready(match response {
                        Ok(response) => Ok(admission.complete(response)),
                        Err(error) => {
                            admission.fail();
                            Err(error)
                        }
                    });
                }
                StateProjection::Answered { response } => {
                    let response = mem::take(response).map(LimitBody::problem);
                    return Poll::Ready(Ok(response));
                }
            }
        }
    }
}

impl<S, Q> fmt::Debug for LimitFuture<S, Q>
where
    S: Service<Request<Q>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Waiting { .. } => "Waiting",
            State::Working { .. } => "Working",
            State::Answered { .. } => "Answered",
        };
        f.debug_struct("LimitFuture").field("state", &state).finish()
    }
}
