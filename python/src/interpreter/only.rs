//! Keeps to one interpreter of the process: some servers have several.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyImportError;
use pyo3::intern;
use pyo3::prelude::*;

/// The module `builtins` of the interpreter that imported the package first; each interpreter has its own. Zero if none
/// has.
static BUILTINS: AtomicUsize = AtomicUsize::new(0);

/// Refuses a second interpreter: its requests would raise the first one's exceptions, which its `except` does not catch.
pub fn require(py: Python<'_>) -> PyResult<()> {
    let builtins = py.import(intern!(py, "builtins"))?.as_ptr() as usize;
    match BUILTINS.compare_exchange(0, builtins, Ordering::Relaxed, Ordering::Relaxed) {
        Err(first) if first != builtins => Err(PyImportError::new_err(
            "shmlimit works in one Python interpreter of a process, and another one has imported it before: run each \
             application in the main interpreter of processes of its own (uWSGI: --single-interpreter; mod_wsgi: \
             WSGIDaemonProcess with WSGIScriptAlias ... application-group=%{GLOBAL})",
        )),
        _ => Ok(()),
    }
}
