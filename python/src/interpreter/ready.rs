//! An awaitable that is already done.

use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;

/// When awaited, returns its value without yielding to other tasks.
#[pyclass(module = "shmlimit._native")]
pub struct Ready {
    value: Option<Py<PyAny>>,
}

impl Ready {
    pub fn new(value: Py<PyAny>) -> Self {
        Self { value: Some(value) }
    }
}

#[pymethods]
impl Ready {
    fn __await__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&mut self) -> PyResult<()> {
        Err(PyStopIteration::new_err((self.value.take(),)))
    }
}
