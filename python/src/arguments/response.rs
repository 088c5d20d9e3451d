//! Responses of HTTP clients in Python: when they say to retry.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use shmlimit::tower::throttled_by;

use crate::interpreter::seconds;

/// For how long a response throttles its client, at most `max_wait`; `None` if it does not.
///
/// The response is an object with `headers` and `status_code` or `status`, as the usual clients return; an exception
/// with such an object as its `response`; or a mapping of headers, with the status passed separately.
pub fn throttled_for(
    response: &Bound<'_, PyAny>,
    status: Option<u16>,
    max_wait: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Duration>> {
    let max_wait = max_wait.map(seconds::duration).transpose()?;
    let with_headers = with_headers(response)?;
    let status = match status {
        Some(_) => status,
        None => status_of(response, &with_headers)?,
    };
    let Some(status) = status else {
        return Ok(None);
    };
    let fields = fields_of(&with_headers)?;
    // An invalid HTTP status says nothing.
    let wait = StatusCode::from_u16(status)
        .ok()
        .and_then(|status| throttled_by(status, &fields));
    Ok(wait.map(|wait| max_wait.map_or(wait, |max_wait| wait.min(max_wait))))
}

/// The object that has the headers, or the mapping of them. For exceptions, that is their response, if they have one.
fn with_headers<'py>(response: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = response.py();
    if response.hasattr(intern!(py, "headers"))? {
        return Ok(response.clone());
    }
    let of_exception = response.getattr_opt(intern!(py, "response"))?;
    Ok(of_exception.unwrap_or_else(|| response.clone()))
}

/// The status; `None` if there was no response.
fn status_of(response: &Bound<'_, PyAny>, with_headers: &Bound<'_, PyAny>) -> PyResult<Option<u16>> {
    let py = response.py();
    for object in [response, with_headers] {
        for name in [intern!(py, "status_code"), intern!(py, "status")] {
            if let Some(status) = object.getattr_opt(name)? {
                return status.extract().map(Some);
            }
        }
    }
    if with_headers.is_none() && !response.is_none() {
        return Ok(None);
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
    // For example, exceptions for connections that broke before the headers.
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
        // Invalid fields cannot be among those looked for. Fields beyond the map's capacity are ignored.
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
