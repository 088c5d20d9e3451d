//! Refusals as Python meets them.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::error::exception_of;
use crate::handle::WithHandle;
use crate::seconds::seconds;
use crate::verdict;

/// A request was refused: nothing was taken. It is false, and holds nothing. Entered as a context manager it raises
/// `Refused`, so that the body of a `with` never runs without a permit.
#[pyclass(frozen, module = "shmlimit._native")]
pub struct Refusal {
    refusal: WithHandle<shmlimit::Refusal>,
}

impl Refusal {
    pub fn new(refusal: WithHandle<shmlimit::Refusal>) -> Self {
        Self { refusal }
    }

    /// The refusal, as the library has it.
    pub fn library_refusal(&self) -> &shmlimit::Refusal {
        self.refusal.get()
    }
}

#[pymethods]
impl Refusal {
    /// The limit that bound; None where a table was full, or it was throttled.
    #[getter]
    fn binding(&self) -> Option<&str> {
        self.refusal.get().binding()
    }

    /// Why: `"rate"`, `"concurrency"`, `"budget"`, `"queue_full"`, `"table_full"`, `"holds_full"` or `"throttled"`.
    #[getter]
    fn reason(&self) -> &'static str {
        self.refusal.get().reason().as_str()
    }

    /// Seconds after which the request would be admitted if no one else took anything; None where time alone does not
    /// help.
    #[getter]
    fn retry_after(&self) -> Option<f64> {
        self.refusal.get().retry_after().map(seconds)
    }

    /// What remained of the limit that bound.
    #[getter]
    fn remaining<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let refusal = self.refusal.get();
        verdict::remaining(py, self.refusal.handle(), refusal.binding(), refusal.verdicts())
    }

    /// What each limit said.
    #[getter]
    fn verdicts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        verdict::by_limit(py, self.refusal.handle(), self.refusal.get().verdicts())
    }

    /// The set that was asked.
    #[getter]
    fn set_name(&self) -> &str {
        self.refusal.handle().set.name()
    }

    /// Does nothing: a refusal holds nothing.
    fn release(&self) {}

    fn __bool__(&self) -> bool {
        false
    }

    fn __str__(&self) -> String {
        self.refusal.get().to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Refusal: {}>", self.refusal.get())
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
