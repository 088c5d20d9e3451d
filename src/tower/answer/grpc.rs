//! Answers to gRPC clients.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Response, StatusCode};

/// The kind of client, which determines the form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tower) enum Caller {
    Http,
    Grpc,
}

impl Caller {
    pub(in crate::tower) fn of(head: &Parts) -> Self {
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
pub(in crate::tower) fn as_grpc(response: Response<String>) -> Response<String> {
    const STATUS: HeaderName = HeaderName::from_static("grpc-status");
    const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
    const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
    let (mut head, _) = response.into_parts();
    // The codes of https://grpc.io/docs/guides/status-codes/.
    let (code, message) = match head.status {
        StatusCode::TOO_MANY_REQUESTS => ("8", "a quota of the client is exceeded"),
        StatusCode::SERVICE_UNAVAILABLE => ("14", "the request cannot be taken now"),
        StatusCode::BAD_REQUEST => ("3", "the request must name one key by which it is limited"),
        _ => ("13", "the limits could not be asked"),
    };
    head.status = StatusCode::OK;
    let seconds = head
        .headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    if let Some(seconds) = seconds.and_then(|text| text.parse::<u64>().ok()) {
        let pushback = HeaderValue::from(seconds.saturating_mul(1000));
        head.headers.insert(PUSHBACK, pushback);
    }
    for (name, value) in [
        (CONTENT_TYPE, "application/grpc"),
        (STATUS, code),
        (MESSAGE, message),
    ] {
        head.headers.insert(name, HeaderValue::from_static(value));
    }
    Response::from_parts(head, String::new())
}
