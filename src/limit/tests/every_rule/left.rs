//! What is left of a charge, which is what a refund of it may give back: what time has not replenished since.

use proptest::prelude::*;

use crate::limit::tests::trace_tests::{Amount, Wait, after, amount, quantity, wait, window};
use crate::limit::tests::{Limit, at, backlog_rules_tests};
use crate::limit::{Mark, Rule, RuleOperations};

/// The rules that refund.
fn refunding(capacity: u64, window: u64, burst: u64) -> impl Iterator<Item = Rule> {
    let rules = backlog_rules_tests::each(capacity, window, burst);
    rules
        .into_iter()
        .filter_map(|(rule, refunds)| refunds.then_some(rule))
}

/// A charge: when, of how many units, and how it left the limit.
type Charged = (u64, u64, Mark);

fn charge_all(limit: &mut Limit, window: u64, steps: &[(Wait, Amount)]) -> (Vec<Charged>, u64) {
    let mut instant = 0;
    let mut charged = Vec::new();
    for (wait, amount) in steps {
        instant = after(instant, *wait, window, None);
        let now = at(instant);
        let cost = amount.of(limit.rule.burst(), limit.remaining(now));
        limit.charge(now, cost);
        charged.push((instant, cost, limit.rule.mark(limit.words.as_slice(), now)));
    }
    (charged, instant)
}

/// What a refund of `units` gives back, if so much is left of them.
fn refund(limit: &mut Limit, nanos: u64, units: u64, left: u128) -> u64 {
    limit
        .rule
        .refund(limit.words.as_mut_slice(), at(nanos), units, left)
}

proptest! {
    /// Time works off the oldest charge first, so whatever the backlog is belongs to exactly one charge.
    #[test]
    fn of_all_charges_together_is_the_backlog(
        capacity in quantity(), window in window(), burst in quantity(),
        steps in prop::collection::vec((wait(), amount()), 0..8), pause in wait(),
    ) {
        for rule in refunding(capacity, window, burst) {
            prop_assert!(rule.refunds());
            let mut limit = Limit::new(rule);
            let (charged, instant) = charge_all(&mut limit, window, &steps);
            let later = after(instant, pause, window, None);
            let left: u128 = charged
                .iter()
                .map(|(instant, cost, mark)| rule.left(Some(*mark), later - instant, *cost))
                .sum();
            prop_assert_eq!(left, rule.mark(limit.words.as_slice(), at(later)).wide(), "{:?}", rule);
        }
    }

    #[test]
    fn is_the_same_across_a_change_to_the_same(
        capacity in quantity(), window in window(), burst in quantity(),
        steps in prop::collection::vec((wait(), amount()), 0..8), pauses in (wait(), wait()),
    ) {
        for rule in refunding(capacity, window, burst) {
            let mut limit = Limit::new(rule);
            let (charged, instant) = charge_all(&mut limit, window, &steps);
            let changed_at = after(instant, pauses.0, window, None);
            let later = after(changed_at, pauses.1, window, None);
            for (instant, cost, mark) in charged {
                for mark in [Some(mark), None] {
                    prop_assert_eq!(
                        rule.left_of_former(&rule, mark, (changed_at - instant, later - changed_at), cost),
                        rule.left(mark, later - instant, cost)
                    );
                }
            }
        }
    }
}

#[test]
fn is_less_by_what_time_replenishes_at_the_rate_of_each_of_two_rules() {
    // Six units are charged, of which the first rule replenishes two until the change, 200 ns later.
    for (new_capacity, left_after_the_change) in [(5, 3), (10, 2), (20, 0)] {
        let new_rules = refunding(new_capacity, 1_000, 10);
        for (old, new) in refunding(10, 1_000, 10).zip(new_rules) {
            let mut limit = Limit::new(old);
            limit.charge(at(0), 6);
            let mark = old.mark(limit.words.as_slice(), at(0));
            limit.become_other(new, at(200));
            for mark in [Some(mark), None] {
                let left = new.left_of_former(&old, mark, (200, 200), 6);
                let mut limit = limit.clone();
                assert_eq!(refund(&mut limit, 400, 6, left), left_after_the_change, "{new:?}");
                assert_eq!(limit.remaining(at(400)), 10);
            }
        }
    }
}

#[test]
fn of_one_charge_behind_another_is_not_paid_out_of_that() {
    for rule in refunding(10, 1_000, 10) {
        let mut limit = Limit::new(rule);
        limit.charge(at(0), 5);
        let first = rule.mark(limit.words.as_slice(), at(0));
        limit.charge(at(0), 5);
        let left = rule.left(Some(first), 300, 5);
        assert_eq!(
            refund(&mut limit, 300, 5, left),
            2,
            "time has replenished three of the first five"
        );
        let left = rule.left(Some(first), 500, 5);
        assert_eq!(refund(&mut limit, 500, 5, left), 0);
        assert_eq!(limit.remaining(at(500)), 7);
    }
}
