//! Random traces, and following one with a rule and its model side by side.

use num_bigint::BigInt;
use proptest::prelude::*;

use super::oracle::Model;
use super::{Limit, at};
use crate::limit::{Assessment, Charge, Now, Rule, RuleOperations};
use crate::units::LATEST_INSTANT;

/// A hundred years.
const LONGEST_WINDOW: u64 = 100 * 365 * 86_400 * 1_000_000_000;

/// Capacities and bursts: tiny ones that fill up, round ones, and anything up to the largest word.
pub(super) fn quantity() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 1..=12_u64,
        2 => 1..=5_000_u64,
        2 => (0..64_u32, -1..=1_i64).prop_map(|(bit, off)| (1_u64 << bit).saturating_add_signed(off).max(1)),
        1 => 1..=u64::MAX,
        1 => Just(u64::MAX),
    ]
}

/// Windows from a nanosecond to a hundred years.
pub(super) fn window() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 1..=40_u64,
        2 => 1..=100_000_u64,
        2 => prop::sample::select(vec![1_000_000_000_u64, 60_000_000_000, 86_400_000_000_000, 999_999_937]),
        1 => 1..=LONGEST_WINDOW,
        1 => Just(LONGEST_WINDOW),
    ]
}

/// How long to wait before doing something.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    None,
    Nanos(u64),
    /// This many 64ths of the window.
    Share(u64),
    /// Until about the next multiple of the window.
    Boundary(i64),
    /// About this many windows.
    Windows(u64, i64),
    /// Until about the instant the last refusal named.
    Retry(i64),
    Anything(u64),
}

pub(super) fn wait() -> impl Strategy<Value = Wait> {
    prop_oneof![
        4 => Just(Wait::None),
        2 => (1..=3_u64).prop_map(Wait::Nanos),
        4 => (1..=64_u64).prop_map(Wait::Share),
        2 => (-1..=1_i64).prop_map(Wait::Boundary),
        2 => (1..=3_u64, -1..=1_i64).prop_map(|(windows, off)| Wait::Windows(windows, off)),
        4 => (-1..=0_i64).prop_map(Wait::Retry),
        1 => (0..=1_u64 << 55).prop_map(Wait::Anything),
    ]
}

/// An amount, as a share of the most that can be taken at once.
#[derive(Clone, Copy, Debug)]
pub(super) enum Amount {
    Units(u64),
    Share(u64),
    All,
    AllAndOne,
    /// All that remains, and this many more.
    Remaining(u64),
}

impl Amount {
    pub(super) fn of(self, max: u64, remaining: u64) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Share(share) => (u128::from(max) * u128::from(share) / 16) as u64,
            Self::All => max,
            Self::AllAndOne => max.saturating_add(1),
            Self::Remaining(more) => remaining.saturating_add(more),
        }
    }
}

pub(super) fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![
        3 => (0..=3_u64).prop_map(Amount::Units),
        4 => (1..=15_u64).prop_map(Amount::Share),
        1 => Just(Amount::All),
        1 => Just(Amount::AllAndOne),
        3 => (0..=1_u64).prop_map(Amount::Remaining),
        1 => any::<u64>().prop_map(Amount::Units),
    ]
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// Take if admissible.
    Take(Amount),
    /// Charge, whatever the limit says.
    Overdraw(Amount),
    /// Give back some of the charge this many places before the latest.
    Refund(Amount, usize),
}

pub(super) type Trace = Vec<(Wait, Act)>;

/// Takes only, for what must hold in honest use.
pub(super) fn takes() -> impl Strategy<Value = Trace> {
    prop::collection::vec((wait(), amount().prop_map(Act::Take)), 1..60)
}

/// Takes, some of which are given back.
pub(super) fn takes_and_refunds() -> impl Strategy<Value = Trace> {
    let act = prop_oneof![
        2 => amount().prop_map(Act::Take),
        1 => (amount(), 0..6_usize).prop_map(|(amount, before)| Act::Refund(amount, before)),
    ];
    prop::collection::vec((wait(), act), 1..60)
}

/// Takes, with overdrafts and refunds in between.
pub(super) fn everything() -> impl Strategy<Value = Trace> {
    let act = prop_oneof![
        8 => amount().prop_map(Act::Take),
        1 => amount().prop_map(Act::Overdraw),
        3 => (amount(), 0..6_usize).prop_map(|(amount, before)| Act::Refund(amount, before)),
    ];
    prop::collection::vec((wait(), act), 1..60)
}

/// The instant after a wait; never later than the rules are proven for.
pub(super) fn after(now: u64, wait: Wait, window: u64, retry_at: Option<u64>) -> u64 {
    let target = match wait {
        Wait::None => now,
        Wait::Nanos(nanos) => now.saturating_add(nanos),
        Wait::Share(share) => now.saturating_add((u128::from(window) * u128::from(share) / 64) as u64),
        Wait::Boundary(off) => (now / window)
            .saturating_add(1)
            .saturating_mul(window)
            .saturating_add_signed(off),
        Wait::Windows(windows, off) => now
            .saturating_add(window.saturating_mul(windows))
            .saturating_add_signed(off),
        Wait::Retry(off) => retry_at.map_or(now, |retry_at| retry_at.saturating_add_signed(off)),
        Wait::Anything(nanos) => now.saturating_add(nanos),
    };
    if target > LATEST_INSTANT {
        now
    } else {
        target.max(now)
    }
}

fn later(now: Now, nanos: u64) -> Option<Now> {
    let monotonic = now
        .monotonic
        .checked_add(nanos)
        .filter(|instant| *instant <= LATEST_INSTANT)?;
    Some(Now {
        monotonic,
        utc: now.utc.checked_add(nanos)?,
    })
}

/// Everything that was admitted and used, as (instant, cost).
pub(super) type Grants = Vec<(u64, u64)>;

/// A charge that has not been given back yet.
struct Outstanding {
    at: Now,
    charge: Charge,
    /// The index of its grant.
    grant: Option<usize>,
}

impl Outstanding {
    /// What `limit` has just been charged.
    fn of(limit: &Limit, at: Now, cost: u64, grant: Option<usize>) -> Self {
        let charge = Charge {
            mark: Some(limit.rule.mark(limit.words.as_slice(), at)),
            ..Limit::unmarked(at, cost)
        };
        Self { at, charge, grant }
    }

    /// Any part of what was charged: after several refunds, a backlog belongs to no single charge.
    fn anything(at: Now) -> Self {
        Self {
            at,
            charge: Limit::unmarked(at, u64::MAX),
            grant: None,
        }
    }
}

/// Follows a trace from `start` with a rule and its model, which must agree about everything.
pub(super) fn follow(rule: Rule, mut model: impl Model, window: u64, start: u64, trace: &Trace) -> Grants {
    let mut limit = Limit::new(rule);
    let mut grants = Grants::new();
    let mut retry_at = None;
    let mut instant = start;
    let mut outstanding: Vec<Outstanding> = Vec::new();
    let max = match rule {
        Rule::Budget(_) => limit.remaining(at(0)),
        _ => rule.burst(),
    };
    for (wait, act) in trace {
        instant = after(instant, *wait, window, retry_at);
        let now = at(instant);
        agree_about_standing(&limit, &model, now);
        let remaining = limit.remaining(now);
        match act {
            Act::Take(amount) => {
                let cost = amount.of(max, remaining);
                agree_about_cost(&limit, &model, now, cost);
                match limit.take(now, cost) {
                    Assessment::Admissible => {
                        model.charge(now, cost);
                        outstanding.push(Outstanding::of(&limit, now, cost, Some(grants.len())));
                        grants.push((instant, cost));
                    }
                    Assessment::Refused { retry_after } => {
                        retry_at = retry_after.and_then(|nanos| instant.checked_add(nanos));
                    }
                }
            }
            Act::Overdraw(amount) => {
                let cost = amount.of(max, remaining);
                if model.can_express(now, cost) {
                    limit.charge(now, cost);
                    model.charge(now, cost);
                    outstanding.push(Outstanding::of(&limit, now, cost, None));
                }
            }
            Act::Refund(amount, before) => {
                let mut any = Outstanding::anything(now);
                let latest = outstanding.iter_mut().rev();
                let found = match rule {
                    Rule::Backlog(_) => Some(&mut any),
                    _ => latest.filter(|it| it.charge.cost > 0).nth(*before),
                };
                let Some(Outstanding { at, charge, grant }) = found else {
                    continue;
                };
                let back = amount.of(max, remaining).min(charge.cost);
                assert_eq!(
                    limit.refund(now, back, charge),
                    model.refund(now, *at, back),
                    "refund of {back} of {charge:?} at {instant}"
                );
                charge.cost -= back;
                if let Some(grant) = grant {
                    // It was not used, whether or not the limit could still take it back.
                    grants[*grant].1 -= back;
                }
            }
        }
        agree_about_standing(&limit, &model, now);
        assert!(limit.remaining(now) <= max);
    }
    grants
}

fn agree_about_standing(limit: &Limit, model: &impl Model, now: Now) {
    let standing = limit.standing(now);
    assert_eq!(standing.remaining, model.remaining(now), "remaining at {now:?}");
    if let Some(full) = later(now, standing.reset_after) {
        assert!(
            model.replenished(full),
            "not replenished after {} from {now:?}",
            standing.reset_after
        );
    }
    if let Some(before) = standing.reset_after.checked_sub(1)
        && let Some(before) = later(now, before)
    {
        assert!(
            !model.replenished(before),
            "replenished before {} from {now:?}",
            standing.reset_after
        );
    }
}

fn agree_about_cost(limit: &Limit, model: &impl Model, now: Now, cost: u64) {
    match limit.assess(now, cost) {
        Assessment::Admissible => assert!(model.admits(now, cost), "{cost} admitted at {now:?}"),
        Assessment::Refused { retry_after: None } => {
            assert!(cost > limit.rule.burst());
            assert!(!model.admits(now, cost), "{cost} refused at {now:?}");
        }
        Assessment::Refused {
            retry_after: Some(wait),
        } => {
            assert!(wait > 0);
            assert!(!model.admits(now, cost), "{cost} refused at {now:?}");
            if let Some(before) = later(now, wait - 1) {
                assert!(
                    !model.admits(before, cost),
                    "{cost} fits before {wait} from {now:?}"
                );
                assert!(
                    !limit.admits(before, cost),
                    "{cost} admitted before {wait} from {now:?}"
                );
            }
            if let Some(due) = later(now, wait) {
                assert!(model.admits(due, cost), "{cost} does not fit {wait} from {now:?}");
                assert!(limit.admits(due, cost), "{cost} not admitted {wait} from {now:?}");
            }
        }
    }
}

/// The most that was granted in any half-open span of `length` nanoseconds.
pub(super) fn max_granted_within(grants: &Grants, length: u128) -> BigInt {
    let within = |start: u64| {
        grants
            .iter()
            .filter(|(time, _)| *time >= start && u128::from(*time) < u128::from(start) + length)
            .map(|(_, cost)| BigInt::from(*cost))
            .sum::<BigInt>()
    };
    grants
        .iter()
        .map(|(start, _)| within(*start))
        .max()
        .unwrap_or_default()
}
