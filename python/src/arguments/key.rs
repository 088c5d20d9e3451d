//! Keys, as Python code names them.

use std::borrow::Cow;
use std::net::IpAddr;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyString};
use pyo3::{PyTypeInfo, intern};

use crate::interpreter::error::exception;

/// The bytes of a key: a string in UTF-8, bytes as they are, a whole number in digits, an address or a UUID as text.
pub fn bytes<'a>(key: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(text) = key.cast::<PyString>() {
        let unicode = text.to_cow().or_else(|_| {
            let message = format!("{} is not a key: it is not Unicode", key.repr()?);
            Err(exception(key.py(), "InvalidKey", message))
        })?;
        return Ok(match unicode {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        });
    }
    if let Ok(bytes) = key.cast::<PyBytes>() {
        return Ok(Cow::Borrowed(bytes.as_bytes()));
    }
    // Whole numbers of any type, in the digits of an `int`: their own text may differ between versions.
    if !key.is_instance_of::<PyBool>() && key.hasattr(intern!(key.py(), "__index__"))? {
        let digits = PyInt::type_object(key.py()).call_method1(
            intern!(key.py(), "__repr__"),
            (key.call_method0(intern!(key.py(), "__index__"))?,),
        )?;
        return Ok(Cow::Owned(digits.str()?.to_cow()?.as_bytes().to_vec()));
    }
    if let Ok(address) = address(key) {
        return Ok(Cow::Owned(address.to_string().into_bytes()));
    }
    if is_uuid(key)? {
        return Ok(Cow::Owned(key.str()?.to_cow()?.as_bytes().to_vec()));
    }
    Err(PyTypeError::new_err(format!(
        "{} is not a key: give a str, bytes, int, UUID or IP address; of several parts make one text, such as \
         f\"{{tenant}}/{{user}}\"",
        key.repr()?
    )))
}

fn is_uuid(key: &Bound<'_, PyAny>) -> PyResult<bool> {
    let class = key
        .py()
        .import(intern!(key.py(), "uuid"))?
        .getattr(intern!(key.py(), "UUID"))?;
    key.is_instance(&class)
}

/// An address: a string, or an object of the module `ipaddress`.
pub fn address(key: &Bound<'_, PyAny>) -> PyResult<IpAddr> {
    let text = key.str()?;
    let text = text.to_cow()?;
    // The zone names a link of this host, and is not part of the client's address.
    let (unscoped, _) = text.split_once('%').unwrap_or((&text, ""));
    unscoped
        .parse()
        .map_err(|_| exception(key.py(), "InvalidKey", format!("{text:?} is not an IP address")))
}
