//! The methods of a set that every decision calls.

use std::borrow::Cow;
use std::ffi::CStr;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyStringMethods};
use pyo3::{Borrowed, intern};
use shmlimit::{Error, Outcome, Request};

use crate::answers::check::Checked;
use crate::answers::permit;
use crate::arguments::request::{self, Asked, Costs};
use crate::handle::WithHandle;
use crate::interpreter::call::{self, Arguments, Method};
use crate::interpreter::error::OrRaise;
use crate::interpreter::interruption::Interruption;
use crate::interpreter::seconds;
use crate::segments::set::SetHandle;

/// Adds these methods to the class.
pub fn add_to_class(py: Python<'_>) -> PyResult<()> {
    call::add_to_class::<TryAcquire>(py)?;
    call::add_to_class::<Acquire>(py)?;
    call::add_to_class::<Check>(py)
}

type Given<'a, 'py> = Option<Borrowed<'a, 'py, PyAny>>;

/// Reads a bool; false by default.
fn switch(name: &str, given: Given<'_, '_>) -> PyResult<bool> {
    match given {
        None => Ok(false),
        Some(given) => given
            .extract()
            .map_err(|error| PyTypeError::new_err(format!("argument '{name}': {error}"))),
    }
}

/// What a call asks for.
#[inline]
fn asked<'a, 'py>(
    costs: Costs<'a, 'py>,
    key: &'a Given<'_, 'py>,
    tier: &'a Option<Cow<'_, str>>,
    overrides: &'a Given<'_, 'py>,
) -> Asked<'a, 'py> {
    Asked {
        costs,
        key: key.as_deref(),
        tier: tier.as_deref(),
        overrides: overrides.as_deref(),
    }
}

/// Reads the name of a tier.
fn name_of_tier<'a>(given: &'a Given<'_, '_>) -> PyResult<Option<Cow<'a, str>>> {
    let Some(given) = given else { return Ok(None) };
    match (**given).cast::<PyString>() {
        Ok(name) => name.to_cow().map(Some),
        Err(_) => Err(PyTypeError::new_err(format!(
            "argument 'tier': {} is not a name: give a str",
            given.repr()?
        ))),
    }
}

/// Asks at once. If this has to wait for the store of a fleet, as happens seldom, other threads run meanwhile.
#[inline(always)]
fn at_once<'s, T: Send>(
    py: Python<'_>,
    request: &Request<'s>,
    ask: impl FnOnce(&Request<'s>) -> Result<T, Error> + Send,
) -> PyResult<T> {
    if request.cold_wait().or_raise(py)?.is_zero() {
        return ask(request).or_raise(py);
    }
    py.detach(|| ask(request)).or_raise(py)
}

struct TryAcquire;

impl Method for TryAcquire {
    type Of = SetHandle;
    const NAME: &'static CStr = c"try_acquire";
    const DOC: &'static CStr =
        c"try_acquire($self, costs=None, *, key=None, heartbeat=False, tier=None, overrides=None, **named)
--

Takes everything that the request names, or nothing, and answers at once.

Args:
    costs: What to take of each limit, by name. Each calls or concurrency limit that is not named is taken once; 0 asks
        without taking.
    key: The key whose limits are used, if the set is keyed: str, bytes, int or UUID.
    heartbeat: Whether the leases of what is held are renewed by a thread of this process until it is released.
    tier: The tier to put the key into, where it stays; by default the key stays in its tier.
    overrides: The key's own capacities, by limit name, with None for the declared one. The key keeps them; passing the
        same ones again is cheap. Limits that are not named keep the capacity they have.
    named: Costs as keywords: `tokens=10` is `{\"tokens\": 10}`. A limit with the name of a parameter, such as `key` or
        `timeout`, can only be named in the mapping.

Returns:
    A permit, which is true, or a refusal, which is false.

Raises:
    RequestError: No waiting could help: a cost that can never be admitted, a rate that is not named.
    SegmentError: The segment cannot be used.";

    #[inline]
    fn call<'py>(
        this: Borrowed<'_, 'py, SetHandle>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, limits) = (this.py(), this.get());
        if arguments.is_empty() {
            let handle = limits.of_set();
            let outcome = limits.ask(py, |set| at_once(py, &handle.request(set), Request::try_acquire))?;
            return permit::answer(py, outcome, false, permit::as_answer);
        }
        let parameters = [
            intern!(py, "costs"),
            intern!(py, "key"),
            intern!(py, "heartbeat"),
            intern!(py, "tier"),
            intern!(py, "overrides"),
        ];
        let ([costs, key, heartbeat, tier, own], named) =
            arguments.read_with_others("try_acquire", 1, parameters)?;
        let costs = Costs::new(costs.as_deref(), named.as_ref());
        let heartbeat = switch("heartbeat", heartbeat)?;
        let tier = name_of_tier(&tier)?;
        let asked = asked(costs, &key, &tier, &own);
        let handle = limits.of_set();
        let outcome = limits.ask(py, |set| {
            at_once(
                py,
                &request::prepare(py, handle, set, asked)?,
                Request::try_acquire,
            )
        })?;
        permit::answer(py, outcome, heartbeat, permit::as_answer)
    }
}

struct Acquire;

impl Method for Acquire {
    type Of = SetHandle;
    const NAME: &'static CStr = c"acquire";
    const DOC: &'static CStr =
        c"acquire($self, costs=None, *, key=None, timeout=None, heartbeat=False, tier=None, overrides=None, **named)
--

Takes everything that the request names, waiting in the queue for it, over all threads and processes.

Args:
    costs: What to take of each limit; as for `try_acquire`.
    key: The key whose limits are used, if the set is keyed. Each key has a queue of its own.
    timeout: Seconds to wait at most, from 0, which does not wait; unless given, as long as it takes where there
        is room in the queue, which has the `waiters` of the set's declaration.
    heartbeat: Whether the leases of what is held are renewed by a thread of this process until it is released,
        for work of unknown length. A holder that hangs keeps its place then, until its process ends.
    tier: The tier to put the key into, where it stays; by default the key stays in its tier.
    overrides: The key's own capacities, by limit name, with None for the declared one. The key gets them before the
        decision, and keeps them; if calls at the same time disagree, the last one wins. The set must be declared with
        `keyed=Keyed(..., overrides=True)`.
    named: Costs as keywords, as for `try_acquire`.

Returns:
    The permit.

Raises:
    AcquireTimeout: Time was up. Its `refusal` says what bound at the end.
    Refused: The queue or the table of keys is full.
    RequestError: No waiting could help.
    ValueError: The timeout is negative.";

    #[inline]
    fn call<'py>(
        this: Borrowed<'_, 'py, SetHandle>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, limits) = (this.py(), this.get());
        let parameters = [
            intern!(py, "costs"),
            intern!(py, "key"),
            intern!(py, "timeout"),
            intern!(py, "heartbeat"),
            intern!(py, "tier"),
            intern!(py, "overrides"),
        ];
        let ([costs, key, timeout, heartbeat, tier, own], named) =
            arguments.read_with_others("acquire", 1, parameters)?;
        let costs = Costs::new(costs.as_deref(), named.as_ref());
        let heartbeat = switch("heartbeat", heartbeat)?;
        let tier = name_of_tier(&tier)?;
        let asked = asked(costs, &key, &tier, &own);
        let timeout = seconds::timeout(timeout.as_deref())?;
        let handle = limits.of_set();
        let mut interrupted = Ok(());
        let outcome = WithHandle::try_new(py, limits.handle(), |set| -> PyResult<Outcome<'static>> {
            let request = request::prepare(py, handle, set, asked)?;
            if timeout == Some(Duration::ZERO) {
                return at_once(py, &request, Request::try_acquire);
            }
            // Ends before anything else is done, so that the GIL is held again for the rest.
            let mut interruption = Interruption::new(py);
            let outcome = request.acquire_while(timeout, || interruption.keep_waiting());
            interrupted = interruption.end();
            outcome.or_raise(py)
        });
        let logged = handle.log_requests(py);
        if let Err(raised) = interrupted.and(logged) {
            let _ = outcome.map(permit::undo);
            return Err(raised);
        }
        permit::answer(py, outcome?, heartbeat, permit::as_error)
    }
}

struct Check;

impl Method for Check {
    type Of = SetHandle;
    const NAME: &'static CStr = c"check";
    const DOC: &'static CStr = c"check($self, costs=None, *, key=None, tier=None, overrides=None, **named)
--

Takes everything that the request names for good, or nothing: for what is not held.

Args:
    costs: What to take of each limit, by name. Each calls or concurrency limit that is not named is taken once; 0 asks
        without taking.
    key: The key whose limits are used, if the set is keyed: str, bytes, int or UUID. An address if the set counts
        networks.
    tier: The tier to put the key into, where it stays; by default the key stays in its tier.
    overrides: The key's own capacities, by limit name, with None for the declared one. The key keeps them; passing the
        same ones again is cheap. Limits that are not named keep the capacity they have.
    named: Costs as keywords: `tokens=10` is `{\"tokens\": 10}`. A limit with the name of a parameter, such as `key` or
        `timeout`, can only be named in the mapping.

Returns:
    Whether it was taken, and what each limit said.

Raises:
    RequestError: The request takes of a concurrency limit, or can never be met.";

    #[inline]
    fn call<'py>(
        this: Borrowed<'_, 'py, SetHandle>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, limits) = (this.py(), this.get());
        let handle = limits.of_set();
        if arguments.is_empty() {
            let checked = limits.ask(py, |set| at_once(py, &handle.request(set), Request::check))?;
            return Checked::answer(py, checked);
        }
        let parameters = [
            intern!(py, "costs"),
            intern!(py, "key"),
            intern!(py, "tier"),
            intern!(py, "overrides"),
        ];
        let ([costs, key, tier, own], named) = arguments.read_with_others("check", 1, parameters)?;
        let costs = Costs::new(costs.as_deref(), named.as_ref());
        let tier = name_of_tier(&tier)?;
        let asked = asked(costs, &key, &tier, &own);
        let checked = limits.ask(py, |set| {
            at_once(py, &request::prepare(py, handle, set, asked)?, Request::check)
        })?;
        Checked::answer(py, checked)
    }
}
