//! Values that callers keep: they can be compared, pickled and printed.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{BoundObject, PyClass};

/// Fields by name, in the order of the constructor's arguments.
pub type Fields<'py> = Vec<(&'static str, Bound<'py, PyAny>)>;

/// A value defined by its fields.
pub trait Value: PyClass {
    fn fields<'py>(this: &Bound<'py, Self>) -> PyResult<Fields<'py>>;
}

/// The result of `==`: for two values of a class, whether their fields are equal.
pub fn compare<V: Value>(this: &Bound<'_, V>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let py = this.py();
    let Ok(other) = other.cast::<V>() else {
        return Ok(py.NotImplemented());
    };
    let is_equal = is_equal(V::fields(this)?, V::fields(other)?)?;
    Ok(is_equal.into_pyobject(py)?.to_owned().into_any().unbind())
}

/// The pickled form of a value: its class, and the arguments to call it with.
pub fn reduce<'py, V: Value>(this: &Bound<'py, V>) -> PyResult<Bound<'py, PyTuple>> {
    let (py, class, fields) = (this.py(), this.as_any().get_type(), V::fields(this)?);
    let values = PyTuple::new(py, fields.into_iter().map(|(_, value)| value))?;
    PyTuple::new(py, [class.into_any(), values.into_any()])
}

fn is_equal(one: Fields<'_>, other: Fields<'_>) -> PyResult<bool> {
    for ((_, one), (_, other)) in one.into_iter().zip(other) {
        if !one.eq(other)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The `repr` of a value, without the fields that are None.
pub fn written<V: Value>(class: &str, this: &Bound<'_, V>) -> PyResult<String> {
    let fields = V::fields(this)?;
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
