//! Hosts that use a limit now and then: what they find, what they keep, and how often they ask.

use proptest::prelude::*;

use super::lease_store::{Host, LEASE, MILLISECOND, SECOND, Store, answered, backlog, leased, leased_for};
use crate::choices::Outage;
use crate::limit::{Concurrency, Rule, RuleOperations};

/// Everything happens on the minute, so that the first use begins one.
const BEGINNING: u64 = 3600 * SECOND;

/// A host that asks the store whenever it is due, on a clock of 1 ms.
struct Quiet {
    host: Host,
    asked_at: Vec<u64>,
}

impl Quiet {
    fn new(rule: Rule) -> Self {
        Self {
            host: Host::new(rule, 1000),
            asked_at: Vec::new(),
        }
    }

    fn ask(&mut self, number: usize, store: &mut Store, time: u64) {
        if let Some(ask) = self.host.ask(time) {
            self.asked_at.push(time);
            let answer = store.answer(number, ask, time).expect("the latest");
            self.host.install(time, time, answer);
        }
    }
}

fn store(capacity: u64) -> Store {
    let mut store = Store::new(capacity, capacity);
    store.level_at = BEGINNING;
    store
}

/// The most requests in any second.
fn most_in_a_second(asked_at: &[u64]) -> usize {
    let until = |from: u64| {
        asked_at
            .iter()
            .filter(move |at| (from..from + SECOND).contains(*at))
    };
    asked_at
        .iter()
        .map(|from| until(*from).count())
        .max()
        .unwrap_or(0)
}

#[test]
fn six_hosts_with_one_request_in_five_seconds_are_never_refused() {
    let rule = leased(&backlog(1000, 1000), Outage::SpendOut);
    let mut store = store(1000);
    let mut hosts: Vec<Quiet> = (0..6).map(|_| Quiet::new(rule)).collect();
    for tick in 0..120_000 {
        let time = BEGINNING + tick * MILLISECOND;
        for (number, quiet) in hosts.iter_mut().enumerate() {
            quiet.ask(number, &mut store, time);
            if tick % 5_000 == 700 * number as u64 + 100 {
                let is_admitted = quiet.host.take(time, 1);
                // Each host's first request may find nothing.
                assert!(is_admitted || tick < 5_000, "host {number} after {tick} ms");
            }
        }
    }
    for quiet in &hosts {
        let asked = quiet.asked_at.len();
        assert!(asked < 240, "{asked} requests in two minutes");
    }
}

#[test]
fn a_host_whose_places_come_back_at_once_keeps_one_for_the_next() {
    let rule = leased(
        &Rule::Concurrency(Concurrency::new(10).expect("valid")),
        Outage::SpendOut,
    );
    let mut host = Host::new(rule, 1000);
    let answer = |ask: crate::limit::Ask| crate::limit::Answer {
        available: 9,
        ..answered(ask, ask.wanted, ask.sequence)
    };
    let mut refused = 0;
    for tick in 0..60_000 {
        let time = BEGINNING + tick * MILLISECOND;
        if let Some(ask) = host.ask(time) {
            host.install(time, time, answer(ask));
        }
        if tick % 5_000 == 100 {
            refused += u64::from(!host.take(time, 1));
            host.limit.rule.give_back(host.limit.words.as_mut_slice(), 1);
        }
    }
    assert!(
        refused <= 1,
        "{refused} of 12, and only the first touch finds nothing"
    );
}

#[test]
fn a_minute_after_the_last_use_nothing_is_kept_and_nothing_is_asked() {
    let mut store = store(6000);
    let mut quiet = Quiet::new(leased(&backlog(6000, 6000), Outage::SpendOut));
    for tick in 0..300_000 {
        let time = BEGINNING + tick * MILLISECOND;
        quiet.ask(0, &mut store, time);
        if tick == 1_000 {
            assert!(quiet.host.take(time, 5));
        }
    }
    let last = *quiet.asked_at.last().expect("it asked");
    assert!(last > BEGINNING + 60 * SECOND, "it kept a floor for a minute");
    assert!(last < BEGINNING + 65 * SECOND, "and not for much longer");
    let after = quiet.host.now(BEGINNING + 300 * SECOND);
    assert_eq!(quiet.host.limit.remaining(after), 0);
    assert_eq!(store.outstanding(), 0);
}

#[test]
fn an_idle_host_keeps_nothing_of_what_others_want() {
    let rule = leased(&backlog(6000, 6000), Outage::SpendOut);
    let mut host = Host::new(rule, 1000);
    let mut time = BEGINNING;
    let mut available = 6000;
    let mut held = Vec::new();
    for tick in 0..20_000 {
        time += MILLISECOND;
        if tick == 200 {
            assert!(host.take(time, 3));
        }
        if tick == 10_000 {
            available = 0;
        }
        if let Some(ask) = host.ask(time) {
            held.push((tick, ask.held + ask.wanted));
            let answer = crate::limit::Answer {
                available,
                ..answered(ask, ask.wanted, 1)
            };
            host.install(time, time, answer);
        }
    }
    let of_late = |from: u64, to: u64| held.iter().filter(move |(tick, _)| (from..to).contains(tick));
    assert!(of_late(5_000, 10_000).all(|(_, kept)| *kept == 12), "{held:?}");
    assert!(
        of_late(10_000 + 2 * LEASE / MILLISECOND, 20_000).next().is_none(),
        "{held:?}"
    );
    assert_eq!(held.last().map(|(_, kept)| *kept), Some(0), "{held:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_host_asks_more_than_twenty_times_a_second(
        capacity in 1..1_000_000_u64, demand in 1..2_000_u64, grants in 0..4_u64, length in 100..4_000_u64,
    ) {
        let rule = leased_for(length * MILLISECOND, &backlog(capacity, capacity), Outage::SpendOut);
        let mut host = Host::new(rule, 1000);
        let mut asked_at = Vec::new();
        for tick in 0..6_000 {
            let time = BEGINNING + tick * MILLISECOND;
            for _ in 0..demand.div_ceil(100) {
                host.take(time, 1 + demand / 10);
            }
            if let Some(ask) = host.ask(time) {
                asked_at.push(time);
                // All, a half, a third, or nothing, for the rest of a window of 3 s.
                let granted = ask.wanted.checked_div(grants).unwrap_or(0);
                let rest = (3_000 - tick % 3_000) * MILLISECOND;
                let answer = answered(ask, granted, ask.sequence);
                let answer = crate::limit::Answer { remaining: answer.remaining.min(rest), available: capacity, ..answer };
                host.install(time, time, answer);
            }
        }
        let most = most_in_a_second(&asked_at);
        prop_assert!(most <= 20, "{most} requests in a second");
    }

    #[test]
    fn a_lease_bridges_its_length_at_forty_percent_of_the_rate(
        length in 8..30_u64, out_at in 30_000..60_000_u64,
    ) {
        let lease = length * SECOND;
        let capacity = 60_000;
        // What comes back in two leases.
        let burst = capacity / 60 * length * 2;
        let mut host = Host::new(leased_for(lease, &backlog(capacity, burst), Outage::SpendOut), 1000);
        let mut store = Store::new(capacity, burst).with_lease(lease + lease / 16);
        store.level_at = BEGINNING;
        let mut served = 0;
        for tick in 0..out_at + 60_000 {
            let time = BEGINNING + tick * MILLISECOND;
            if let Some(ask) = host.ask(time) {
                if tick < out_at {
                    let answer = store.answer(0, ask, time).expect("the latest");
                    host.install(time, time, answer);
                } else {
                    host.fail(time, ask.sequence);
                }
            }
            // Two units in 5 ms are 40 % of 1000 a second.
            if tick % 5 < 2 && !host.take(time, 1) && tick >= out_at {
                served = tick - out_at;
                break;
            }
        }
        prop_assert!(served * 10 >= length * 9_000, "{served} ms of {length} s");
    }
}
