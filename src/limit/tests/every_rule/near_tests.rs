use num_bigint::BigInt;
use proptest::prelude::*;

use super::damaged_state_tests::rule;
use crate::limit::tests::trace_tests::{amount, quantity, window};
use crate::limit::tests::{Limit, at, backlog_rules_tests};
use crate::limit::{Mark, Rule, RuleOperations, Unlimited};

fn is_near(limit: &Limit, instant: u64, percent: u8) -> bool {
    let mark = limit.rule.mark(limit.words.as_slice(), at(instant));
    limit.rule.is_near(mark, limit.rule.near_threshold(percent))
}

proptest! {
    #[test]
    fn a_limit_is_near_from_exactly_the_share_on(rule in rule(), amount in amount(), percent in 1..=100_u8) {
        prop_assume!(!matches!(rule, Rule::Unlimited(_)));
        let mut limit = Limit::new(rule);
        let whole = limit.remaining(at(0));
        let used = amount.of(whole, whole);
        limit.charge(at(0), used);
        let expected = BigInt::from(used) * 100 >= BigInt::from(whole) * percent;
        prop_assert_eq!(is_near(&limit, 0, percent), expected);
    }

    #[test]
    fn of_a_unit_that_is_worked_off_the_rest_counts(
        capacity in quantity(), window in window(), burst in quantity(),
        cost in amount(), elapsed in 0..1_u64 << 40, percent in 1..=100_u8,
    ) {
        let cost = cost.of(burst, burst);
        for rule in backlog_rules_tests::each(capacity, window, burst) {
            let mut limit = Limit::new(rule);
            limit.charge(at(0), cost);
            let used = BigInt::from(cost) * window - BigInt::from(elapsed) * capacity;
            let expected = used * 100 >= BigInt::from(burst) * window * percent;
            prop_assert_eq!(is_near(&limit, elapsed, percent), expected);
        }
    }

    #[test]
    fn without_a_capacity_nothing_is_near(first in any::<u64>(), second in any::<u64>(), percent in any::<u8>()) {
        let rule = Rule::from(Unlimited);
        let mark = Mark { first, second };
        prop_assert!(!rule.is_near(mark, rule.near_threshold(percent)));
    }

    #[test]
    fn no_limit_is_near_before_the_first_use(rule in rule(), percent in any::<u8>()) {
        prop_assert!(!is_near(&Limit::new(rule), 0, percent));
    }
}
