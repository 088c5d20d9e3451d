use proptest::prelude::*;

use super::trace_tests::quantity;
use super::{Limit, REFUSED_FOR_EVER, at};
use crate::limit::{Assessment, Concurrency, Rule, RuleOperations, Standing, Unlimited};

fn concurrency(capacity: u64) -> Limit {
    Limit::new(Rule::Concurrency(Concurrency::new(capacity).expect("positive")))
}

proptest! {
    #[test]
    fn never_holds_more_than_the_capacity(
        capacity in quantity(), acts in prop::collection::vec((any::<bool>(), quantity()), 1..60),
    ) {
        let mut limit = concurrency(capacity);
        let mut held: Vec<u64> = Vec::new();
        for (takes, cost) in acts {
            let in_use: u128 = held.iter().map(|cost| u128::from(*cost)).sum();
            if takes {
                let fits = in_use + u128::from(cost) <= u128::from(capacity);
                let expected = if fits { Assessment::Admissible } else { REFUSED_FOR_EVER };
                prop_assert_eq!(limit.take(at(0), cost), expected);
                if fits {
                    held.push(cost);
                }
            } else if let Some(cost) = held.pop() {
                limit.rule.give_back(limit.words.as_mut_slice(), cost);
            }
            let in_use: u128 = held.iter().map(|cost| u128::from(*cost)).sum();
            prop_assert_eq!(u128::from(limit.remaining(at(0))), u128::from(capacity) - in_use);
        }
    }
}

#[test]
fn refuses_the_eleventh_of_ten_until_one_comes_back() {
    let mut limit = concurrency(10);
    for _ in 0..10 {
        assert_eq!(limit.take(at(0), 1), Assessment::Admissible);
    }
    assert_eq!(limit.take(at(u64::MAX), 1), REFUSED_FOR_EVER);
    limit.rule.give_back(limit.words.as_mut_slice(), 1);
    assert_eq!(limit.take(at(0), 1), Assessment::Admissible);
}

#[test]
fn giving_back_more_than_was_taken_stops_at_nothing() {
    let mut limit = concurrency(10);
    limit.charge(at(0), 3);
    limit.rule.give_back(limit.words.as_mut_slice(), u64::MAX);
    assert_eq!(
        limit.standing(at(0)),
        Standing {
            remaining: 10,
            reset_after: 0
        }
    );
}

#[test]
fn a_reset_leaves_the_holders_what_they_hold() {
    let mut limit = concurrency(10);
    limit.charge(at(0), 3);
    limit.reset();
    assert_eq!(limit.remaining(at(0)), 7);
}

#[test]
fn unlimited_always_admits_and_keeps_nothing() {
    let mut limit = Limit::new(Unlimited.into());
    assert_eq!(limit.rule.state_words(), 0);
    limit.charge(at(0), u64::MAX);
    assert_eq!(limit.take(at(0), u64::MAX), Assessment::Admissible);
    assert_eq!(
        limit.standing(at(0)),
        Standing {
            remaining: u64::MAX,
            reset_after: 0
        }
    );
}
