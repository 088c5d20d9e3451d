//! What follows an outage.

use std::time::Duration;

use shmlimit::Limit;
use shmlimit::declare::{FleetLease, Outage};

use super::fleet::{Fleet, STEP};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(2);
const RATE: u64 = 1_000;

fn rate(policy: Outage) -> Limit {
    let lease = FleetLease::new("org/limit").lease(LEASE).outage(policy);
    Limit::rate("limit", RATE, SECOND).burst(4 * RATE).fleet(lease)
}

/// The longest time with nothing admitted.
fn longest_darkness(admitted: &[u64]) -> Duration {
    let dark = admitted.split(|units| *units > 0).map(<[u64]>::len).max();
    STEP * u32::try_from(dark.unwrap_or(0)).expect("short")
}

/// A fleet of three hosts behind an outage of 30 s, whose callers want `demand` units per step on each.
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
        // A little less than there is, and more than twice of it.
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
