//! The responses that are sent instead of the service's, with problem details as RFC 9457 has them.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

use super::fields::{Policies, retry_after};
use crate::limit_set::LimitSet;
use crate::refusal::Refusal;

/// Why a request was refused: 429 and the policies that it would have violated, or 503 where none would have been.
pub(super) fn refused(set: &LimitSet, policies: &Policies, refusal: &Refusal<'_>) -> Response<String> {
    let others = refusal
        .verdicts()
        .filter(|verdict| !verdict.admitted)
        .map(|verdict| verdict.limit)
        .filter(|limit| Some(*limit) != refusal.binding());
    let violated: Vec<&str> = refusal.binding().into_iter().chain(others).collect();
    let mut response = if violated.is_empty() {
        no_room()
    } else {
        quota_exceeded(set, policies, &violated)
    };
    if let Some(seconds) = retry_after(refusal) {
        response.headers_mut().insert(RETRY_AFTER, seconds);
    }
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
