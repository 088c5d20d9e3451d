//! Refusals in Python.

use std::ffi::CStr;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::answers::verdict;
use crate::handle::WithHandle;
use crate::interpreter::error::exception_of;
use crate::interpreter::object::{self, Class, Content};
use crate::interpreter::seconds::seconds;

/// A refused request, which took nothing. Its attributes are computed when they are read.
pub struct Refusal {
    refusal: WithHandle<shmlimit::Refusal>,
}

impl Content for Refusal {
    type Methods = RefusalMethods;
    const NAME: &'static CStr = c"shmlimit._native.Refusal";
    const DOC: &'static CStr =
        c"A request was refused: nothing was taken. It is false, and holds nothing. Entered as a \
context manager it raises `Refused`, so that the body of a `with` never runs without a permit.";

    fn class() -> &'static Class {
        static CLASS: Class = Class::new();
        &CLASS
    }

    fn is_true(&self) -> bool {
        false
    }

    #[inline]
    fn end(self, py: Python<'_>) {
        self.refusal.end(py);
    }
}

/// The methods and attributes of refusals.
#[pyclass(subclass, frozen, name = "_Refusal", module = "shmlimit._native")]
pub struct RefusalMethods;

impl Refusal {
    #[inline]
    pub fn new(refusal: WithHandle<shmlimit::Refusal>) -> Self {
        Self { refusal }
    }

    /// The library's refusal in an object.
    pub fn of_object<'a>(object: &'a Bound<'_, RefusalMethods>) -> PyResult<&'a shmlimit::Refusal> {
        Ok(refusal(object)?.get())
    }
}

#[pymethods]
impl RefusalMethods {
    /// The limit that refused; None if a full table or a throttle refused.
    #[getter]
    fn binding<'a>(this: &'a Bound<'_, Self>) -> PyResult<Option<&'a str>> {
        Ok(refusal(this)?.get().binding())
    }

    /// Why: `"rate"`, `"concurrency"`, `"budget"`, `"queue_full"`, `"table_full"`, `"holds_full"`, `"throttled"` or
    /// `"lease"`.
    #[getter]
    fn reason(this: &Bound<'_, Self>) -> PyResult<&'static str> {
        Ok(refusal(this)?.get().reason().as_str())
    }

    /// Seconds after which the request would be admitted if nobody else took anything; None if time alone does not
    /// help.
    #[getter]
    fn retry_after(this: &Bound<'_, Self>) -> PyResult<Option<f64>> {
        Ok(refusal(this)?.get().retry_after().map(seconds))
    }

    /// What remained of the limit that refused.
    #[getter]
    fn remaining<'py>(this: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let kept = refusal(this)?;
        let refusal = kept.get();
        verdict::remaining(this.py(), kept.handle(), refusal.binding(), refusal.verdicts())
    }

    /// The verdict of each limit.
    #[getter]
    fn verdicts<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let kept = refusal(this)?;
        verdict::by_limit(this.py(), kept.handle(), kept.get().verdicts())
    }

    /// The set that was asked.
    #[getter]
    fn set_name<'a>(this: &'a Bound<'_, Self>) -> PyResult<&'a str> {
        Ok(refusal(this)?.handle().set.name())
    }

    /// Does nothing: a refusal holds nothing.
    fn release(&self) {}

    fn __str__(this: &Bound<'_, Self>) -> PyResult<String> {
        Ok(refusal(this)?.get().to_string())
    }

    fn __repr__(this: &Bound<'_, Self>) -> PyResult<String> {
        Ok(format!("<Refusal: {}>", refusal(this)?.get()))
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

fn refusal<'a>(this: &'a Bound<'_, RefusalMethods>) -> PyResult<&'a WithHandle<shmlimit::Refusal>> {
    Ok(&object::content::<Refusal>(this)?.refusal)
}
