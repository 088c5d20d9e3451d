//! The responses that are sent instead of the service's: problem details as RFC 9457 has them, or a status of gRPC.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::fields::{Policies, retry_after};
use crate::engine::RefusalReason;
use crate::limit_set::LimitSet;
use crate::refusal::Refusal;

/// Who asked, and so which form of an answer is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    Http,
    Grpc,
}

impl Caller {
    pub(super) fn of(head: &Parts) -> Self {
        let content_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        match content_type.and_then(|text| text.strip_prefix(b"application/grpc")) {
            // As in `application/grpc+proto`; not `application/grpc-web`, which has a framing of its own.
            Some([] | [b'+' | b';', ..]) => Self::Grpc,
            _ => Self::Http,
        }
    }
}

/// An answer as gRPC has it: the status of HTTP says that the call was received, a field what became of it, and there is no
/// body, which a client would take for messages.
pub(super) fn as_grpc(response: Response<String>) -> Response<String> {
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

/// Why a request was refused: 429 and the policies that it would have violated, or 503 where none would have been.
pub(super) fn refused(set: &LimitSet, policies: &Policies, refusal: &Refusal) -> Response<String> {
    let others = refusal
        .verdicts()
        .filter(|verdict| !verdict.admitted)
        .map(|verdict| verdict.limit)
        .filter(|limit| Some(*limit) != refusal.binding());
    let violated: Vec<&str> = refusal.binding().into_iter().chain(others).collect();
    let mut response = match refusal.reason() {
        RefusalReason::Throttled => throttled(),
        // Behind a full queue, what binds its first does not bind this request, which did not even get in line.
        RefusalReason::QueueFull => no_room(),
        _ if violated.is_empty() => no_room(),
        _ => quota_exceeded(set, policies, &violated),
    };
    response.headers_mut().insert(RETRY_AFTER, retry_after(refusal));
    response
}

/// 429, to a request that exceeds the quotas of some limits.
pub(super) fn quota_exceeded(set: &LimitSet, policies: &Policies, limits: &[&str]) -> Response<String> {
    // Quoted already, and strings of JSON as well.
    let names: Vec<&str> = limits
        .iter()
        .filter_map(|limit| policies.name(set, limit))
        .collect();
    problem(
        StatusCode::TOO_MANY_REQUESTS,
        format!(
            "{{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
             \"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\
             \"status\":429,\"violated-policies\":[{}]}}\n",
            names.join(",")
        ),
    )
}

/// 503, to a request that every limit would have admitted, but there is no room to keep track of it.
fn no_room() -> Response<String> {
    problem(
        StatusCode::SERVICE_UNAVAILABLE,
        "{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\
         \"detail\":\"Too many requests are in progress or waiting, or too many clients are being limited\"}\n"
            .to_owned(),
    )
}

/// 503, to a request that cannot be passed on, because what is behind the limits takes nothing for a while.
fn throttled() -> Response<String> {
    problem(
        StatusCode::SERVICE_UNAVAILABLE,
        "{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\
         \"detail\":\"A service that this one depends on takes no requests for a while\"}\n"
            .to_owned(),
    )
}

/// 400, to a request that does not say whose limits it is to be held against.
pub(super) fn without_a_key() -> Response<String> {
    problem(
        StatusCode::BAD_REQUEST,
        "{\"type\":\"about:blank\",\"title\":\"Bad Request\",\"status\":400,\
         \"detail\":\"The request must name one key by which it is limited\"}\n"
            .to_owned(),
    )
}

/// 500, where the limits could not be asked. The client is not told why: that is the operator's business.
pub(super) fn failed() -> Response<String> {
    problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        "{\"type\":\"about:blank\",\"title\":\"Internal Server Error\",\"status\":500}\n".to_owned(),
    )
}

fn problem(status: StatusCode, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
