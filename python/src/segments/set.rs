//! Sets as Python meets them.

use std::time::Duration;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyString};
use shmlimit::{Checked as LibraryChecked, Error, Key, LimitSet};

use crate::answers::check::{Checked, forecasts};
use crate::answers::reservation;
use crate::answers::verdict;
use crate::arguments::amount::natural_of;
use crate::arguments::key;
use crate::arguments::request;
use crate::arguments::response;
use crate::handle::{Handle, WithHandle};
use crate::interpreter::error::{OrRaise, exception};
use crate::interpreter::seconds;
use crate::segments::segment::Segment;
use crate::segments::waiting::Waiting;

/// A set of limits that are taken together.
#[pyclass(subclass, frozen, module = "shmlimit._native")]
pub struct Limits {
    handle: Py<Handle>,
}

impl Limits {
    pub fn handle(&self) -> &Py<Handle> {
        &self.handle
    }

    /// The set, and what was worked out for it.
    #[inline]
    pub fn of_set(&self) -> &Handle {
        self.handle.get()
    }

    /// Keeps what the set answers.
    #[inline(always)]
    pub fn ask_set<T>(
        &self,
        py: Python<'_>,
        of_set: impl FnOnce(&'static LimitSet) -> Result<T, Error>,
    ) -> PyResult<WithHandle<T>> {
        self.answered(py, WithHandle::try_new(py, &self.handle, of_set))
    }

    /// Keeps what the set answers where no key is named, and what the key answers where one is.
    #[inline]
    pub fn ask<T>(
        &self,
        py: Python<'_>,
        key: Object<'_, '_>,
        of_set: impl FnOnce(&'static LimitSet) -> Result<T, Error>,
        of_key: impl FnOnce(Key<'static>) -> Result<T, Error>,
    ) -> PyResult<WithHandle<T>> {
        match key {
            None => self.ask_set(py, of_set),
            Some(key) => {
                let key = key::bytes(key)?;
                self.ask_set(py, |set| of_key(set.key(key)?))
            }
        }
    }

    /// What the set or the key answered, once what was notified of that is logged.
    #[inline(always)]
    fn answered<T>(&self, py: Python<'_>, answer: Result<T, Error>) -> PyResult<T> {
        self.of_set().log_requests(py)?;
        answer.or_raise(py)
    }

    fn throttle_for(&self, py: Python<'_>, wait: Duration, key: Object<'_, '_>) -> PyResult<()> {
        let throttled = self.ask(py, key, |set| set.throttle(wait), |key| key.throttle(wait));
        throttled.map(drop)
    }
}

/// What a handle is made of: a segment that has the set, or another handle of the set.
#[derive(FromPyObject)]
enum Source<'py> {
    Segment(Bound<'py, Segment>),
    Handle(Bound<'py, Limits>),
}

/// An argument that need not be given.
pub type Object<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

#[pymethods]
impl Limits {
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
        // No set has a name that is not Unicode.
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

    /// Whether a limit that the set does not have is an error, in place of a warning.
    #[getter]
    fn strict(&self) -> bool {
        self.of_set().strict
    }

    /// What its requests are labelled with; None for those of most handles.
    #[getter]
    fn label(&self) -> Option<&str> {
        self.of_set().label.as_deref()
    }

    /// Whether its segment was removed and another is at the path, which this process has open by now.
    fn _has_successor(&self, py: Python<'_>) -> PyResult<bool> {
        let successor = py.detach(|| self.of_set().set.successor());
        successor.transpose().or_raise(py).map(|set| set.is_some())
    }

    /// Whether each key has limits of its own.
    #[getter]
    fn keyed(&self) -> bool {
        self.of_set().set.is_keyed()
    }

    /// Whether its limits are those of the networks of an address, which are taken and not held.
    #[getter]
    fn _counts_networks(&self) -> bool {
        self.of_set().is_by_address
    }

    /// What the set was declared with: region, endpoint, account.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.of_set().set.metadata().into_pyobject(py)?.into_any())
    }

    /// The names of the limits, in the order of the declaration.
    #[getter]
    fn limit_names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, self.of_set().set.limits().collect::<Vec<_>>())
    }

    /// A request of a task, to look after.
    #[expect(clippy::too_many_arguments, reason = "one for each argument in Python")]
    #[pyo3(signature = (costs, key, timeout, heartbeat, tier, limits))]
    fn _begin(
        &self,
        py: Python<'_>,
        costs: Object<'_, '_>,
        key: Object<'_, '_>,
        timeout: Object<'_, '_>,
        heartbeat: bool,
        tier: Option<PyBackedStr>,
        limits: Object<'_, '_>,
    ) -> PyResult<Waiting> {
        let (handle, mut made) = (self.of_set(), None);
        let request = request::prepare_for_key(py, handle, costs, tier.as_deref(), limits, &mut made)?;
        let timeout = seconds::timeout(timeout)?;
        let of_key = |key: Key<'static>| Ok(key.acquire_async(request, timeout));
        let future = self.ask(py, key, |set| Ok(set.acquire_async(request, timeout)), of_key)?;
        Ok(Waiting::of_set(self.handle.clone_ref(py), future, heartbeat))
    }

    /// Charges everything now, if it is available within a time, and says how long to wait before using it: for
    /// programs that do their own sleeping or scheduling. Of rate and calls limits only.
    ///
    /// Args:
    ///     costs: What to take of each limit, by name. Unless given, one of each calls and concurrency limit. Otherwise what it
    ///         names, and one of each calls and concurrency limit that it does not; 0 asks without taking.
    ///     key: Who is limited, where the set is keyed: str, bytes or int.
    ///     max_delay: Seconds that one is ready to wait.
    ///     tier: The tier that the key is put into, and stays in; unless given, it stays in the one that it is in.
    ///     limits: Which capacities the key has of its own, by the names of limits, None for what is declared; it keeps
    ///         them. What it has already costs a look. Of those that it does not name, it keeps what it has.
    ///
    /// Returns:
    ///     A reservation, which is true, or a refusal, which is false and has changed nothing.
    ///
    /// Raises:
    ///     RequestError: The request takes what cannot be reserved, or can never be met.
    #[pyo3(signature = (costs=None, *, key=None, max_delay, tier=None, limits=None))]
    fn reserve<'py>(
        &self,
        py: Python<'py>,
        costs: Object<'_, '_>,
        key: Object<'_, '_>,
        max_delay: &Bound<'_, PyAny>,
        tier: Option<PyBackedStr>,
        limits: Object<'_, '_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (handle, mut made) = (self.of_set(), None);
        let request = request::prepare_for_key(py, handle, costs, tier.as_deref(), limits, &mut made)?;
        let max_delay = seconds::duration(max_delay)?;
        let of_key = |key: Key<'static>| key.reserve(request, max_delay);
        let outcome = self.ask(py, key, |set| set.reserve(request, max_delay), of_key)?;
        reservation::answer(py, outcome)
    }

    /// As `check` for each of many keys, decided at one instant, faster than one after the other.
    ///
    /// A key whose tier, or whose own capacity, never admits the cost is refused like others, with no `retry_after`.
    ///
    /// Args:
    ///     keys: The keys. One that is named twice is decided twice.
    ///     costs: What to take of each limit, of each key.
    ///     tier: The tier that the keys are put into, as for `check`.
    ///     limits: Which capacities each key has of its own, as for `check`.
    ///
    /// Returns:
    ///     The answers in the order of the keys.
    ///
    /// Raises:
    ///     NeverAdmissible: No key can ever be admitted that cost. None was charged.
    ///     RequestError: As `check`. Some keys may have been charged then.
    #[pyo3(signature = (keys, costs=None, *, tier=None, limits=None))]
    fn check_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'_, PyAny>,
        costs: Object<'_, '_>,
        tier: Option<PyBackedStr>,
        limits: Object<'_, '_>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (handle, mut made) = (self.of_set(), None);
        let request = request::prepare_for_key(py, handle, costs, tier.as_deref(), limits, &mut made)?;
        let keys = keys.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        let keys = keys.iter().map(key::bytes).collect::<PyResult<Vec<_>>>()?;
        let answers: Result<WithHandle<Vec<LibraryChecked<'static>>>, Error> =
            WithHandle::try_new(py, &self.handle, |set| set.check_many(&keys, request));
        let answers = self.answered(py, answers)?;
        answers
            .each(py)
            .map(|answer| Checked::answer(py, answer))
            .collect()
    }

    /// Asks what each limit would say. Takes and counts nothing. A rate has no default cost here either: `forecast` says
    /// without one what is left.
    ///
    /// Args:
    ///     costs: What to take of each limit, by name. Unless given, one of each calls and concurrency limit. Otherwise what it
    ///         names, and one of each calls and concurrency limit that it does not; 0 asks without taking.
    ///     key: Who is limited, where the set is keyed: str, bytes or int. An address, where the set counts networks.
    ///
    /// Returns:
    ///     The verdicts by the names of their limits.
    ///
    /// Raises:
    ///     CostRequired: There is a rate, and the request names nothing.
    #[pyo3(signature = (costs=None, *, key=None))]
    fn peek<'py>(
        &self,
        py: Python<'py>,
        costs: Object<'_, 'py>,
        key: Object<'_, 'py>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (handle, mut made) = (self.of_set(), None);
        let request = request::prepare(handle, costs, &mut made)?;
        let set = &handle.set;
        let peek = || match key {
            None => set.peek(request).or_raise(py),
            Some(key) if handle.is_by_address => {
                let address = set.address(key::address(key)?).or_raise(py)?;
                address.peek(request).or_raise(py)
            }
            Some(key) => set.key(key::bytes(key)?).or_raise(py)?.peek(request).or_raise(py),
        };
        verdict::by_limit(py, handle, peek()?.into_iter())
    }

    /// Says how each limit stands, and when it will have more. Takes and counts nothing.
    ///
    /// Args:
    ///     key: Who is limited, where the set is keyed.
    ///
    /// Returns:
    ///     The forecasts by the names of their limits.
    #[pyo3(signature = (*, key=None))]
    fn forecast<'py>(&self, py: Python<'py>, key: Object<'_, 'py>) -> PyResult<Bound<'py, PyDict>> {
        let set = &self.of_set().set;
        let forecast = || match key {
            None => set.forecast().or_raise(py),
            Some(key) => set.key(key::bytes(key)?).or_raise(py)?.forecast().or_raise(py),
        };
        forecasts(py, self.of_set(), &forecast()?)
    }

    /// Debits a budget what was used, while any of it remains. The debit that crosses the line counts in full.
    ///
    /// Args:
    ///     limit: The budget.
    ///     used: How much was used.
    ///     key: Who used it, where the set is keyed.
    ///
    /// Returns:
    ///     Whether it was debited.
    ///
    /// Raises:
    ///     RequestError: The limit is no budget.
    #[pyo3(signature = (limit, used, *, key=None))]
    fn debit<'py>(
        &self,
        py: Python<'py>,
        limit: &str,
        used: &Bound<'_, PyAny>,
        key: Object<'_, '_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let units = request::units(self.of_set(), limit, used)?;
        let of_key = |key: Key<'static>| key.debit(limit, units);
        let checked = self.ask(py, key, |set| set.debit(limit, units), of_key)?;
        Checked::answer(py, checked)
    }

    /// The names of the tiers that keys can be in, `default` first.
    #[getter]
    fn tiers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, self.of_set().set.tiers().collect::<Vec<_>>())
    }

    /// Puts a key into a tier of the set, in which it stays until it is assigned to another or a request names one.
    ///
    /// What the key has used migrates as when another declaration is applied. Its row goes to no other key before it is in
    /// `default` again, unless the set is declared to evict.
    ///
    /// Args:
    ///     key: Which key: str, bytes or int.
    ///     tier: A tier that the set declares, or `default`.
    ///
    /// Raises:
    ///     UnknownTier: There is none of that name.
    ///     RequestError: The table of keys has no row for it.
    fn assign(&self, py: Python<'_>, key: &Bound<'_, PyAny>, tier: PyBackedStr) -> PyResult<()> {
        let key = self.of_set().set.key(key::bytes(key)?).or_raise(py)?;
        key.assign(&*tier).or_raise(py)
    }

    /// The tier that a key is in.
    ///
    /// Args:
    ///     key: Which key: str, bytes or int.
    fn tier(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<String> {
        let key = self.of_set().set.key(key::bytes(key)?).or_raise(py)?;
        key.tier().or_raise(py)
    }

    /// Says that what is behind the limits takes nothing for a while: as `Permit.throttled`, for callers that check and hold no
    /// permit.
    ///
    /// Args:
    ///     retry_after: For how long: seconds, or a timedelta.
    ///     key: Of which key, where the set is keyed. One for which the table has no row stays without one.
    ///
    /// Raises:
    ///     KeyRequired: The set is keyed, and no key is named.
    #[pyo3(signature = (retry_after, *, key=None))]
    fn throttle(&self, py: Python<'_>, retry_after: &Bound<'_, PyAny>, key: Object<'_, '_>) -> PyResult<()> {
        self.throttle_for(py, seconds::duration(retry_after)?, key)
    }

    /// Looks whether a response says that its server takes nothing for a while, and if so throttles: as `Permit.respect`,
    /// for callers that check and hold no permit.
    ///
    /// Args:
    ///     response: The response, or a mapping of its headers.
    ///     status: The status, beside a mapping of headers.
    ///     max_wait: For how long it throttles at most, as for `Permit.respect`.
    ///     key: Of which key, where the set is keyed.
    ///
    /// Returns:
    ///     Whether it throttled.
    ///
    /// Raises:
    ///     KeyRequired: It throttles, the set is keyed, and no key is named.
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

    /// Gives a key a capacity of its own of a limit, or takes it away.
    ///
    /// It is in place of that of the declaration and of any tier, also when these change; the window stays, and a burst
    /// that is the whole capacity stays that. What the key has used migrates as when another declaration is applied. Its
    /// row goes to no other key while it has such a capacity, unless the set is declared to evict. The set is declared
    /// with `keyed=Keyed(..., overrides=True)`.
    ///
    /// Args:
    ///     key: Which key: str, bytes or int.
    ///     limit: Of which limit.
    ///     capacity: What the key can use of it; None for what the declaration or its tier says.
    ///
    /// Raises:
    ///     UnknownLimit: There is none of that name.
    ///     RequestError: No key can have that capacity, or the table of keys has no row for it.
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

    /// The capacities that a key has of its own, by the names of the limits.
    ///
    /// Args:
    ///     key: Which key: str, bytes or int.
    fn overrides<'py>(&self, py: Python<'py>, key: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let key = self.of_set().set.key(key::bytes(key)?).or_raise(py)?;
        let overrides = PyDict::new(py);
        for (limit, capacity) in key.overrides().or_raise(py)? {
            let capacity = natural_of(py, self.of_set(), &limit, capacity)?;
            overrides.set_item(limit, capacity)?;
        }
        Ok(overrides)
    }

    /// Replenishes limits. What is held stays held.
    ///
    /// Args:
    ///     limits: Which; all of them unless given.
    ///     key: Of which key, or the networks of which address; of all of them unless given.
    ///     counters: Whether to set the counters of the set to zero as well.
    ///
    /// Raises:
    ///     UnknownLimit: There is none of that name.
    #[pyo3(signature = (*limits, key=None, counters=false))]
    fn reset(
        &self,
        py: Python<'_>,
        limits: Vec<String>,
        key: Object<'_, '_>,
        counters: bool,
    ) -> PyResult<()> {
        let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
        let set: &LimitSet = &self.of_set().set;
        match key {
            Some(_) if counters => {
                let message = "counters are those of the whole set: reset them without a key".to_owned();
                Err(exception(py, "RequestError", message))
            }
            None => set.reset(&limits, counters).or_raise(py),
            Some(key) if self.of_set().is_by_address => {
                let address = set.address(key::address(key)?).or_raise(py)?;
                address.reset(&limits).or_raise(py).map(drop)
            }
            Some(key) => {
                let key = set.key(key::bytes(key)?).or_raise(py)?;
                key.reset(&limits).or_raise(py).map(drop)
            }
        }
    }

    /// Says how full the table of keys is. Looks at every row, which takes about a millisecond for 100,000 of them.
    ///
    /// Returns:
    ///     How many `rows` there are, how many of them are `used`, because their key has something used, held or waited for,
    ///     and how many were evicted since the segment was made: `evicted_unused` when their key had nothing used any more,
    ///     and `evicted_in_use`. None where the set is not keyed.
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
