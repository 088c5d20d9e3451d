//! When an upstream says that it accepts requests again.

use std::time::{Duration, SystemTime};

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, StatusCode};

/// How long to hold back if an upstream says that it is throttled, but not for how long.
const UNKNOWN_WAIT: Duration = Duration::from_secs(1);

/// How long an upstream accepts nothing, according to its response; `None` if the response does not throttle
/// anything.
///
/// A [`ClientLimitLayer`](super::ClientLimitLayer) uses this unless it is [set
/// otherwise](super::ClientLimitLayer::throttled_by); other clients can pass the result to
/// [`Permit::throttled`](crate::Permit::throttled). 429 always throttles, for one second if it gives no time; 503
/// does if it gives one; and so does a gRPC call that has `grpc-status: 8` in its first fields. The time is that of
/// [`retry_after`].
///
/// ```
/// # use std::time::Duration;
/// use http::{HeaderMap, HeaderValue, StatusCode};
/// use shmlimit::tower::throttled_by;
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(throttled_by(StatusCode::TOO_MANY_REQUESTS, &headers), Some(Duration::from_secs(1)));
/// assert_eq!(throttled_by(StatusCode::SERVICE_UNAVAILABLE, &headers), None);
/// headers.insert("retry-after", HeaderValue::from_static("30"));
/// assert_eq!(throttled_by(StatusCode::SERVICE_UNAVAILABLE, &headers), Some(Duration::from_secs(30)));
/// assert_eq!(throttled_by(StatusCode::OK, &headers), None);
/// ```
pub fn throttled_by(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    match status {
        StatusCode::TOO_MANY_REQUESTS => Some(retry_after(headers).unwrap_or(UNKNOWN_WAIT)),
        StatusCode::SERVICE_UNAVAILABLE => retry_after(headers),
        _ if headers.get("grpc-status").is_some_and(|code| code == "8") => {
            Some(retry_after(headers).unwrap_or(UNKNOWN_WAIT))
        }
        _ => None,
    }
}

/// How long an upstream asks its clients to wait, from the fields of its response: `Retry-After` in seconds or as a
/// date, the more precise `retry-after-ms` and `x-ms-retry-after-ms` of some providers, and `grpc-retry-pushback-ms`.
/// `None` if none of them is readable. A date in the past is zero.
///
/// ```
/// # use std::time::Duration;
/// use http::{HeaderMap, HeaderValue};
/// use shmlimit::tower::retry_after;
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
    let exact = MILLISECONDS.into_iter().find_map(|name| number(text(name)?));
    if let Some(milliseconds) = exact {
        return Some(Duration::try_from_secs_f64(milliseconds / 1000.0).unwrap_or(Duration::MAX));
    }
    let text = text(RETRY_AFTER)?;
    if let Some(seconds) = number(text) {
        return Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO))
}

/// A number that is not negative. Whole numbers are the rule; some providers send fractions.
fn number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = is_plain.then(|| text.parse().ok())??;
    number.is_finite().then_some(number)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn waits(fields: &[(&'static str, &str)]) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_str(value).expect("a value"));
        }
        retry_after(&headers)
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
            (&[("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT")], Some(0)),
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
