//! What can be declared, and what is an error at declaration rather than a wrong answer later.

use num_bigint::BigInt;
use proptest::prelude::*;

use crate::limit::tests::trace_tests::quantity;
use crate::limit::tests::{Limit, at, refused_for};
use crate::limit::{
    Assessment, Backlog, Concurrency, FixedWindow, InvalidLimit, Rule, SlidingWindow, SlidingWindowCounter,
    Standing,
};
use crate::units::LATEST_INSTANT;

const MAX: u64 = u64::MAX;

fn is_zero(result: Result<impl std::fmt::Debug, InvalidLimit>) -> bool {
    matches!(result, Err(InvalidLimit::Zero(_)))
}

#[test]
fn nothing_may_be_zero() {
    for (capacity, window, burst) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
        assert!(is_zero(Backlog::new(capacity, window, burst)));
        assert!(is_zero(SlidingWindow::new(capacity, window, burst as u32)));
        assert!(is_zero(SlidingWindowCounter::new(capacity, window, burst as u32)));
    }
    for (capacity, window) in [(0, 1), (1, 0)] {
        assert!(is_zero(FixedWindow::utc(capacity, window)));
        assert!(is_zero(FixedWindow::first_use(capacity, window)));
    }
    assert!(is_zero(Concurrency::new(0)));
}

#[test]
fn an_error_says_what_is_wrong() {
    let message = Backlog::new(0, 1, 1).expect_err("zero").to_string();
    assert_eq!(message, "the capacity must be positive");
    let message = SlidingWindowCounter::new(1, 1_000, 61)
        .expect_err("too many")
        .to_string();
    assert_eq!(message, "the number of buckets is 61; the most is 60");
}

#[test]
fn a_burst_whose_arrival_time_could_wrap_is_an_error_that_names_the_largest_which_cannot() {
    // 2^63 ns scaled by 2^64 - 1 and a burst of almost 2^128 do not fit into 128 bits together.
    let error = Backlog::new(MAX, MAX - 1, MAX).expect_err("overflows");
    let InvalidLimit::InexactBurst { given: MAX, max } = error else {
        panic!("{error:?}");
    };
    assert!(max >= 1 << 63, "{max}");
    assert!(Backlog::new(MAX, MAX - 1, max).is_ok());
    assert!(Backlog::new(MAX, MAX - 1, max + 1).is_err());
}

#[test]
fn any_burst_is_exact_over_three_centuries_less_eight_years_and_up_to_two_to_the_63rd_over_any_window() {
    let burst = 1 << 63;
    for (capacity, window, burst) in [
        (MAX, LATEST_INSTANT, MAX),
        (1, LATEST_INSTANT, MAX),
        (MAX, MAX - 1, burst),
        (1, MAX, burst),
    ] {
        assert!(
            Backlog::new(capacity, window, burst).is_ok(),
            "{capacity} in {window}"
        );
    }
}

#[test]
fn a_century_can_be_declared_at_any_capacity() {
    let century = 100 * 366 * 86_400 * 1_000_000_000_u64;
    for capacity in [1, 3, 1 << 40, MAX - 1, MAX] {
        assert!(Backlog::new(capacity, century, capacity).is_ok());
    }
}

#[test]
fn sub_windows_last_a_nanosecond_or_longer() {
    assert!(SlidingWindowCounter::new(1, 10, 10).is_ok());
    let error = SlidingWindowCounter::new(1, 10, 11).expect_err("too short");
    assert_eq!(
        error,
        InvalidLimit::AboveMax {
            what: "number of buckets",
            given: 11,
            max: 10
        }
    );
}

#[test]
fn a_log_is_bounded() {
    assert!(SlidingWindow::new(1, 1, 1 << 24).is_ok());
    assert!(matches!(
        SlidingWindow::new(1, 1, u32::MAX),
        Err(InvalidLimit::AboveMax { .. })
    ));
}

#[test]
fn the_longest_windows_are_exact_at_the_latest_instants() {
    let rules = [
        Rule::Backlog(Backlog::new(1, MAX, 1).expect("valid")),
        Rule::FixedWindow(FixedWindow::first_use(1, MAX).expect("valid")),
        Rule::SlidingWindow(SlidingWindow::new(1, MAX, 1).expect("valid")),
    ];
    for rule in rules {
        let mut limit = Limit::new(rule);
        assert_eq!(limit.take(at(0), 1), Assessment::Admissible);
        assert_eq!(
            limit.assess(at(LATEST_INSTANT), 1),
            refused_for(MAX - LATEST_INSTANT)
        );
    }
}

proptest! {
    /// What is accepted never saturates in honest use: a burst taken at the latest instant is due exactly then.
    #[test]
    fn an_accepted_burst_is_exact_at_the_latest_instant(
        capacity in quantity(), window in quantity(), burst in quantity(),
    ) {
        if let Ok(rule) = Backlog::new(capacity, window, burst) {
            let mut limit = Limit::new(rule.into());
            let now = at(LATEST_INSTANT);
            prop_assert_eq!(limit.take(now, burst), Assessment::Admissible);
            let until_full = (BigInt::from(burst) * window + capacity - 1) / capacity;
            let until_full = u64::try_from(until_full).unwrap_or(u64::MAX);
            prop_assert_eq!(limit.standing(now), Standing { remaining: 0, reset_after: until_full });
            let until_one = (BigInt::from(window) + capacity - 1) / capacity;
            let until_one = u64::try_from(until_one).unwrap_or(u64::MAX);
            prop_assert_eq!(limit.assess(now, 1), refused_for(until_one));
        }
    }
}
