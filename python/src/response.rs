//! Responses of HTTP clients, as Python meets them: what they say about when to come again.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use shmlimit::tower::throttled_by;

/// For how long a response says that its server takes nothing; none where it does not.
///
/// It is an object with `headers` and `status_code` or `status`, as the usual clients give, or a mapping of headers, with the
/// status beside it.
pub fn throttled_for(response: &Bound<'_, PyAny>, status: Option<u16>) -> PyResult<Option<Duration>> {
    let status = status.map_or_else(|| status_of(response), Ok)?;
    let fields = fields_of(response)?;
    // What is no status of HTTP says nothing.
    Ok(StatusCode::from_u16(status)
        .ok()
        .and_then(|status| throttled_by(status, &fields)))
}

fn status_of(response: &Bound<'_, PyAny>) -> PyResult<u16> {
    let py = response.py();
    for name in [intern!(py, "status_code"), intern!(py, "status")] {
        if let Some(status) = response.getattr_opt(name)? {
            return status.extract();
        }
    }
    Err(PyTypeError::new_err(format!(
        "{} has no status_code and no status: give the status of the response beside its headers, as status=429",
        response.get_type().repr()?
    )))
}

fn fields_of(response: &Bound<'_, PyAny>) -> PyResult<HeaderMap> {
    let py = response.py();
    let headers = response
        .getattr_opt(intern!(py, "headers"))?
        .unwrap_or_else(|| response.clone());
    // As of exceptions of connections that ended before there were any.
    if headers.is_none() {
        return Ok(HeaderMap::new());
    }
    let Some(items) = headers.getattr_opt(intern!(py, "items"))? else {
        return Err(PyTypeError::new_err(format!(
            "{} has no headers, and is no mapping of them",
            response.get_type().repr()?
        )));
    };
    let mut fields = HeaderMap::new();
    for item in items.call0()?.try_iter()? {
        let item = item?;
        let item = item.cast::<PyTuple>()?;
        let name = HeaderName::from_bytes(&bytes(&item.get_item(0)?)?);
        let value = HeaderValue::from_bytes(&bytes(&item.get_item(1)?)?);
        // What cannot be a field of HTTP is none of those that are looked for; nor is what a map has no room for.
        if let (Ok(name), Ok(value)) = (name, value) {
            let _ = fields.try_append(name, value);
        }
    }
    Ok(fields)
}

fn bytes(text: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    match text.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes().to_vec()),
        Err(_) => Ok(text.str()?.to_string_lossy().into_owned().into_bytes()),
    }
}
