//! Who is limited, as Python names it.

use std::borrow::Cow;
use std::net::IpAddr;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString};

use crate::error::exception;

/// The bytes of a key: a string as UTF-8, bytes as they are, a whole number in digits, an address as it is written.
pub fn bytes<'a>(key: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(text) = key.cast::<PyString>() {
        return Ok(match text.to_cow()? {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        });
    }
    if let Ok(bytes) = key.cast::<PyBytes>() {
        return Ok(Cow::Borrowed(bytes.as_bytes()));
    }
    if key.is_instance_of::<PyInt>() {
        return Ok(Cow::Owned(key.str()?.to_cow()?.as_bytes().to_vec()));
    }
    if let Ok(address) = address(key) {
        return Ok(Cow::Owned(address.to_string().into_bytes()));
    }
    Err(PyTypeError::new_err(format!(
        "{} is no key: give a str, bytes, int or IP address",
        key.repr()?
    )))
}

/// An address: a string, or an object of the module `ipaddress`.
pub fn address(key: &Bound<'_, PyAny>) -> PyResult<IpAddr> {
    let text = key.str()?;
    let text = text.to_cow()?;
    text.parse()
        .map_err(|_| exception(key.py(), "InvalidKey", format!("{text:?} is no IP address")))
}
