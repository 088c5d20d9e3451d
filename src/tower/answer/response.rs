//! Fields and problems as parts of responses.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::http::{Fields, Problem};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STANDING: HeaderName = HeaderName::from_static("ratelimit");

/// The response that a problem is.
pub(in crate::tower) fn of_problem(problem: Problem) -> Response<String> {
    let mut response = Response::new(problem.body.into_owned());
    // Each of its statuses is one of HTTP.
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

/// Adds how the limits stand. Both fields are lists, and the service may be limited by others as well: what is there
/// already stays.
pub(in crate::tower) fn append(fields: Fields, headers: &mut HeaderMap) {
    let policy = fields.policy.map(|policy| HeaderValue::from_str(&policy));
    let standing = fields.standing.map(HeaderValue::try_from);
    // Of printable ASCII only, which every field may hold.
    for (name, value) in [(POLICY, policy), (STANDING, standing)] {
        if let Some(Ok(value)) = value {
            headers.append(name, value);
        }
    }
}
