//! The stated bounds against an exhaustive search of everything that can be taken, with small numbers. The tests of
//! each rule compare them with random traces of all sizes.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use crate::limit::tests::at;
use crate::limit::window::window_bound::{
    of_aligned_window, of_backlog, of_sliding_counter, of_window_from_first_use,
};
use crate::limit::{
    Assessment, Backlog, FixedWindow, Rule, RuleOperations, SlidingWindow, SlidingWindowCounter,
};

/// Each state that a take at this instant can lead to, with the amount taken.
fn successors(rule: &Rule, words: &[u64], instant: u64) -> Vec<(Vec<u64>, u128)> {
    let mut successors = vec![(words.to_vec(), 0)];
    for cost in 1.. {
        if rule.assess(words, at(instant), cost) != Assessment::Admissible {
            break;
        }
        let mut charged = words.to_vec();
        rule.charge(charged.as_mut_slice(), at(instant), cost);
        successors.push((charged, u128::from(cost)));
    }
    successors
}

/// The most that can be taken in a span of `window` nanoseconds, whatever was taken before it and whenever it begins.
fn overall_max(rule: &Rule, window: u64) -> u128 {
    let mut reachable = HashSet::from([vec![0; rule.state_words()]]);
    let mut max = 0;
    for start in 0..=2 * window {
        let mut taken: HashMap<Vec<u64>, u128> = reachable.iter().map(|words| (words.clone(), 0)).collect();
        for instant in start..start + window {
            let mut next: HashMap<Vec<u64>, u128> = HashMap::new();
            for (words, before) in &taken {
                for (words, cost) in successors(rule, words, instant) {
                    match next.entry(words) {
                        Entry::Occupied(mut known) => {
                            let max = (*known.get()).max(before + cost);
                            known.insert(max);
                        }
                        Entry::Vacant(unknown) => {
                            unknown.insert(before + cost);
                        }
                    }
                }
            }
            taken = next;
        }
        max = taken.values().copied().fold(max, u128::max);
        reachable = reachable
            .iter()
            .flat_map(|words| successors(rule, words, start))
            .map(|(words, _)| words)
            .collect();
    }
    max
}

#[test]
fn of_a_backlog_is_reached_and_never_exceeded() {
    for window in 1..=6 {
        for capacity in 1..=8 {
            for burst in 1..=4 {
                let bound = of_backlog(capacity, window, burst);
                let rule = Rule::Backlog(Backlog::new(capacity, window, burst).expect("valid"));
                let max = overall_max(&rule, window);
                // With larger capacities, a burst may be replenished in less than the nanosecond that all waits are
                // rounded up to.
                let is_exact = capacity <= window || (burst - 1) * window >= capacity;
                assert!(
                    if is_exact { max == bound } else { max <= bound },
                    "{capacity} in {window} ns, burst {burst}: {max} were taken, the bound is {bound}"
                );
            }
        }
    }
}

#[test]
fn of_fixed_windows_is_reached_and_never_exceeded() {
    for window in 1..=5 {
        for capacity in 1..=4 {
            let aligned = Rule::FixedWindow(FixedWindow::utc(capacity, window).expect("valid"));
            assert_eq!(
                overall_max(&aligned, window),
                of_aligned_window(capacity, window),
                "{capacity} in aligned windows of {window} ns"
            );
            let floating = Rule::FixedWindow(FixedWindow::first_use(capacity, window).expect("valid"));
            assert_eq!(
                overall_max(&floating, window),
                of_window_from_first_use(capacity, window),
                "{capacity} in windows of {window} ns from the first use"
            );
        }
    }
}

#[test]
fn of_a_sliding_window_is_its_capacity() {
    for window in 1..=4 {
        for capacity in 1..=3 {
            for entries in 1..=4 {
                let rule = Rule::SlidingWindow(SlidingWindow::new(capacity, window, entries).expect("valid"));
                let max = overall_max(&rule, window);
                assert_eq!(
                    max,
                    u128::from(capacity),
                    "{capacity} in {window} ns, {entries} entries"
                );
            }
        }
    }
}

#[test]
fn of_a_sliding_counter_is_reached_and_never_exceeded() {
    for window in 1..=9 {
        for capacity in 1..=3 {
            for buckets in 1..=3.min(window as u32) {
                let counter = SlidingWindowCounter::new(capacity, window, buckets).expect("valid");
                assert_eq!(
                    overall_max(&Rule::SlidingWindowCounter(counter), window),
                    of_sliding_counter(capacity, window, buckets.into()),
                    "{capacity} in {window} ns, {buckets} buckets"
                );
            }
        }
    }
}
