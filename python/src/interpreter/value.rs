//! Values that callers keep: they compare, pickle, and show what they say.

use pyo3::BoundObject;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

/// Fields by name, in the order in which the value's class takes them.
pub type Fields<'py> = Vec<(&'static str, Bound<'py, PyAny>)>;

/// What pickles keep of a value: its class, and what to call that with.
pub fn reduce<'py>(class: Bound<'py, PyType>, fields: Fields<'py>) -> PyResult<Bound<'py, PyTuple>> {
    let py = class.py();
    let values = PyTuple::new(py, fields.into_iter().map(|(_, value)| value))?;
    PyTuple::new(py, [class.into_any(), values.into_any()])
}

/// Whether two values have equal fields.
pub fn is_equal(one: Fields<'_>, other: Fields<'_>) -> PyResult<bool> {
    for ((_, one), (_, other)) in one.into_iter().zip(other) {
        if !one.eq(other)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A value as Python would write it, without the fields that are None.
pub fn written(class: &str, fields: Fields<'_>) -> PyResult<String> {
    let mut parts = Vec::with_capacity(fields.len());
    for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_none()) {
        parts.push(format!("{name}={}", value.repr()?));
    }
    Ok(format!("{class}({})", parts.join(", ")))
}

/// One field of a value.
pub fn field<'py>(
    py: Python<'py>,
    name: &'static str,
    value: impl IntoPyObject<'py>,
) -> PyResult<(&'static str, Bound<'py, PyAny>)> {
    let value = value.into_pyobject(py).map_err(Into::<PyErr>::into)?;
    Ok((name, value.into_any().into_bound()))
}
