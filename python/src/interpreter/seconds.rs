//! Converts times: Python uses seconds.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDelta;

/// Reads a span of time: a number of seconds, or a `timedelta`. Negative ones become zero.
pub fn duration(object: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds: f64 = match object.cast::<PyDelta>() {
        Ok(delta) => delta.call_method0("total_seconds")?.extract()?,
        Err(_) => object.extract()?,
    };
    if seconds.is_nan() {
        return Err(PyValueError::new_err("a time that is not a number"));
    }
    // Anything too large is as good as forever.
    Ok(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}

/// Reads a timeout: `None`, or a span of time that is not negative.
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

/// Converts to seconds, rounded up so that sleeping for them does not wake too early.
pub fn seconds(duration: Duration) -> f64 {
    let seconds = duration.as_secs_f64();
    if Duration::try_from_secs_f64(seconds).is_ok_and(|back| back < duration) {
        return seconds.next_up();
    }
    seconds
}
