//! What follows an outage.

use std::time::Duration;

use shmlimit::declare::{FleetLease, Outage};
use shmlimit::fleet::StoreProblem;
use shmlimit::{Algorithm, Limit};
use shmlimit_fleet::model::StoreModel;

use super::fleet::{Fleet, STEP};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(2);
const RATE: u64 = 1_000;

fn rate(policy: Outage) -> Limit {
    let lease = FleetLease::new("org/limit")
        .lease(LEASE)
        .outage(policy)
        .cold_wait(Duration::ZERO);
    Limit::rate("limit", RATE, SECOND).burst(4 * RATE).fleet(lease)
}

/// The longest time during which nothing was admitted.
fn longest_darkness(admitted: &[u64]) -> Duration {
    let dark = admitted.split(|units| *units > 0).map(<[u64]>::len).max();
    STEP * u32::try_from(dark.unwrap_or(0)).expect("short")
}

/// A fleet of three hosts after an outage of 30 s. The callers of each want `demand` units per step.
fn behind_an_outage(policy: Outage, demand: u64) -> Fleet {
    let mut fleet = Fleet::new(3, rate(policy));
    fleet.run_for(8 * SECOND, demand);
    fleet.is_out = true;
    fleet.run_for(30 * SECOND, demand);
    fleet.is_out = false;
    fleet
}

#[test]
fn what_was_used_by_policy_darkens_nothing_when_the_store_is_back() {
    for policy in [Outage::SpendOut, Outage::Safe, Outage::Open] {
        // A little less than the rate, and more than twice as much.
        for demand in [3, 8] {
            let mut fleet = behind_an_outage(policy, demand);
            let admitted = fleet.run_for(20 * SECOND, demand);
            let dark = longest_darkness(&admitted);
            let longest = if policy == Outage::SpendOut {
                LEASE
            } else {
                LEASE / 4
            };
            assert!(
                dark <= longest,
                "{policy}, {demand} per step: {dark:?} with nothing admitted"
            );
            let in_the_end: u64 = admitted[admitted.len() / 2..].iter().sum();
            assert!(
                in_the_end >= 8 * RATE,
                "{policy}, {demand} per step: {in_the_end} in 10 s"
            );
            // What is admitted from then on is within the limit.
            assert!(
                in_the_end <= 10 * RATE + 4 * RATE,
                "{policy}, {demand} per step: {in_the_end}"
            );
            let (used, burst) = fleet.store.used_and_burst();
            assert!(used <= burst, "{used} of {burst}");
        }
    }
}

/// Three hosts that use a tenth of the rate, so that each has units leased.
fn calm(policy: Outage) -> Fleet {
    let mut fleet = Fleet::new(3, rate(policy));
    for _ in 0..60 {
        fleet.run_for(STEP * 10, 0);
        fleet
            .hosts
            .iter()
            .for_each(|host| assert!(host.take_up_to(3) <= 3));
    }
    fleet
}

#[test]
fn while_a_store_may_have_lost_writes_each_policy_does_what_it_says() {
    for policy in [Outage::Deny, Outage::SpendOut, Outage::Safe, Outage::Open] {
        let mut fleet = Fleet::new(3, rate(policy));
        fleet.run_for(8 * SECOND, 3);
        fleet.run.push('1');
        // The first request notices it, and then all hosts know.
        fleet.run_for(LEASE / 2, 3);
        for host in &fleet.hosts {
            let lease = host.lease();
            assert_eq!(lease.problem, Some(StoreProblem::Quarantine), "{policy}");
            assert!(lease.out_for.is_some(), "{policy}: since when");
        }
        let admitted = fleet.run_for(LEASE / 2 - 5 * STEP, 3);
        let is_dark = admitted.contains(&0);
        match policy {
            Outage::Deny => assert!(admitted.iter().all(|units| *units == 0), "{admitted:?}"),
            Outage::SpendOut => {}
            _ => assert!(!is_dark, "{policy}: {admitted:?}"),
        }
        let after = fleet.run_for(4 * LEASE, 3);
        let dark = longest_darkness(&after);
        assert!(dark <= LEASE / 2, "{policy}: {dark:?}");
        assert!(
            fleet.hosts.iter().all(|host| host.lease().problem.is_none()),
            "{policy}"
        );
    }
}

#[test]
fn a_store_that_comes_back_empty_renews_what_hosts_have_leased() {
    let mut fleet = calm(Outage::SpendOut);
    let before: u64 = fleet.hosts.iter().map(|host| host.lease().left).sum();
    assert!(before > 0);
    fleet.store = StoreModel::new();
    fleet.run = "2".to_owned();
    // For as long as any lease that was granted before lasts.
    let (mut admitted, mut refused) = (0, 0);
    for _ in 0..20 {
        fleet.run_for(STEP * 10, 0);
        for host in &fleet.hosts {
            match host.take_up_to(1) {
                0 => refused += 1,
                units => admitted += units,
            }
        }
    }
    assert!(
        admitted > 2 * refused,
        "{admitted} admitted, {refused} refused, of {before} leased"
    );
}

/// The first grant afterwards is small, because the limit begins with nothing left, and with a long lease hosts rarely
/// ask.
#[test]
fn a_store_that_comes_back_empty_darkens_nothing_where_the_policy_admits() {
    let length = 20 * SECOND;
    for policy in [Outage::Safe, Outage::Open] {
        let lease = FleetLease::new("org/limit").lease(length).outage(policy);
        let limit = Limit::rate("limit", RATE, SECOND).burst(40 * RATE);
        let mut fleet = Fleet::new(3, limit.fleet(lease));
        fleet.run_for(10 * SECOND, 3);
        fleet.store = StoreModel::new();
        fleet.run = "2".to_owned();
        let admitted = fleet.run_for(3 * length, 3);
        let in_a_second = admitted.chunks(100).map(|steps| steps.iter().sum::<u64>());
        let fewest = in_a_second.min().expect("seconds");
        assert!(fewest >= RATE / 2, "{policy}: {fewest} in a second");
        let (used, burst) = fleet.store.used_and_burst();
        assert!(used <= burst, "{used} of {burst}");
    }
}

/// A leaky bucket, seen from outside: there is never more than the burst in it, whatever the store has lost.
#[test]
fn a_store_that_comes_back_empty_grants_nothing_a_second_time() {
    let mut fleet = Fleet::new(3, rate(Outage::SpendOut));
    let mut admitted = fleet.run_for(8 * SECOND, 8);
    fleet.store = StoreModel::new();
    fleet.run = "2".to_owned();
    admitted.extend(fleet.run_for(12 * SECOND, 8));
    let drained = RATE / 100;
    let mut level = 0_u64;
    for (step, units) in admitted.into_iter().enumerate() {
        level = level.saturating_sub(drained) + units;
        assert!(level <= 4 * RATE + drained, "{level} at step {step}");
    }
}

#[test]
fn safe_goes_on_with_what_is_declared_in_each_window_whenever_the_outage_begins() {
    for (declared, in_each) in [(None, 1_000), (Some(50), 50)] {
        let mut lease = FleetLease::new("org/limit").lease(LEASE).outage(Outage::Safe);
        if let Some(units) = declared {
            lease = lease.safe(units);
        }
        let limit = Limit::calls("limit", 3_000, 5 * SECOND)
            .algorithm(Algorithm::FixedWindow)
            .fleet(lease);
        let mut fleet = Fleet::new(3, limit);
        // When the outage begins, the window is used up except for the last units, which are handed out one by one.
        fleet.run_for(9 * SECOND, 50);
        let rest: u64 = fleet.run_for(STEP * 10, 50).iter().sum();
        assert!(rest <= 3, "{rest}");
        fleet.is_out = true;
        let admitted: u64 = fleet.run_for(10 * SECOND, 50).iter().sum();
        assert!(
            (3 * in_each..=3 * 3 * in_each).contains(&admitted),
            "{admitted} in 10 s, {in_each} in each window"
        );
    }
}

/// However much is left of the window when the store is back: the store hands out the last units one by one.
#[test]
fn safe_adds_its_number_to_a_window_once_if_the_store_is_back_before_the_window_ends() {
    const CAPACITY: u64 = 3_000;
    const SAFE: u64 = 50;
    for used in (CAPACITY / 2..=CAPACITY).step_by(60) {
        let lease = FleetLease::new("org/limit").lease(LEASE).outage(Outage::Safe);
        let limit = Limit::calls("limit", CAPACITY, 30 * SECOND)
            .algorithm(Algorithm::FixedWindow)
            .fleet(lease.safe(SAFE));
        let mut fleet = Fleet::new(3, limit);
        let mut admitted = 0;
        while admitted < used && fleet.elapsed() < 10 * SECOND {
            admitted += fleet.run_for(STEP, 2).iter().sum::<u64>();
        }
        fleet.is_out = true;
        admitted += fleet.run_for(2 * LEASE, 50).iter().sum::<u64>();
        fleet.is_out = false;
        let rest = 30 * SECOND - fleet.elapsed() - STEP;
        admitted += fleet.run_for(rest, 50).iter().sum::<u64>();
        let most = CAPACITY + 3 * SAFE;
        assert!(
            (CAPACITY..=most).contains(&admitted),
            "{admitted} admitted, at most {most}, where {used} were used before the outage"
        );
    }
}

#[test]
fn safe_goes_on_with_a_fraction_of_a_rate() {
    let lease = FleetLease::new("org/limit").lease(LEASE).outage(Outage::Safe);
    let limit = Limit::rate("limit", RATE, SECOND)
        .burst(4 * RATE)
        .fleet(lease.safe_fraction(0.1));
    let mut fleet = Fleet::new(2, limit);
    fleet.run_for(6 * SECOND, 20);
    fleet.is_out = true;
    fleet.run_for(2 * LEASE, 20);
    let admitted: u64 = fleet.run_for(20 * SECOND, 20).iter().sum();
    // A tenth of the rate on each of two hosts.
    assert!((3_600..=4_400).contains(&admitted), "{admitted}");
}
