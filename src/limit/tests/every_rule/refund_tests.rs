//! How much of a charge comes back: only what still counts, and nothing that others charged.

use proptest::prelude::*;

use crate::limit::tests::trace_tests::{Amount, Wait, after, amount, quantity, wait, window};
use crate::limit::tests::{Limit, at, backlog_rules_tests};
use crate::limit::{
    Backlog, Budget, Charge, Concurrency, FixedWindow, Rule, RuleOperations, SlidingWindow,
    SlidingWindowCounter, Unlimited,
};

/// Charges `cost`, and returns what a refund will need.
fn charge(limit: &mut Limit, instant: u64, cost: u64) -> Charge {
    let now = at(instant);
    limit.charge(now, cost);
    Charge {
        mark: Some(limit.rule.mark(limit.words.as_slice(), now)),
        ..Limit::unmarked(now, cost)
    }
}

fn charge_all(limit: &mut Limit, window: u64, steps: &[(Wait, Amount)]) -> (Vec<Charge>, u64) {
    let mut instant = 0;
    let mut charged = Vec::new();
    for (wait, amount) in steps {
        instant = after(instant, *wait, window, None);
        let cost = amount.of(limit.rule.burst(), limit.remaining(at(instant)));
        charged.push(charge(limit, instant, cost));
    }
    (charged, instant)
}

/// One of each rule that gives back, over windows of 1,000 ns.
fn refunding(capacity: u64) -> [Rule; 5] {
    [
        Backlog::new(capacity, 1_000, capacity).expect("valid").into(),
        FixedWindow::utc(capacity, 1_000).expect("valid").into(),
        FixedWindow::first_use(capacity, 1_000).expect("valid").into(),
        SlidingWindow::new(capacity, 1_000, 40)
            .expect("valid")
            .refunding_within(8)
            .into(),
        SlidingWindowCounter::new(capacity, 1_000, 10)
            .expect("valid")
            .into(),
    ]
}

proptest! {
    /// Time works off the oldest charge first, so every part of the backlog belongs to exactly one charge.
    #[test]
    fn of_all_charges_together_the_backlog_is_left(
        capacity in quantity(), window in window(), burst in quantity(),
        steps in prop::collection::vec((wait(), amount()), 0..8), pause in wait(),
    ) {
        for rule in backlog_rules_tests::each(capacity, window, burst) {
            let Rule::Backlog(backlog) = rule else { panic!("it keeps a backlog") };
            let mut limit = Limit::new(rule);
            let (charged, instant) = charge_all(&mut limit, window, &steps);
            let later = at(after(instant, pause, window, None));
            let left: u128 = charged.iter().map(|charge| backlog.left(later, charge)).sum();
            prop_assert_eq!(left, rule.mark(limit.words.as_slice(), later).wide(), "{:?}", rule);
        }
    }
}

#[test]
fn what_was_not_used_can_be_used_at_once_by_others() {
    for rule in refunding(10) {
        let mut limit = Limit::new(rule);
        let first = charge(&mut limit, 5, 7);
        let second = charge(&mut limit, 5, 3);
        assert!(!limit.admits(at(5), 1), "{rule:?}");
        assert_eq!(limit.refund(at(5), 5, &first), 5, "{rule:?}");
        assert_eq!(limit.remaining(at(5)), 5, "{rule:?}");
        assert_eq!(limit.refund(at(5), 3, &second), 3, "{rule:?}");
        assert_eq!(limit.remaining(at(5)), 8, "{rule:?}");
    }
}

#[test]
fn whoever_gives_everything_back_leaves_the_limit_as_never_used() {
    for rule in refunding(10) {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            let mut limit = Limit::new(rule);
            let charges =
                [(100, 2), (100, 3), (101, 4)].map(|(instant, cost)| charge(&mut limit, instant, cost));
            for index in order {
                limit.refund(at(101), charges[index].cost, &charges[index]);
            }
            assert!(limit.is_replenished(at(102)), "{rule:?}, in the order {order:?}");
            assert_eq!(limit.remaining(at(102)), 10, "{rule:?}");
        }
    }
}

#[test]
fn nothing_comes_back_of_what_counts_no_longer() {
    for rule in refunding(10) {
        let mut limit = Limit::new(rule);
        let first = charge(&mut limit, 5, 7);
        // Another window, and another round of the ring.
        charge(&mut limit, 2_300, 8);
        let before = limit.clone();
        assert_eq!(limit.refund(at(2_300), 7, &first), 0, "{rule:?}");
        assert_eq!(limit.words, before.words, "{rule:?}");
    }
}

#[test]
fn nothing_comes_back_where_nothing_is_reserved_or_it_is_only_held() {
    let window = FixedWindow::utc(10, 1_000).expect("valid");
    let rules = [
        Budget::new(window).expect("valid").into(),
        Concurrency::new(10).expect("valid").into(),
        Unlimited.into(),
    ];
    for rule in rules {
        let mut limit = Limit::new(rule);
        let charged = charge(&mut limit, 5, 7);
        let before = limit.clone();
        assert_eq!(limit.refund(at(5), 7, &charged), 0, "{rule:?}");
        assert_eq!(limit.words, before.words, "{rule:?}");
    }
}

#[test]
fn of_one_charge_behind_another_is_not_paid_out_of_that() {
    for rule in backlog_rules_tests::each(10, 1_000, 10) {
        let mut limit = Limit::new(rule);
        let first = charge(&mut limit, 0, 5);
        charge(&mut limit, 0, 5);
        let given = limit.refund(at(300), 5, &first);
        assert_eq!(given, 2, "time has replenished three of the first five");
        assert_eq!(limit.refund(at(500), 5, &first), 0);
        assert_eq!(limit.remaining(at(500)), 7);
    }
}
