//! Settlements in Python.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments::amount::natural_of;
use crate::handle::Handle;
use crate::interpreter::value::{self, Fields, Value, field};

/// What settling a permit changed, by limit.
#[pyclass(frozen, module = "shmlimit._native")]
pub struct Settlement {
    /// What was given back to each settled limit.
    #[pyo3(get)]
    refunded: Py<PyDict>,
    /// What was used beyond the reserved amount, and charged.
    #[pyo3(get)]
    overdraft: Py<PyDict>,
}

impl Settlement {
    pub fn of(
        py: Python<'_>,
        handle: &Handle,
        settlement: &shmlimit::Settlement<'_>,
        usage: &[(String, u64)],
    ) -> PyResult<Self> {
        let (refunded, overdraft) = (PyDict::new(py), PyDict::new(py));
        for (limit, _) in usage.iter().filter(|(limit, _)| handle.limit(limit).is_some()) {
            refunded.set_item(limit, natural_of(py, handle, limit, settlement.refunded(limit))?)?;
            overdraft.set_item(limit, natural_of(py, handle, limit, settlement.overdraft(limit))?)?;
        }
        Ok(Self {
            refunded: refunded.unbind(),
            overdraft: overdraft.unbind(),
        })
    }
}

impl Value for Settlement {
    fn fields<'py>(this: &Bound<'py, Self>) -> PyResult<Fields<'py>> {
        let (py, value) = (this.py(), this.get());
        Ok(vec![
            field(py, "refunded", &value.refunded)?,
            field(py, "overdraft", &value.overdraft)?,
        ])
    }
}

#[pymethods]
impl Settlement {
    #[new]
    fn new(refunded: Py<PyDict>, overdraft: Py<PyDict>) -> Self {
        Self { refunded, overdraft }
    }

    fn __eq__(this: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        value::compare(this, other)
    }

    fn __reduce__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        value::reduce(this)
    }

    fn __repr__(this: &Bound<'_, Self>) -> PyResult<String> {
        value::written("Settlement", this)
    }
}
