//! What settling changed, as Python meets it.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::amount::natural_of;
use crate::handle::Handle;

/// What settling a permit changed, by limit.
#[pyclass(frozen, module = "shmlimit._native")]
pub struct Settlement {
    /// What was given back of each limit that was settled.
    #[pyo3(get)]
    refunded: Py<PyDict>,
    /// What was used, and charged, above what was reserved.
    #[pyo3(get)]
    overdraft: Py<PyDict>,
}

impl Settlement {
    pub fn new(
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

#[pymethods]
impl Settlement {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (refunded, overdraft) = (self.refunded.bind(py).repr()?, self.overdraft.bind(py).repr()?);
        Ok(format!("Settlement(refunded={refunded}, overdraft={overdraft})"))
    }
}
