//! Objects of the interpreter that are looked up or made once in a process.

use once_cell::race::OnceBox;
use pyo3::prelude::*;

/// The object, which is made when it is first asked for; by several threads at once, where making it lets others run, and the
/// first one counts. Not by [`PyOnceLock`](pyo3::sync::PyOnceLock): a child that is forked while another thread makes the object
/// would wait for that thread for ever.
#[inline]
pub fn once<'a, 'py, T>(
    cell: &'a OnceBox<Py<T>>,
    py: Python<'py>,
    make: impl FnOnce() -> PyResult<Py<T>>,
) -> PyResult<&'a Bound<'py, T>> {
    let object = cell.get_or_try_init(|| make().map(Box::new))?;
    Ok(object.bind(py))
}
