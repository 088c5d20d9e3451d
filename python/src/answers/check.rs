//! The answers of checks and debits, which hold nothing, and forecasts.

use std::ffi::CStr;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use shmlimit::RefusalReason;

use crate::answers::answer::{Answer, Decided, Restored};
use crate::answers::verdict;
use crate::arguments::amount::natural_of;
use crate::handle::{Handle, WithHandle};
use crate::interpreter::object::{self, Class, Content};
use crate::interpreter::seconds::seconds;
use crate::interpreter::value::{self, Fields, Value, field};

/// The answer to a check or a debit.
pub struct Checked {
    answer: Answer<shmlimit::Checked<'static>, Taken>,
}

/// Whether everything was taken, and what, as a pickle has it.
struct Taken {
    admitted: bool,
    taken: Py<PyDict>,
}

impl Decided for shmlimit::Checked<'_> {
    fn binding(&self) -> Option<&str> {
        self.binding()
    }

    fn reason(&self) -> Option<RefusalReason> {
        self.reason()
    }

    fn retry_after(&self) -> Option<Duration> {
        self.retry_after()
    }

    fn verdicts(&self) -> impl Iterator<Item = shmlimit::Verdict<'_>> {
        self.verdicts()
    }
}

impl Content for Checked {
    type Methods = CheckedMethods;
    const NAME: &'static CStr = c"shmlimit._native.Checked";
    const DOC: &'static CStr =
        c"Checked(set_name, admitted, binding, reason, retry_after, remaining, verdicts, taken)
--

The answer to a check or a debit: true where everything was taken, for good; otherwise nothing was.";
    const CONSTRUCTOR: Option<&'static str> = Some("_restored");

    fn class() -> &'static Class {
        static CLASS: Class = Class::new();
        &CLASS
    }

    fn is_true(&self) -> bool {
        match &self.answer {
            Answer::Given(checked) => checked.get().is_admitted(),
            Answer::Restored(restored) => restored.own.admitted,
        }
    }

    #[inline]
    fn end(self, py: Python<'_>) {
        self.answer.end(py, |own| own.taken.drop_ref(py));
    }
}

/// The methods and attributes of `Checked`.
#[pyclass(subclass, frozen, name = "_Checked", module = "shmlimit._native")]
pub struct CheckedMethods;

impl Checked {
    /// The answer as an object.
    #[inline(always)]
    pub fn answer<'py>(
        py: Python<'py>,
        checked: WithHandle<shmlimit::Checked<'static>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let answer = Answer::Given(checked);
        object::make(py, Self { answer })
    }

    /// The library's answer in an object.
    ///
    /// # Errors
    ///
    /// `ValueError` if the object was unpickled: a pickle keeps only the answer's attributes.
    pub fn of_object<'a>(object: &'a Bound<'_, CheckedMethods>) -> PyResult<&'a shmlimit::Checked<'static>> {
        answer(object)?.given("answer")
    }
}

impl Value for CheckedMethods {
    fn fields<'py>(this: &Bound<'py, Self>) -> PyResult<Fields<'py>> {
        let (py, is_admitted) = (this.py(), object::content::<Checked>(this)?.is_true());
        Ok(vec![
            field(py, "set_name", Self::set_name(this)?)?,
            field(py, "admitted", is_admitted)?,
            field(py, "binding", Self::binding(this)?)?,
            field(py, "reason", Self::reason(this)?)?,
            field(py, "retry_after", Self::retry_after(this)?)?,
            field(py, "remaining", Self::remaining(this)?)?,
            field(py, "verdicts", Self::verdicts(this)?)?,
            field(py, "taken", Self::taken(this)?)?,
        ])
    }
}

fn answer<'a>(
    this: &'a Bound<'_, CheckedMethods>,
) -> PyResult<&'a Answer<shmlimit::Checked<'static>, Taken>> {
    Ok(&object::content::<Checked>(this)?.answer)
}

#[pymethods]
impl CheckedMethods {
    /// Makes an answer from its fields.
    #[staticmethod]
    #[pyo3(signature = (set_name, admitted, binding, reason, retry_after, remaining, verdicts, taken))]
    #[expect(clippy::too_many_arguments, reason = "a pickle calls it with each field")]
    fn _restored<'py>(
        py: Python<'py>,
        set_name: String,
        admitted: bool,
        binding: Option<String>,
        reason: Option<String>,
        retry_after: Option<f64>,
        remaining: Option<Py<PyAny>>,
        verdicts: Py<PyDict>,
        taken: Py<PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let answer = Answer::Restored(Restored {
            set_name,
            binding,
            reason,
            retry_after,
            remaining,
            verdicts,
            own: Taken { admitted, taken },
        });
        object::make(py, Checked { answer })
    }

    /// The limit that refused; None if the request was admitted, or if a full table or a throttle refused.
    #[getter]
    fn binding<'a>(this: &'a Bound<'_, Self>) -> PyResult<Option<&'a str>> {
        Ok(answer(this)?.binding())
    }

    /// Why the request was refused: `"rate"`, `"concurrency"`, `"budget"`, `"table_full"`, `"throttled"`, `"lease"`,
    /// `"lease_pending"` or `"store_out"`; None if it was admitted.
    #[getter]
    fn reason<'a>(this: &'a Bound<'_, Self>) -> PyResult<Option<&'a str>> {
        Ok(answer(this)?.reason())
    }

    /// Seconds after which the request would be admitted if nobody else took anything; None if time alone does not
    /// help.
    #[getter]
    fn retry_after(this: &Bound<'_, Self>) -> PyResult<Option<f64>> {
        Ok(answer(this)?.retry_after())
    }

    /// What remained of the limit that refused or, if none did, of the one closest to being exhausted.
    #[getter]
    fn remaining<'py>(this: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        answer(this)?.remaining(this.py())
    }

    /// The verdict of each limit.
    #[getter]
    fn verdicts<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        answer(this)?.verdicts(this.py())
    }

    /// How much was taken of each limit.
    #[getter]
    fn taken<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let py = this.py();
        match answer(this)? {
            Answer::Given(checked) => verdict::taken(py, checked.handle(), checked.get().taken()),
            Answer::Restored(restored) => Ok(restored.own.taken.bind(py).clone()),
        }
    }

    /// The set that was asked.
    #[getter]
    fn set_name<'a>(this: &'a Bound<'_, Self>) -> PyResult<&'a str> {
        Ok(answer(this)?.set_name())
    }

    fn __eq__(this: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        value::compare(this, other)
    }

    fn __reduce__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        value::reduce(this)
    }

    fn __repr__(this: &Bound<'_, Self>) -> PyResult<String> {
        value::written("Checked", this)
    }
}

/// How much of a limit there is and when there will be more, if nobody takes anything meanwhile.
#[pyclass(frozen, module = "shmlimit._native")]
pub struct Forecast {
    /// How much could be taken now.
    #[pyo3(get)]
    spendable: Py<PyAny>,
    /// How much is held by dead processes or under expired leases. It already counts as free.
    #[pyo3(get)]
    of_dead: Py<PyAny>,
    /// Seconds after which one more unit could be taken; None if the limit is full, or if time alone does not help.
    #[pyo3(get)]
    next_unit_after: Option<f64>,
    /// Seconds after which the limit is completely replenished; None if time alone does not help.
    #[pyo3(get)]
    full_after: Option<f64>,
}

impl Value for Forecast {
    fn fields<'py>(this: &Bound<'py, Self>) -> PyResult<Fields<'py>> {
        let (py, value) = (this.py(), this.get());
        Ok(vec![
            field(py, "spendable", &value.spendable)?,
            field(py, "next_unit_after", value.next_unit_after)?,
            field(py, "full_after", value.full_after)?,
            field(py, "of_dead", &value.of_dead)?,
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
        value::compare(this, other)
    }

    fn __reduce__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        value::reduce(this)
    }

    fn __repr__(this: &Bound<'_, Self>) -> PyResult<String> {
        value::written("Forecast", this)
    }
}

/// Forecasts by limit name.
pub fn forecasts<'py>(
    py: Python<'py>,
    handle: &Handle,
    forecasts: &[shmlimit::snapshot::Forecast<'_>],
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
