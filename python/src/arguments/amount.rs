//! Converts amounts: Python uses natural units, the library whole units.

use once_cell::race::OnceBox;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyString, PyType};
use shmlimit::Limit;

use crate::handle::Handle;
use crate::interpreter::error::exception;
use crate::interpreter::once::once;

/// An amount as it was given.
pub enum Amount {
    Whole(u64),
    /// Digits with at most one point, if it is a number.
    Decimal(String),
    /// The same, for a binary fraction: the shortest decimal that yields it.
    Float(String),
}

impl Amount {
    /// Reads an amount: a whole number, or a float, a decimal, a fraction or a string, which need not be whole.
    pub fn from_object(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        if object.is_instance_of::<PyFloat>() {
            // The shortest decimal that yields this float is what the user typed.
            let float = object.extract::<f64>()?;
            // Drops the sign of a negative zero.
            let float = if float == 0.0 { 0.0 } else { float };
            return Ok(Self::Float(float.to_string()));
        }
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Self::Decimal(text.to_cow()?.into_owned()));
        }
        match object.extract::<u64>() {
            Ok(whole) => return Ok(Self::Whole(whole)),
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
                let message = format!("{object} is not an amount: choose from 0 to {}", u64::MAX);
                return Err(exception(py, "InvalidAmount", message));
            }
            // It is not a whole number.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {}
            // Raised by the object, or an interruption.
            Err(error) => return Err(error),
        }
        if object.is_instance(decimal_type(py)?)? {
            return Ok(Self::Decimal(digits_of_decimal(object)?));
        }
        let numbers = py.import(intern!(py, "numbers"))?;
        if object.is_instance(&numbers.getattr(intern!(py, "Rational"))?)? {
            return Ok(Self::Decimal(digits_of_fraction(object)?));
        }
        if object.is_instance(&numbers.getattr(intern!(py, "Real"))?)? {
            // Other packages' floats, whose text is the shortest that yields them, perhaps with an exponent.
            let decimal = decimal_type(py)?.call1((object.str()?,))?;
            let positive = match decimal.eq(0)? {
                true => decimal.call_method0(intern!(py, "copy_abs"))?,
                false => decimal,
            };
            return Ok(Self::Float(digits_of_decimal(&positive)?));
        }
        Err(PyTypeError::new_err(format!(
            "{} is not an amount: give an int, float, Decimal, Fraction or str",
            object.repr()?
        )))
    }

    /// The amount as digits.
    pub fn into_text(self) -> String {
        match self {
            Self::Whole(whole) => whole.to_string(),
            Self::Decimal(text) | Self::Float(text) => text,
        }
    }
}

fn digits_of_decimal(decimal: &Bound<'_, PyAny>) -> PyResult<String> {
    decimal
        .call_method1(intern!(decimal.py(), "__format__"), ("f",))?
        .extract()
}

/// A fraction as a decimal with as many digits after the point as any unit has, and one more if there is a remainder.
fn digits_of_fraction(fraction: &Bound<'_, PyAny>) -> PyResult<String> {
    const DIGITS: usize = 18;
    let py = fraction.py();
    let numerator = fraction.getattr(intern!(py, "numerator"))?;
    let scaled = numerator.mul(10_u64.pow(DIGITS as u32))?;
    let (quotient, rest): (Bound<'_, PyAny>, Bound<'_, PyAny>) = scaled
        .divmod(fraction.getattr(intern!(py, "denominator"))?)?
        .extract()?;
    let text = quotient.str()?;
    let text = text.to_cow()?;
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", &*text),
    };
    let digits = format!("{digits:0>width$}", width = DIGITS + 1);
    let (whole, after_the_point) = digits.split_at(digits.len() - DIGITS);
    let more = if rest.is_truthy()? { "1" } else { "" };
    Ok(format!("{sign}{whole}.{after_the_point}{more}"))
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
