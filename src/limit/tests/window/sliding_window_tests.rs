use num_bigint::BigInt;
use proptest::prelude::*;

use crate::limit::tests::oracle::{Log, Model};
use crate::limit::tests::trace_tests::{
    Act, after, everything, follow, max_granted_within, quantity, takes_and_refunds, window,
};
use crate::limit::tests::{Limit, REFUSED_FOR_EVER, at, refused_for};
use crate::limit::{Assessment, Charge, Rule, SlidingWindow, Standing};
use crate::units::LATEST_INSTANT;

/// More entries than any trace has charges.
const PLENTY: u32 = 200;

fn sliding(capacity: u64, window: u64, entries: u32) -> Rule {
    Rule::SlidingWindow(
        SlidingWindow::new(capacity, window, entries)
            .expect("positive")
            .refunding_within(u32::MAX),
    )
}

proptest! {
    #[test]
    fn agrees_with_the_naive_log_while_it_fits(
        capacity in quantity(), window in window(), start in 0..1_u64 << 62, trace in everything(),
    ) {
        let model = Log::new(capacity, u128::from(window));
        follow(sliding(capacity, window, PLENTY), model, window, start, &trace);
    }

    #[test]
    fn never_grants_more_than_the_capacity_in_any_window(
        capacity in quantity(), window in window(), trace in takes_and_refunds(),
    ) {
        let model = Log::new(capacity, u128::from(window));
        let grants = follow(sliding(capacity, window, PLENTY), model, window, 0, &trace);
        prop_assert!(max_granted_within(&grants, u128::from(window)) <= BigInt::from(capacity));
    }

    /// A merged log lies between the exact one and one that keeps everything for a cell longer, less a nanosecond.
    #[test]
    fn merging_refuses_early_by_less_than_a_cell_and_never_admits_late(
        capacity in quantity(), window in window(), entries in 1..8_u32, trace in everything(),
    ) {
        let cell = u128::from(window.div_ceil(u64::from(entries)));
        let mut exact = Log::new(capacity, u128::from(window));
        let mut longer = Log::new(capacity, u128::from(window) + cell - 1);
        let mut limit = Limit::new(sliding(capacity, window, entries));
        let mut retry_at = None;
        let mut instant = 0;
        for (wait, act) in trace {
            instant = after(instant, wait, window, retry_at);
            let now = at(instant);
            let remaining = limit.remaining(now);
            prop_assert!(remaining <= exact.remaining(now));
            prop_assert!(remaining >= longer.remaining(now));
            let (Act::Take(amount) | Act::Overdraw(amount) | Act::Refund(amount, _)) = act;
            let cost = amount.of(capacity, remaining);
            match limit.assess(now, cost) {
                Assessment::Admissible => prop_assert!(exact.admits(now, cost)),
                Assessment::Refused { retry_after } => {
                    prop_assert!(!longer.admits(now, cost));
                    if let Some(wait) = retry_after
                        && let Some(due) = instant.checked_add(wait).filter(|due| *due <= LATEST_INSTANT)
                    {
                        retry_at = Some(due);
                        prop_assert!(limit.admits(at(due), cost));
                        prop_assert!(wait > 0 && !limit.admits(at(due - 1), cost));
                    }
                }
            }
            let admitted = limit.admits(now, cost);
            let charged = match act {
                Act::Take(_) => admitted,
                // The model with the longest memory must be able to express it.
                Act::Overdraw(_) => longer.can_express(now, cost),
                Act::Refund(..) => false,
            };
            if charged {
                limit.charge(now, cost);
                exact.charge(now, cost);
                longer.charge(now, cost);
            }
            let length = limit.words[0] >> 32;
            prop_assert!(length <= 2 * u64::from(entries));
        }
    }

    /// However charges were merged, and however few words a refund may store: a unit counts for as long as it must,
    /// no more is ever given back than was charged, and a refund that gives nothing back stores nothing.
    #[test]
    fn a_refund_never_lets_in_more_than_the_exact_log_would(
        capacity in 1..60_u64, window in 1..80_u64, entries in 1..8_u32, words in 0..8_u32,
        acts in prop::collection::vec((0..9_u64, 1..9_u64, prop::option::of(0..20_usize)), 1..120),
    ) {
        let rule = SlidingWindow::new(capacity, window, entries).expect("positive").refunding_within(words);
        let mut limit = Limit::new(rule.into());
        let mut exact = Log::new(capacity, u128::from(window));
        let mut charges: Vec<Charge> = Vec::new();
        let mut instant = 0;
        for (wait, units, refund) in acts {
            instant += wait.saturating_sub(4);
            let now = at(instant);
            let found = refund.and_then(|before| charges.iter_mut().rev().nth(before));
            match found {
                None if limit.admits(now, units) => {
                    limit.charge(now, units);
                    exact.charge(now, units);
                    charges.push(Limit::unmarked(now, units));
                }
                None => {}
                Some(charge) => {
                    let units = units.min(charge.cost);
                    let before = limit.clone();
                    let remaining = limit.remaining(now);
                    let given = limit.refund(now, units, charge);
                    prop_assert_eq!(limit.remaining(now), remaining + given);
                    prop_assert!(given > 0 || limit.words == before.words);
                    exact.refund(now, at(charge.instant), units);
                    charge.cost -= units;
                }
            }
            for ahead in [0, 1, window / 3, window / 2, window - 1, window] {
                let later = at(instant + ahead);
                prop_assert!(limit.remaining(later) <= exact.remaining(later), "{} ns later", ahead);
            }
        }
    }

    /// Many charges, close together, which fill a small ring and drive it round and round.
    #[test]
    fn a_crowded_ring_keeps_every_unit(
        window in 1..60_u64, entries in 1..6_u32, waits in prop::collection::vec(0..9_u64, 200..400),
    ) {
        let cell = window.div_ceil(u64::from(entries));
        let mut limit = Limit::new(sliding(u64::MAX, window, entries));
        let mut exact = Log::new(u64::MAX, u128::from(window));
        let mut longer = Log::new(u64::MAX, u128::from(window + cell - 1));
        let mut instant = 0;
        for (number, wait) in waits.into_iter().enumerate() {
            instant += wait.saturating_sub(5);
            let now = at(instant);
            let cost = 1 + number as u64 % 3;
            limit.charge(now, cost);
            exact.charge(now, cost);
            longer.charge(now, cost);
            let remaining = limit.remaining(now);
            prop_assert!(longer.remaining(now) <= remaining && remaining <= exact.remaining(now));
        }
    }
}

#[test]
fn refuses_the_eleventh_of_ten() {
    let mut limit = Limit::new(sliding(10, 1_000, 20));
    for instant in 0..10 {
        assert_eq!(limit.take(at(instant), 1), Assessment::Admissible);
    }
    assert_eq!(limit.take(at(10), 1), refused_for(990));
    assert_eq!(limit.assess(at(10), 4), refused_for(993));
    assert_eq!(
        limit.standing(at(10)),
        Standing {
            remaining: 0,
            reset_after: 999
        }
    );
}

#[test]
fn an_entry_counts_up_to_but_not_at_the_instant_one_window_later() {
    let mut limit = Limit::new(sliding(1, 1_000, 4));
    limit.charge(at(0), 1);
    assert!(!limit.admits(at(999), 1));
    assert!(limit.admits(at(1_000), 1));
}

#[test]
fn a_cost_of_zero_makes_no_entry() {
    let mut limit = Limit::new(sliding(1, 1_000, 4));
    limit.charge(at(7), 0);
    assert!(limit.words.iter().all(|word| *word == 0));
}

#[test]
fn a_cost_above_the_capacity_is_refused_for_ever() {
    assert_eq!(
        Limit::new(sliding(10, 1_000, 4)).assess(at(0), 11),
        REFUSED_FOR_EVER
    );
}

#[test]
fn a_full_ring_at_the_proven_bound_still_tells_all_cells_apart() {
    // Four entries at once, and a fifth charge that joins the last of them; then one entry in each of the four other
    // cells that a window can touch: 2 * 4 entries.
    let mut limit = Limit::new(sliding(100, 40, 4));
    for _ in 0..5 {
        limit.charge(at(9), 1);
    }
    for instant in [10, 20, 30, 40, 48] {
        limit.charge(at(instant), 1);
    }
    // 40 and 48 lie in one cell and were merged.
    assert_eq!(limit.words[0] >> 32, 8);
    assert_eq!(limit.remaining(at(48)), 90);
    for (expiry, remaining) in [(49, 95), (50, 96), (60, 97), (70, 98), (80, 98), (88, 100)] {
        assert_eq!(limit.remaining(at(expiry)), remaining, "{expiry}");
    }
}

#[test]
fn an_overdraft_waits_for_its_own_entries_and_saturates() {
    let mut limit = Limit::new(sliding(10, 1_000, 4));
    limit.charge(at(0), 5);
    limit.charge(at(100), u64::MAX);
    limit.charge(at(200), u64::MAX);
    assert_eq!(limit.assess(at(300), 0), refused_for(800));
    assert_eq!(
        limit.standing(at(1_100)),
        Standing {
            remaining: 10,
            reset_after: 0
        }
    );
}

#[test]
fn totals_may_wrap_without_anyone_noticing() {
    let mut limit = Limit::new(sliding(u64::MAX, 10, 4));
    for round in 0..5 {
        let now = at(round * 6);
        assert_eq!(limit.take(now, u64::MAX / 2), Assessment::Admissible);
        assert_eq!(
            limit.remaining(now),
            if round == 0 { u64::MAX - u64::MAX / 2 } else { 1 }
        );
    }
}

#[test]
fn of_the_two_sides_of_an_entry_the_shorter_is_moved_and_no_more_than_there_are_words_for() {
    for words in [2, 5, 8, 22] {
        let rule = SlidingWindow::new(100, 1_000, 40)
            .expect("positive")
            .refunding_within(words);
        for (index, from_it_on) in (0..20).zip((1..=20).rev()) {
            let mut limit = Limit::new(rule.into());
            let charges: Vec<Charge> = (0..20)
                .map(|instant| {
                    limit.charge(at(instant), 2);
                    Limit::unmarked(at(instant), 2)
                })
                .collect();
            let before = limit.words.clone();
            let given = limit.refund(at(20), 1, &charges[index as usize]);
            let fits = u32::min(index, from_it_on) + 2 <= words;
            assert_eq!(given, u64::from(fits), "entry {index} of 20, in {words} words");
            let changed = before
                .iter()
                .zip(&limit.words)
                .filter(|(before, now)| before != now);
            assert!(changed.count() <= words as usize);
        }
    }
}

#[test]
fn reset_takes_one_store() {
    let mut limit = Limit::new(sliding(10, 1_000, 4));
    for instant in 0..7 {
        limit.charge(at(instant), 3);
    }
    assert_eq!(limit.reset(), 1);
    assert_eq!(
        limit.standing(at(7)),
        Standing {
            remaining: 10,
            reset_after: 0
        }
    );
    limit.charge(at(8), 4);
    assert_eq!(limit.remaining(at(8)), 6);
}
