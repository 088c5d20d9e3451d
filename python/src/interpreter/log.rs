//! What is said to the logger `shmlimit`: that which has no caller to be raised to, and what was asked for.
//!
//! That a record could not be logged is no failure of the request that it is about: exceptions of the logger are reported
//! as those that cannot be raised. Only what ends a program or a task is raised, such as an interruption.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use shmlimit::Error;

/// Logs a warning.
pub fn warning(py: Python<'_>, message: &str) -> PyResult<()> {
    let message = PyString::new(py, message);
    let logger = logger(py)?;
    let logged = logger.call_method1(intern!(py, "warning"), ("%s", message));
    without_failures(&logger, logged)
}

/// As [`warning`], of what a warning of Python's says already: not where it would only be printed once more.
pub fn warning_beside_another(py: Python<'_>, message: &str) -> PyResult<()> {
    let is_configured: bool = logger(py)?.call_method0(intern!(py, "hasHandlers"))?.extract()?;
    if is_configured {
        warning(py, message)?;
    }
    Ok(())
}

/// Logs what was asked for, with fields beside the message.
pub fn information(py: Python<'_>, message: &str, fields: &Bound<'_, PyDict>) -> PyResult<()> {
    const INFO: i32 = 20;
    let keywords = PyDict::new(py);
    keywords.set_item(intern!(py, "extra"), fields)?;
    let logger = logger(py)?;
    let logged = logger.call_method(intern!(py, "log"), (INFO, "%s", message), Some(&keywords));
    without_failures(&logger, logged)
}

fn without_failures(logger: &Bound<'_, PyAny>, logged: PyResult<Bound<'_, PyAny>>) -> PyResult<()> {
    let py = logger.py();
    match logged {
        Err(error) if error.is_instance_of::<PyException>(py) => {
            error.write_unraisable(py, Some(logger));
            Ok(())
        }
        logged => logged.map(drop),
    }
}

/// As [`warning`], by what is being garbage-collected: there is no one to raise anything to, and what was being raised
/// goes on. Nothing is logged where the interpreter has ended.
pub fn warning_of_collected(message: &str) {
    Python::try_attach(|py| {
        let raised = PyErr::take(py);
        if let Err(error) = warning(py, message) {
            error.write_unraisable(py, None);
        }
        if let Some(raised) = raised {
            raised.restore(py);
        }
    });
}

/// The removed segments, by path, that were warned about. In doubt they were: a child may have inherited the lock while
/// another thread of its parent held it.
static REMOVED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Warns, once for each path in this process, that a segment was removed.
pub fn removal(py: Python<'_>, path: &Path, error: &Error) -> PyResult<()> {
    let is_first = REMOVED
        .try_lock()
        .is_ok_and(|mut removed| removed.insert(path.to_owned()));
    if is_first {
        warning(py, &error.to_string())?;
    }
    Ok(())
}

/// What is removed at that path from now on is another segment.
pub fn forget_removal(path: &Path) {
    if let Ok(mut removed) = REMOVED.try_lock() {
        removed.remove(path);
    }
}

fn logger(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import(intern!(py, "logging"))?
        .call_method1(intern!(py, "getLogger"), ("shmlimit",))
}
