//! Converts times: Python uses seconds.

use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDelta;

/// Reads a span of time: a number of seconds, or a `timedelta`. Negative ones become zero.
pub fn duration(object: &Bound<'_, PyAny>) -> PyResult<Duration> {
    Ok(as_duration(span(object)?))
}

/// Reads a timeout: `None`, or a span of time that is not negative.
pub fn timeout(object: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Duration>> {
    let Some(object) = object else { return Ok(None) };
    let seconds = span(object)?;
    if seconds < 0.0 {
        return Err(PyValueError::new_err(format!(
            "timeout is {}: give seconds from 0, which does not wait, or None to wait for as long as it takes",
            object.repr()?
        )));
    }
    Ok(Some(as_duration(seconds)))
}

fn span(object: &Bound<'_, PyAny>) -> PyResult<f64> {
    let seconds = match object.cast::<PyDelta>() {
        Ok(delta) => delta.call_method0("total_seconds")?.extract(),
        Err(_) => object.extract::<f64>(),
    };
    let is_number = || -> PyResult<bool> { Ok(object.hasattr("__float__")? || object.hasattr("__index__")?) };
    match seconds {
        Ok(seconds) if seconds.is_nan() => Err(PyValueError::new_err(no_time(object)?)),
        Err(_) if !is_number()? => Err(PyTypeError::new_err(no_time(object)?)),
        // A number of the program's own class may raise what it likes.
        seconds => seconds,
    }
}

fn no_time(object: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(format!(
        "{} is not a time: give seconds as a number, or a timedelta",
        object.repr()?
    ))
}

/// Anything too large is as good as forever.
fn as_duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// Converts to seconds, rounded up so that sleeping for them does not wake too early.
pub fn seconds(duration: Duration) -> f64 {
    let seconds = duration.as_secs_f64();
    if Duration::try_from_secs_f64(seconds).is_ok_and(|back| back < duration) {
        return seconds.next_up();
    }
    seconds
}
