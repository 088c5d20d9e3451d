//! When an upstream says that it accepts requests again.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, StatusCode};

use super::exhausted_quotas::{Evidence, exhausted_for};
use super::time_in_words::{number, seconds, wait_of};

/// How long to hold back if an upstream says that it is throttled, but not for how long.
const UNKNOWN_WAIT: Duration = Duration::from_secs(1);

/// How long an upstream accepts nothing, according to its response; `None` if the response does not throttle
/// anything.
///
/// A [`ClientLimitLayer`](super::ClientLimitLayer) uses this unless it is [set
/// otherwise](super::ClientLimitLayer::throttled_by); other clients can pass the result to
/// [`Permit::throttled`](crate::Permit::throttled). These throttle:
///
/// - 429, 529 (some providers' code for overload), and a gRPC call with `grpc-status: 8` in its first fields;
/// - 503, if it says when to [retry](retry_after);
/// - 403, if it says when to retry, or that nothing is left of a quota, as GitHub does.
///
/// The time is that of [`retry_after`]. Without one, except for 503, it is the time after which the exhausted quotas
/// are replenished: among the fields `x-ratelimit-reset` and `anthropic-ratelimit-reset` with their suffixes,
/// `RateLimit-Reset`, and `RateLimit`, those whose remaining quota is zero or not given count. It is one second if
/// there is no time, or if it has passed, so that a clock that is ahead does not make a client call again at once.
///
/// ```
/// # use std::time::Duration;
/// use http::{HeaderMap, HeaderValue, StatusCode};
/// use shmlimit::layer::throttled_by;
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(throttled_by(StatusCode::TOO_MANY_REQUESTS, &headers), Some(Duration::from_secs(1)));
/// assert_eq!(throttled_by(StatusCode::SERVICE_UNAVAILABLE, &headers), None);
/// headers.insert("retry-after", HeaderValue::from_static("30"));
/// assert_eq!(throttled_by(StatusCode::SERVICE_UNAVAILABLE, &headers), Some(Duration::from_secs(30)));
/// assert_eq!(throttled_by(StatusCode::OK, &headers), None);
/// ```
pub fn throttled_by(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let retry_after = retry_after(headers);
    let wait = match status.as_u16() {
        429 | 529 => retry_after.or_else(|| exhausted_for(headers, Evidence::Any)),
        403 => Some(retry_after.or_else(|| exhausted_for(headers, Evidence::NothingRemains))?),
        503 => Some(retry_after?),
        _ if headers.get("grpc-status").is_some_and(|code| code == "8") => retry_after,
        _ => return None,
    };
    Some(wait.filter(|wait| !wait.is_zero()).unwrap_or(UNKNOWN_WAIT))
}

/// How long an upstream asks its clients to wait, from the fields of its response: the more precise `retry-after-ms`
/// and `x-ms-retry-after-ms` of some providers, `grpc-retry-pushback-ms`, and `Retry-After` in seconds or as a date,
/// which may also be in the format of RFC 3339, or in seconds or milliseconds since the Unix epoch. If one of the first
/// is zero, the next one counts. `None` if none of them is readable. A date in the past is zero.
///
/// ```
/// # use std::time::Duration;
/// use http::{HeaderMap, HeaderValue};
/// use shmlimit::layer::retry_after;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("retry-after", HeaderValue::from_static("30"));
/// assert_eq!(retry_after(&headers), Some(Duration::from_secs(30)));
/// ```
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    const MILLISECONDS: [HeaderName; 3] = [
        HeaderName::from_static("retry-after-ms"),
        HeaderName::from_static("x-ms-retry-after-ms"),
        HeaderName::from_static("grpc-retry-pushback-ms"),
    ];
    let text = |name: HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let exact = MILLISECONDS
        .into_iter()
        .filter_map(|name| number(text(name)?).map(|milliseconds| seconds(milliseconds / 1000.0)));
    let said = text(RETRY_AFTER).and_then(wait_of);
    let mut waits = exact.chain(said).peekable();
    let first = waits.peek().copied();
    waits.find(|wait| !wait.is_zero()).or(first)
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::SystemTime;

    use http::HeaderValue;

    use super::*;

    pub(in crate::layer::client) fn headers_of(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    fn waits(fields: &[(&'static str, &str)]) -> Option<Duration> {
        retry_after(&headers_of(fields))
    }

    #[test]
    fn the_usual_fields_are_read_and_the_most_exact_wins() {
        for (fields, expected) in [
            (&[("retry-after", "30")][..], Some(30_000)),
            (&[("retry-after", " 1.5 ")], Some(1_500)),
            (&[("retry-after", "0")], Some(0)),
            (&[("retry-after-ms", "250"), ("retry-after", "1")], Some(250)),
            (&[("x-ms-retry-after-ms", "40")], Some(40)),
            (&[("grpc-retry-pushback-ms", "70")], Some(70)),
            (&[("retry-after-ms", "soon"), ("retry-after", "2")], Some(2_000)),
            (&[("retry-after-ms", "0"), ("retry-after", "30")], Some(30_000)),
            (&[("retry-after", "5, 7")], Some(7_000)),
            (&[("retry-after", "30s")], Some(30_000)),
            (&[("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT")], Some(0)),
            (&[("retry-after", "Thu, 01 Jan 1970 00:00:00 +0000")], Some(0)),
            (&[("retry-after", "1970-01-01T00:00:00Z")], Some(0)),
            (&[("retry-after", "1000000000")], Some(0)),
            (&[("retry-after", "1000000000000")], Some(0)),
        ] {
            let wait = expected.map(Duration::from_millis);
            assert_eq!(waits(fields), wait, "{fields:?}");
        }
        let in_a_minute = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(60));
        let wait = waits(&[("retry-after", &in_a_minute)]).expect("a date");
        assert!(
            wait <= Duration::from_secs(60) && wait >= Duration::from_secs(1),
            "{wait:?}"
        );
    }

    fn throttles(status: u16, fields: &[(&'static str, &str)]) -> Option<u128> {
        let status = StatusCode::from_u16(status).expect("a status");
        throttled_by(status, &headers_of(fields)).map(|wait| wait.as_millis())
    }

    #[test]
    fn a_throttle_lasts_as_long_as_the_response_says_and_never_no_time() {
        let wait = |seconds: u64| SystemTime::now() + Duration::from_secs(seconds);
        for (status, fields, expected) in [
            (429, &[][..], Some(1_000)),
            (429, &[("retry-after", "0")], Some(1_000)),
            (
                429,
                &[("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT")],
                Some(1_000),
            ),
            (429, &[("retry-after", "1000000000")], Some(1_000)),
            (429, &[("retry-after-ms", "0")], Some(1_000)),
            (529, &[], Some(1_000)),
            (529, &[("retry-after", "10")], Some(10_000)),
            (503, &[], None),
            (503, &[("retry-after", "0")], Some(1_000)),
            (
                503,
                &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")],
                None,
            ),
            (403, &[], None),
            (403, &[("x-ratelimit-reset", "9")], None),
            (
                403,
                &[("x-ratelimit-remaining", "7"), ("x-ratelimit-reset", "9")],
                None,
            ),
            (403, &[("retry-after", "60")], Some(60_000)),
            (
                403,
                &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")],
                Some(9_000),
            ),
            (403, &[("x-ratelimit-remaining", "0")], Some(1_000)),
            (301, &[("retry-after", "10")], None),
            (
                200,
                &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")],
                None,
            ),
            (200, &[("grpc-status", "8")], Some(1_000)),
            (
                200,
                &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "70")],
                Some(70),
            ),
            (
                429,
                &[("retry-after", "3"), ("x-ratelimit-reset", "9")],
                Some(3_000),
            ),
        ] {
            assert_eq!(throttles(status, fields), expected, "{status} {fields:?}");
        }
        let in_a_minute = httpdate::fmt_http_date(wait(60)).replace("GMT", "+0000");
        let epoch = |instant: SystemTime| instant.duration_since(SystemTime::UNIX_EPOCH).expect("now");
        let (seconds, millis) = (epoch(wait(60)).as_secs(), epoch(wait(60)).as_millis());
        for text in [
            in_a_minute,
            seconds.to_string(),
            format!("{seconds}.123"),
            millis.to_string(),
        ] {
            let wait = throttles(429, &[("retry-after", &text)]).expect("a throttle");
            assert!(wait <= 60_123 && wait > 1_000, "{text}: {wait}");
        }
    }

    #[test]
    fn what_cannot_be_read_says_nothing() {
        for text in [
            "",
            "-1",
            "soon",
            "1e400",
            "NaN",
            "inf",
            "0x10",
            "1.2.3",
            "..",
            "12 apples",
            "5, soon",
            "2026-13-01T00:00:00Z",
            "2026-01-01T00:00:00",
        ] {
            assert_eq!(waits(&[("retry-after", text)]), None, "{text:?}");
        }
        assert_eq!(waits(&[]), None);
        let digits = "9".repeat(400);
        assert_eq!(waits(&[("retry-after", &digits)]), None);
        assert_eq!(
            waits(&[("retry-after", "99999999999999999999")]),
            Some(Duration::MAX)
        );
    }
}
