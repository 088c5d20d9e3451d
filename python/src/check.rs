//! Answers that hold nothing, and forecasts, as Python meets them.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use shmlimit::RefusalReason;

use crate::amount::natural_of;
use crate::handle::{Handle, WithHandle};
use crate::seconds::seconds;
use crate::value::{self, Fields, field};
use crate::verdict;

/// The answer to a check or a debit: true where everything was taken, for good; otherwise nothing was.
#[pyclass(frozen, module = "shmlimit._native")]
pub struct Checked {
    answer: Answer,
}

/// What a `Checked` says.
enum Answer {
    /// As the library gave it: objects are made only of what is asked for.
    Given(WithHandle<shmlimit::Checked<'static>>),
    /// As a pickle kept it.
    Restored(Restored),
}

/// The fields of an answer.
struct Restored {
    admitted: bool,
    set_name: String,
    binding: Option<String>,
    reason: Option<String>,
    retry_after: Option<f64>,
    remaining: Option<Py<PyAny>>,
    verdicts: Py<PyDict>,
    taken: Py<PyDict>,
}

impl Checked {
    pub fn new(checked: WithHandle<shmlimit::Checked<'static>>) -> Self {
        Self {
            answer: Answer::Given(checked),
        }
    }

    /// The answer, as the library gave it.
    ///
    /// # Errors
    ///
    /// `ValueError`, where it comes out of a pickle, which keeps what the answer says only.
    pub fn library_check(&self) -> PyResult<&shmlimit::Checked<'static>> {
        match &self.answer {
            Answer::Given(checked) => Ok(checked.get()),
            Answer::Restored(_) => Err(PyValueError::new_err(
                "the answer comes out of a pickle: use it where it was given",
            )),
        }
    }

    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Fields<'py>> {
        Ok(vec![
            field(py, "set_name", self.set_name())?,
            field(py, "admitted", self.__bool__())?,
            field(py, "binding", self.binding())?,
            field(py, "reason", self.reason())?,
            field(py, "retry_after", self.retry_after())?,
            field(py, "remaining", self.remaining(py)?)?,
            field(py, "verdicts", self.verdicts(py)?)?,
            field(py, "taken", self.taken(py)?)?,
        ])
    }
}

#[pymethods]
impl Checked {
    #[new]
    #[pyo3(signature = (set_name, admitted, binding, reason, retry_after, remaining, verdicts, taken))]
    #[expect(clippy::too_many_arguments, reason = "a pickle calls it with each field")]
    fn restore(
        set_name: String,
        admitted: bool,
        binding: Option<String>,
        reason: Option<String>,
        retry_after: Option<f64>,
        remaining: Option<Py<PyAny>>,
        verdicts: Py<PyDict>,
        taken: Py<PyDict>,
    ) -> Self {
        Self {
            answer: Answer::Restored(Restored {
                admitted,
                set_name,
                binding,
                reason,
                retry_after,
                remaining,
                verdicts,
                taken,
            }),
        }
    }

    /// The limit that bound; None where a table was full, or it was throttled. None where it was admitted.
    #[getter]
    fn binding(&self) -> Option<&str> {
        match &self.answer {
            Answer::Given(checked) => checked.get().binding(),
            Answer::Restored(restored) => restored.binding.as_deref(),
        }
    }

    /// Why: `"rate"`, `"concurrency"`, `"budget"`, `"table_full"` or `"throttled"`; None where it was admitted.
    #[getter]
    fn reason(&self) -> Option<&str> {
        match &self.answer {
            Answer::Given(checked) => checked.get().reason().map(RefusalReason::as_str),
            Answer::Restored(restored) => restored.reason.as_deref(),
        }
    }

    /// Seconds after which the request would be admitted if no one else took anything; None where time alone does not
    /// help.
    #[getter]
    fn retry_after(&self) -> Option<f64> {
        match &self.answer {
            Answer::Given(checked) => checked.get().retry_after().map(seconds),
            Answer::Restored(restored) => restored.retry_after,
        }
    }

    /// What remained of the limit that bound, or where none did of the one that is nearest to its end.
    #[getter]
    fn remaining<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match &self.answer {
            Answer::Given(given) => {
                let checked = given.get();
                verdict::remaining(py, given.handle(), checked.binding(), checked.verdicts())
            }
            Answer::Restored(restored) => Ok(restored.remaining.as_ref().map(|it| it.bind(py).clone())),
        }
    }

    /// What each limit said.
    #[getter]
    fn verdicts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match &self.answer {
            Answer::Given(checked) => verdict::by_limit(py, checked.handle(), checked.get().verdicts()),
            Answer::Restored(restored) => Ok(restored.verdicts.bind(py).clone()),
        }
    }

    /// How much was taken of each limit.
    #[getter]
    fn taken<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match &self.answer {
            Answer::Given(checked) => verdict::taken(py, checked.handle(), checked.get().taken()),
            Answer::Restored(restored) => Ok(restored.taken.bind(py).clone()),
        }
    }

    /// The set that was asked.
    #[getter]
    fn set_name(&self) -> &str {
        match &self.answer {
            Answer::Given(checked) => checked.handle().set.name(),
            Answer::Restored(restored) => &restored.set_name,
        }
    }

    fn __bool__(&self) -> bool {
        match &self.answer {
            Answer::Given(checked) => checked.get().is_admitted(),
            Answer::Restored(restored) => restored.admitted,
        }
    }

    fn __eq__(this: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = this.py();
        let Ok(other) = other.cast::<Self>() else {
            return Ok(py.NotImplemented());
        };
        let is_equal = value::is_equal(this.get().fields(py)?, other.get().fields(py)?)?;
        Ok(is_equal.into_pyobject(py)?.to_owned().into_any().unbind())
    }

    fn __reduce__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        value::reduce(this.get_type(), this.get().fields(this.py())?)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        value::written("Checked", self.fields(py)?)
    }
}

/// When a limit will have how much, if no one takes anything meanwhile.
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

impl Forecast {
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Fields<'py>> {
        Ok(vec![
            field(py, "spendable", &self.spendable)?,
            field(py, "next_unit_after", self.next_unit_after)?,
            field(py, "full_after", self.full_after)?,
            field(py, "of_dead", &self.of_dead)?,
        ])
    }
}

#[pymethods]
impl Forecast {
    #[new]
    #[pyo3(signature = (spendable, next_unit_after, full_after, of_dead))]
    fn new(
        spendable: Py<PyAny>,
        next_unit_after: Option<f64>,
        full_after: Option<f64>,
        of_dead: Py<PyAny>,
    ) -> Self {
        Self {
            spendable,
            of_dead,
            next_unit_after,
            full_after,
        }
    }

    fn __eq__(this: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = this.py();
        let Ok(other) = other.cast::<Self>() else {
            return Ok(py.NotImplemented());
        };
        let is_equal = value::is_equal(this.get().fields(py)?, other.get().fields(py)?)?;
        Ok(is_equal.into_pyobject(py)?.to_owned().into_any().unbind())
    }

    fn __reduce__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        value::reduce(this.get_type(), this.get().fields(this.py())?)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        value::written("Forecast", self.fields(py)?)
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
