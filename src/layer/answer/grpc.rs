//! Answers to gRPC clients.

use std::fmt::Write;
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::retry_info::with_retry_info;
use crate::units::milliseconds;

/// The kind of client, which determines the form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::layer) enum Caller {
    Http,
    Grpc,
}

/// How a call ended: the codes of <https://grpc.io/docs/guides/status-codes/> that limits answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::layer) enum Code {
    InvalidArgument = 3,
    ResourceExhausted = 8,
    Internal = 13,
    Unavailable = 14,
}

impl Caller {
    pub(in crate::layer) fn of(head: &Parts) -> Self {
        let content_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        match content_type.and_then(|text| text.strip_prefix(b"application/grpc")) {
            // As in `application/grpc+proto`, but not `application/grpc-web`, which has its own framing.
            Some([] | [b'+' | b';', ..]) => Self::Grpc,
            _ => Self::Http,
        }
    }
}

/// The gRPC form of an answer: the HTTP status says that the call was received, a field gives its result, and the
/// body is empty, because a client would take it for messages.
pub(in crate::layer) fn as_grpc(response: Response<String>) -> Response<String> {
    let (mut head, _) = response.into_parts();
    let (code, message) = match head.status {
        StatusCode::TOO_MANY_REQUESTS => (Code::ResourceExhausted, "a quota of the client is exceeded"),
        StatusCode::SERVICE_UNAVAILABLE => (Code::Unavailable, "the request cannot be taken now"),
        StatusCode::BAD_REQUEST => (
            Code::InvalidArgument,
            "the request must name one key by which it is limited",
        ),
        _ => (Code::Internal, "the limits could not be asked"),
    };
    head.status = StatusCode::OK;
    let seconds = head
        .headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    let retry_after = seconds
        .and_then(|text| text.parse().ok())
        .map(Duration::from_secs);
    end_call(&mut head.headers, code, message, retry_after);
    Response::from_parts(head, String::new())
}

/// The fields that end a call without a message.
pub(in crate::layer) fn end_call(
    headers: &mut HeaderMap,
    code: Code,
    message: &str,
    retry_after: Option<Duration>,
) {
    const STATUS: HeaderName = HeaderName::from_static("grpc-status");
    const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
    const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
    const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(STATUS, HeaderValue::from(code as u64));
    // Whatever is encoded is printable ASCII, which any field can hold.
    if let Ok(encoded) = HeaderValue::try_from(percent_encoded(message)) {
        headers.insert(MESSAGE, encoded);
    }
    let Some(wait) = retry_after else { return };
    headers.insert(PUSHBACK, HeaderValue::from(milliseconds(wait)));
    if let Ok(details) = HeaderValue::try_from(with_retry_info(code as u64, message, wait)) {
        headers.insert(DETAILS, details);
    }
}

/// A message as gRPC sends it: all bytes except printable ASCII, and the percent sign, are percent-encoded.
fn percent_encoded(message: &str) -> String {
    message
        .bytes()
        .fold(String::with_capacity(message.len()), |mut text, byte| {
            match byte {
                b'%' | 0..b' ' | 0x7f.. => {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "%{byte:02X}");
                }
                _ => text.push(char::from(byte)),
            }
            text
        })
}
