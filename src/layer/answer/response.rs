//! Fields and problems as parts of responses.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::headers::{Fields, Problem};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STANDING: HeaderName = HeaderName::from_static("ratelimit");

/// Turns a problem into a response.
pub(in crate::layer) fn of_problem(problem: Problem) -> Response<String> {
    let mut response = Response::new(problem.body.into_owned());
    // All of its statuses are valid in HTTP.
    *response.status_mut() =
        StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(Problem::CONTENT_TYPE));
    if let Some(seconds) = problem.fields.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    append(problem.fields, headers);
    response
}

/// Adds the `RateLimit` fields. Both are lists, and the service may have limits of its own, so existing values stay.
pub(in crate::layer) fn append(fields: Fields, headers: &mut HeaderMap) {
    let policy = fields.policy.map(|policy| HeaderValue::from_str(&policy));
    let standing = fields.standing.map(HeaderValue::try_from);
    // The values are printable ASCII, which any field can hold.
    for (name, value) in [(POLICY, policy), (STANDING, standing)] {
        if let Some(Ok(value)) = value {
            headers.append(name, value);
        }
    }
}
