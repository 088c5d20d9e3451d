use num_bigint::BigInt;
use proptest::prelude::*;

use crate::limit::tests::oracle::{Counters, Log, Model};
use crate::limit::tests::trace_tests::{
    amount, everything, follow, max_granted_within, quantity, takes_and_refunds, window,
};
use crate::limit::tests::{Limit, REFUSED_FOR_EVER, at, refused_for};
use crate::limit::window::window_bound::of_sliding_counter;
use crate::limit::{Assessment, Rule, SlidingWindowCounter, Standing};

fn counter(capacity: u64, window: u64, buckets: u32) -> Rule {
    Rule::SlidingWindowCounter(SlidingWindowCounter::new(capacity, window, buckets).expect("valid"))
}

/// Windows with a number of buckets they can hold, mostly one that does not divide them.
fn divided_window() -> impl Strategy<Value = (u64, u32)> {
    let buckets = prop_oneof![Just(1), Just(2), Just(10), 1..=60_u32, Just(60)];
    (window(), buckets).prop_map(|(window, buckets)| (window, u64::from(buckets).min(window) as u32))
}

proptest! {
    #[test]
    fn agrees_with_all_counts_ever_made(
        capacity in quantity(), (window, buckets) in divided_window(), start in 0..1_u64 << 62, trace in everything(),
    ) {
        let model = Counters::new(capacity, window, buckets);
        follow(counter(capacity, window, buckets), model, window, start, &trace);
    }

    #[test]
    fn grants_less_than_twice_the_capacity_and_no_more_than_it_in_a_window_less_a_bucket(
        capacity in quantity(), (window, buckets) in divided_window(), trace in takes_and_refunds(),
    ) {
        let model = Counters::new(capacity, window, buckets);
        let grants = follow(counter(capacity, window, buckets), model, window, 0, &trace);
        let bound = of_sliding_counter(capacity, window, buckets.into());
        prop_assert!(bound < u128::from(capacity) * 2);
        prop_assert!(max_granted_within(&grants, u128::from(window)) <= BigInt::from(bound));
        let less_a_bucket = u128::from(window) * u128::from(buckets - 1) / u128::from(buckets);
        prop_assert!(max_granted_within(&grants, less_a_bucket) <= BigInt::from(capacity));
    }

    #[test]
    fn refuses_nothing_that_would_fit_if_units_counted_for_a_bucket_longer(
        capacity in quantity(), (window, buckets) in divided_window(),
        trace in prop::collection::vec((0..70_u64, amount()), 1..60),
    ) {
        let mut limit = Limit::new(counter(capacity, window, buckets));
        let longest = u128::from(window) * (u128::from(buckets) + 1);
        let mut longer = Log::new(capacity, longest.div_ceil(u128::from(buckets)));
        let mut instant = 0_u64;
        for (share, amount) in trace {
            instant += (u128::from(window) * u128::from(share) / 1_024) as u64;
            let now = at(instant);
            prop_assert!(longer.remaining(now) <= limit.remaining(now));
            let cost = amount.of(capacity, limit.remaining(now));
            if limit.take(now, cost) == Assessment::Admissible {
                longer.charge(now, cost);
            } else {
                prop_assert!(!longer.admits(now, cost));
            }
        }
    }

    #[test]
    fn the_wait_exceeds_the_window_by_a_sub_window_at_most_wherever_the_date_falls(
        capacity in quantity(), (window, buckets) in divided_window(), start in 0..1_u64 << 62, cost in quantity(),
    ) {
        let mut limit = Limit::new(counter(capacity, window, buckets));
        limit.charge(at(start), capacity);
        let longest = u128::from(window) + u128::from(window).div_ceil(u128::from(buckets));
        let Assessment::Refused { retry_after } = limit.assess(at(start), cost.min(capacity)) else {
            panic!("everything is used");
        };
        prop_assert!(retry_after.is_some_and(|wait| u128::from(wait) <= longest));
        prop_assert!(u128::from(limit.standing(at(start)).reset_after) <= longest);
    }

    /// The weighting assumes that charges come evenly; when they do, it is right to the unit.
    #[test]
    fn of_an_even_flow_it_is_never_off_by_more_than_the_rounding(
        per_bucket in 1..50_u64, buckets in 1..20_u32, rounds in 21..60_u64, into in 0..1_000_u64,
    ) {
        let window = 1_000 * u64::from(buckets);
        let mut limit = Limit::new(counter(u64::MAX, window, buckets));
        for sub_window in 0..rounds {
            limit.charge(at(sub_window * 1_000), per_bucket);
        }
        let now = at((rounds - 1) * 1_000 + into);
        let used = u64::MAX - limit.remaining(now);
        let even = per_bucket * u64::from(buckets) * 1_000 + per_bucket * (1_000 - into);
        prop_assert_eq!(used, even.div_ceil(1_000));
    }
}

#[test]
fn refuses_the_eleventh_of_ten() {
    let mut limit = Limit::new(counter(10, 1_000, 10));
    for instant in 0..10 {
        assert_eq!(limit.take(at(instant), 1), Assessment::Admissible);
    }
    // All are in the first sub-window, which starts to fade when the window is over: a tenth of it in ten
    // nanoseconds.
    assert_eq!(limit.take(at(10), 1), refused_for(1_010 - 10));
    assert_eq!(
        limit.standing(at(10)),
        Standing {
            remaining: 0,
            reset_after: 1_100 - 10
        }
    );
    assert!(limit.admits(at(1_010), 1));
}

/// Seven sub-windows of a seventh of the window: after a charge at the beginning of one, the wait is longer than the
/// window by nearly a sub-window, and after one at its end by nearly nothing.
#[test]
fn how_much_longer_than_the_window_the_wait_is_depends_on_the_date() {
    let (window, sub_window) = (7_000, 1_000);
    for into in [0, 1, 500, 998, 999] {
        let mut limit = Limit::new(counter(1_000, window, 7));
        let now = at(52 * window + into);
        limit.charge(now, 1_000);
        assert_eq!(limit.assess(now, 1), refused_for(window + 1 - into));
        assert_eq!(limit.assess(now, 1_000), refused_for(window + sub_window - into));
    }
}

#[test]
fn one_bucket_is_the_two_counter_form() {
    let mut limit = Limit::new(counter(100, 1_000, 1));
    limit.charge(at(500), 80);
    // A quarter into the next window, three quarters of the last one count.
    assert_eq!(limit.remaining(at(1_250)), 40);
    limit.charge(at(1_250), 40);
    assert_eq!(limit.assess(at(1_250), 20), refused_for(250));
    assert_eq!(limit.standing(at(1_999)).remaining, 59);
}

#[test]
fn a_bucket_length_that_is_not_whole_is_exact() {
    // Three sub-windows of 10/3 ns: the second begins at 3.33, so 3 is in the first and 4 in the second.
    let mut limit = Limit::new(counter(10, 10, 3));
    limit.charge(at(3), 6);
    limit.charge(at(4), 4);
    // The first fades from 10 to 13.33.
    assert_eq!(limit.remaining(at(10)), 0);
    assert_eq!(limit.assess(at(10), 1), refused_for(1));
    assert_eq!(limit.remaining(at(11)), 1);
    assert_eq!(limit.remaining(at(13)), 5);
    assert_eq!(limit.remaining(at(14)), 6);
}

#[test]
fn the_least_rest_of_a_unit_still_counts() {
    let mut limit = Limit::new(counter(1, 1_000, 1));
    limit.charge(at(0), 1);
    assert_eq!(limit.remaining(at(1_999)), 0);
    assert_eq!(limit.remaining(at(2_000)), 1);
    assert_eq!(limit.standing(at(1)).reset_after, 1_999);
}

#[test]
fn a_cost_above_the_capacity_is_refused_for_ever() {
    assert_eq!(
        Limit::new(counter(10, 1_000, 4)).assess(at(0), 11),
        REFUSED_FOR_EVER
    );
}

#[test]
fn stale_buckets_are_never_swept_and_never_counted() {
    let mut limit = Limit::new(counter(10, 1_000, 10));
    for sub_window in 0..11 {
        limit.charge(at(sub_window * 100), 1);
    }
    let long_after = at(1_000_000);
    assert_eq!(
        limit.standing(long_after),
        Standing {
            remaining: 10,
            reset_after: 0
        }
    );
    limit.charge(long_after, 4);
    assert_eq!(limit.remaining(long_after), 6);
}

#[test]
fn an_overdraft_saturates_and_fades() {
    let mut limit = Limit::new(counter(10, 1_000, 2));
    limit.charge(at(0), u64::MAX);
    limit.charge(at(0), u64::MAX);
    limit.charge(at(500), u64::MAX);
    assert_eq!(limit.assess(at(600), 10), refused_for(1_400));
    assert_eq!(limit.remaining(at(600)), 0);
    assert!(limit.admits(at(2_000), 10));
}

#[test]
fn reset_stores_a_word_for_each_bucket_in_use_at_most() {
    let mut limit = Limit::new(counter(10, 6_000, 60));
    for sub_window in 0..100 {
        limit.charge(at(sub_window * 100), 1);
    }
    for expected in [61, 0] {
        assert_eq!(limit.reset(), expected);
    }
    assert_eq!(
        limit.standing(at(9_999)),
        Standing {
            remaining: 10,
            reset_after: 0
        }
    );
}
