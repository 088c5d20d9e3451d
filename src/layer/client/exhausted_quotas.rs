//! The quotas that an upstream reports in the fields of its response.

use std::time::Duration;

use http::HeaderMap;

use super::time_in_words::{number, wait_of};

/// What counts as evidence that a quota is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// It says that nothing remains.
    NothingRemains,
    /// It does not say that something remains.
    Any,
}

/// What was reported about a quota.
struct Quota {
    remaining: Option<f64>,
    reset_after: Option<Duration>,
}

/// How long it takes until all exhausted quotas are replenished; zero if nothing says so. `None` if no quota shows that
/// it is exhausted.
pub(super) fn exhausted_for(headers: &HeaderMap, evidence: Evidence) -> Option<Duration> {
    let by_rate_limit = headers.get_all("ratelimit").iter();
    let by_rate_limit = by_rate_limit
        .filter_map(|field| field.to_str().ok())
        .flat_map(in_rate_limit);
    let quotas = in_fields_of_their_own(headers).chain(by_rate_limit);
    let waits = quotas.filter_map(|quota| match quota.remaining {
        Some(0.0) => Some(quota.reset_after.unwrap_or_default()),
        None if evidence == Evidence::Any => quota.reset_after,
        _ => None,
    });
    waits.max()
}

/// Quotas with a field for each number, such as `x-ratelimit-remaining-tokens` and `x-ratelimit-reset-tokens`.
fn in_fields_of_their_own(headers: &HeaderMap) -> impl Iterator<Item = Quota> + '_ {
    const PREFIXES: [&str; 4] = [
        "x-ratelimit-",
        "x-rate-limit-",
        "ratelimit-",
        "anthropic-ratelimit-",
    ];
    let fields = headers.iter().filter_map(|(name, value)| {
        let is_of_quota = PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix));
        is_of_quota.then_some(())?;
        Some((name.as_str(), value.to_str().ok()?.trim()))
    });
    fields.filter_map(|(name, text)| {
        if name.contains("remaining") {
            return Some(Quota {
                remaining: number(text),
                reset_after: None,
            });
        }
        // Some upstreams send `x-ratelimit-reset-after`, a more precise `x-ratelimit-reset`.
        let remaining = name.replacen("reset", "remaining", 1);
        let remaining = remaining.strip_suffix("-after").unwrap_or(&remaining);
        let remaining = headers.get(remaining).and_then(|text| text.to_str().ok());
        name.contains("reset").then_some(Quota {
            remaining: remaining.and_then(|text| number(text.trim())),
            reset_after: wait_of(text),
        })
    })
}

/// The quotas of a field `RateLimit`: `"requests";r=0;t=17, "tokens";r=9;t=2`, or, as in earlier drafts, `limit=100,
/// remaining=0, reset=17`.
fn in_rate_limit(field: &str) -> Vec<Quota> {
    let quota = |text: &str, remaining: &str, reset: &str| {
        let value = |name: &str| {
            let mut parameters = text.split([',', ';']).map(str::trim);
            parameters.find_map(|parameter| parameter.strip_prefix(name)?.strip_prefix('='))
        };
        Quota {
            remaining: value(remaining).and_then(number),
            reset_after: value(reset).and_then(wait_of),
        }
    };
    let earlier = quota(field, "remaining", "reset");
    if earlier.reset_after.is_some() {
        return vec![earlier];
    }
    field.split(',').map(|item| quota(item, "r", "t")).collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::retry_after::tests::headers_of;
    use super::*;

    fn waits(fields: &[(&'static str, &str)]) -> Option<u128> {
        exhausted_for(&headers_of(fields), Evidence::Any).map(|wait| wait.as_millis())
    }

    #[test]
    fn the_fields_of_the_usual_providers_are_read() {
        for (fields, expected) in [
            // OpenAI
            (
                &[
                    ("x-ratelimit-remaining-requests", "0"),
                    ("x-ratelimit-reset-requests", "6m0s"),
                    ("x-ratelimit-reset-tokens", "76ms"),
                ][..],
                Some(360_000),
            ),
            (
                &[
                    ("x-ratelimit-remaining-requests", "59"),
                    ("x-ratelimit-reset-requests", "6m0s"),
                    ("x-ratelimit-remaining-tokens", "0"),
                    ("x-ratelimit-reset-tokens", "1.5s"),
                ],
                Some(1_500),
            ),
            // Discord
            (
                &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset-after", "1.5")],
                Some(1_500),
            ),
            (
                &[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset-after", "1.5")],
                None,
            ),
            // Drafts of the IETF
            (
                &[("ratelimit-remaining", "0"), ("ratelimit-reset", "17")],
                Some(17_000),
            ),
            (&[("ratelimit", "limit=100, remaining=0, reset=17")], Some(17_000)),
            (&[("ratelimit", "limit=100, remaining=7, reset=17")], None),
            (&[("ratelimit", "\"requests\";r=0;t=17")], Some(17_000)),
            (
                &[("ratelimit", "\"requests\";r=5;t=99, \"tokens\" ;r=0; t=17")],
                Some(17_000),
            ),
            (
                &[
                    ("ratelimit", "\"requests\";r=5;t=99"),
                    ("ratelimit", "\"tokens\";r=0;t=3"),
                ],
                Some(3_000),
            ),
            (&[("ratelimit", "\"requests\";r=0")], Some(0)),
            (
                &[("x-rate-limit-remaining", "0"), ("x-rate-limit-reset", "4")],
                Some(4_000),
            ),
            (&[("x-ratelimit-limit", "0")], None),
            (
                &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "soon")],
                Some(0),
            ),
            (&[], None),
        ] {
            assert_eq!(waits(fields), expected, "{fields:?}");
        }
    }

    #[test]
    fn instants_are_read_as_dates_and_as_seconds_since_the_epoch() {
        let epoch = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .expect("now")
            .as_secs();
        let github = (epoch + 600).to_string();
        let wait =
            waits(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", &github)]).expect("exhausted");
        assert!(wait <= 600_000 && wait > 500_000, "{wait}");
        let anthropic = [
            ("anthropic-ratelimit-requests-remaining", "0"),
            ("anthropic-ratelimit-requests-reset", "2199-01-01T00:00:00.5Z"),
            ("anthropic-ratelimit-input-tokens-remaining", "9"),
            (
                "anthropic-ratelimit-input-tokens-reset",
                "2299-01-01T00:00:00+01:00",
            ),
        ];
        let until_2199 = u128::from(7_226_582_400 - epoch) * 1000;
        let wait = waits(&anthropic).expect("exhausted");
        assert!(wait <= until_2199 + 500 && wait > until_2199 - 100_000, "{wait}");
    }
}
