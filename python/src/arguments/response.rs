//! Responses that HTTP clients in Python have received: when they say to retry.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use shmlimit::layer::throttled_by;

use crate::interpreter::seconds;

/// The codes of botocore's errors that are throttles, whatever their status.
const THROTTLES_OF_BOTOCORE: [&str; 14] = [
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "LimitExceededException",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionInProgressException",
];

/// For how long a response throttles its client, at most `max_wait`; `None` if it does not.
///
/// The response is an object with `headers` and a status, as the usual clients return; an exception with such an object
/// as its `response`; an answer of botocore; or a mapping of headers, with the status passed separately.
pub fn throttled_for(
    response: &Bound<'_, PyAny>,
    status: Option<u16>,
    max_wait: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Duration>> {
    let max_wait = max_wait.map(seconds::duration).transpose()?;
    let with_headers = with_headers(response)?;
    let (of_response, fields) = match of_botocore(&with_headers)? {
        Some(of_botocore) => of_botocore,
        None => {
            let of_response = match status {
                Some(_) => None,
                None => status_of(response, &with_headers)?,
            };
            if status.or(of_response).is_none() {
                return Ok(None);
            }
            (of_response, fields_of(&with_headers)?)
        }
    };
    // An invalid HTTP status says nothing.
    let wait = status
        .or(of_response)
        .and_then(|status| StatusCode::from_u16(status).ok())
        .and_then(|status| throttled_by(status, &fields));
    Ok(wait.map(|wait| max_wait.map_or(wait, |max_wait| wait.min(max_wait))))
}

/// The object that has the headers, or the mapping of them. For exceptions, that is their response, if they have one.
fn with_headers<'py>(response: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = response.py();
    if response.hasattr(intern!(py, "headers"))? {
        return Ok(response.clone());
    }
    for name in [intern!(py, "response"), intern!(py, "resp")] {
        if let Some(of_exception) = response.getattr_opt(name)? {
            return Ok(of_exception);
        }
    }
    Ok(response.clone())
}

/// The status and the fields of an answer of botocore, which is a dictionary in which errors have a code.
fn of_botocore(response: &Bound<'_, PyAny>) -> PyResult<Option<(Option<u16>, HeaderMap)>> {
    let Ok(response) = response.cast::<PyDict>() else {
        return Ok(None);
    };
    let part = |name: &str| -> PyResult<Option<Bound<'_, PyDict>>> {
        let part = response.get_item(name)?;
        Ok(part.and_then(|part| part.cast_into().ok()))
    };
    let (metadata, error) = (part("ResponseMetadata")?, part("Error")?);
    if metadata.is_none() && error.is_none() {
        return Ok(None);
    }
    let code = error.map(|error| error.get_item("Code")).transpose()?.flatten();
    let code = code.and_then(|code| code.extract::<String>().ok());
    let of_metadata = |name: &str| {
        metadata
            .as_ref()
            .and_then(|metadata| metadata.get_item(name).ok()?)
    };
    let status = match code {
        Some(code) if THROTTLES_OF_BOTOCORE.contains(&&*code) => Some(429),
        _ => of_metadata("HTTPStatusCode").and_then(|status| status.extract().ok()),
    };
    let fields = of_metadata("HTTPHeaders").map(|headers| fields_of(&headers));
    Ok(Some((status, fields.transpose()?.unwrap_or_default())))
}

/// The status; `None` if there was no response.
fn status_of(response: &Bound<'_, PyAny>, with_headers: &Bound<'_, PyAny>) -> PyResult<Option<u16>> {
    let py = response.py();
    for object in [response, with_headers] {
        for name in [
            intern!(py, "status_code"),
            intern!(py, "status"),
            intern!(py, "http_status"),
        ] {
            if let Some(status) = object.getattr_opt(name)? {
                return status.extract().map(Some);
            }
        }
        // Exceptions of google.api_core and google.genai. Others have codes that are not statuses.
        let code = object.getattr_opt(intern!(py, "code"))?;
        if let Some(code) = code
            .and_then(|code| code.extract::<u16>().ok())
            .filter(|code| *code >= 100)
        {
            return Ok(Some(code));
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
    // For example, exceptions for connections that broke before the headers, or without a response.
    if headers.is_none() {
        return Ok(HeaderMap::new());
    }
    let Some(items) = headers.getattr_opt(intern!(py, "items"))? else {
        return Err(PyTypeError::new_err(format!(
            "{} has no headers, and is not a mapping of them",
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
