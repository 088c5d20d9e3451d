//! How much of the rate can be used.

use super::lease_store::{Host, MILLISECOND, SECOND, Store, backlog, leased_for};
use crate::choices::Outage;
use crate::limit::{Rule, Supply, automatic_length};

const BEGINNING: u64 = 3600 * SECOND;

/// Units a second.
const RATE: u64 = 1000;

/// How much of the rate is admitted to hosts that take all they can get, in thousandths, and how often each asks in a
/// second. The store answers after `round_trip` milliseconds.
fn used(hosts: usize, burst: u64, lease: u64, round_trip: u64) -> (u64, usize) {
    const WARM: u64 = 10_000;
    const TICKS: u64 = 40_000;
    let capacity = RATE * 60;
    let rule = leased_for(lease, &backlog(capacity, burst), Outage::SpendOut);
    let mut store = Store::new(capacity, burst).with_lease(lease + lease / 16);
    store.level_at = BEGINNING;
    let mut hosts: Vec<_> = (0..hosts)
        .map(|_| (Host::new(rule, 1000), None::<(u64, u64, _)>))
        .collect();
    let mut admitted = 0;
    let mut asks = 0;
    for tick in 0..TICKS {
        let time = BEGINNING + tick * MILLISECOND;
        let count = hosts.len();
        for turn in 0..count {
            let number = (turn + tick as usize) % count;
            let (host, flying) = &mut hosts[number];
            if let Some((at, back, answer)) = flying.take() {
                if time >= back {
                    host.install(at, time, answer);
                } else {
                    *flying = Some((at, back, answer));
                }
            }
            if flying.is_none()
                && let Some(ask) = host.ask(time)
            {
                asks += usize::from(tick >= WARM);
                let answer = store.answer(number, ask, time).expect("the latest");
                if round_trip == 0 {
                    host.install(time, time, answer);
                } else {
                    *flying = Some((time, time + round_trip * MILLISECOND, answer));
                }
            }
            for _ in 0..3 {
                if !host.take(time, 1) {
                    break;
                }
                admitted += u64::from(tick >= WARM);
            }
        }
    }
    (
        admitted * 1000 / ((TICKS - WARM) * RATE / 1000),
        asks / hosts.len() / 60,
    )
}

/// A burst that lasts for this many milliseconds at the rate, and the length of leases that follows from it.
fn automatic(millis: u64) -> (u64, u64) {
    let replenished_in = millis * MILLISECOND;
    (
        millis * RATE / 1000,
        automatic_length(Supply::Evenly { replenished_in }),
    )
}

#[test]
fn a_burst_that_outlasts_two_answers_suffices_for_all_of_the_rate() {
    for hosts in [1, 4] {
        for millis in [150, 200, 300, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000] {
            let (burst, lease) = automatic(millis);
            let (used, requests) = used(hosts, burst, lease, 1);
            assert!(used >= 950, "{used} of 1000 by {hosts} hosts, {millis} ms");
            assert!(requests <= 20, "{requests} requests a second, {millis} ms");
        }
    }
}

#[test]
fn a_smaller_burst_leaves_the_part_of_the_rate_that_is_said() {
    for millis in [20, 50, 100, 120, 150, 300] {
        for round_trip in [0, 5, 20, 40] {
            let (burst, lease) = automatic(millis);
            let rule = leased_for(lease, &backlog(RATE * 60, burst), Outage::SpendOut);
            let Rule::Leased(leased) = rule else {
                panic!("it is shared")
            };
            let said = leased.usable_part(round_trip * MILLISECOND).expect("of a rate");
            let (used, _) = used(1, burst, lease, round_trip);
            assert!(
                used + 30 >= said && used <= said + 100,
                "{used} of 1000 with {millis} ms and answers after {round_trip} ms, {said} are said"
            );
            let enough = leased
                .sufficient_burst(round_trip * MILLISECOND)
                .expect("of a rate");
            assert_eq!(said == 1000, burst + 1 >= enough, "{enough} are enough");
        }
    }
}

#[test]
fn the_length_is_that_of_half_a_burst_or_a_part_of_a_window() {
    let evenly = |millis| {
        automatic_length(Supply::Evenly {
            replenished_in: millis * MILLISECOND,
        })
    };
    for (burst, length) in [
        (1, 100),
        (199, 100),
        (1_000, 500),
        (4_001, 2_000),
        (60_000, 10_000),
    ] {
        assert_eq!(evenly(burst), length * MILLISECOND, "{burst}");
    }
    let in_windows = |length| automatic_length(Supply::InWindows { length });
    assert_eq!(in_windows(SECOND), 100 * MILLISECOND);
    assert_eq!(in_windows(60 * SECOND), 3_750 * MILLISECOND);
    assert_eq!(in_windows(u64::MAX), 10 * SECOND);
    assert_eq!(automatic_length(Supply::Released), 2 * SECOND);
}
