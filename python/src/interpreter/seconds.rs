//! Times: seconds on the side of Python.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDelta;

/// A span of time as it is given: a number of seconds, or a `timedelta`. Less than nothing is nothing.
pub fn duration(object: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds: f64 = match object.cast::<PyDelta>() {
        Ok(delta) => delta.call_method0("total_seconds")?.extract()?,
        Err(_) => object.extract()?,
    };
    if seconds.is_nan() {
        return Err(PyValueError::new_err("a time that is not a number"));
    }
    // What does not fit is as good as for ever.
    Ok(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}

/// A timeout as it is given: none, or as [`duration`], but not less than nothing.
pub fn timeout(object: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Duration>> {
    let Some(object) = object else { return Ok(None) };
    let is_negative = match object.cast::<PyDelta>() {
        Ok(delta) => delta.call_method0("total_seconds")?.extract::<f64>()? < 0.0,
        Err(_) => object.extract::<f64>()? < 0.0,
    };
    if is_negative {
        return Err(PyValueError::new_err(format!(
            "timeout is {}: give seconds from 0, which does not wait, or None to wait for as long as it takes",
            object.repr()?
        )));
    }
    duration(object).map(Some)
}

/// Seconds that are not fewer than what they stand for, so that who sleeps for them does not wake too early.
pub fn seconds(duration: Duration) -> f64 {
    let seconds = duration.as_secs_f64();
    if Duration::try_from_secs_f64(seconds).is_ok_and(|back| back < duration) {
        return seconds.next_up();
    }
    seconds
}
