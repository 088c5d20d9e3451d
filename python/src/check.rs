//! Answers that hold nothing, and forecasts, as Python meets them.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::amount::natural_of;
use crate::handle::{Handle, Kept};
use crate::refusal::reason;
use crate::seconds::seconds;
use crate::verdict;

/// The answer to a check or a debit: true where everything was taken, for good; otherwise nothing was.
#[pyclass(frozen, module = "shmlimit._native")]
pub struct Checked {
    checked: Kept<shmlimit::Checked<'static>>,
}

impl Checked {
    pub fn new(checked: Kept<shmlimit::Checked<'static>>) -> Self {
        Self { checked }
    }
}

#[pymethods]
impl Checked {
    /// The limit that bound; None where a table was full. None where it was admitted.
    #[getter]
    fn binding(&self) -> Option<&str> {
        self.checked.get().binding()
    }

    /// Why: `"rate"`, `"concurrency"`, `"budget"`, `"queue_full"` or `"table_full"`; None where it was admitted.
    #[getter]
    fn reason(&self) -> Option<&'static str> {
        self.checked.get().reason().map(reason)
    }

    /// Seconds after which the request would be admitted if nobody else took anything; None where time alone does not help.
    #[getter]
    fn retry_after(&self) -> Option<f64> {
        self.checked.get().retry_after().map(seconds)
    }

    /// What remained of the limit that bound, or where none did of the one that is nearest to its end.
    #[getter]
    fn remaining<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let checked = self.checked.get();
        verdict::remaining(py, self.checked.handle(), checked.binding(), checked.verdicts())
    }

    /// What each limit said.
    #[getter]
    fn verdicts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        verdict::by_limit(py, self.checked.handle(), self.checked.get().verdicts())
    }

    /// How much was taken of each limit.
    #[getter]
    fn taken<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        verdict::taken(py, self.checked.handle(), self.checked.get().taken())
    }

    /// The set that was asked.
    #[getter]
    fn set_name(&self) -> &str {
        self.checked.handle().set.name()
    }

    fn __bool__(&self) -> bool {
        self.checked.get().is_admitted()
    }

    fn __repr__(&self) -> String {
        match self.checked.get().refusal() {
            None => format!("<Checked: set `{}` admitted>", self.set_name()),
            Some(refusal) => format!("<Checked: {refusal}>"),
        }
    }
}

/// When a limit will have how much, if nobody takes anything meanwhile.
#[pyclass(frozen, module = "shmlimit._native")]
pub struct Forecast {
    /// How much could be taken now.
    #[pyo3(get)]
    spendable: Py<PyAny>,
    /// How much dead processes hold, or is held for longer than its lease. It counts as free already.
    #[pyo3(get)]
    of_dead: Py<PyAny>,
    /// Seconds after which one unit more could be; None where it is full, or time alone does not help.
    #[pyo3(get)]
    next_unit_after: Option<f64>,
    /// Seconds after which it is completely replenished; None where time alone does not help.
    #[pyo3(get)]
    full_after: Option<f64>,
}

#[pymethods]
impl Forecast {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "Forecast(spendable={}, next_unit_after={}, full_after={})",
            self.spendable.bind(py).str()?,
            verdict::written(self.next_unit_after),
            verdict::written(self.full_after)
        ))
    }
}

/// Forecasts by the names of their limits.
pub fn forecasts<'py>(
    py: Python<'py>,
    handle: &Handle,
    forecasts: &[shmlimit::Forecast<'_>],
) -> PyResult<Bound<'py, PyDict>> {
    let dictionary = PyDict::new(py);
    for forecast in forecasts {
        dictionary.set_item(
            forecast.limit,
            Forecast {
                spendable: natural_of(py, handle, forecast.limit, forecast.spendable)?.unbind(),
                of_dead: natural_of(py, handle, forecast.limit, forecast.of_dead)?.unbind(),
                next_unit_after: forecast.next_unit_after.map(seconds),
                full_after: forecast.full_after.map(seconds),
            },
        )?;
    }
    Ok(dictionary)
}
