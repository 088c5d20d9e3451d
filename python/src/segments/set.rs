//! Sets in Python.

use std::time::Duration;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyString};
use shmlimit::LimitSet;
use shmlimit::declare::Kind;
use shmlimit::request::KeyReset;

use crate::answers::check::{Checked, forecasts};
use crate::answers::reservation;
use crate::answers::verdict;
use crate::arguments::amount::natural_of;
use crate::arguments::key;
use crate::arguments::request::{self, Asked, Costs};
use crate::arguments::response;
use crate::handle::{Handle, WithHandle};
use crate::interpreter::error::{OrRaise, exception};
use crate::interpreter::seconds;
use crate::segments::segment::Segment;
use crate::segments::waiting::Waiting;

/// A set of limits that are taken together.
#[pyclass(subclass, frozen, module = "shmlimit._native")]
pub struct SetHandle {
    handle: Py<Handle>,
}

impl SetHandle {
    pub fn handle(&self) -> &Py<Handle> {
        &self.handle
    }

    /// The shared handle of the set.
    #[inline]
    pub fn of_set(&self) -> &Handle {
        self.handle.get()
    }

    /// Keeps what `ask` borrows from the set, and logs the request's events.
    #[inline(always)]
    pub fn ask<T>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&'static LimitSet) -> PyResult<T>,
    ) -> PyResult<WithHandle<T>> {
        let answer = WithHandle::try_new(py, &self.handle, ask);
        self.of_set().log_requests(py)?;
        answer
    }

    fn throttle_for(&self, py: Python<'_>, wait: Duration, key: Object<'_, '_>) -> PyResult<()> {
        let set = &self.of_set().set;
        match key {
            None => set.throttle(wait).or_raise(py),
            Some(key) => set
                .key(key::bytes(key)?)
                .and_then(|key| key.throttle(wait))
                .or_raise(py),
        }
    }
}

/// What a handle is made from: the set's segment, or another handle of the set.
#[derive(FromPyObject)]
enum Source<'py> {
    Segment(Bound<'py, Segment>),
    Handle(Bound<'py, SetHandle>),
}

/// An optional argument.
pub type Object<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

#[pymethods]
impl SetHandle {
    #[new]
    #[pyo3(signature = (source, name, *, strict=true, label=None))]
    fn new(
        source: Source<'_>,
        name: &Bound<'_, PyString>,
        strict: bool,
        label: Option<String>,
    ) -> PyResult<Self> {
        let py = name.py();
        let source = match source {
            Source::Segment(segment) => segment,
            Source::Handle(limits) => {
                let handle = limits.get().of_set().labelled(py, label)?;
                return Ok(Self { handle });
            }
        };
        let source = source.get();
        let segment = source.get(py)?;
        // The names of sets are Unicode.
        let name = name.to_string_lossy();
        let set = segment.set(&name).or_raise(py)?;
        let (request_log, fleet_thread) = (source.request_log(), source.fleet_thread());
        let handle = Handle::new(py, set, segment.path(), strict, label, request_log, fleet_thread)?;
        Ok(Self { handle })
    }

    /// The name of the set.
    #[getter]
    fn name(&self) -> &str {
        self.of_set().set.name()
    }

    /// The file of the segment, as an absolute path.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.of_set()
            .path
            .as_os_str()
            .into_pyobject(py)
            .map(Bound::into_any)
            .map_err(Into::into)
    }

    /// Whether naming a limit that the set does not have is an error instead of a warning.
    #[getter]
    fn strict(&self) -> bool {
        self.of_set().strict
    }

    /// The label of its requests; None for most handles.
    #[getter]
    fn label(&self) -> Option<&str> {
        self.of_set().label.as_deref()
    }

    /// Whether its segment was removed and another is at the path, which this process now has open.
    fn _has_successor(&self, py: Python<'_>) -> PyResult<bool> {
        let successor = py.detach(|| self.of_set().set.successor());
        successor.transpose().or_raise(py).map(|set| set.is_some())
    }

    /// Whether each key has its own limits.
    #[getter]
    fn keyed(&self) -> bool {
        self.of_set().set.is_keyed()
    }

    /// Whether its limits count the networks of an address, of which units are taken but not held.
    #[getter]
    fn _counts_networks(&self) -> bool {
        self.of_set().is_by_address
    }

    /// The names of its concurrency limits, whose places are taken.
    #[getter]
    fn _places<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        let limits = self.of_set().set.declared_limits().iter();
        let places = limits.filter(|limit| limit.kind() == Kind::Concurrency);
        pyo3::types::PyTuple::new(py, places.map(shmlimit::Limit::name).collect::<Vec<_>>())
    }

    /// For how many seconds a request would wait for the store of a fleet now: nearly always 0.
    #[pyo3(signature = (costs=None, *, key=None, tier=None, overrides=None))]
    fn _cold_wait(
        &self,
        py: Python<'_>,
        costs: Object<'_, '_>,
        key: Object<'_, '_>,
        tier: Option<PyBackedStr>,
        overrides: Object<'_, '_>,
    ) -> PyResult<f64> {
        let asked = Asked {
            costs: Costs::new(costs, None),
            key,
            tier: tier.as_deref(),
            overrides,
        };
        let handle = self.of_set();
        let request = request::prepare(py, handle, &handle.set, asked)?;
        Ok(request.cold_wait().or_raise(py)?.as_secs_f64())
    }

    /// The metadata that the set is declared with: region, endpoint, account.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.of_set().set.metadata().into_pyobject(py)?.into_any())
    }

    /// The names of the limits, in the order of the declaration.
    #[getter]
    fn limit_names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, self.of_set().set.limits().collect::<Vec<_>>())
    }

    /// Begins a request of a task, which then polls it.
    #[expect(clippy::too_many_arguments, reason = "one for each argument in Python")]
    #[pyo3(signature = (costs, named, key, timeout, heartbeat, tier, overrides))]
    fn _begin(
        &self,
        py: Python<'_>,
        costs: Object<'_, '_>,
        named: Option<&Bound<'_, PyDict>>,
        key: Object<'_, '_>,
        timeout: Object<'_, '_>,
        heartbeat: bool,
        tier: Option<PyBackedStr>,
        overrides: Object<'_, '_>,
    ) -> PyResult<Waiting> {
        let asked = Asked {
            costs: Costs::new(costs, named),
            key,
            tier: tier.as_deref(),
            overrides,
        };
        let timeout = seconds::timeout(timeout)?;
        let handle = self.of_set();
        let future = self.ask(py, |set| {
            Ok(request::prepare(py, handle, set, asked)?.acquire_async(timeout))
        })?;
        Ok(Waiting::of_set(self.handle.clone_ref(py), future, heartbeat))
    }

    /// Charges everything now if it becomes available in time, and says how long to wait before using it. For programs
    /// that do their own sleeping or scheduling. Only for rate and calls limits.
    ///
    /// Args:
    ///     costs: What to take of each limit, by name. Each calls or concurrency limit that is not named is taken once;
    ///         0 asks without taking.
    ///     key: The key whose limits are used, if the set is keyed: str, bytes, int or UUID.
    ///     max_delay: The longest delay to accept, in seconds.
    ///     tier: The tier to put the key into, where it stays; by default the key stays in its tier.
    ///     overrides: The key's own capacities, by limit name, with None for the declared one. The key keeps them; passing
    ///         the same ones again is cheap. Limits that are not named keep the capacity they have.
    ///     named: Costs as keywords, as for `try_acquire`.
    ///
    /// Returns:
    ///     A reservation, which is truthy, or a refusal, which is falsy and has changed nothing.
    ///
    /// Raises:
    ///     RequestError: The request includes a limit that cannot be reserved, or can never be met.
    #[pyo3(signature = (costs=None, *, key=None, max_delay, tier=None, overrides=None, **named))]
    #[expect(clippy::too_many_arguments, reason = "they are named")]
    fn reserve<'py>(
        &self,
        py: Python<'py>,
        costs: Object<'_, '_>,
        key: Object<'_, '_>,
        max_delay: &Bound<'_, PyAny>,
        tier: Option<PyBackedStr>,
        overrides: Object<'_, '_>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let asked = Asked {
            costs: Costs::new(costs, named),
            key,
            tier: tier.as_deref(),
            overrides,
        };
        let max_delay = seconds::duration(max_delay)?;
        let handle = self.of_set();
        let outcome = self.ask(py, |set| {
            request::prepare(py, handle, set, asked)?
                .reserve(max_delay)
                .or_raise(py)
        })?;
        reservation::answer(py, outcome)
    }

    /// Checks many keys at one instant, faster than calling `check` for each.
    ///
    /// A key whose tier or own capacity can never admit the cost is refused like any other, without a `retry_after`.
    ///
    /// Args:
    ///     keys: The keys. A key that is named twice is decided twice.
    ///     costs: What to take of each limit, for each key.
    ///     tier: The tier to put the keys into, as for `check`.
    ///     overrides: Each key's own capacities, as for `check`.
    ///     named: Costs as keywords, as for `check`.
    ///
    /// Returns:
    ///     The answers in the order of the keys.
    ///
    /// Raises:
    ///     NeverAdmissible: No key can ever be admitted at that cost. None was charged.
    ///     RequestError: As for `check`. Some keys may already have been charged.
    #[pyo3(signature = (keys, costs=None, *, tier=None, overrides=None, **named))]
    fn check_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'_, PyAny>,
        costs: Object<'_, '_>,
        tier: Option<PyBackedStr>,
        overrides: Object<'_, '_>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let asked = Asked {
            costs: Costs::new(costs, named),
            key: None,
            tier: tier.as_deref(),
            overrides,
        };
        let keys = keys.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        let keys = keys.iter().map(key::bytes).collect::<PyResult<Vec<_>>>()?;
        let handle = self.of_set();
        let answers = self.ask(py, |set| {
            request::prepare(py, handle, set, asked)?
                .check_many(&keys)
                .or_raise(py)
        })?;
        answers
            .each(py)
            .map(|answer| Checked::answer(py, answer))
            .collect()
    }

    /// Asks what each limit would say, without taking or counting anything. A rate has no default cost here either: use
    /// `forecast` to see what is left without naming a cost.
    ///
    /// Args:
    ///     costs: What to ask of each limit, by name. Each calls or concurrency limit that is not named is asked for
    ///         one.
    ///     key: The key whose limits are used, if the set is keyed: str, bytes, int or UUID. An address if the set
    ///         counts networks.
    ///     named: Costs as keywords, as for `check`.
    ///
    /// Returns:
    ///     The verdicts by limit name.
    ///
    /// Raises:
    ///     CostRequired: The set has a rate, and the request names no cost.
    #[pyo3(signature = (costs=None, *, key=None, **named))]
    fn peek<'py>(
        &self,
        py: Python<'py>,
        costs: Object<'_, 'py>,
        key: Object<'_, 'py>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let handle = self.of_set();
        let asked = Asked {
            costs: Costs::new(costs, named),
            key,
            ..Asked::default()
        };
        let verdicts = request::prepare(py, handle, &handle.set, asked)?
            .peek()
            .or_raise(py)?;
        verdict::by_limit(py, handle, verdicts.into_iter())
    }

    /// Reports how much of each limit there is, and when there will be more, without taking or counting anything.
    ///
    /// Args:
    ///     key: The key whose limits are used, if the set is keyed.
    ///
    /// Returns:
    ///     The forecasts by limit name.
    #[pyo3(signature = (*, key=None))]
    fn forecast<'py>(&self, py: Python<'py>, key: Object<'_, 'py>) -> PyResult<Bound<'py, PyDict>> {
        let set = &self.of_set().set;
        let forecast = || match key {
            None => set.forecast().or_raise(py),
            Some(key) => set.key(key::bytes(key)?).or_raise(py)?.forecast().or_raise(py),
        };
        forecasts(py, self.of_set(), &forecast()?)
    }

    /// Debits usage from a budget while any of it remains. The debit that exhausts it counts in full, and later ones are
    /// refused and count nothing: for work that is only done once it is debited. What was used already, such as money
    /// spent on a response, is debited under a permit (`Permit.debit`), which always counts.
    ///
    /// Args:
    ///     limit: The budget.
    ///     used: How much was used, rounded up to the limit's unit, as for `Permit.settle`.
    ///     key: The key that used it, if the set is keyed.
    ///
    /// Returns:
    ///     Whether it was debited.
    ///
    /// Raises:
    ///     RequestError: The limit is not a budget.
    #[pyo3(signature = (limit, used, *, key=None))]
    fn debit<'py>(
        &self,
        py: Python<'py>,
        limit: &str,
        used: &Bound<'_, PyAny>,
        key: Object<'_, '_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let units = request::units_used(self.of_set(), limit, used)?;
        let key = key.map(key::bytes).transpose()?;
        let checked = self.ask(py, |set| {
            let checked = match &key {
                None => set.debit(limit, units),
                Some(key) => set.key(key).and_then(|key| key.debit(limit, units)),
            };
            checked.or_raise(py)
        })?;
        Checked::answer(py, checked)
    }

    /// The names of the tiers that keys can be in, `default` first.
    #[getter]
    fn tiers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, self.of_set().set.tiers().collect::<Vec<_>>())
    }

    /// Puts a key into a tier of the set, where it stays until it is assigned to another or a request names another.
    ///
    /// The key's usage migrates as when another declaration is applied. Unless the set is declared to evict, the key
    /// keeps its row until it is in `default` again.
    ///
    /// Args:
    ///     key: The key: str, bytes, int or UUID.
    ///     tier: A tier that the set declares, or `default`.
    ///
    /// Raises:
    ///     UnknownName: There is no such tier.
    ///     RequestError: The table of keys has no row for the key.
    fn assign(&self, py: Python<'_>, key: &Bound<'_, PyAny>, tier: PyBackedStr) -> PyResult<()> {
        let key = self.of_set().set.key(key::bytes(key)?).or_raise(py)?;
        key.assign(&*tier).or_raise(py)
    }

    /// The tier that a key is in.
    ///
    /// Args:
    ///     key: The key: str, bytes, int or UUID.
    fn tier(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<String> {
        let key = self.of_set().set.key(key::bytes(key)?).or_raise(py)?;
        key.tier().or_raise(py)
    }

    /// Reports that the service behind the limits refuses requests for a while, like `Permit.throttled`, for callers
    /// that check and hold no permit.
    ///
    /// Args:
    ///     retry_after: For how long: seconds, or a timedelta.
    ///     key: The key to throttle, if the set is keyed. It has no effect if the table has no room for the key.
    ///
    /// Raises:
    ///     InvalidKey: The set is keyed, and no key is named.
    #[pyo3(signature = (retry_after, *, key=None))]
    fn throttle(&self, py: Python<'_>, retry_after: &Bound<'_, PyAny>, key: Object<'_, '_>) -> PyResult<()> {
        self.throttle_for(py, seconds::duration(retry_after)?, key)
    }

    /// Checks whether a response tells the client to back off and, if so, throttles, like `Permit.respect`, for callers
    /// that check and hold no permit.
    ///
    /// Args:
    ///     response: The response, or a mapping of its headers.
    ///     status: The status, if `response` is a mapping of headers.
    ///     max_wait: The longest time to throttle for, as for `Permit.respect`.
    ///     key: The key to throttle, if the set is keyed.
    ///
    /// Returns:
    ///     Whether it throttled.
    ///
    /// Raises:
    ///     InvalidKey: It would throttle, the set is keyed, and no key is named.
    #[pyo3(signature = (response, *, status=None, max_wait=None, key=None))]
    fn respect(
        &self,
        py: Python<'_>,
        response: &Bound<'_, PyAny>,
        status: Option<u16>,
        max_wait: Object<'_, '_>,
        key: Object<'_, '_>,
    ) -> PyResult<bool> {
        match response::throttled_for(response, status, max_wait)? {
            None => Ok(false),
            Some(wait) => self.throttle_for(py, wait, key).map(|()| true),
        }
    }

    /// Gives a key its own capacity of a limit, or takes it away.
    ///
    /// It replaces the capacity of the declaration and of any tier, even if these change. The window stays, and a burst
    /// equal to the whole capacity follows it. The key's usage migrates as when another declaration is applied. Unless
    /// the set is declared to evict, the key keeps its row while it has such a capacity. The set must be declared with
    /// `keyed=Keyed(..., overrides=True)`.
    ///
    /// Args:
    ///     key: The key: str, bytes, int or UUID.
    ///     limit: The limit.
    ///     capacity: The key's capacity; None for that of the declaration or the key's tier.
    ///
    /// Raises:
    ///     UnknownLimit: There is no such limit.
    ///     RequestError: No key can have that capacity, or the table of keys has no row for the key.
    #[pyo3(name = "override")]
    fn override_capacity(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        limit: &str,
        capacity: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let key = self.of_set().set.key(key::bytes(key)?).or_raise(py)?;
        match capacity {
            Some(capacity) => {
                let units = request::units(self.of_set(), limit, capacity)?;
                key.override_capacity(limit, units).or_raise(py)
            }
            None => key.clear_override(limit).or_raise(py),
        }
    }

    /// A key's own capacities, by limit name.
    ///
    /// Args:
    ///     key: The key: str, bytes, int or UUID.
    fn overrides<'py>(&self, py: Python<'py>, key: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let key = self.of_set().set.key(key::bytes(key)?).or_raise(py)?;
        let overrides = PyDict::new(py);
        for (limit, capacity) in key.overrides().or_raise(py)? {
            let capacity = natural_of(py, self.of_set(), &limit, capacity)?;
            overrides.set_item(limit, capacity)?;
        }
        Ok(overrides)
    }

    /// Replenishes limits. Holds stay held.
    ///
    /// Args:
    ///     limits: The limits; by default all of them, or with `key` those that the key has for itself.
    ///     key: The key, or the address whose networks to reset; by default all of them.
    ///     counters: Whether to set the set's counters to zero as well.
    ///
    /// Raises:
    ///     UnknownLimit: There is no such limit.
    #[pyo3(signature = (*limits, key=None, counters=false))]
    fn reset(
        &self,
        py: Python<'_>,
        limits: Vec<String>,
        key: Object<'_, '_>,
        counters: bool,
    ) -> PyResult<()> {
        let set = &self.of_set().set;
        let limits = limits.iter().map(String::as_str);
        match key {
            Some(_) if counters => {
                let message = "counters are those of the whole set: reset them without a key".to_owned();
                Err(exception(py, "RequestError", message))
            }
            None => {
                let reset = set.reset();
                let reset = match limits.len() {
                    0 => reset,
                    _ => reset.limits(limits),
                };
                let reset = if counters { reset.counters() } else { reset };
                reset.run().or_raise(py)
            }
            Some(key) if self.of_set().is_by_address => {
                let address = set.address(key::address(key)?).or_raise(py)?;
                reset_of_key(py, address.reset(), limits)
            }
            Some(key) => {
                let key = set.key(key::bytes(key)?).or_raise(py)?;
                reset_of_key(py, key.reset(), limits)
            }
        }
    }

    /// Reports how full the table of keys is. It looks at every row, which takes about a millisecond for 100,000 rows.
    ///
    /// Returns:
    ///     How many `rows` there are; how many are `used`, because their key has something used, held or waited for;
    ///     and how many keys were evicted since the segment was created: `evicted_unused`, which had nothing used any
    ///     more, and `evicted_in_use`. None if the set is not keyed.
    fn table_usage<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, pyo3::types::PyDict>>> {
        let Some(usage) = self.of_set().set.table_usage() else {
            return Ok(None);
        };
        let capacities = pyo3::types::PyDict::new(py);
        for (name, number) in [
            ("rows", usage.rows),
            ("used", usage.used),
            ("evicted_unused", usage.evicted_unused),
            ("evicted_in_use", usage.evicted_in_use),
        ] {
            capacities.set_item(name, number)?;
        }
        Ok(Some(capacities))
    }

    fn __repr__<'py>(slf: &Bound<'py, Self>) -> PyResult<String> {
        let py = slf.py();
        let class = slf.get_type().getattr(intern!(py, "__name__"))?;
        let this = slf.get();
        let label = this.label().map(|label| format!(", labelled {label:?}"));
        Ok(format!(
            "<{class} {:?} of {}{}>",
            this.name(),
            this.of_set().path.display(),
            label.unwrap_or_default()
        ))
    }
}

/// Resets the named limits of a key; without names, all limits that the key has for itself.
fn reset_of_key<'a>(
    py: Python<'_>,
    reset: KeyReset<'_>,
    limits: impl ExactSizeIterator<Item = &'a str>,
) -> PyResult<()> {
    let reset = match limits.len() {
        0 => reset,
        _ => reset.limits(limits),
    };
    reset.run().or_raise(py).map(drop)
}
