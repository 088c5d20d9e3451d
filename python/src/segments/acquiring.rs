//! The methods of a set that every decision calls.

use std::ffi::CStr;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyStringMethods};
use pyo3::{Borrowed, intern};
use shmlimit::{Error, Key, Outcome, Request};

use crate::answers::check::Checked;
use crate::answers::permit;
use crate::arguments::key;
use crate::arguments::request::{self, Costs};
use crate::handle::{Handle, WithHandle};
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

/// Makes the request of a call, with its key's tier and own capacities.
#[inline]
fn prepare<'a>(
    py: Python<'_>,
    handle: &'a Handle,
    costs: Costs<'_, '_>,
    tier: &Given<'_, '_>,
    overrides: &Given<'_, '_>,
    made: &'a mut Option<Request>,
) -> PyResult<&'a Request> {
    let tier = name_of_tier(tier)?;
    request::prepare_for_key(py, handle, costs, tier.as_deref(), overrides.as_deref(), made)
}

/// Reads the name of a tier.
fn name_of_tier<'a>(given: &'a Given<'_, '_>) -> PyResult<Option<std::borrow::Cow<'a, str>>> {
    let Some(given) = given else { return Ok(None) };
    match (**given).cast::<PyString>() {
        Ok(name) => name.to_cow().map(Some),
        Err(_) => Err(PyTypeError::new_err(format!(
            "argument 'tier': {} is no name: give a str",
            given.repr()?
        ))),
    }
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
            let request = &limits.of_set().default;
            let outcome = limits.ask_set(py, |set| set.try_acquire(request))?;
            return permit::answer(py, outcome, false);
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
        let mut made = None;
        let request = prepare(py, limits.of_set(), costs, &tier, &own, &mut made)?;
        let of_key = |key: Key<'static>| key.try_acquire(request);
        let outcome = limits.ask(py, key.as_deref(), |set| set.try_acquire(request), of_key)?;
        permit::answer(py, outcome, heartbeat)
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
        let mut made = None;
        let handle = limits.of_set();
        let request = prepare(py, handle, costs, &tier, &own, &mut made)?;
        let timeout = seconds::timeout(timeout.as_deref())?;
        let key = key.as_deref().map(key::bytes).transpose()?;
        let mut interrupted = Ok(());
        let outcome = WithHandle::try_new(py, limits.handle(), |set| -> Result<Outcome<'static>, Error> {
            // Dropped at the end of this block, so that the GIL is held again for what follows.
            let mut interruption = Interruption::new(py);
            let keep_waiting = || interruption.keep_waiting();
            let outcome = match key {
                None => set.acquire_while(request, timeout, keep_waiting),
                Some(key) => set
                    .key(key)
                    .and_then(|key| key.acquire_while(request, timeout, keep_waiting)),
            };
            interrupted = interruption.end();
            outcome
        });
        let logged = handle.log_requests(py);
        if let Err(raised) = interrupted.and(logged) {
            let _ = outcome.map(permit::undo);
            return Err(raised);
        }
        permit::granted(py, outcome.or_raise(py)?, heartbeat)
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
            let checked = limits.ask_set(py, |set| set.check(&handle.default))?;
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
        let mut made = None;
        let request = prepare(py, handle, costs, &tier, &own, &mut made)?;
        let checked = match key.as_deref() {
            Some(key) if handle.is_by_address => {
                let address = key::address(key)?;
                limits.ask_set(py, |set| set.address(address)?.check(request))?
            }
            key => {
                let of_key = |key: Key<'static>| key.check(request);
                limits.ask(py, key, |set| set.check(request), of_key)?
            }
        };
        Checked::answer(py, checked)
    }
}
