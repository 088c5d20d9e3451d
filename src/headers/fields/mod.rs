//! The fields `RateLimit-Policy`, `RateLimit` and `Retry-After`, as in draft-ietf-httpapi-ratelimit-headers-11.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::api::refusal::{Refusal, Verdict};
use crate::api::set::limit_set::LimitSet;
use crate::choices::Kind;
use crate::declaration::{Limit, Window};
use crate::engine::LimitRules;

/// The largest integer of a structured field.
const LARGEST: u64 = 999_999_999_999_999;

/// The header fields of a response. An empty field is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fields {
    /// `RateLimit-Policy`: what the limits promise in general.
    pub policy: Option<Arc<str>>,
    /// `RateLimit`: how much is left of the limits.
    pub standing: Option<String>,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
}

impl Fields {
    /// The fields that are present, with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
        let retry_after = self.retry_after.map(|seconds| seconds.to_string().into());
        [
            ("Retry-After", retry_after),
            ("RateLimit-Policy", self.policy.as_deref().map(Cow::from)),
            ("RateLimit", self.standing.as_deref().map(Cow::from)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
}

/// What clients call the limits, and in which units.
#[derive(Clone, Debug, Default)]
pub(super) struct Wording {
    pub(super) prefix: String,
    /// By rate limit or budget. One without a unit is not described.
    pub(super) units: BTreeMap<String, String>,
}

/// The descriptions of a set's limits under one of its definitions.
#[derive(Debug)]
pub(super) struct Policies {
    generation: u64,
    /// By the names of the tiers, `default` first.
    tiers: Vec<(String, Promises)>,
}

/// What the limits promise to keys of one tier.
#[derive(Debug)]
pub(super) struct Promises {
    /// In the order of the set's limits.
    policies: Vec<Policy>,
    /// The whole field, valid if no capacity adapts.
    field: Option<Arc<str>>,
}

/// The description of one limit.
#[derive(Debug)]
struct Policy {
    /// The policy's name as a structured-field string, including the quotes. It is also a valid JSON string.
    name: String,
    kind: Kind,
    /// What the limit promises; `None` if it is not described, as limits in shadow and those of all keys are not.
    item: Option<String>,
    /// Whether its capacity adapts.
    moves: bool,
    /// Whether hosts share it, so that this one does not know how much is left: only what it has leased.
    is_shared: bool,
}

impl Promises {
    /// Formats once what is the same in every response.
    pub(super) fn new(limits: &[Limit], in_force: &[LimitRules], wording: &Wording) -> Self {
        let mut items = Vec::new();
        let mut policies = Vec::new();
        for (index, limit) in limits.iter().enumerate() {
            let name = quoted(&format!("{}{}", wording.prefix, limit.name()));
            let unit = wording.units.get(limit.name()).map(String::as_str);
            // What all keys have together would tell one client about the others.
            let in_force = in_force.get(index);
            let in_force = in_force.filter(|rules| !rules.shadow && !rules.is_overall());
            let item = in_force.and_then(|rules| item(limit, rules.burst, unit, &name));
            items.extend(item.clone());
            policies.push(Policy {
                name,
                kind: limit.kind(),
                item,
                moves: limit.options().ceiling().is_some(),
                is_shared: limit.options().fleet().is_some(),
            });
        }
        Self {
            policies,
            field: field(&items).map(Arc::from),
        }
    }
}

impl Policies {
    /// The policies of a set with these tiers, each with its name, `default` first.
    pub(super) fn new(generation: u64, tiers: Vec<(String, Promises)>) -> Self {
        Self { generation, tiers }
    }

    /// What is promised to keys of a tier, or of `default` if the tier is unknown.
    fn of_tier(&self, tier: Option<&str>) -> Option<&Promises> {
        let named = self.tiers.iter().find(|(name, _)| Some(name.as_str()) == tier);
        named.or(self.tiers.first()).map(|(_, promises)| promises)
    }

    /// The generation of the set's definition that these follow.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// The fields of the response to a request that the limits have decided.
    pub(super) fn fields<'a>(
        &self,
        set: &LimitSet,
        verdicts: impl Iterator<Item = Verdict<'a>>,
        admitted: bool,
    ) -> Fields {
        let verdicts: Vec<Verdict<'a>> = verdicts.collect();
        Fields {
            policy: self.policy(set, &verdicts),
            standing: self.standing(set, &verdicts, admitted),
            retry_after: None,
        }
    }

    /// What the limits promise to keys of the tier that was used for the decision. For an adaptive limit, it is the
    /// capacity in the verdict.
    fn policy(&self, set: &LimitSet, verdicts: &[Verdict<'_>]) -> Option<Arc<str>> {
        let Promises {
            policies,
            field: same,
        } = self.of_tier(verdicts.first().map(|verdict| verdict.tier))?;
        if !policies.iter().any(|policy| policy.moves) {
            return same.clone();
        }
        let mut items: Vec<Option<String>> = policies.iter().map(|policy| policy.item.clone()).collect();
        for verdict in verdicts {
            let place = set.limit_index(verdict.limit).map(|index| index.0);
            let policy = place.and_then(|place| policies.get(place));
            let item = place.and_then(|place| items.get_mut(place)?.as_mut());
            if let (Some(item), Some(policy)) = (item, policy.filter(|policy| policy.moves)) {
                *item = concurrency_item(&policy.name, verdict.burst);
            }
        }
        field(&items.into_iter().flatten().collect::<Vec<_>>()).map(Arc::from)
    }

    /// How much is left of the limits for which that is known.
    fn standing(&self, set: &LimitSet, verdicts: &[Verdict<'_>], admitted: bool) -> Option<String> {
        let items = verdicts.iter().filter_map(|verdict| {
            let policy = self
                .find(set, verdict.limit)
                .filter(|policy| policy.item.is_some() && !policy.is_shared)?;
            let mut item = format!("{};r={}", policy.name, verdict.remaining.min(LARGEST));
            if let Some(wait) = effective_window(policy.kind, verdict, admitted) {
                push_parameter(&mut item, "t", whole_seconds(wait));
            }
            Some(item)
        });
        field(&items.collect::<Vec<_>>())
    }

    /// The quoted name of a limit's policy, which is also a valid JSON string.
    pub(super) fn name(&self, set: &LimitSet, limit: &str) -> Option<&str> {
        self.find(set, limit).map(|policy| policy.name.as_str())
    }

    fn find(&self, set: &LimitSet, limit: &str) -> Option<&Policy> {
        let index = set.limit_index(limit)?;
        // The names, and which limits are described, are the same in all tiers.
        self.of_tier(None)?.policies.get(index.0)
    }
}

/// What one limit promises: `"requests";q=200;w=1`.
fn item(limit: &Limit, burst: u64, unit: Option<&str>, name: &str) -> Option<String> {
    let limit = limit.clone().per_window();
    let capacity = limit.units(limit.capacity()).ok()??;
    if limit.kind() == Kind::Concurrency {
        return Some(concurrency_item(name, burst));
    }
    let mut item = format!("{name};q={}", capacity.min(LARGEST));
    match (limit.kind(), unit) {
        // Requests are the unit of a policy that names none.
        (Kind::Calls | Kind::Concurrency, _) => {}
        (Kind::Rate | Kind::Budget, Some(unit)) => {
            item.push_str(";qu=");
            item.push_str(&quoted(unit));
        }
        (Kind::Rate | Kind::Budget, None) => return None,
    }
    if let Some(seconds) = limit.window().and_then(window_seconds) {
        push_parameter(&mut item, "w", seconds);
    }
    // Unless the field says otherwise, the limit admits its whole quota at once.
    let burst = limit.options().burst().map(|burst| limit.units(burst));
    if let Some(Ok(Some(burst))) = burst
        && burst != capacity
    {
        push_parameter(&mut item, "shmlimit-burst", burst);
    }
    Some(item)
}

fn concurrency_item(name: &str, burst: u64) -> String {
    format!("{name};q={};qu=\"concurrent-requests\"", burst.min(LARGEST))
}

/// `Retry-After` in seconds: the longest wait of all limits that refused or that bind earlier waiters. If none of
/// them is known, as with concurrency, it is 1: without a number, clients would be back at once.
///
/// No window in the accompanying `RateLimit` field ends later, as the draft requires.
pub(super) fn retry_after(refusal: &Refusal) -> u64 {
    let waits = refusal.verdicts().filter_map(|verdict| verdict.retry_after);
    let longest = refusal.retry_after().max(waits.max());
    longest.map_or(1, whole_seconds).max(1)
}

/// How long no more than the remainder can be used. In a refusal, only limits that refused have such a window, so that
/// none ends later than `Retry-After`.
fn effective_window(kind: Kind, verdict: &Verdict<'_>, admitted: bool) -> Option<Duration> {
    match (kind, admitted) {
        (Kind::Concurrency, _) => None,
        (_, true) => Some(verdict.reset_after),
        (_, false) if verdict.admitted => None,
        (_, false) => verdict.retry_after,
    }
}

/// The length of a window, if it is constant and a whole number of seconds: the field supports no others.
fn window_seconds(window: Window) -> Option<u64> {
    match window {
        Window::Span(span) => (span.subsec_nanos() == 0).then_some(span.as_secs()),
        Window::Day => Some(86_400),
        Window::Week => Some(604_800),
        Window::Month => None,
    }
}

/// Rounds up, so that no client comes back too early.
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs()
        .saturating_add(u64::from(wait.subsec_nanos() > 0))
        .min(LARGEST)
}

fn push_parameter(item: &mut String, key: &str, value: u64) {
    // Writing to a string cannot fail.
    let _ = write!(item, ";{key}={}", value.min(LARGEST));
}

/// Joins items to a list field. An empty list means that there is no field.
fn field(items: &[String]) -> Option<String> {
    (!items.is_empty()).then(|| items.join(", "))
}

/// A structured-field string. These contain printable ASCII only; other bytes of a name, and the percent sign, are
/// percent-encoded as in URLs. The result is also a valid JSON string, since both escape quotes and backslashes
/// alike.
fn quoted(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    text.push('"');
    for byte in name.bytes() {
        match byte {
            b'"' | b'\\' => {
                text.push('\\');
                text.push(char::from(byte));
            }
            b'%' | 0..b' ' | 0x7f.. => {
                let _ = write!(text, "%{byte:02X}");
            }
            _ => text.push(char::from(byte)),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod fields_tests;
