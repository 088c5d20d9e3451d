//! GCRA, token bucket and leaky bucket: one rule.

use num_bigint::BigInt;
use proptest::prelude::*;

use super::oracle::ArrivalCurve;
use super::trace_tests::{everything, follow, max_granted_within, quantity, takes, window};
use super::{Limit, REFUSED_FOR_EVER, at, refused_for};
use crate::limit::window::window_bound::of_backlog;
use crate::limit::{Assessment, Backlog, InvalidLimit, Rule, RuleOperations, Standing};
use crate::units::{LATEST_INSTANT, NANOS_PER_SECOND};

const MINUTE: u64 = 60 * NANOS_PER_SECOND;

/// The rule with these parameters, or nothing if the burst is not exact.
pub(super) fn each(capacity: u64, window: u64, burst: u64) -> Vec<Rule> {
    match Backlog::new(capacity, window, burst) {
        Ok(rule) => vec![rule.into()],
        Err(error) => {
            assert!(matches!(error, InvalidLimit::InexactBurst { .. }));
            assert!(window > LATEST_INSTANT && burst > LATEST_INSTANT, "{error}");
            Vec::new()
        }
    }
}

fn leaky_bucket(capacity: u64, window: u64, burst: u64) -> Limit {
    let rule = Backlog::new(capacity, window, burst).expect("valid");
    Limit::new(rule.into())
}

fn start() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..=5_u64, 1 => 0..=LATEST_INSTANT / 2]
}

proptest! {
    #[test]
    fn agree_with_the_arrival_curve(
        capacity in quantity(), window in window(), burst in quantity(), start in start(), trace in everything(),
    ) {
        for rule in each(capacity, window, burst) {
            follow(rule, ArrivalCurve::new(capacity, window, burst), window, start, &trace);
        }
    }

    #[test]
    fn never_grant_more_than_the_stated_bound_in_any_window(
        capacity in quantity(), window in window(), burst in quantity(), trace in takes(),
    ) {
        for rule in each(capacity, window, burst) {
            let model = ArrivalCurve::new(capacity, window, burst);
            let grants = follow(rule, model, window, 0, &trace);
            let max = max_granted_within(&grants, u128::from(window));
            prop_assert!(max <= BigInt::from(of_backlog(capacity, window, burst)), "{max}");
        }
    }

    #[test]
    fn what_is_reserved_for_later_stays_within_the_bound_when_it_is_used(
        capacity in 1..20_u64, window in 1..200_u64, burst in 1..20_u64,
        steps in prop::collection::vec((0..60_u64, 1..6_u64, prop_oneof![Just(0), 0..400_u64], 0..50_u64), 1..40),
    ) {
        for rule in each(capacity, window, burst) {
            let mut limit = Limit::new(rule);
            let mut now = 0;
            let mut uses: Vec<(u64, u64)> = Vec::new();
            for (pause, cost, max_delay, others) in &steps {
                now += pause;
                // Another limit of the same request may impose a longer wait than this one.
                let (delay, is_possible) = match limit.assess(at(now), *cost) {
                    Assessment::Admissible => (0, true),
                    Assessment::Refused { retry_after } => (retry_after.unwrap_or(0), retry_after.is_some()),
                };
                let delay = if *max_delay == 0 { delay } else { delay.max(*others) };
                if is_possible && delay <= *max_delay {
                    rule.charge_ahead(limit.words.as_mut_slice(), at(now), delay, *cost);
                    uses.push((now + delay, *cost));
                }
            }
            for (from, _) in &uses {
                let within = uses.iter().filter(|(at, _)| (*from..*from + window).contains(at));
                let used: u64 = within.map(|(_, cost)| cost).sum();
                prop_assert!(used <= capacity + burst, "{rule:?}: {used} within a window from {from}");
            }
        }
    }

    #[test]
    fn are_the_same_however_often_they_are_read_in_between(
        capacity in 1..50_u64, window in 1..10_000_u64, waits in prop::collection::vec(0..300_u64, 1..100),
    ) {
        for rule in each(capacity, window, capacity) {
            let mut polled = Limit::new(rule);
            polled.charge(at(0), capacity);
            let left_alone = polled.clone();
            let mut instant = 0;
            for wait in &waits {
                instant += wait;
                let _ = polled.assess(at(instant), 1);
                let _ = polled.take(at(instant), 0);
                polled.charge(at(instant), 0);
                polled.refund_any(at(instant), 0);
            }
            prop_assert_eq!(polled.standing(at(instant)), left_alone.standing(at(instant)));
        }
    }
}

#[test]
fn refuse_the_eleventh_of_ten() {
    for rule in each(10, MINUTE, 10) {
        let mut limit = Limit::new(rule);
        for _ in 0..10 {
            assert_eq!(limit.take(at(7), 1), Assessment::Admissible);
        }
        assert_eq!(limit.take(at(7), 1), refused_for(MINUTE / 10));
        assert_eq!(
            limit.standing(at(7)),
            Standing {
                remaining: 0,
                reset_after: MINUTE
            }
        );
    }
}

#[test]
fn are_full_from_the_first_instant_after_boot() {
    for rule in each(10, MINUTE, 3) {
        for instant in [0, 1, LATEST_INSTANT] {
            assert_eq!(
                Limit::new(rule).standing(at(instant)),
                Standing {
                    remaining: 3,
                    reset_after: 0
                }
            );
            assert!(Limit::new(rule).admits(at(instant), 3));
        }
    }
}

#[test]
fn do_not_promise_an_instant_to_a_cost_above_the_burst() {
    for rule in each(10, MINUTE, 3) {
        let mut limit = Limit::new(rule);
        assert_eq!(limit.assess(at(0), 4), REFUSED_FOR_EVER);
        limit.charge(at(0), 3);
        assert_eq!(limit.assess(at(0), 4), REFUSED_FOR_EVER);
        assert_eq!(limit.assess(at(0), u64::MAX), REFUSED_FOR_EVER);
    }
}

#[test]
fn a_leaky_bucket_that_is_polled_every_nanosecond_still_drains() {
    // One unit takes a third of 1,000 ns: rounding at every poll would lose all of it.
    let mut limit = leaky_bucket(3, 1_000, 3);
    limit.charge(at(0), 3);
    let admitted = (0..=334).find(|instant| limit.take(at(*instant), 1) == Assessment::Admissible);
    assert_eq!(admitted, Some(334));
}

#[test]
fn a_leaky_bucket_spaces_requests_when_its_size_is_one() {
    let mut limit = leaky_bucket(10, 1_000, 1);
    let mut granted = Vec::new();
    for instant in 0..500 {
        if limit.take(at(instant), 1) == Assessment::Admissible {
            granted.push(instant);
        }
    }
    assert_eq!(granted, [0, 100, 200, 300, 400]);
}

#[test]
fn an_overdraft_has_to_be_worked_off_first() {
    for rule in each(10, 1_000, 10) {
        let mut limit = Limit::new(rule);
        limit.charge(at(0), 25);
        assert_eq!(
            limit.standing(at(0)),
            Standing {
                remaining: 0,
                reset_after: 2_500
            }
        );
        // While the limit is overdrawn, even a cost of zero is refused.
        assert_eq!(limit.assess(at(0), 0), refused_for(1_500));
        assert_eq!(limit.assess(at(0), 1), refused_for(1_600));
        assert!(limit.admits(at(1_600), 1));
    }
}

#[test]
fn a_refund_never_rises_above_full() {
    for rule in each(10, 1_000, 10) {
        let mut limit = Limit::new(rule);
        limit.charge(at(0), 5);
        // 2.5 of 5 have come back by themselves; of the missing 2.5, two are whole.
        assert_eq!(limit.refund_any(at(250), 5), 2);
        assert_eq!(
            limit.standing(at(250)),
            Standing {
                remaining: 10,
                reset_after: 0
            }
        );
        assert_eq!(limit.refund_any(at(250), u64::MAX), 0);
        assert_eq!(limit.remaining(at(250)), 10);
    }
}

#[test]
fn a_refund_after_an_overdraft_counts_from_below_zero() {
    for rule in each(10, 1_000, 10) {
        let mut limit = Limit::new(rule);
        limit.charge(at(0), 25);
        assert_eq!(limit.refund_any(at(0), 10), 10);
        assert_eq!(limit.assess(at(0), 0), refused_for(500));
    }
}

#[test]
fn overdrafts_beyond_all_bounds_stay_refused() {
    for rule in each(u64::MAX, NANOS_PER_SECOND, u64::MAX) {
        let mut limit = Limit::new(rule);
        for _ in 0..5 {
            limit.charge(at(1), u64::MAX);
        }
        assert!(matches!(
            limit.assess(at(1), 1),
            Assessment::Refused {
                retry_after: Some(1..)
            }
        ));
        assert_eq!(limit.remaining(at(1)), 0);
    }
}

#[test]
fn beyond_the_last_proven_instant_time_stands_still() {
    for rule in each(10, 1_000, 10) {
        let mut limit = Limit::new(rule);
        limit.charge(at(LATEST_INSTANT), 10);
        assert!(!limit.admits(at(u64::MAX), 1));
    }
}

#[test]
fn reset_fills_up_and_may_be_repeated() {
    for rule in each(10, 1_000, 10) {
        let mut limit = Limit::new(rule);
        limit.charge(at(5), 30);
        limit.reset();
        let once = limit.words.clone();
        limit.reset();
        assert_eq!(limit.words, once);
        assert_eq!(
            limit.standing(at(5)),
            Standing {
                remaining: 10,
                reset_after: 0
            }
        );
    }
}
