//! Requests that tasks of event loops make.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use pyo3::prelude::*;
use shmlimit::pool::Chosen;
use shmlimit::request::AcquireFuture;
use shmlimit::{Error, Outcome};

use crate::answers::permit;
use crate::handle::{Handle, PoolHandle, WithHandle};
use crate::interpreter::error::{OrRaise, exception};
use crate::segments::wake_event::WakeEvent;

/// A wait for a set of a pool.
pub type PoolFuture = Pin<Box<dyn Future<Output = Result<Chosen<'static>, Error>> + Send>>;

/// A request of a task that may wait in the queue: it has a place there from the first call of `look` until it is
/// answered or closed.
#[pyclass(module = "shmlimit._native")]
pub struct Waiting {
    // The mutex only makes this `Sync`: it is only ever accessed through `get_mut`.
    request: Mutex<Option<Request>>,
    /// The set or pool that it asks.
    asked: Asked,
    /// Whether the leases of its permit are renewed in the background.
    heartbeat: bool,
}

enum Asked {
    Set(Py<Handle>),
    Pool(Arc<PoolHandle>),
}

impl Asked {
    fn log_requests(&self, py: Python<'_>) -> PyResult<()> {
        match self {
            Self::Set(handle) => handle.get().log_requests(py),
            Self::Pool(pool) => pool.log_requests(py),
        }
    }
}

enum Request {
    OfSet(WithHandle<AcquireFuture<'static>>),
    OfPool(WithHandle<PoolFuture>),
}

impl Waiting {
    pub fn of_set(handle: Py<Handle>, future: WithHandle<AcquireFuture<'static>>, heartbeat: bool) -> Self {
        Self {
            asked: Asked::Set(handle),
            request: Mutex::new(Some(Request::OfSet(future))),
            heartbeat,
        }
    }

    pub fn of_pool(pool: &Arc<PoolHandle>, future: WithHandle<PoolFuture>, heartbeat: bool) -> Self {
        Self {
            asked: Asked::Pool(Arc::clone(pool)),
            request: Mutex::new(Some(Request::OfPool(future))),
            heartbeat,
        }
    }

    fn request(&mut self) -> &mut Option<Request> {
        match self.request.get_mut() {
            Ok(request) => request,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

#[pymethods]
impl Waiting {
    /// Polls the request: returns the permit, or None if the task must wait until the event reports its number.
    ///
    /// Raises:
    ///     AcquireTimeout: The time was up.
    ///     Refused: The queue or the table of keys is full.
    fn look<'py>(
        &mut self,
        py: Python<'py>,
        wake_event: &WakeEvent,
        number: u64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let waker = wake_event.waker(number);
        let mut context = Context::from_waker(&waker);
        let request = self.request();
        let outcome: Result<WithHandle<Outcome<'static>>, Error> = match request.take() {
            None => {
                let message = "the request was answered or closed before".to_owned();
                return Err(exception(py, "RequestError", message));
            }
            Some(Request::OfSet(mut future)) => match Pin::new(future.get_mut()).poll(&mut context) {
                Poll::Pending => {
                    *request = Some(Request::OfSet(future));
                    return Ok(None);
                }
                Poll::Ready(outcome) => outcome.map(|outcome| future.map(|_| outcome)),
            },
            Some(Request::OfPool(mut future)) => match future.get_mut().as_mut().poll(&mut context) {
                Poll::Pending => {
                    *request = Some(Request::OfPool(future));
                    // With failover, sets that were asked first have refused, so there may be events.
                    self.asked.log_requests(py)?;
                    return Ok(None);
                }
                Poll::Ready(chosen) => {
                    chosen.map(|Chosen { index, outcome, .. }| future.map_to_member(py, |_| (index, outcome)))
                }
            },
        };
        if let Err(raised) = self.asked.log_requests(py) {
            let _ = outcome.map(permit::undo);
            return Err(raised);
        }
        permit::answer(py, outcome.or_raise(py)?, self.heartbeat, permit::as_error).map(Some)
    }

    /// Leaves the queue. A grant that was not collected is given back.
    fn close(&mut self) {
        *self.request() = None;
    }
}
