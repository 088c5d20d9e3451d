//! What Python reads as JSON.

use pyo3::prelude::*;
use serde::Serialize;

use super::error::exception;

/// A value as JSON, which the package reads into plain dictionaries.
pub fn json(py: Python<'_>, value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| exception(py, "SegmentError", error.to_string()))
}
