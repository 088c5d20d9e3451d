//! The used share of a limit, a number by which limits of different kinds can be compared.

use num_bigint::BigInt;
use proptest::prelude::*;

use super::damaged_state_tests::rule;
use crate::limit::tests::trace_tests::{amount, quantity, window};
use crate::limit::tests::{Limit, at, backlog_rules_tests};
use crate::limit::{FixedWindow, Mark, Rule, RuleOperations, SlidingWindow, SlidingWindowCounter};

fn share(limit: &Limit, instant: u64) -> u64 {
    let mark = limit.rule.mark(limit.words.as_slice(), at(instant));
    limit.rule.share(mark)
}

/// In parts of 2^32, rounded up.
fn expected(used: BigInt, whole: BigInt) -> u64 {
    let parts = ((used.max(BigInt::from(0)) << 32) + &whole - 1) / whole;
    u64::try_from(parts).unwrap_or(u64::MAX)
}

proptest! {
    #[test]
    fn is_what_was_used_of_the_most_that_can_be(rule in rule(), amount in amount()) {
        let mut limit = Limit::new(rule);
        let whole = limit.remaining(at(0));
        let used = amount.of(whole, whole);
        limit.charge(at(0), used);
        let expected = match rule {
            Rule::Concurrency(_) | Rule::Adaptive(_) | Rule::Unlimited(_) => 0,
            _ => expected(used.into(), whole.into()),
        };
        prop_assert_eq!(share(&limit, 0), expected);
    }

    #[test]
    fn of_a_unit_that_is_worked_off_the_rest_counts(
        capacity in quantity(), window in window(), burst in quantity(),
        cost in amount(), elapsed in 0..1_u64 << 40,
    ) {
        let cost = cost.of(burst, burst);
        for rule in backlog_rules_tests::each(capacity, window, burst) {
            let mut limit = Limit::new(rule);
            limit.charge(at(0), cost);
            let used = BigInt::from(cost) * window - BigInt::from(elapsed) * capacity;
            prop_assert_eq!(share(&limit, elapsed), expected(used, BigInt::from(burst) * window));
        }
    }

    #[test]
    fn of_a_window_only_what_it_still_counts_does(
        capacity in quantity(), window in 2..1_u64 << 50, first in amount(), second in amount(),
    ) {
        let (first, second) = (first.of(capacity, capacity), second.of(capacity, capacity));
        prop_assume!(first.checked_add(second).is_some());
        let rules = [
            Rule::SlidingWindow(SlidingWindow::new(capacity, window, 4).expect("valid")),
            Rule::FixedWindow(FixedWindow::first_use(capacity, window).expect("valid")),
        ];
        for (rule, counts_later) in rules.into_iter().zip([second, 0]) {
            let mut limit = Limit::new(rule);
            limit.charge(at(1), first);
            limit.charge(at(window / 2 + 1), second);
            let both = BigInt::from(first) + second;
            prop_assert_eq!(share(&limit, window), expected(both, capacity.into()));
            // If no fixed window is open yet, the second charge opens one.
            let counts_later = if first == 0 { second } else { counts_later };
            prop_assert_eq!(share(&limit, window + 1), expected(counts_later.into(), capacity.into()));
        }
        let rule = Rule::SlidingWindowCounter(SlidingWindowCounter::new(capacity, window, 1).expect("valid"));
        let mut limit = Limit::new(rule);
        limit.charge(at(1), first);
        // The oldest sub-window's part is rounded up before it is compared with the capacity.
        let passed = window / 3;
        let weighted = (BigInt::from(first) * (window - passed) + window - 1) / window;
        prop_assert_eq!(share(&limit, window + passed), expected(weighted, capacity.into()));
    }

    #[test]
    fn a_mark_of_anything_has_one(rule in rule(), first in any::<u64>(), second in any::<u64>()) {
        let _ = rule.share(Mark { first, second });
    }
}
