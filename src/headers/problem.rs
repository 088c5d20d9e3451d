//! Answers in place of the service: problem details in the form of RFC 9457.

use std::borrow::Cow;

use super::fields::Fields;
use crate::api::refusal::Refusal;
use crate::engine::RefusalReason;

/// An answer that says why the service was not called.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The status code.
    pub status: u16,
    /// The header fields, except those that describe the body.
    pub fields: Fields,
    /// The body, of type [`CONTENT_TYPE`](Self::CONTENT_TYPE).
    pub body: Cow<'static, str>,
}

impl Problem {
    /// The content type of the body.
    pub const CONTENT_TYPE: &str = "application/problem+json";

    /// 400, for a request that does not say whose limits apply to it: see
    /// [`RequestError::KeyRequired`](crate::RequestError::KeyRequired) and
    /// [`RequestError::InvalidKey`](crate::RequestError::InvalidKey).
    pub fn without_a_key() -> Self {
        Self::of_text(
            400,
            "{\"type\":\"about:blank\",\"title\":\"Bad Request\",\"status\":400,\
             \"detail\":\"The request must name one key by which it is limited\"}\n",
        )
    }

    /// 500, if the limits could not be asked. It does not say why: that is for the operator, not for the client.
    pub fn failed() -> Self {
        Self::of_text(
            500,
            "{\"type\":\"about:blank\",\"title\":\"Internal Server Error\",\"status\":500}\n",
        )
    }

    /// 503, for a request that every limit would have admitted, but for which there is no room.
    fn no_room() -> Self {
        Self::of_text(
            503,
            "{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\
             \"detail\":\"Too many requests are in progress or waiting, or too many clients are being limited\"}\n",
        )
    }

    /// 503, for a request that cannot be passed on because the upstream accepts nothing for a while.
    fn throttled() -> Self {
        Self::of_text(
            503,
            "{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\
             \"detail\":\"A service that this one depends on takes no requests for a while\"}\n",
        )
    }

    /// 503, for a request that is refused because a store that hosts share is down.
    fn store_out() -> Self {
        Self::of_text(
            503,
            "{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\
             \"detail\":\"How much is left cannot be found out for a while\"}\n",
        )
    }

    /// 503, for a request that comes before anything was leased from a store that hosts share.
    fn lease_pending() -> Self {
        Self::of_text(
            503,
            "{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\
             \"detail\":\"How much is left is being found out\"}\n",
        )
    }

    fn of_text(status: u16, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            fields: Fields::default(),
            body: text.into(),
        }
    }
}

/// The problem for a refusal, without fields. `name` gives the name of the policy of a limit.
pub(super) fn of_refusal<'a>(refusal: &'a Refusal, name: impl Fn(&'a str) -> Option<&'a str>) -> Problem {
    let others = refusal
        .verdicts()
        .filter(|verdict| !verdict.admitted)
        .map(|verdict| verdict.limit)
        .filter(|limit| Some(*limit) != refusal.binding());
    let mut violated = refusal.binding().into_iter().chain(others).peekable();
    match refusal.reason() {
        RefusalReason::Throttled => Problem::throttled(),
        RefusalReason::StoreOut => Problem::store_out(),
        RefusalReason::LeasePending => Problem::lease_pending(),
        // Behind a full queue, the limit that binds the first waiter does not bind this request, which did not get a
        // place.
        RefusalReason::QueueFull => Problem::no_room(),
        _ if violated.peek().is_none() => Problem::no_room(),
        _ => quota_exceeded(violated.filter_map(name)),
    }
}

/// 429, for a request that exceeds the quotas of some policies, given by their quoted names, which are valid JSON
/// strings.
pub(super) fn quota_exceeded<'a>(policies: impl Iterator<Item = &'a str>) -> Problem {
    let names: Vec<&str> = policies.collect();
    Problem::of_text(
        429,
        format!(
            "{{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
             \"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\
             \"status\":429,\"violated-policies\":[{}]}}\n",
            names.join(",")
        ),
    )
}
