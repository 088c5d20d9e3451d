//! Verdicts in Python.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments::amount::natural_of;
use crate::handle::Handle;
use crate::interpreter::seconds::seconds;
use crate::interpreter::value::{self, Fields, Value, field};

/// The verdict of one limit, and its state.
#[pyclass(frozen, module = "shmlimit._native")]
pub struct Verdict {
    /// The limit's name.
    #[pyo3(get)]
    limit: String,
    /// Whether the limit admits the cost.
    #[pyo3(get)]
    admitted: bool,
    /// How much could be taken at once.
    #[pyo3(get)]
    remaining: Py<PyAny>,
    /// In the answer to a peek: how much is held by dead processes or under expired leases. It already counts as free.
    #[pyo3(get)]
    of_dead: Py<PyAny>,
    /// Seconds after which the cost would be admitted: 0 if it is, None if time alone does not help.
    #[pyo3(get)]
    retry_after: Option<f64>,
    /// Seconds until the limit is completely replenished, if nobody takes anything.
    #[pyo3(get)]
    reset_after: f64,
    /// How much could be taken at once if nobody had taken anything; None if there is no bound.
    #[pyo3(get)]
    capacity: Option<Py<PyAny>>,
    /// The tier that the key was in: `default` if the set has no tiers, or the key is in none.
    #[pyo3(get)]
    tier: String,
    /// Whose limit it is: `key`, or `all_keys` if all keys of the set have it together.
    #[pyo3(get)]
    scope: String,
}

impl Value for Verdict {
    fn fields<'py>(this: &Bound<'py, Self>) -> PyResult<Fields<'py>> {
        let (py, value) = (this.py(), this.get());
        Ok(vec![
            field(py, "limit", &value.limit)?,
            field(py, "admitted", value.admitted)?,
            field(py, "remaining", &value.remaining)?,
            field(py, "retry_after", value.retry_after)?,
            field(py, "reset_after", value.reset_after)?,
            field(py, "capacity", value.capacity.as_ref())?,
            field(py, "of_dead", &value.of_dead)?,
            field(py, "tier", &value.tier)?,
            field(py, "scope", &value.scope)?,
        ])
    }
}

#[pymethods]
impl Verdict {
    // Pickles of versions without tiers and scopes lack the last two.
    #[new]
    #[pyo3(signature = (limit, admitted, remaining, retry_after, reset_after, capacity, of_dead, tier="default", scope="key"))]
    #[expect(clippy::too_many_arguments, reason = "a pickle calls it with each field")]
    fn new(
        limit: String,
        admitted: bool,
        remaining: Py<PyAny>,
        retry_after: Option<f64>,
        reset_after: f64,
        capacity: Option<Py<PyAny>>,
        of_dead: Py<PyAny>,
        tier: &str,
        scope: &str,
    ) -> Self {
        Self {
            limit,
            admitted,
            remaining,
            of_dead,
            retry_after,
            reset_after,
            capacity,
            tier: tier.to_owned(),
            scope: scope.to_owned(),
        }
    }

    fn __eq__(this: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        value::compare(this, other)
    }

    fn __reduce__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        value::reduce(this)
    }

    fn __repr__(this: &Bound<'_, Self>) -> PyResult<String> {
        value::written("Verdict", this)
    }
}

/// Verdicts by limit name.
pub fn by_limit<'py, 'a>(
    py: Python<'py>,
    handle: &Handle,
    verdicts: impl Iterator<Item = shmlimit::Verdict<'a>>,
) -> PyResult<Bound<'py, PyDict>> {
    let dictionary = PyDict::new(py);
    for verdict in verdicts {
        let has_bound = verdict.burst != u64::MAX;
        let capacity = has_bound.then(|| natural_of(py, handle, verdict.limit, verdict.burst));
        dictionary.set_item(
            verdict.limit,
            Verdict {
                limit: verdict.limit.to_owned(),
                admitted: verdict.admitted,
                remaining: natural_of(py, handle, verdict.limit, verdict.remaining)?.unbind(),
                of_dead: natural_of(py, handle, verdict.limit, verdict.of_dead)?.unbind(),
                retry_after: verdict.retry_after.map(seconds),
                reset_after: seconds(verdict.reset_after),
                capacity: capacity.transpose()?.map(Bound::unbind),
                tier: verdict.tier.to_owned(),
                scope: verdict.scope.to_string(),
            },
        )?;
    }
    Ok(dictionary)
}

/// What remains of the limit that refused or, if none did, of the one closest to being exhausted; `None` if there are
/// no limits.
pub fn remaining<'py, 'a>(
    py: Python<'py>,
    handle: &Handle,
    binding: Option<&str>,
    verdicts: impl Iterator<Item = shmlimit::Verdict<'a>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let mut nearest: Option<shmlimit::Verdict<'_>> = None;
    for verdict in verdicts {
        let is_nearer = match (&nearest, binding) {
            (_, Some(binding)) => verdict.limit == binding,
            (None, None) => true,
            (Some(nearest), None) => share(&verdict, nearest) < share(nearest, &verdict),
        };
        if is_nearer {
            nearest = Some(verdict);
        }
    }
    nearest
        .map(|verdict| natural_of(py, handle, verdict.limit, verdict.remaining))
        .transpose()
}

/// What remains of one limit, on a scale common to both.
fn share(of: &shmlimit::Verdict<'_>, beside: &shmlimit::Verdict<'_>) -> u128 {
    u128::from(of.remaining) * u128::from(beside.burst)
}

/// Units taken, by limit name.
pub fn taken<'py, 'a>(
    py: Python<'py>,
    handle: &Handle,
    taken: impl Iterator<Item = (&'a str, u64)>,
) -> PyResult<Bound<'py, PyDict>> {
    let dictionary = PyDict::new(py);
    for (limit, units) in taken {
        dictionary.set_item(limit, natural_of(py, handle, limit, units)?)?;
    }
    Ok(dictionary)
}
