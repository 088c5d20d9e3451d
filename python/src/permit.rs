//! Permits as Python meets them.

use std::time::Duration;

use pyo3::PyTypeInfo;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use shmlimit::{Error, Outcome};

use crate::error::OrRaise;
use crate::handle::WithHandle;
use crate::ready::Ready;
use crate::refusal::Refusal;
use crate::settlement::Settlement;
use crate::{log, request, response, seconds, verdict};

/// What an admitted request holds. It is true. Released, left as a context manager, or garbage-collected, it gives
/// concurrency back and keeps what was charged.
#[pyclass(module = "shmlimit._native")]
pub struct Permit {
    permit: WithHandle<shmlimit::Permit<'static>>,
}

impl Permit {
    pub fn new(permit: WithHandle<shmlimit::Permit<'static>>) -> Self {
        Self { permit }
    }

    /// What each limit said, as the library has it.
    pub fn library_verdicts(&self) -> impl Iterator<Item = shmlimit::Verdict<'_>> {
        self.permit.get().verdicts()
    }

    fn give_back(&mut self, failed: bool) -> Result<Returned, Error> {
        self.end(|permit| match failed {
            true => permit.release_failed(),
            false => permit.release(),
        })
    }

    /// Does what releases the permit.
    fn end(
        &mut self,
        release: impl FnOnce(&mut shmlimit::Permit<'static>) -> Result<(), Error>,
    ) -> Result<Returned, Error> {
        let permit = self.permit.get_mut();
        let is_held = permit.fencing_number().is_some();
        release(permit)?;
        // Said once: a permit that was released before holds nothing.
        Ok(
            match is_held && permit.fencing_number().is_none() && permit.reclaimed() {
                true => Returned::Lost,
                false => Returned::Whole,
            },
        )
    }

    fn returned(&self, py: Python<'_>, returned: Returned) -> PyResult<()> {
        match returned {
            Returned::Whole => Ok(()),
            Returned::Lost => log::warning(py, &self.lost()),
        }
    }

    fn throttle(&mut self, py: Python<'_>, retry_after: Duration) -> PyResult<()> {
        let returned = self.end(|permit| permit.throttled(retry_after)).or_raise(py)?;
        self.returned(py, returned)
    }

    /// What is logged of a permit whose lease had run out.
    fn lost(&self) -> String {
        format!(
            "the lease of a permit of set {} had run out before it was released: other requests may have had its place \
             meanwhile. Declare a longer lease, or renew it with heartbeat=True",
            self.permit.handle().set.name()
        )
    }
}

/// What a release gave back.
enum Returned {
    /// What was held, or nothing because that was done before.
    Whole,
    /// What was left, because a lease had run out.
    Lost,
}

/// Gives back what was granted to a request that raises, because it was interrupted or its logging raised: no one has
/// it to make use of.
pub fn undo(outcome: WithHandle<Outcome<'static>>) {
    if let Ok(mut permit) = outcome.separate(Outcome::into_result) {
        permit.get_mut().abandon();
    }
}

/// The permit or the refusal that an outcome is, as an object; `heartbeat` says whether the permit's leases are renewed in
/// the background.
#[inline]
pub fn answer(py: Python<'_>, outcome: WithHandle<Outcome<'static>>, heartbeat: bool) -> PyResult<Py<PyAny>> {
    Ok(match outcome.separate(Outcome::into_result) {
        Ok(permit) => {
            if heartbeat {
                permit.get().heartbeat_in_background().or_raise(py)?;
            }
            Py::new(py, Permit::new(permit))?.into_any()
        }
        Err(refusal) => Py::new(py, Refusal::new(refusal))?.into_any(),
    })
}

impl Drop for Permit {
    fn drop(&mut self) {
        match self.give_back(false) {
            Ok(Returned::Lost) => log::warning_of_collected(&self.lost()),
            Ok(Returned::Whole) => {}
            Err(error) => log::warning_of_collected(&format!(
                "a permit of set {} that was garbage-collected was not released: {error}",
                self.permit.handle().set.name()
            )),
        }
    }
}

#[pymethods]
impl Permit {
    /// Says what was used of each limit that is named: less is given back where the algorithm allows, more is charged.
    ///
    /// Args:
    ///     actual: What was used, by limit.
    ///     named: The same as keywords.
    ///
    /// Returns:
    ///     What that changed.
    ///
    /// Raises:
    ///     AlreadySettled: It was settled before.
    ///     AlreadyReleased: It was released before.
    ///     InheritedPermit: It is that of the process that forked this one.
    #[pyo3(signature = (actual=None, /, **named))]
    fn settle(
        this: &Bound<'_, Self>,
        actual: Option<&Bound<'_, PyAny>>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Settlement> {
        let py = this.py();
        let handle = this.try_borrow()?.permit.handle().clone();
        // Before the permit is borrowed to be changed: reading amounts may run what others wrote, and other threads.
        let mut usage = Vec::new();
        for named in [actual, named.map(|named| named.as_any())].into_iter().flatten() {
            request::amounts(&handle, named, &mut usage)?;
        }
        let mut permit = this.try_borrow_mut()?;
        let used = usage.iter().map(|(limit, units)| (limit, *units));
        let settlement = permit.permit.get_mut().settle(used).or_raise(py)?;
        Settlement::of(py, &handle, &settlement, &usage)
    }

    /// Gives back what is held. Once is enough, and more often does nothing; in a forked child it never does anything.
    ///
    /// Where a lease had run out before, there is less to give back or nothing, which is no error: `reclaimed` is true from
    /// then on, and the logger `shmlimit` has a warning.
    ///
    /// Args:
    ///     dropped: Whether the work failed, which an adaptive concurrency limit wants to know.
    #[pyo3(signature = (failed=false))]
    fn release(&mut self, py: Python<'_>, failed: bool) -> PyResult<()> {
        let returned = self.give_back(failed).or_raise(py)?;
        self.returned(py, returned)
    }

    /// Says that what the permit was for was refused by what is behind the limits, such as a provider that answers 429.
    ///
    /// Until then no process is admitted anything of the set, or of the permit's key where the set is keyed: requests are
    /// refused for `"throttled"`, and those that wait go on waiting. The permit is released as by
    /// `release(failed=True)`, which shrinks an adaptive limit; what was not used is settled before. Debits go on. What
    /// is throttled already for longer stays so; at most it is for 31 days, and `reset` ends it.
    ///
    /// Args:
    ///     retry_after: For how long: seconds, or a timedelta.
    ///
    /// Raises:
    ///     AlreadyReleased: It was released before: `throttle` of its set does the same without a permit.
    ///     InheritedPermit: It is that of the process that forked this one.
    fn throttled(this: &Bound<'_, Self>, retry_after: &Bound<'_, PyAny>) -> PyResult<()> {
        let retry_after = seconds::duration(retry_after)?;
        this.try_borrow_mut()?.throttle(this.py(), retry_after)
    }

    /// Looks whether the response to what the permit was for says that its server takes nothing for a while, and if so does
    /// what `throttled` does.
    ///
    /// That is 429, for as long as the response says, or one second; 503 where it says for how long; and `grpc-status: 8`. How
    /// long is read from `Retry-After`, in seconds or as a date, `retry-after-ms`, `x-ms-retry-after-ms` and
    /// `grpc-retry-pushback-ms`.
    ///
    /// Args:
    ///     response: A response of requests, httpx, aiohttp, urllib3 or `http.client`, or an exception that has its status and
    ///         headers, or has it as its `response`, as those of requests, httpx, openai and anthropic: whatever has `headers`,
    ///         and `status_code` or `status`. Or a mapping of headers.
    ///     status: The status, beside a mapping of headers.
    ///     max_wait: For how long it throttles at most, whatever the response says: seconds, or a timedelta. Unless
    ///     given, the 31 days
    ///         of `throttled`: give it where the server is not trusted to stop all processes for that long.
    ///
    /// Returns:
    ///     Whether it throttled, which releases the permit. Otherwise nothing has changed.
    ///
    /// Raises:
    ///     AlreadyReleased: It throttles, and the permit was released before.
    #[pyo3(signature = (response, *, status=None, max_wait=None))]
    fn respect(
        this: &Bound<'_, Self>,
        response: &Bound<'_, PyAny>,
        status: Option<u16>,
        max_wait: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let Some(wait) = response::throttled_for(response, status, max_wait)? else {
            return Ok(false);
        };
        this.try_borrow_mut()?.throttle(this.py(), wait).map(|()| true)
    }

    /// Debits a budget of the set what was used, while the permit is held.
    ///
    /// Args:
    ///     limit: The budget.
    ///     used: How much was used.
    ///
    /// Returns:
    ///     Whether any of it had remained: otherwise nothing was debited.
    fn debit(this: &Bound<'_, Self>, limit: &str, used: &Bound<'_, PyAny>) -> PyResult<bool> {
        let handle = this.try_borrow()?.permit.handle().clone();
        let units = request::units(&handle, limit, used)?;
        let mut permit = this.try_borrow_mut()?;
        let checked = permit.permit.get_mut().debit(limit, units);
        let is_admitted = checked.map(|checked| checked.is_admitted());
        // Logging may run what uses the permit.
        drop(permit);
        handle.log_requests(this.py())?;
        is_admitted.or_raise(this.py())
    }

    /// Renews the leases of what is held.
    ///
    /// Raises:
    ///     Reclaimed: A lease had run out, and others hold it now.
    ///     AlreadyReleased: Nothing is held any more.
    fn heartbeat(&self, py: Python<'_>) -> PyResult<()> {
        self.permit.get().heartbeat().or_raise(py)
    }

    /// Has the leases renewed in time by a thread of this process, until the permit is released.
    ///
    /// Raises:
    ///     Reclaimed: A lease had run out before.
    ///     AlreadyReleased: Nothing is held any more.
    fn keep_alive(&self, py: Python<'_>) -> PyResult<()> {
        self.permit.get().heartbeat_in_background().or_raise(py)
    }

    /// Whether a lease has run out: from that instant on, also while no other request has taken the place, until a heartbeat
    /// renews it. Once released: whether that was so then.
    #[getter]
    fn reclaimed(&self) -> bool {
        self.permit.get().reclaimed()
    }

    /// A number that grows with every permit of the set that holds something; None where this one holds nothing.
    #[getter]
    fn fencing_number(&self) -> Option<u64> {
        self.permit.get().fencing_number()
    }

    /// What the set was declared with: region, endpoint, account.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.permit.get().metadata().into_pyobject(py)?.into_any())
    }

    /// How much was taken of each limit.
    #[getter]
    fn taken<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        verdict::taken(py, self.permit.handle(), self.permit.get().taken())
    }

    /// How each limit stood just after it was taken.
    #[getter]
    fn verdicts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        verdict::by_limit(py, self.permit.handle(), self.permit.get().verdicts())
    }

    /// What remained of the limit that is nearest to its end.
    #[getter]
    fn remaining<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        verdict::remaining(py, self.permit.handle(), None, self.permit.get().verdicts())
    }

    /// None: no limit bound.
    #[getter]
    fn binding(&self) -> Option<&str> {
        None
    }

    /// None: nothing was refused.
    #[getter]
    fn reason(&self) -> Option<&str> {
        None
    }

    /// 0: there was nothing to wait for.
    #[getter]
    fn retry_after(&self) -> f64 {
        0.0
    }

    /// The set that it is of.
    #[getter]
    fn set_name(&self) -> &str {
        self.permit.handle().set.name()
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let taken = self.taken(py)?.repr()?;
        Ok(format!("<Permit of {}: {taken}>", self.set_name()))
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (exception_type=None, *_exception))]
    fn __exit__(
        &mut self,
        py: Python<'_>,
        exception_type: Option<&Bound<'_, PyAny>>,
        _exception: &Bound<'_, PyTuple>,
    ) -> PyResult<bool> {
        // A generator that is closed early, a task that is cancelled, a program that is ended: the work did not fail.
        let failure = PyException::type_object(py);
        let has_failed = match exception_type.map(|raised| raised.cast::<PyType>()) {
            Some(Ok(raised)) => raised.is_subclass(&failure)?,
            Some(Err(_)) => true,
            None => false,
        };
        match self.release(py, has_failed) {
            // What the block raised matters more than that the segment was retired meanwhile.
            Err(error) if exception_type.is_some() => {
                let message = format!(
                    "a permit of set {} was not released when its block failed: {error}",
                    self.set_name()
                );
                log::warning(py, &message).map(|()| false)
            }
            released => released.map(|()| false),
        }
    }

    fn __aenter__(this: Py<Self>) -> Ready {
        Ready::new(this.into_any())
    }

    #[pyo3(signature = (exception_type=None, *exception))]
    fn __aexit__(
        &mut self,
        py: Python<'_>,
        exception_type: Option<&Bound<'_, PyAny>>,
        exception: &Bound<'_, PyTuple>,
    ) -> PyResult<Ready> {
        self.__exit__(py, exception_type, exception)?;
        Ok(Ready::new(py.None()))
    }
}
