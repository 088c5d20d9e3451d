//! Refusals in Python.

use std::ffi::CStr;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use shmlimit::RefusalReason;

use crate::answers::answer::{Answer, Decided, Restored};
use crate::handle::WithHandle;
use crate::interpreter::error::exception_of;
use crate::interpreter::object::{self, Class, Content};
use crate::interpreter::value::{self, Fields, Value, field};

/// A refused request, which took nothing. Its attributes are computed when they are read.
pub struct Refusal {
    answer: Answer<shmlimit::Refusal, Message>,
}

/// What a refusal says, as its pickle has it.
struct Message(String);

impl Decided for shmlimit::Refusal {
    fn binding(&self) -> Option<&str> {
        self.binding()
    }

    fn reason(&self) -> Option<RefusalReason> {
        Some(self.reason())
    }

    fn retry_after(&self) -> Option<Duration> {
        self.retry_after()
    }

    fn verdicts(&self) -> impl Iterator<Item = shmlimit::Verdict<'_>> {
        self.verdicts()
    }
}

impl Content for Refusal {
    type Methods = RefusalMethods;
    const NAME: &'static CStr = c"shmlimit._native.Refusal";
    const DOC: &'static CStr =
        c"Refusal(set_name, message, binding, reason, retry_after, remaining, verdicts)
--

A request was refused: nothing was taken. It is false, and holds nothing. Entered as a \
context manager it raises `Refused`, so that the body of a `with` never runs without a permit.";
    const CONSTRUCTOR: Option<&'static str> = Some("_restored");

    fn class() -> &'static Class {
        static CLASS: Class = Class::new();
        &CLASS
    }

    fn is_true(&self) -> bool {
        false
    }

    #[inline]
    fn end(self, py: Python<'_>) {
        self.answer.end(py, drop);
    }
}

/// The methods and attributes of refusals.
#[pyclass(subclass, frozen, name = "_Refusal", module = "shmlimit._native")]
pub struct RefusalMethods;

impl Refusal {
    #[inline]
    pub fn new(refusal: WithHandle<shmlimit::Refusal>) -> Self {
        let answer = Answer::Given(refusal);
        Self { answer }
    }

    /// The library's refusal in an object.
    ///
    /// # Errors
    ///
    /// `ValueError` if the object was unpickled: a pickle keeps only the refusal's attributes.
    pub fn of_object<'a>(object: &'a Bound<'_, RefusalMethods>) -> PyResult<&'a shmlimit::Refusal> {
        answer(object)?.given("refusal")
    }
}

impl Value for RefusalMethods {
    fn fields<'py>(this: &Bound<'py, Self>) -> PyResult<Fields<'py>> {
        let py = this.py();
        Ok(vec![
            field(py, "set_name", Self::set_name(this)?)?,
            field(py, "message", Self::__str__(this)?)?,
            field(py, "binding", Self::binding(this)?)?,
            field(py, "reason", Self::reason(this)?)?,
            field(py, "retry_after", Self::retry_after(this)?)?,
            field(py, "remaining", Self::remaining(this)?)?,
            field(py, "verdicts", Self::verdicts(this)?)?,
        ])
    }
}

#[pymethods]
impl RefusalMethods {
    /// Makes a refusal from its fields.
    #[staticmethod]
    #[pyo3(signature = (set_name, message, binding, reason, retry_after, remaining, verdicts))]
    #[expect(clippy::too_many_arguments, reason = "a pickle calls it with each field")]
    fn _restored<'py>(
        py: Python<'py>,
        set_name: String,
        message: String,
        binding: Option<String>,
        reason: String,
        retry_after: Option<f64>,
        remaining: Option<Py<PyAny>>,
        verdicts: Py<PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let answer = Answer::Restored(Restored {
            set_name,
            binding,
            reason: Some(reason),
            retry_after,
            remaining,
            verdicts,
            own: Message(message),
        });
        object::make(py, Refusal { answer })
    }

    /// The limit that refused; None if a full table or a throttle refused.
    #[getter]
    fn binding<'a>(this: &'a Bound<'_, Self>) -> PyResult<Option<&'a str>> {
        Ok(answer(this)?.binding())
    }

    /// Why: `"rate"`, `"concurrency"`, `"budget"`, `"queue_full"`, `"table_full"`, `"holds_full"`, `"throttled"`; or,
    /// for limits that hosts share, `"lease"` if the store had no more for this host, `"lease_pending"` if it has not
    /// answered yet, and `"store_out"` if it is out.
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

    /// What remained of the limit that refused.
    #[getter]
    fn remaining<'py>(this: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        answer(this)?.remaining(this.py())
    }

    /// The verdict of each limit.
    #[getter]
    fn verdicts<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        answer(this)?.verdicts(this.py())
    }

    /// The set that was asked.
    #[getter]
    fn set_name<'a>(this: &'a Bound<'_, Self>) -> PyResult<&'a str> {
        Ok(answer(this)?.set_name())
    }

    /// Does nothing: a refusal holds nothing.
    fn release(&self) {}

    fn __str__(this: &Bound<'_, Self>) -> PyResult<String> {
        Ok(match answer(this)? {
            Answer::Given(refusal) => refusal.get().to_string(),
            Answer::Restored(restored) => restored.own.0.clone(),
        })
    }

    fn __repr__(this: &Bound<'_, Self>) -> PyResult<String> {
        Self::__str__(this).map(|message| format!("<Refusal: {message}>"))
    }

    fn __eq__(this: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        value::compare(this, other)
    }

    fn __reduce__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        value::reduce(this)
    }

    /// Raises `Refused`.
    fn __enter__(this: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        Err(exception_of(this.py(), "Refused", this))
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> bool {
        false
    }

    /// Raises `Refused`.
    fn __aenter__(this: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        Self::__enter__(this)
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__(&self, _exception: &Bound<'_, PyTuple>) -> bool {
        false
    }
}

fn answer<'a>(this: &'a Bound<'_, RefusalMethods>) -> PyResult<&'a Answer<shmlimit::Refusal, Message>> {
    Ok(&object::content::<Refusal>(this)?.answer)
}
