//! Windows that end while hosts use them.

use std::time::Duration;

use shmlimit::declare::FleetLease;
use shmlimit::{Algorithm, Limit};

use super::fleet::{Fleet, STEP};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn limits(capacity: u64) -> [Limit; 2] {
    let fleet = || FleetLease::new("org/limit").cold_wait(Duration::ZERO);
    [
        Limit::calls("limit", capacity, MINUTE)
            .algorithm(Algorithm::FixedWindow)
            .fleet(fleet()),
        Limit::budget("limit", capacity, MINUTE).fleet(fleet()),
    ]
}

/// Requests of all hosts so far.
fn requests(fleet: &Fleet) -> u64 {
    fleet.hosts.iter().map(|host| host.lease().counts.requests).sum()
}

/// How many steps after a turn it takes until all hosts have been admitted. They want `demand` units in each step. The
/// current window began one step less than a second ago.
fn steps_until_all_are_admitted(fleet: &mut Fleet, demand: u64) -> u64 {
    fleet.run_for(MINUTE - SECOND, demand);
    let before = requests(fleet);
    let mut waiting: Vec<usize> = (0..fleet.hosts.len()).collect();
    let mut steps = 0;
    while !waiting.is_empty() {
        fleet.step();
        waiting.retain(|host| fleet.hosts[*host].take_up_to(demand) == 0);
        steps += 1;
        assert!(steps < 1_000, "{waiting:?} are admitted nothing");
    }
    let rest = (SECOND.as_millis() / STEP.as_millis()) as u32 - steps as u32;
    fleet.run_for(STEP * rest, demand);
    let asked = requests(fleet) - before;
    assert!(
        asked <= 20 * fleet.hosts.len() as u64,
        "{asked} requests in a second"
    );
    steps
}

#[test]
fn a_window_that_is_used_up_is_followed_by_one_that_serves_at_once() {
    for limit in limits(3_000) {
        let mut fleet = Fleet::new(3, limit);
        fleet.run_for(SECOND - STEP, 4);
        for _ in 0..3 {
            let steps = steps_until_all_are_admitted(&mut fleet, 4);
            // The step of the turn, the step in which the new window is asked for, and one for clocks that differ.
            assert!(steps <= 4, "{steps} steps after the turn");
        }
    }
}

#[test]
fn a_window_with_units_left_is_followed_by_one_that_serves_at_once() {
    for limit in limits(1_000_000) {
        let mut fleet = Fleet::new(3, limit);
        fleet.run_for(SECOND - STEP, 4);
        for _ in 0..3 {
            let steps = steps_until_all_are_admitted(&mut fleet, 4);
            assert!(steps <= 4, "{steps} steps after the turn");
        }
    }
}
