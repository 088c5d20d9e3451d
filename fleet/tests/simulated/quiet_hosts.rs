//! Hosts that use a limit only now and then.

use std::time::Duration;

use fastrand::Rng;
use shmlimit::declare::FleetLease;
use shmlimit::{Algorithm, Limit};

use super::fleet::{Fleet, STEP};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOSTS: u64 = 6;

/// Each host makes one request in this many seconds, on average.
const MEAN: f64 = 5.0;

fn limits() -> Vec<Limit> {
    let fleet = |limit: Limit| limit.fleet(FleetLease::new("org/limit").cold_wait(Duration::ZERO));
    vec![
        fleet(Limit::calls("limit", 1_000, MINUTE)),
        fleet(Limit::calls("limit", 1_000, MINUTE).algorithm(Algorithm::FixedWindow)),
        fleet(Limit::budget("limit", 1_000, MINUTE)),
        fleet(Limit::concurrency("limit", 12)),
    ]
}

#[test]
fn quiet_hosts_are_not_refused_on_a_limit_that_is_hardly_used() {
    for limit in limits() {
        for seed in 0..4 {
            let mut random = Rng::with_seed(seed);
            let mut fleet = Fleet::new(HOSTS, limit.clone());
            // The very first request finds nothing leased, because it does not wait here.
            fleet.run_for(SECOND, 0);
            for host in &fleet.hosts {
                host.is_admitted();
            }
            fleet.run_for(SECOND, 0);
            let mut refused = 0;
            for step in 0..120 * (SECOND.as_millis() / STEP.as_millis()) {
                fleet.step();
                // When a window turns over, all leases end at once, and requests wait for the store's answer.
                let is_turning = step % 6_000 > 5_700 || step % 6_000 < 50;
                for host in &fleet.hosts {
                    let is_used = random.f64() < STEP.as_secs_f64() / MEAN;
                    if is_used && !is_turning && !host.is_admitted() {
                        refused += 1;
                    }
                }
            }
            assert_eq!(refused, 0, "{limit:?}, seed {seed}");
        }
    }
}
