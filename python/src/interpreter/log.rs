//! Logs to the logger `shmlimit`: problems that cannot be raised to a caller, and events that users ask for.
//!
//! A request does not fail because its record cannot be logged: exceptions of the logger are reported as unraisable.
//! Only exceptions that end a program or a task, such as an interruption, are raised.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use pyo3::PyTypeInfo;
use pyo3::exceptions::{PyException, PyResourceWarning};
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

/// Logs a warning in the middle of a wait, which goes on even if the logger raises.
pub fn warning_while_waiting(py: Python<'_>, message: &str) {
    if let Err(error) = warning(py, message) {
        error.write_unraisable(py, None);
    }
}

/// Logs a warning that Python's `warnings` also shows, unless logging would only print it a second time.
pub fn warning_beside_another(py: Python<'_>, message: &str) -> PyResult<()> {
    let is_configured: bool = logger(py)?.call_method0(intern!(py, "hasHandlers"))?.extract()?;
    if is_configured {
        warning(py, message)?;
    }
    Ok(())
}

/// Logs an event that the user asked for, with fields in addition to the message.
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

/// Logs a warning from a finalizer: there is no caller to raise to, and an exception that is being raised stays in
/// place. Logs nothing if the interpreter has ended.
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

/// Logs a warning from a thread of the library, which has no caller to raise to. Logs nothing if the interpreter has
/// ended.
pub fn warning_of_thread(message: &str) {
    Python::try_attach(|py| warning_while_waiting(py, message));
}

/// Issues a `ResourceWarning` about an object that nothing refers to any more, as Python does for open files. An
/// exception that is being raised stays in place; if a filter makes the warning an error, that is reported as
/// unraisable. The warning needs the object to say where the object was made.
pub fn resource_warning(py: Python<'_>, object: Option<&Bound<'_, PyAny>>, message: &str) {
    let raised = PyErr::take(py);
    let warn = || -> PyResult<()> {
        let keywords = PyDict::new(py);
        keywords.set_item(intern!(py, "source"), object)?;
        let category = PyResourceWarning::type_object(py);
        let warnings = py.import(intern!(py, "warnings"))?;
        warnings.call_method(intern!(py, "warn"), (message, category), Some(&keywords))?;
        Ok(())
    };
    match warn() {
        Err(error) if error.is_instance_of::<PyResourceWarning>(py) => error.write_unraisable(py, object),
        // The interpreter is shutting down.
        _ => {}
    }
    if let Some(raised) = raised {
        raised.restore(py);
    }
}

/// The paths of removed segments that were already warned about. If the lock is taken, as in a child that was forked
/// while another thread held it, the warning is skipped.
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

/// Allows another warning for this path: from now on, another segment is there.
pub fn forget_removal(path: &Path) {
    if let Ok(mut removed) = REMOVED.try_lock() {
        removed.remove(path);
    }
}

fn logger(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import(intern!(py, "logging"))?
        .call_method1(intern!(py, "getLogger"), ("shmlimit",))
}
