//! A limit whose parameters change while it is in use: what was there stays, and nothing is granted for the past.

use num_bigint::BigInt;
use proptest::prelude::*;

use super::damaged_state_tests::{anything, change};
use crate::limit::tests::oracle::{ArrivalCurve, Model};
use crate::limit::tests::trace_tests::{
    Amount, Grants, Wait, after, amount, max_granted_within, quantity, wait, window,
};
use crate::limit::tests::{Limit, at, backlog_rules_tests, refused_for};
use crate::limit::{
    Assessment, Calendar, CalendarUnit, Concurrency, FixedWindow, LocalTime, Rule, RuleOperations,
    SlidingWindow, SlidingWindowCounter, Unlimited,
};

const HOUR: u64 = 3_600_000_000_000;

fn first_use(capacity: u64, window: u64) -> Rule {
    Rule::FixedWindow(FixedWindow::first_use(capacity, window).expect("positive"))
}

fn utc(capacity: u64, window: u64) -> Rule {
    Rule::FixedWindow(FixedWindow::utc(capacity, window).expect("positive"))
}

fn sliding(capacity: u64, window: u64, entries: u32) -> Rule {
    Rule::SlidingWindow(SlidingWindow::new(capacity, window, entries).expect("positive"))
}

fn counter(capacity: u64, window: u64, buckets: u32) -> Rule {
    Rule::SlidingWindowCounter(SlidingWindowCounter::new(capacity, window, buckets).expect("valid"))
}

type Steps = Vec<(Wait, Amount)>;

fn steps() -> impl Strategy<Value = Steps> {
    prop::collection::vec((wait(), amount()), 1..30)
}

/// Takes whatever is admitted from `instant` on. Returns what that was and when it ended.
fn take_all(limit: &mut Limit, mut instant: u64, window: u64, steps: &Steps) -> (Grants, u64) {
    let mut grants = Grants::new();
    let mut retry_at = None;
    for (wait, amount) in steps {
        instant = after(instant, *wait, window, retry_at);
        let now = at(instant);
        let cost = amount.of(limit.rule.burst(), limit.remaining(now));
        match limit.take(now, cost) {
            Assessment::Admissible => grants.push((instant, cost)),
            Assessment::Refused { retry_after } => {
                retry_at = retry_after.and_then(|nanos| instant.checked_add(nanos));
            }
        }
    }
    (grants, instant)
}

fn sum<'a>(grants: impl IntoIterator<Item = &'a (u64, u64)>) -> BigInt {
    grants.into_iter().map(|(_, cost)| BigInt::from(*cost)).sum()
}

fn counted(limit: &Limit, instant: u64) -> u64 {
    limit.rule.mark(limit.words.as_slice(), at(instant)).first
}

/// Old and new windows, near each other, so that they overlap in every way.
fn two_windows() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        (1..40_u64, 1..40_u64),
        (1..5_000_u64, 1..100_u64),
        (window(), window())
    ]
}

proptest! {
    #[test]
    fn the_same_parameters_change_nothing(
        (words, (rule, _)) in change().prop_flat_map(|(old, new)| {
            (prop::collection::vec(anything(), old.state_words()), Just((old, new)))
        }),
        instant in anything(),
    ) {
        let mut limit = Limit { rule, words };
        let before = limit.words.clone();
        limit.become_other(rule, at(instant));
        prop_assert_eq!(limit.words, before);
    }

    /// The arrival curve gives the exact fraction that remains. The rule never assumes more than that, and less than a
    /// nanosecond's worth less.
    #[test]
    fn backlog_rules_keep_what_remains_to_the_fraction(
        (capacity, new_capacity) in (quantity(), quantity()), (window, new_window) in (window(), window()),
        (burst, new_burst) in (quantity(), quantity()),
        charges in prop::collection::vec((wait(), amount()), 0..8), pause in 0..200_u64, ahead in wait(), cost in amount(),
    ) {
        let new_rules = backlog_rules_tests::each(new_capacity, new_window, new_burst);
        for rule in backlog_rules_tests::each(capacity, window, burst) {
            let Some(new) = new_rules.first() else { continue };
            let mut limit = Limit::new(rule);
            let mut model = ArrivalCurve::new(capacity, window, burst);
            let mut instant = 0;
            for (wait, amount) in &charges {
                instant = after(instant, *wait, window, None);
                let units = amount.of(burst, limit.remaining(at(instant)));
                limit.charge(at(instant), units);
                model.charge(at(instant), units);
            }
            instant += pause;
            let before = limit.remaining(at(instant));
            limit.become_other(*new, at(instant));
            prop_assert!(limit.remaining(at(instant)) <= before);
            // In units times both windows.
            let both = BigInt::from(window) * new_window;
            let free = BigInt::from(burst) * &both - model.backlog(at(instant)) * new_window;
            let free = free.min(BigInt::from(new_burst) * &both);
            let later = after(instant, ahead, new_window, None);
            let fits = |later: u64, cost: u64| {
                let refilled = &free + BigInt::from(later - instant) * new_capacity * window;
                refilled.min(BigInt::from(new_burst) * &both) >= BigInt::from(cost) * &both
            };
            let cost = cost.of(new_burst, limit.remaining(at(later)));
            if limit.admits(at(later), cost) {
                prop_assert!(fits(later, cost), "{cost} is admitted");
            } else {
                prop_assert!(later == instant || !fits(later - 1, cost), "{cost} is refused");
            }
        }
    }

    #[test]
    fn windows_keep_what_they_count((old, new) in change(), steps in steps()) {
        let counts = matches!(
            old,
            Rule::FixedWindow(_) | Rule::Budget(_) | Rule::SlidingWindow(_) | Rule::SlidingWindowCounter(_)
                | Rule::Concurrency(_)
        );
        prop_assume!(counts);
        let mut limit = Limit::new(old);
        let (_, instant) = take_all(&mut limit, 1_000_000, 1_000, &steps);
        let before = counted(&limit, instant);
        limit.become_other(new, at(instant));
        prop_assert_eq!(counted(&limit, instant), before);
    }

    #[test]
    fn a_window_from_the_first_use_forgets_no_earlier_than_either(
        (window, new_window) in two_windows(), (capacity, new_capacity) in (quantity(), quantity()),
        before in steps(), after in steps(),
    ) {
        let mut limit = Limit::new(first_use(capacity, window));
        let (_, instant) = take_all(&mut limit, 0, window, &before);
        let (used, start) = (counted(&limit, instant), limit.words[1]);
        limit.become_other(first_use(new_capacity, new_window), at(instant));
        let (grants, _) = take_all(&mut limit, instant, new_window, &after);
        let until = BigInt::from(start) + window.max(new_window);
        let early = grants.iter().filter(|(time, _)| used > 0 && BigInt::from(*time) < until);
        prop_assert!(sum(early) + used <= BigInt::from(new_capacity.max(used)));
        prop_assert!(max_granted_within(&grants, u128::from(new_window)) <= BigInt::from(new_capacity) * 2);
    }

    #[test]
    fn a_window_with_its_place_in_time_forgets_no_earlier_than_either(
        (window, new_window) in two_windows(), (capacity, new_capacity) in (quantity(), quantity()),
        before in steps(), after in steps(),
    ) {
        let mut limit = Limit::new(utc(capacity, window));
        let (_, instant) = take_all(&mut limit, 0, window, &before);
        let used = counted(&limit, instant);
        limit.become_other(utc(new_capacity, new_window), at(instant));
        let (grants, _) = take_all(&mut limit, instant, new_window, &after);
        let end = |window: u64| BigInt::from(instant / window * window) + window;
        let until = end(window).max(end(new_window));
        let early = grants.iter().filter(|(time, _)| used > 0 && BigInt::from(*time) < until);
        prop_assert!(sum(early) + used <= BigInt::from(new_capacity.max(used)));
        prop_assert!(max_granted_within(&grants, u128::from(new_window)) <= BigInt::from(new_capacity) * 2);
    }

    /// Every charge that counts at the change keeps counting until both windows have passed since it was made, and
    /// every later one for the new window.
    #[test]
    fn a_sliding_window_forgets_no_earlier_than_either(
        (window, new_window) in two_windows(), (capacity, new_capacity) in (quantity(), quantity()),
        entries in prop_oneof![1..5_u32, Just(40_u32)],
        before in steps(), after in steps(),
    ) {
        let mut limit = Limit::new(sliding(capacity, window, entries));
        let (mut counting, instant) = take_all(&mut limit, 0, window, &before);
        counting.retain(|(time, _)| instant - time < window);
        limit.become_other(sliding(new_capacity, new_window, entries), at(instant));
        let (grants, _) = take_all(&mut limit, instant, new_window, &after);
        let longer = u128::from(window.max(new_window));
        for (index, (time, cost)) in grants.iter().enumerate().filter(|(_, (_, cost))| *cost > 0) {
            let old = counting.iter().filter(|(then, _)| u128::from(time - then) < longer);
            let new = grants[..index].iter().filter(|(then, _)| time - then < new_window);
            prop_assert!(sum(old.chain(new)) + cost <= BigInt::from(new_capacity));
        }
    }

    #[test]
    fn a_sliding_window_counter_keeps_its_count_for_the_new_window_less_a_bucket(
        (window, more) in two_windows(), (capacity, new_capacity) in (quantity(), quantity()),
        buckets in 1..8_u32, before in steps(), after in steps(),
    ) {
        let window = window.max(8);
        let new_window = window + more;
        let mut limit = Limit::new(counter(capacity, window, buckets));
        let (_, instant) = take_all(&mut limit, 0, window, &before);
        let used = counted(&limit, instant);
        limit.become_other(counter(new_capacity, new_window, buckets), at(instant));
        let (grants, _) = take_all(&mut limit, instant, new_window, &after);
        let in_full = u128::from(new_window) * u128::from(buckets - 1) / u128::from(buckets);
        let early = grants.iter().filter(|(time, _)| u128::from(time - instant) < in_full);
        prop_assert!(sum(early) + used <= BigInt::from(new_capacity.max(used)));
        let last = instant + new_window - 1;
        prop_assert!(used == 0 || !grants.is_empty() || counted(&limit, last) > 0);
    }

    /// A count lasts no longer than it would have, or than a charge made at the last change.
    #[test]
    fn changes_to_and_fro_do_not_keep_a_count_alive(
        (window, other) in two_windows(), capacity in quantity(), charges in steps(),
        pauses in prop::collection::vec(0..20_u64, 2..40),
    ) {
        let longest = window.max(other);
        let logs = |window| sliding(capacity, window, 40);
        for (first, second) in [
            (first_use(capacity, window), first_use(capacity, other)),
            (logs(window), logs(other)),
        ] {
            let mut limit = Limit::new(first);
            let (_, mut instant) = take_all(&mut limit, 0, window, &charges);
            let end = |limit: &Limit, instant| u128::from(instant) + u128::from(limit.standing(at(instant)).reset_after);
            let initial = end(&limit, instant);
            for (index, pause) in pauses.iter().enumerate() {
                instant += pause;
                limit.become_other(if index % 2 == 0 { second } else { first }, at(instant));
                let latest = initial.max(u128::from(instant) + u128::from(longest));
                prop_assert!(end(&limit, instant) <= latest, "{limit:?} at {instant} ends after {latest}");
            }
        }
    }

    #[test]
    fn changes_to_and_fro_end_at_a_boundary_of_both_windows_at_the_latest(
        (window, other) in (1..40_u64, 1..40_u64), pauses in prop::collection::vec(0..5_u64, 2..40),
    ) {
        let mut limit = Limit::new(utc(10, window));
        limit.charge(at(0), 10);
        let mut instant = 0;
        for (index, pause) in pauses.iter().enumerate() {
            instant += pause;
            limit.become_other(utc(10, if index % 2 == 0 { other } else { window }), at(instant));
            let counts_for = limit.standing(at(instant)).reset_after;
            prop_assert!(counts_for == 0 || instant + counts_for <= window * other);
        }
    }
}

#[test]
fn a_tier_that_alternates_does_not_lock_a_key_out() {
    let (short, long) = (HOUR / 60, HOUR);
    for (short, long) in [
        (first_use(10, short), first_use(10, long)),
        (sliding(10, short, 4), sliding(10, long, 4)),
    ] {
        let mut limit = Limit::new(long);
        limit.charge(at(0), 10);
        for _ in 0..100 {
            limit.become_other(short, at(1));
            limit.become_other(long, at(1));
        }
        assert_eq!(limit.assess(at(HOUR - 1), 1), refused_for(2));
        assert_eq!(limit.remaining(at(HOUR + 1)), 10);
    }
}

#[test]
fn a_raised_limit_starts_with_what_it_had() {
    for rule in backlog_rules_tests::each(10, 1_000, 10) {
        let raised = backlog_rules_tests::each(100, 1_000, 100);
        let new = raised.first().expect("the same algorithm");
        let mut limit = Limit::new(rule);
        limit.charge(at(0), 7);
        limit.become_other(*new, at(0));
        assert_eq!(limit.remaining(at(0)), 3);
        assert_eq!(limit.remaining(at(10)), 4);
        // It had never been used, so it was full, at its capacity of that time.
        let mut unused = Limit::new(rule);
        unused.become_other(*new, at(5));
        assert_eq!(unused.remaining(at(5)), 10);
    }
}

#[test]
fn an_overdraft_stays_one_of_as_many_units() {
    for rule in backlog_rules_tests::each(10, 1_000, 10) {
        let lowered = backlog_rules_tests::each(1, 1_000, 2);
        let new = lowered.first().expect("the same algorithm");
        let mut limit = Limit::new(rule);
        limit.charge(at(0), 13);
        limit.become_other(*new, at(0));
        assert_eq!(limit.assess(at(0), 0), refused_for(3_000));
    }
}

#[test]
fn what_has_turned_is_not_opened_again_by_a_longer_window() {
    let mut limit = Limit::new(first_use(10, 100));
    limit.charge(at(0), 10);
    limit.become_other(first_use(10, 1_000), at(100));
    assert_eq!(limit.remaining(at(100)), 10);
    let mut log = Limit::new(sliding(10, 100, 4));
    log.charge(at(0), 10);
    log.become_other(sliding(10, 1_000, 4), at(100));
    assert_eq!(log.remaining(at(100)), 10);
}

#[test]
fn a_day_becomes_a_week_that_still_counts_it() {
    let calendar = |unit| Calendar {
        unit,
        local: LocalTime::at_offset(0),
        week_start: 0,
    };
    let day = Rule::FixedWindow(FixedWindow::calendar(10, calendar(CalendarUnit::Day)).expect("valid"));
    let week = Rule::FixedWindow(FixedWindow::calendar(20, calendar(CalendarUnit::Week)).expect("valid"));
    assert!(!day.can_migrate(&utc(10, 24 * HOUR)) && !utc(10, 24 * HOUR).can_migrate(&day));
    let mut limit = Limit::new(day);
    // The epoch was a Thursday.
    limit.charge(at(5 * HOUR), 8);
    limit.become_other(week, at(6 * HOUR));
    assert_eq!(limit.remaining(at(4 * 24 * HOUR - 1)), 12);
    assert_eq!(limit.remaining(at(4 * 24 * HOUR)), 20);
}

#[test]
fn more_charges_than_can_be_moved_expire_with_the_last_of_their_neighbours() {
    let mut limit = Limit::new(sliding(100, 1_000, 50));
    for instant in 0..50 {
        limit.charge(at(instant), 1);
    }
    limit.become_other(sliding(100, 500, 50), at(100));
    assert_eq!(limit.remaining(at(1_000)), 50);
    assert_eq!(limit.remaining(at(1_001)), 52);
    assert_eq!(limit.remaining(at(1_049)), 100);
}

#[test]
fn what_is_in_use_stays_in_use() {
    let concurrency = |capacity| Rule::Concurrency(Concurrency::new(capacity).expect("positive"));
    let mut limit = Limit::new(concurrency(10));
    limit.charge(at(0), 8);
    limit.become_other(concurrency(5), at(0));
    assert_eq!(limit.remaining(at(0)), 0);
    limit.become_other(concurrency(9), at(0));
    assert_eq!(limit.remaining(at(0)), 1);
}

#[test]
fn another_kind_of_state_is_not_carried_over() {
    let concurrency = Rule::Concurrency(Concurrency::new(10).expect("positive"));
    for (new, old) in [
        (Unlimited.into(), concurrency),
        (concurrency, Unlimited.into()),
        (first_use(10, 100), utc(10, 100)),
        (sliding(10, 100, 4), sliding(10, 100, 5)),
        (counter(10, 100, 4), counter(10, 100, 5)),
        (counter(10, 99, 4), counter(10, 100, 4)),
        (counter(10, 100, 4), sliding(10, 100, 4)),
    ] {
        assert!(!new.can_migrate(&old), "{old:?} to {new:?}");
    }
}
