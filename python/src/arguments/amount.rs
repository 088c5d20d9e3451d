//! Converts amounts: Python uses natural units, the library whole units.

use once_cell::race::OnceBox;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyString, PyType};
use shmlimit::Limit;

use crate::handle::Handle;
use crate::interpreter::error::exception;
use crate::interpreter::once::once;

/// An amount as it was given.
pub enum Amount {
    Whole(u64),
    /// Digits with at most one point, if it is a number.
    Decimal(String),
}

impl Amount {
    /// Reads an amount: a whole number, or a possible fraction as a float, a decimal or a string.
    pub fn from_object(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyFloat>() {
            // The shortest decimal that yields this float is what the user typed.
            let float = object.extract::<f64>()?;
            // Drops the sign of a negative zero.
            let float = if float == 0.0 { 0.0 } else { float };
            return Ok(Self::Decimal(float.to_string()));
        }
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Self::Decimal(text.to_cow()?.into_owned()));
        }
        match object.extract::<u64>() {
            Ok(whole) => return Ok(Self::Whole(whole)),
            // It is no whole number, or none that fits.
            Err(error)
                if error.is_instance_of::<PyTypeError>(object.py())
                    || error.is_instance_of::<PyOverflowError>(object.py()) => {}
            // Raised by the object, or an interruption.
            Err(error) => return Err(error),
        }
        if object.is_instance_of::<PyInt>() {
            let message = format!("{object} is no amount: choose from 0 to {}", u64::MAX);
            return Err(exception(object.py(), "InvalidAmount", message));
        }
        if object.is_instance(decimal_type(object.py())?)? {
            let text = object.call_method1(intern!(object.py(), "__format__"), ("f",))?;
            return Ok(Self::Decimal(text.extract()?));
        }
        Err(PyTypeError::new_err(format!(
            "{} is no amount: give an int, float, Decimal or str",
            object.repr()?
        )))
    }

    /// The amount as digits.
    pub fn into_text(self) -> String {
        match self {
            Self::Whole(whole) => whole.to_string(),
            Self::Decimal(text) => text,
        }
    }
}

/// Converts units to natural ones: an `int`, or a `Decimal` if the limit declares a unit.
pub fn format_units<'py>(py: Python<'py>, limit: Option<&Limit>, units: u64) -> PyResult<Bound<'py, PyAny>> {
    match limit.filter(|limit| counts_in_parts(limit)) {
        None => Ok(units.into_pyobject(py)?.into_any()),
        Some(limit) => decimal_type(py)?.call1((limit.format_units(units),)),
    }
}

/// Converts units of the named limit to natural ones.
pub fn natural_of<'py>(
    py: Python<'py>,
    handle: &Handle,
    limit: &str,
    units: u64,
) -> PyResult<Bound<'py, PyAny>> {
    format_units(py, handle.limit(limit), units)
}

/// Whether the limit's unit differs from the natural one, so that amounts may be decimals.
pub fn counts_in_parts(limit: &Limit) -> bool {
    limit.options().unit().is_some_and(|unit| unit != "1")
}

fn decimal_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static DECIMAL: OnceBox<Py<PyType>> = OnceBox::new();
    let decimal = || {
        Ok(py
            .import("decimal")?
            .getattr("Decimal")?
            .cast_into::<PyType>()?
            .unbind())
    };
    once(&DECIMAL, py, decimal)
}
