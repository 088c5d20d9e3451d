//! Python objects that are looked up or made once per process.

use once_cell::race::OnceBox;
use pyo3::prelude::*;

/// Returns the object, made on first use. If making it releases the GIL, several threads may make it at once; the first
/// one wins. [`PyOnceLock`](pyo3::sync::PyOnceLock) would block instead: a child forked while another thread makes the
/// object would wait for that thread forever.
#[inline]
pub fn once<'a, 'py, T>(
    cell: &'a OnceBox<Py<T>>,
    py: Python<'py>,
    make: impl FnOnce() -> PyResult<Py<T>>,
) -> PyResult<&'a Bound<'py, T>> {
    let object = cell.get_or_try_init(|| make().map(Box::new))?;
    Ok(object.bind(py))
}
