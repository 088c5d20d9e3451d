//! Permits in Python.

use std::cell::{Ref, RefCell, RefMut};
use std::ffi::CStr;
use std::time::Duration;

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple, PyType};
use pyo3::{Borrowed, PyTypeInfo, ffi, intern};
use shmlimit::declare::Kind;
use shmlimit::{Error, Outcome, PermitError, RefusalReason};

use crate::answers::refusal::Refusal;
use crate::answers::settlement::Settlement;
use crate::answers::verdict;
use crate::arguments::request;
use crate::arguments::response;
use crate::handle::{Handle, WithHandle};
use crate::interpreter::call::{self, Arguments, Method};
use crate::interpreter::error::{OrRaise, exception_of, raised};
use crate::interpreter::log;
use crate::interpreter::object::{self, Class, Content};
use crate::interpreter::ready::Ready;
use crate::interpreter::seconds;

/// What an admitted request holds.
pub struct Permit {
    permit: WithHandle<RefCell<shmlimit::Permit<'static>>>,
}

impl Content for Permit {
    type Methods = PermitMethods;
    const NAME: &'static CStr = c"shmlimit._native.Permit";
    const DOC: &'static CStr =
        c"What an admitted request holds. It is true. Released or left as a context manager, it gives concurrency \
back and keeps what was charged. If it is garbage-collected before, it does so, too, with a ResourceWarning.";

    fn class() -> &'static Class {
        static CLASS: Class = Class::new();
        &CLASS
    }

    fn methods() -> Vec<ffi::PyMethodDef> {
        vec![
            call::definition::<Release>(),
            call::definition::<Enter>(),
            call::definition::<Exit>(),
        ]
    }

    fn is_true(&self) -> bool {
        true
    }

    #[inline]
    fn lose(&self) -> Option<String> {
        let mut permit = self.permit.get().try_borrow_mut().ok()?;
        // Most permits are released by now, or hold nothing.
        permit.fencing_number()?;
        let returned = end_by(&mut permit, shmlimit::Permit::release_lost);
        if let Ok(Returned::Lost) = returned {
            log::warning_of_collected(&self.lost());
        }
        // In a forked child it is the parent's, and stays held.
        permit.fencing_number().is_none().then(|| {
            format!(
                "a permit of set {} was garbage-collected before it was released, and its place was free from then on: \
                 use it as a context manager, or keep it until its release()",
                self.set_name()
            )
        })
    }

    #[inline]
    fn end(mut self, py: Python<'_>) {
        let returned = end_by(self.permit.get_mut().get_mut(), shmlimit::Permit::release);
        match returned {
            Ok(Returned::Whole) => {}
            Ok(Returned::Lost) => log::warning_of_collected(&self.lost()),
            Err(error) => log::warning_of_collected(&format!(
                "a permit of set {} that was garbage-collected was not released: {error}",
                self.set_name()
            )),
        }
        self.permit.end(py);
    }
}

impl Permit {
    #[inline(always)]
    pub fn new(permit: WithHandle<shmlimit::Permit<'static>>) -> Self {
        Self {
            permit: permit.map(RefCell::new),
        }
    }

    /// The library's permit in an object.
    ///
    /// # Errors
    ///
    /// `RuntimeError` if it is in use: by another thread, or by an operation that has called back into Python.
    pub fn of_object<'a>(
        object: &'a Bound<'_, PermitMethods>,
    ) -> PyResult<Ref<'a, shmlimit::Permit<'static>>> {
        let permit = object::content::<Self>(object)?.permit.get().try_borrow();
        permit.map_err(|_| is_in_use())
    }

    fn handle<'a>(object: &'a Bound<'_, PermitMethods>) -> PyResult<&'a Handle> {
        Ok(object::content::<Self>(object)?.permit.handle())
    }

    /// The library's permit, mutably.
    #[inline]
    fn library_permit(&self) -> PyResult<RefMut<'_, shmlimit::Permit<'static>>> {
        let permit = self.permit.get().try_borrow_mut();
        permit.map_err(|_| is_in_use())
    }

    fn set_name(&self) -> &str {
        self.permit.handle().set.name()
    }

    #[inline]
    fn release(&self, py: Python<'_>, failed: bool) -> PyResult<()> {
        self.release_by(py, |permit| match failed {
            true => permit.release_failed(),
            false => permit.release(),
        })
    }

    /// Runs an operation that releases the permit.
    #[inline]
    fn release_by(
        &self,
        py: Python<'_>,
        release: impl FnOnce(&mut shmlimit::Permit<'static>) -> Result<(), Error>,
    ) -> PyResult<()> {
        let returned = end_by(&mut *self.library_permit()?, release);
        match returned.or_raise(py)? {
            Returned::Whole => Ok(()),
            Returned::Lost => log::warning(py, &self.lost()),
        }
    }

    /// Releases the permit at the end of its block, which may have raised an exception of the given class.
    #[inline]
    fn leave(&self, py: Python<'_>, exception_type: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Some(raised) = exception_type else {
            return self.release(py, false);
        };
        // If a generator is closed early, a task is cancelled or the program exits, the work did not fail.
        let has_failed = match raised.cast::<PyType>() {
            Ok(raised) => raised.is_subclass(&PyException::type_object(py))?,
            Err(_) => true,
        };
        // The block's own exception matters more than a failed release.
        self.release(py, has_failed).or_else(|error| {
            let message = format!(
                "a permit of set {} was not released when its block failed: {error}",
                self.set_name()
            );
            log::warning(py, &message)
        })
    }

    fn throttle(&self, py: Python<'_>, retry_after: Duration) -> PyResult<()> {
        self.release_by(py, |permit| permit.throttled(retry_after))
    }

    /// Gives back what was reserved of rates and calls, unless it was settled. Debits from budgets stay: that was used.
    fn refund(&self, py: Python<'_>) -> PyResult<()> {
        match self.library_permit()?.settle_all_unused() {
            Ok(_) | Err(Error::Permit(PermitError::AlreadySettled { .. })) => Ok(()),
            Err(error) => Err(raised(py, &error)),
        }
    }

    /// The log message for a permit whose lease had run out.
    fn lost(&self) -> String {
        format!(
            "the lease of a permit of set {} had run out before it was released: other requests may have had its place \
             meanwhile. Declare a longer lease, or renew it with heartbeat=True",
            self.set_name()
        )
    }
}

/// What a release gave back.
enum Returned {
    /// Everything, or nothing because it was released before.
    Whole,
    /// Only the rest, because a lease had run out.
    Lost,
}

/// Runs an operation that releases a permit.
#[inline]
fn end_by(
    permit: &mut shmlimit::Permit<'static>,
    release: impl FnOnce(&mut shmlimit::Permit<'static>) -> Result<(), Error>,
) -> Result<Returned, Error> {
    let is_held = permit.fencing_number().is_some();
    release(permit)?;
    // Only reported once: a permit that was already released holds nothing.
    Ok(
        match is_held && permit.fencing_number().is_none() && permit.reclaimed() {
            true => Returned::Lost,
            false => Returned::Whole,
        },
    )
}

#[cold]
fn is_in_use() -> PyErr {
    PyRuntimeError::new_err("the permit is in use by another thread, or by what called this")
}

/// Gives back the permit of a request that raises, because it was interrupted or its logging raised: nobody else would
/// ever release it.
pub fn undo(outcome: WithHandle<Outcome<'static>>) {
    if let Ok(mut permit) = outcome.separate(Outcome::into_result) {
        permit.get_mut().abandon();
    }
}

/// Turns an outcome into an object: a permit, or whatever `refused` makes of a refusal. `heartbeat` says whether to
/// renew the permit's leases in the background.
#[inline(always)]
pub fn answer<'py>(
    py: Python<'py>,
    outcome: WithHandle<Outcome<'static>>,
    heartbeat: bool,
    refused: Refused<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let permit = match outcome.separate(Outcome::into_result) {
        Ok(permit) => permit,
        Err(refusal) => return refused(py, refusal),
    };
    if heartbeat {
        permit.get().heartbeat_in_background().or_raise(py)?;
    }
    object::make(py, Permit::new(permit))
}

/// What becomes of a refusal.
type Refused<'py> = fn(Python<'py>, WithHandle<shmlimit::Refusal>) -> PyResult<Bound<'py, PyAny>>;

/// A refusal is an answer.
#[inline(always)]
pub fn as_answer<'py>(
    py: Python<'py>,
    refusal: WithHandle<shmlimit::Refusal>,
) -> PyResult<Bound<'py, PyAny>> {
    object::make(py, Refusal::new(refusal))
}

/// The refusal of a request that waited is an error.
///
/// # Errors
///
/// `AcquireTimeout` if the time was up; `Refused` if the queue or the table of keys is full.
pub fn as_error<'py>(py: Python<'py>, refusal: WithHandle<shmlimit::Refusal>) -> PyResult<Bound<'py, PyAny>> {
    let class = match refusal.get().reason() {
        RefusalReason::QueueFull | RefusalReason::TableFull => "Refused",
        _ => "AcquireTimeout",
    };
    Err(exception_of(py, class, as_answer(py, refusal)?))
}

struct Release;

impl Method for Release {
    type Of = PermitMethods;
    const NAME: &'static CStr = c"release";
    const DOC: &'static CStr = c"release($self, failed=False)
--

Gives back what is held. Once is enough, and more often does nothing; in a forked child it never does anything.

Where a lease had run out before, there is less to give back or nothing, which is not an error: `reclaimed` is true from
then on, and the logger `shmlimit` has a warning.

Args:
    failed: Whether the work failed, which an adaptive concurrency limit wants to know.";

    #[inline]
    fn call<'py>(
        this: Borrowed<'_, 'py, PermitMethods>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        let mut failed = false;
        if !arguments.is_empty() {
            let [given] = arguments.read("release", 1, [intern!(py, "failed")])?;
            failed = given.map(|given| given.extract()).transpose()?.unwrap_or(false);
        }
        object::content::<Permit>(&this)?.release(py, failed)?;
        Ok(py.None().into_bound(py))
    }
}

struct Enter;

impl Method for Enter {
    type Of = PermitMethods;
    const NAME: &'static CStr = c"__enter__";
    const DOC: &'static CStr = c"__enter__($self)
--

";

    #[inline]
    fn call<'py>(
        this: Borrowed<'_, 'py, PermitMethods>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if !arguments.is_empty() {
            arguments.read("__enter__", 0, [])?;
        }
        Ok(this.to_owned().into_any())
    }
}

struct Exit;

impl Method for Exit {
    type Of = PermitMethods;
    const NAME: &'static CStr = c"__exit__";
    const DOC: &'static CStr = c"__exit__($self, exception_type=None, exception=None, traceback=None)
--

";

    #[inline]
    fn call<'py>(
        this: Borrowed<'_, 'py, PermitMethods>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        let parameters = [
            intern!(py, "exception_type"),
            intern!(py, "exception"),
            intern!(py, "traceback"),
        ];
        let [exception_type, _, _] = arguments.read("__exit__", 3, parameters)?;
        object::content::<Permit>(&this)?.leave(py, exception_type.as_deref())?;
        Ok(PyBool::new(py, false).to_owned().into_any())
    }
}

/// The methods and attributes of permits that not every decision uses.
#[pyclass(subclass, frozen, name = "_Permit", module = "shmlimit._native")]
pub struct PermitMethods;

#[pymethods]
impl PermitMethods {
    /// Reports what was used of each named limit. The unused rest comes back if the algorithm allows it; any excess is
    /// charged.
    ///
    /// An amount that is not a whole number of the limit's units is rounded up, so that nothing spent is lost. Only a
    /// float that exceeds a whole number of units by at most a billionth of itself is rounded down: `0.1 + 0.2` is 0.3.
    ///
    /// Args:
    ///     actual: What was used, by limit.
    ///     named: The same as keywords.
    ///
    /// Returns:
    ///     What was refunded and what was overdrawn.
    ///
    /// Raises:
    ///     AlreadySettled: The permit was already settled.
    ///     AlreadyReleased: The permit was already released.
    ///     PermitError: The permit belongs to the process that forked this one.
    #[pyo3(signature = (actual=None, /, **named))]
    fn settle(
        this: &Bound<'_, Self>,
        actual: Option<&Bound<'_, PyAny>>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Settlement> {
        let py = this.py();
        let permit: &Permit = object::content(this)?;
        let handle = permit.permit.handle();
        // Before the permit is borrowed mutably: reading amounts may run the caller's code, and other threads.
        let mut usage = Vec::new();
        for named in [actual, named.map(|named| named.as_any())].into_iter().flatten() {
            request::amounts_used(handle, named, &mut usage)?;
        }
        let mut permit = permit.library_permit()?;
        let used = usage.iter().map(|(limit, units)| (limit, *units));
        let settlement = permit.settle(used).or_raise(py)?;
        Settlement::of(py, handle, &settlement, &usage)
    }

    /// Settles everything as unused: what was reserved of rates and calls comes back as far as the algorithms allow it,
    /// and what is held stays held, for work that goes on without using any of what was reserved.
    ///
    /// Returns:
    ///     What was refunded.
    ///
    /// Raises:
    ///     AlreadySettled: The permit was already settled.
    ///     AlreadyReleased: The permit was already released.
    ///     PermitError: The permit belongs to the process that forked this one.
    fn settle_all_unused(this: &Bound<'_, Self>) -> PyResult<Settlement> {
        let permit: &Permit = object::content(this)?;
        let handle = permit.permit.handle();
        let mut permit = permit.library_permit()?;
        let is_reserved = |name: &str| {
            let kind = handle.limit(name).map(shmlimit::Limit::kind);
            matches!(kind, Some(Kind::Rate | Kind::Calls))
        };
        let unused: Vec<_> = permit
            .taken()
            .filter(|(name, _)| is_reserved(name))
            .map(|(name, _)| (name.to_owned(), 0))
            .collect();
        let settlement = permit.settle_all_unused().or_raise(this.py())?;
        Settlement::of(this.py(), handle, &settlement, &unused)
    }

    /// Gives back everything that was taken, because the request never happened: costs as far as the algorithms allow
    /// it, and all that is held. What was settled before stays settled, and an adaptive limit learns nothing. Calling
    /// this again does nothing.
    ///
    /// It takes a few milliseconds at most: if another process holds the lock for longer, a thread of this process
    /// keeps trying.
    ///
    /// Raises:
    ///     RuntimeError: Another thread is using the permit.
    fn cancel(this: &Bound<'_, Self>) -> PyResult<()> {
        object::content::<Permit>(this)?.library_permit()?.abandon();
        Ok(())
    }

    /// Reports that the service behind the limits refused the request, such as a provider that answered 429.
    ///
    /// For `retry_after`, no process gets anything from the set, or for the permit's key if the set is keyed: requests
    /// are refused with the reason `"throttled"`, and waiters keep waiting. The permit is released as by
    /// `release(failed=True)`, which shrinks an adaptive limit; to give back unused units, settle it first. Debits
    /// still work. A longer throttle that is already in force stays. The maximum is 31 days, and `reset` ends it.
    ///
    /// Args:
    ///     retry_after: For how long: seconds, or a timedelta.
    ///
    /// Raises:
    ///     AlreadyReleased: The permit was already released: `throttle` of its set does the same without a permit.
    ///     PermitError: The permit belongs to the process that forked this one.
    fn throttled(this: &Bound<'_, Self>, retry_after: &Bound<'_, PyAny>) -> PyResult<()> {
        let retry_after = seconds::duration(retry_after)?;
        object::content::<Permit>(this)?.throttle(this.py(), retry_after)
    }

    /// Checks whether a response tells the client to back off and, if so, does what `throttled` does. What was reserved
    /// of rates and calls comes back first, because none of it was used.
    ///
    /// These responses do: 429 and 529, for as long as the response says, or one second; 503, if it says for how long;
    /// 403, if it says for how long, or that nothing remains of a quota, as GitHub does; `grpc-status: 8`; and the
    /// throttling errors of botocore. The time is read from `Retry-After`, in seconds, as a date or as an instant since
    /// the Unix epoch, `retry-after-ms`, `x-ms-retry-after-ms` and `grpc-retry-pushback-ms`, or else from
    /// `x-ratelimit-reset*`, `anthropic-ratelimit-*-reset`, `RateLimit-Reset` and `RateLimit` of quotas with nothing
    /// left. A time that is zero or has passed counts as one second.
    ///
    /// Args:
    ///     response: A response of requests, httpx, aiohttp, urllib3, botocore or `http.client`, or an exception that
    ///         has the status and headers of one, or has one as its `response`, like those of requests, httpx, openai,
    ///         anthropic, botocore and google: anything with `headers`, and with `status_code`, `status`, `http_status`
    ///         or `code`. Or a mapping of headers.
    ///     status: The status, if `response` is a mapping of headers.
    ///     max_wait: The longest time to throttle for, whatever the response says: seconds, or a timedelta. Defaults to
    ///         the 31 days of `throttled`: set it if the server is not trusted to stop all processes for that long.
    ///     refund: Whether what was reserved comes back, unless it was settled. False if the server counts requests that
    ///         it refuses.
    ///
    /// Returns:
    ///     Whether it throttled, which releases the permit. Otherwise nothing has changed.
    ///
    /// Raises:
    ///     AlreadyReleased: It would throttle, and the permit was already released.
    #[pyo3(signature = (response, *, status=None, max_wait=None, refund=true))]
    fn respect(
        this: &Bound<'_, Self>,
        response: &Bound<'_, PyAny>,
        status: Option<u16>,
        max_wait: Option<&Bound<'_, PyAny>>,
        refund: bool,
    ) -> PyResult<bool> {
        let Some(wait) = response::throttled_for(response, status, max_wait)? else {
            return Ok(false);
        };
        let permit: &Permit = object::content(this)?;
        if refund {
            permit.refund(this.py())?;
        }
        permit.throttle(this.py(), wait).map(|()| true)
    }

    /// Debits usage from a budget of the set while the permit is held. It counts in full, whatever remains of the
    /// budget: it was used already. The permit may be settled before or afterwards, but not released.
    ///
    /// Args:
    ///     limit: The budget.
    ///     used: How much was used, rounded up to the limit's unit, as for `settle`.
    ///
    /// Returns:
    ///     Whether anything had remained of the budget. If not, stop.
    ///
    /// Raises:
    ///     RequestError: The limit is not a budget.
    ///     AlreadyReleased: The permit was already released. Debit its set instead, which works while anything remains.
    fn debit(this: &Bound<'_, Self>, limit: &str, used: &Bound<'_, PyAny>) -> PyResult<bool> {
        let permit: &Permit = object::content(this)?;
        let handle = permit.permit.handle();
        let units = request::units_used(handle, limit, used)?;
        let mut permit = permit.library_permit()?;
        let is_admitted = permit.debit(limit, units).map(|checked| checked.is_admitted());
        // Logging may run code that uses the permit.
        drop(permit);
        handle.log_requests(this.py())?;
        is_admitted.or_raise(this.py())
    }

    /// Renews the leases of what is held.
    ///
    /// Raises:
    ///     Reclaimed: A lease had run out, and its place was given to others.
    ///     AlreadyReleased: Nothing is held any more.
    fn heartbeat(this: &Bound<'_, Self>) -> PyResult<()> {
        let permit = Permit::of_object(this)?;
        permit.heartbeat().or_raise(this.py())
    }

    /// Makes a thread of this process renew the leases in time until the permit is released.
    ///
    /// Raises:
    ///     Reclaimed: A lease had already run out.
    ///     AlreadyReleased: Nothing is held any more.
    fn keep_alive(this: &Bound<'_, Self>) -> PyResult<()> {
        let permit = Permit::of_object(this)?;
        permit.heartbeat_in_background().or_raise(this.py())
    }

    /// Whether a lease has run out. True from that instant on, even if no other request has taken the place yet, until
    /// a heartbeat renews the lease. After the release: whether it had run out by then.
    #[getter]
    fn reclaimed(this: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(Permit::of_object(this)?.reclaimed())
    }

    /// A number that grows with every permit of the set that holds something; None if this one holds nothing.
    #[getter]
    fn fencing_number(this: &Bound<'_, Self>) -> PyResult<Option<u64>> {
        Ok(Permit::of_object(this)?.fencing_number())
    }

    /// A fencing number across hosts: that of the set's first fleet concurrency limit that this permit holds. None if
    /// the permit holds no such limit, or if nothing was leased when the permit was taken.
    #[getter]
    fn fleet_fencing_number(this: &Bound<'_, Self>) -> PyResult<Option<u64>> {
        Ok(Permit::of_object(this)?.fleet_fencing_number())
    }

    /// The metadata that the set is declared with: region, endpoint, account.
    #[getter]
    fn metadata<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let permit = Permit::of_object(this)?;
        Ok(permit.set().metadata().into_pyobject(this.py())?.into_any())
    }

    /// How much was taken of each limit.
    #[getter]
    fn taken<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        verdict::taken(this.py(), Permit::handle(this)?, Permit::of_object(this)?.taken())
    }

    /// The state of each limit just after the permit was taken.
    #[getter]
    fn verdicts<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        verdict::by_limit(
            this.py(),
            Permit::handle(this)?,
            Permit::of_object(this)?.verdicts(),
        )
    }

    /// What remained of the limit closest to being exhausted.
    #[getter]
    fn remaining<'py>(this: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let permit = Permit::of_object(this)?;
        verdict::remaining(this.py(), Permit::handle(this)?, None, permit.verdicts())
    }

    /// None: no limit refused.
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

    /// The set that it was taken from.
    #[getter]
    fn set_name<'a>(this: &'a Bound<'_, Self>) -> PyResult<&'a str> {
        Ok(object::content::<Permit>(this)?.set_name())
    }

    fn __repr__(this: &Bound<'_, Self>) -> PyResult<String> {
        let taken = Self::taken(this)?.repr()?;
        Ok(format!("<Permit of {}: {taken}>", Self::set_name(this)?))
    }

    fn __aenter__(this: Py<Self>) -> Ready {
        Ready::new(this.into_any())
    }

    #[pyo3(signature = (exception_type=None, *_exception))]
    fn __aexit__(
        this: &Bound<'_, Self>,
        exception_type: Option<&Bound<'_, PyAny>>,
        _exception: &Bound<'_, PyTuple>,
    ) -> PyResult<Ready> {
        let py = this.py();
        object::content::<Permit>(this)?.leave(py, exception_type)?;
        Ok(Ready::new(py.None()))
    }
}
