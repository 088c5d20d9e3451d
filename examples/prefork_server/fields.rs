//! The `RateLimit-Policy` and `RateLimit` fields of draft-ietf-httpapi-ratelimit-headers-11, and `Retry-After`.

use std::time::Duration;

use shmlimit::{Kind, Refusal, Verdict};

use crate::rules::{Rule, Rules};

/// The largest integer of a structured field.
const LARGEST: u64 = 999_999_999_999_999;

/// What the server promises in general: `"requests";q=200;w=1, "in_flight";q=8;qu="concurrent-requests"`.
pub fn policy(rules: &Rules) -> String {
    let items = rules.limits.iter().filter_map(|limit| {
        let quota = limit.capacity?.min(LARGEST);
        let mut item = format!("{};q={quota}", quoted(&limit.name));
        if limit.kind == Kind::Concurrency {
            item.push_str(";qu=\"concurrent-requests\"");
        }
        // The field knows no fractions of a second: a window that has some is left out.
        if let Some(window) = limit.span().filter(|window| window.subsec_nanos() == 0) {
            item.push_str(&format!(";w={}", window.as_secs().min(LARGEST)));
        }
        if let Some(burst) = limit.burst {
            item.push_str(&format!(";shmlimit-burst={}", burst.min(LARGEST)));
        }
        Some(item)
    });
    items.collect::<Vec<_>>().join(", ")
}

/// How the limits stand: `"requests";r=19;t=1, "in_flight";r=5`.
pub fn standing<'a>(rules: &Rules, verdicts: impl Iterator<Item = Verdict<'a>>, admitted: bool) -> String {
    let mut items = Vec::new();
    for verdict in verdicts {
        let Some(limit) = rules.limits.iter().find(|limit| limit.name == verdict.limit) else {
            continue;
        };
        if limit.capacity.is_none() {
            continue;
        }
        let mut item = format!("{};r={}", quoted(verdict.limit), verdict.remaining.min(LARGEST));
        if let Some(wait) = effective_window(limit, &verdict, admitted) {
            item.push_str(&format!(";t={}", whole_seconds(wait)));
        }
        items.push(item);
    }
    items.join(", ")
}

/// For how long no more than what remains can be used.
///
/// `Retry-After` should not name an earlier time than the end of any window beside it, so a refusal gives the
/// windows of those limits only that refused.
fn effective_window(limit: &Rule, verdict: &Verdict<'_>, admitted: bool) -> Option<Duration> {
    match (limit.kind, admitted) {
        (Kind::Concurrency, _) => None,
        (_, true) => Some(verdict.reset_after),
        (_, false) if verdict.admitted => None,
        (_, false) => verdict.retry_after,
    }
}

/// In how many seconds it makes sense to try again. For a free place, whose time nobody knows, the shortest wait
/// that the field can say.
pub fn retry_after(refusal: &Refusal<'_>) -> u64 {
    let longest = refusal.verdicts().filter_map(|verdict| verdict.retry_after).max();
    let wait = refusal.retry_after().max(longest).unwrap_or_default();
    whole_seconds(wait).max(1)
}

/// Rounded up, so that nobody comes back too early.
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs()
        .saturating_add(u64::from(wait.subsec_nanos() > 0))
        .min(LARGEST)
}

/// A structured-field string. Names were checked to be printable ASCII at the start.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}
