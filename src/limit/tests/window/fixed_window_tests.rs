use num_bigint::BigInt;
use proptest::prelude::*;

use crate::limit::tests::oracle::{Debited, FirstUse, Model, Windows};
use crate::limit::tests::trace_tests::{
    Trace, everything, follow, max_granted_within, quantity, takes_and_refunds, window,
};
use crate::limit::tests::{Limit, REFUSED_FOR_EVER, at, by_clocks, refused_for};
use crate::limit::window::window_bound::{of_aligned_window, of_window_from_first_use};
use crate::limit::{
    Assessment, Budget, Calendar, CalendarUnit, FixedWindow, LocalTime, Now, Rule, RuleOperations, Standing,
};

fn utc(capacity: u64, window: u64) -> Rule {
    Rule::FixedWindow(FixedWindow::utc(capacity, window).expect("positive"))
}

fn first_use(capacity: u64, window: u64) -> Rule {
    Rule::FixedWindow(FixedWindow::first_use(capacity, window).expect("positive"))
}

/// Windows by floor division.
fn divided(capacity: u64, window: u64) -> impl Model {
    Windows::new(capacity, move |now: Now| BigInt::from(now.utc) / window)
}

fn budget(window: FixedWindow) -> Rule {
    Rule::Budget(Budget::new(window).expect("positive"))
}

proptest! {
    #[test]
    fn agrees_with_floor_division(
        capacity in quantity(), window in window(), start in 0..1_u64 << 62, trace in everything(),
    ) {
        follow(utc(capacity, window), divided(capacity, window), window, start, &trace);
    }

    #[test]
    fn agrees_with_windows_replayed_from_the_first_use(
        capacity in quantity(), window in window(), start in 0..3_u64, trace in everything(),
    ) {
        follow(first_use(capacity, window), FirstUse::new(capacity, window), window, start, &trace);
    }

    #[test]
    fn a_budget_agrees_with_its_window(
        capacity in quantity(), window in window(), start in 0..3_u64, trace in everything(),
    ) {
        let aligned = FixedWindow::utc(capacity, window).expect("positive");
        follow(budget(aligned), Debited(divided(capacity, window)), window, start, &trace);
        let floating = FixedWindow::first_use(capacity, window).expect("positive");
        follow(budget(floating), Debited(FirstUse::new(capacity, window)), window, start, &trace);
    }

    #[test]
    fn grants_at_most_twice_the_capacity_across_a_boundary(
        capacity in quantity(), window in window(), trace in takes_and_refunds(),
    ) {
        let aligned = follow(utc(capacity, window), divided(capacity, window), window, 0, &trace);
        let bound = BigInt::from(of_aligned_window(capacity, window));
        prop_assert!(max_granted_within(&aligned, u128::from(window)) <= bound);
        let model = FirstUse::new(capacity, window);
        let floating = follow(first_use(capacity, window), model, window, 0, &trace);
        let bound = BigInt::from(of_window_from_first_use(capacity, window));
        prop_assert!(max_granted_within(&floating, u128::from(window)) <= bound);
    }

    /// Days are windows of a day's length, computed another way.
    #[test]
    fn calendar_days_are_windows_of_a_day(capacity in quantity(), start in 0..1_u64 << 62, trace in everything()) {
        let day = Calendar { unit: CalendarUnit::Day, local: LocalTime::at_offset(0), week_start: 0 };
        let rule = Rule::FixedWindow(FixedWindow::calendar(capacity, day).expect("valid"));
        follow(rule, divided(capacity, DAY), DAY, start, &trace);
    }

    /// Sets the wall clock back again and again: every promised wait holds, and no step grants anything beyond the
    /// bound.
    #[test]
    fn setting_the_wall_clock_back_keeps_the_bound_and_the_promises(
        capacity in 1..20_u64,
        window in prop_oneof![2..30_u64, Just(1_000_u64)],
        begin in 0..100_000_u64,
        trace in prop::collection::vec((0..40_u64, prop_oneof![4 => Just(0_u64), 1 => 1..200_u64], 0..8_u64), 1..80),
    ) {
        let mut limit = Limit::new(utc(capacity, window));
        let mut now = by_clocks(5, begin);
        let mut grants = Vec::new();
        for (wait, back, cost) in trace {
            // Steps are in tenths of the window, waits in twentieths.
            let wait = wait * window.div_ceil(20);
            now = by_clocks(now.monotonic + wait, now.utc + wait);
            now.utc = now.utc.saturating_sub(back * window.div_ceil(10));
            match limit.take(now, cost) {
                Assessment::Admissible => grants.push((now.monotonic, cost)),
                Assessment::Refused { retry_after: Some(wait) } => {
                    prop_assert!(wait <= 2 * window, "{wait}");
                    let due = by_clocks(now.monotonic + wait, now.utc + wait);
                    prop_assert!(limit.admits(due, cost));
                    let before = by_clocks(due.monotonic - 1, due.utc - 1);
                    prop_assert!(!limit.admits(before, cost));
                }
                Assessment::Refused { retry_after: None } => prop_assert!(cost > capacity),
            }
        }
        let max = max_granted_within(&grants, u128::from(window));
        prop_assert!(max <= BigInt::from(2 * capacity), "{max}");
    }

    /// Steps forward turn windows early, so the bound cannot hold; the promised waits do.
    #[test]
    fn setting_the_wall_clock_either_way_keeps_the_promises(
        capacity in 1..4_u64, window in 2..300_u64,
        trace in prop::collection::vec((0..200_u64, prop_oneof![2 => Just(0), 1 => -900..900_i64], 0..4_u64), 1..60),
    ) {
        let mut limit = Limit::new(utc(capacity, window));
        let mut now = by_clocks(0, 1_000);
        for (wait, step, cost) in trace {
            now = by_clocks(now.monotonic + wait, (now.utc + wait).saturating_add_signed(step));
            if let Assessment::Refused { retry_after: Some(wait) } = limit.take(now, cost) {
                prop_assert!(wait <= 2 * window, "{wait}");
                let due = by_clocks(now.monotonic + wait, now.utc + wait);
                prop_assert!(limit.admits(due, cost));
                let before = by_clocks(due.monotonic - 1, due.utc - 1);
                prop_assert!(!limit.admits(before, cost));
            }
        }
    }

    /// Right after a single step of any size, no more remains than before it.
    #[test]
    fn one_step_back_grants_nothing(
        capacity in 1..20_u64, window in 1..1_000_u64, begin in 0..100_000_u64, into in 0..1_000_u64,
        cost in 1..20_u64, back in 0..100_000_u64,
    ) {
        let mut limit = Limit::new(utc(capacity, window));
        limit.charge(by_clocks(0, begin), cost);
        let later = by_clocks(into, begin + into);
        let stepped = Now { utc: later.utc.saturating_sub(back), ..later };
        prop_assert!(limit.remaining(stepped) <= limit.remaining(later));
    }
}

const DAY: u64 = 86_400_000_000_000;

#[test]
fn refuses_the_eleventh_of_ten_until_the_window_turns() {
    let mut limit = Limit::new(utc(10, 1_000));
    for _ in 0..10 {
        assert_eq!(limit.take(at(2_400), 1), Assessment::Admissible);
    }
    assert_eq!(limit.take(at(2_400), 1), refused_for(600));
    assert_eq!(
        limit.standing(at(2_400)),
        Standing {
            remaining: 0,
            reset_after: 600
        }
    );
    assert_eq!(limit.take(at(3_000), 1), Assessment::Admissible);
}

#[test]
fn counts_from_the_epoch_itself() {
    let mut limit = Limit::new(utc(1, 1_000));
    assert_eq!(limit.take(at(0), 1), Assessment::Admissible);
    assert_eq!(limit.take(at(0), 1), refused_for(1_000));
    let mut limit = Limit::new(first_use(1, 1_000));
    assert_eq!(limit.take(at(0), 1), Assessment::Admissible);
    assert_eq!(limit.take(at(999), 1), refused_for(1));
}

#[test]
fn asking_opens_no_window() {
    let mut limit = Limit::new(first_use(1, 1_000));
    assert_eq!(limit.take(at(10), 0), Assessment::Admissible);
    limit.charge(at(10), 0);
    assert_eq!(limit.words, [0, 0]);
    limit.charge(at(600), 1);
    assert_eq!(limit.assess(at(700), 1), refused_for(900));
}

#[test]
fn an_overdrawn_window_refuses_until_it_turns_and_forgets_then() {
    let mut limit = Limit::new(utc(10, 1_000));
    limit.charge(at(100), u64::MAX);
    limit.charge(at(100), u64::MAX);
    assert_eq!(limit.assess(at(100), 0), refused_for(900));
    assert_eq!(
        limit.standing(at(1_000)),
        Standing {
            remaining: 10,
            reset_after: 0
        }
    );
}

#[test]
fn a_cost_above_the_capacity_is_refused_for_ever() {
    assert_eq!(Limit::new(utc(10, 1_000)).assess(at(0), 11), REFUSED_FOR_EVER);
}

#[test]
fn a_clock_set_back_by_less_than_a_window_holds_the_window() {
    let mut limit = Limit::new(utc(10, 1_000));
    limit.charge(by_clocks(50, 5_100), 10);
    let back = by_clocks(60, 4_900);
    assert_eq!(limit.assess(back, 1), refused_for(1_100));
    // While the window is held open, charges go to it.
    limit.charge(back, 1);
    assert_eq!(limit.assess(by_clocks(160, 5_000), 1), refused_for(1_000));
}

#[test]
fn a_clock_set_back_by_years_carries_the_count_over_and_locks_no_key_out() {
    let mut limit = Limit::new(utc(10, 1_000));
    limit.charge(by_clocks(50, 9_000_000_200), 10);
    let back = by_clocks(60, 5_310);
    // The window's length has passed at 1,050, which is 6,300 by the wall clock: it turns at the next boundary.
    assert_eq!(limit.assess(back, 1), refused_for(7_000 - 5_310));
    let due = by_clocks(60 + 1_690, 7_000);
    assert_eq!(limit.take(due, 10), Assessment::Admissible);
    assert_eq!(limit.assess(due, 1), refused_for(1_000));
}

#[test]
fn a_clock_set_forward_turns_the_window() {
    let mut limit = Limit::new(utc(10, 1_000));
    limit.charge(by_clocks(50, 5_100), 10);
    assert!(limit.admits(by_clocks(51, 6_000), 10));
}

#[test]
fn first_use_does_not_look_at_the_wall_clock() {
    let mut limit = Limit::new(first_use(1, 1_000));
    assert!(!limit.rule.reads_utc());
    limit.charge(by_clocks(50, 5_100), 1);
    assert_eq!(limit.assess(by_clocks(60, 0), 1), refused_for(990));
}

#[test]
fn a_budget_lets_the_debit_that_crosses_the_line_through_and_refuses_then() {
    let mut limit = Limit::new(budget(FixedWindow::utc(100, 1_000).expect("valid")));
    assert_eq!(limit.rule.burst(), u64::MAX);
    limit.charge(at(10), 99);
    assert_eq!(limit.assess(at(20), 5_000), Assessment::Admissible);
    limit.charge(at(30), 5_000);
    assert_eq!(limit.assess(at(40), 0), refused_for(960));
    assert_eq!(
        limit.standing(at(40)),
        Standing {
            remaining: 0,
            reset_after: 960
        }
    );
    assert!(limit.admits(at(1_000), 1));
}

#[test]
fn reset_takes_one_store() {
    for rule in [
        utc(10, 1_000),
        first_use(10, 1_000),
        budget(FixedWindow::utc(10, 1_000).expect("valid")),
    ] {
        let mut limit = Limit::new(rule);
        limit.charge(at(5), 30);
        assert_eq!(limit.reset(), 1);
        assert_eq!(
            limit.standing(at(5)),
            Standing {
                remaining: 10,
                reset_after: 0
            }
        );
    }
}

#[test]
fn a_window_of_a_century_across_the_whole_range_is_exact() {
    let trace: Trace = Vec::new();
    follow(utc(1, u64::MAX), divided(1, u64::MAX), u64::MAX, 0, &trace);
    let mut limit = Limit::new(utc(1, u64::MAX));
    limit.charge(at(1), 1);
    assert_eq!(limit.assess(at(1), 1), refused_for(u64::MAX - 1));
}
