//! When a row of state carries no information any more.

use proptest::prelude::*;

use super::damaged_state_tests::rule;
use crate::limit::tests::trace_tests::{Amount, after, amount, wait};
use crate::limit::tests::{Limit, at};
use crate::limit::{Concurrency, FixedWindow, Now, Rule, RuleOperations};
use crate::units::LATEST_INSTANT;

/// Does the same to both limits and demands that they cannot be told apart.
fn cannot_be_told_apart(used: &Limit, mut now: Now, later: &[(u64, u64, Amount, bool)]) {
    let mut used = used.clone();
    let mut unused = Limit::new(used.rule);
    for (wait, wall_wait, amount, takes) in later {
        now.monotonic += wait;
        now.utc += wall_wait;
        assert_eq!(used.standing(now), unused.standing(now));
        let cost = amount.of(used.rule.burst(), used.remaining(now));
        assert_eq!(used.assess(now, cost), unused.assess(now, cost));
        if *takes {
            used.charge(now, cost);
            unused.charge(now, cost);
        }
    }
}

fn later() -> impl Strategy<Value = Vec<(u64, u64, Amount, bool)>> {
    let pause = || prop_oneof![3 => 0..50_u64, 1 => 0..1_u64 << 40];
    prop::collection::vec((pause(), pause(), amount(), any::<bool>()), 1..10)
}

proptest! {
    #[test]
    fn is_what_decides_like_zeros_from_now_on(
        rule in rule(), pace in prop_oneof![1..1_000_u64, 1..1_u64 << 50],
        steps in prop::collection::vec((wait(), amount()), 1..20), later in later(),
    ) {
        let mut limit = Limit::new(rule);
        let mut instant = 0;
        for (wait, amount) in steps {
            instant = after(instant, wait, pace, None);
            let now = at(instant);
            let standing = limit.standing(now);
            match rule {
                Rule::Concurrency(_) | Rule::Adaptive(_) => {
                    prop_assert_eq!(limit.is_replenished(now), standing.remaining == rule.burst());
                }
                _ => prop_assert_eq!(limit.is_replenished(now), standing.reset_after == 0),
            }
            let full = instant.saturating_add(standing.reset_after);
            if !matches!(rule, Rule::Concurrency(_) | Rule::Adaptive(_)) && full <= LATEST_INSTANT {
                prop_assert!(limit.is_replenished(at(full)));
                prop_assert!(standing.reset_after == 0 || !limit.is_replenished(at(full - 1)));
                cannot_be_told_apart(&limit, at(full), &later);
            }
            limit.charge(now, amount.of(rule.burst(), limit.remaining(now)));
        }
    }

    /// Sets the wall clock back and forth. The answer must be yes exactly if no later instant of either clock finds
    /// the window open.
    #[test]
    fn is_a_window_that_no_later_instant_opens_again(
        window in 1..12_u64,
        steps in prop::collection::vec((0..30_u64, -20..40_i64, 0..2_u64), 1..16),
    ) {
        let mut limit = Limit::new(Rule::FixedWindow(FixedWindow::utc(3, window).expect("positive")));
        let mut now = Now { monotonic: 0, utc: 10_000 };
        for (wait, step, cost) in steps {
            now = Now { monotonic: now.monotonic + wait, utc: (now.utc + wait).saturating_add_signed(step) };
            let is_closed = |monotonic: u64, utc: u64| limit.remaining(Now { monotonic, utc }) == 3;
            // Later instants of the monotonic clock never find more open.
            let stays_closed = (0..320).all(|ahead| is_closed(now.monotonic, now.utc + ahead));
            prop_assert_eq!(limit.is_replenished(now), stays_closed);
            limit.charge(now, cost);
        }
    }
}

#[test]
fn is_not_what_is_still_held() {
    let mut limit = Limit::new(Rule::Concurrency(Concurrency::new(10).expect("positive")));
    limit.charge(at(0), 1);
    assert!(!limit.is_replenished(at(LATEST_INSTANT)));
    limit.rule.give_back(limit.words.as_mut_slice(), 1);
    assert!(limit.is_replenished(at(0)));
}
