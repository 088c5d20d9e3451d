//! Places that hosts hold for a long time: each host gets its share of them.

use std::time::Duration;

use fastrand::Rng;
use shmlimit::declare::FleetLease;
use shmlimit::{Limit, Outcome, Permit};

use super::fleet::{Fleet, STEP};

const LEASE: Duration = Duration::from_secs(2);

/// How the callers of a fleet hold places.
#[derive(Clone, Copy, Debug)]
struct Scene {
    hosts: u64,
    places: u64,
    /// How many callers each host has. Each caller wants a place whenever it has none.
    callers: usize,
    longest_hold: Duration,
    /// Whether the places are those of a key.
    by_key: bool,
}

/// What was observed.
#[derive(Debug, Default)]
struct Outcomes {
    /// For each host, the longest time during which it had no place.
    hungry: Vec<Duration>,
    /// For each host, how many places it had on average.
    places: Vec<f64>,
}

struct Caller {
    permit: Option<Permit<'static>>,
    until: Duration,
}

/// Runs the scene, and observes it from `from` to `to`.
fn run(scene: Scene, from: Duration, to: Duration, seed: u64) -> Outcomes {
    let Scene { hosts, places, .. } = scene;
    let mut random = Rng::with_seed(seed);
    // Nobody waits for an answer, because hosts ask only when a step passes.
    let lease = FleetLease::new("org/limit")
        .lease(LEASE)
        .cold_wait(Duration::ZERO);
    let limit = Limit::concurrency("limit", places).fleet(lease);
    let mut fleet = if scene.by_key {
        Fleet::by_key(hosts, limit)
    } else {
        Fleet::new(hosts, limit)
    };
    let mut callers: Vec<Vec<Caller>> = (0..hosts)
        .map(|_| {
            let idle = || Caller {
                permit: None,
                until: Duration::ZERO,
            };
            (0..scene.callers).map(|_| idle()).collect()
        })
        .collect();
    let count = usize::try_from(hosts).expect("few");
    let mut outcomes = Outcomes {
        hungry: vec![Duration::ZERO; count],
        places: vec![0.0; count],
    };
    let mut fed_at = vec![from; count];
    let mut now = Duration::ZERO;
    while now < to {
        now += STEP;
        fleet.step();
        let mut held = 0;
        for (index, (host, callers)) in fleet.hosts.iter().zip(&mut callers).enumerate() {
            for caller in callers.iter_mut() {
                if caller.permit.is_some() && caller.until <= now {
                    let mut permit = caller.permit.take().expect("held");
                    permit.release().expect("works");
                }
                if caller.permit.is_none() {
                    let request = host.set.request();
                    let request = if scene.by_key {
                        request.for_key("a").expect("a key")
                    } else {
                        request
                    };
                    let outcome = request.try_acquire().expect("a decision");
                    if let Outcome::Admitted(permit) = outcome {
                        caller.permit = Some(permit.into_owned());
                        let part = 0.5 + random.f64() / 2.0;
                        caller.until = now + scene.longest_hold.mul_f64(part);
                    }
                }
            }
            let of_host = callers.iter().filter(|caller| caller.permit.is_some()).count();
            held += of_host as u64;
            if now >= from {
                outcomes.places[index] += of_host as f64 * STEP.as_secs_f64() / (to - from).as_secs_f64();
                if of_host > 0 {
                    fed_at[index] = now;
                }
                outcomes.hungry[index] = outcomes.hungry[index].max(now.saturating_sub(fed_at[index]));
            }
        }
        assert!(held <= places, "{held} of {places} places are held: {scene:?}");
    }
    outcomes
}

#[test]
fn five_hosts_take_turns_at_three_places() {
    for by_key in [false, true] {
        let scene = Scene {
            hosts: 5,
            places: 3,
            callers: 3,
            longest_hold: Duration::from_millis(400),
            by_key,
        };
        let outcomes = run(scene, Duration::from_secs(4), Duration::from_secs(34), 1);
        println!("{scene:?}: {outcomes:?}");
        let longest = scene.longest_hold + LEASE;
        assert!(
            outcomes.hungry.iter().all(|hungry| *hungry <= longest),
            "{scene:?}: {outcomes:?}"
        );
        let used: f64 = outcomes.places.iter().sum();
        assert!(
            used >= 1.5,
            "{used} of 3 places are used: {scene:?}: {outcomes:?}"
        );
    }
}

/// At first, one host alone has all places, and leaves none idle.
#[test]
fn a_host_that_comes_later_gets_its_share_of_places_as_they_are_released() {
    for by_key in [false, true] {
        let scene = Scene {
            hosts: 2,
            places: 4,
            callers: 5,
            longest_hold: Duration::from_millis(100),
            by_key,
        };
        let outcomes = run(scene, Duration::from_secs(4), Duration::from_secs(24), 1);
        assert!(
            outcomes.places.iter().all(|places| *places >= 1.5),
            "{scene:?}: {outcomes:?}"
        );
    }
}

#[test]
fn no_host_starves_however_many_places_and_hosts_there_are() {
    let mut random = Rng::with_seed(5);
    for seed in 0..8 {
        let scene = Scene {
            hosts: random.u64(2..9),
            places: random.u64(1..12),
            callers: random.usize(1..6),
            longest_hold: Duration::from_millis(random.u64(50..3_000)),
            by_key: seed % 2 == 1,
        };
        let to = Duration::from_secs(40);
        let outcomes = run(scene, Duration::from_secs(6), to, seed);
        // With fewer places than hosts, each host waits until those ahead of it have had their turn.
        let turns = u32::try_from(scene.hosts.div_ceil(scene.places)).expect("few");
        let longest = (scene.longest_hold + LEASE) * turns;
        assert!(
            outcomes.hungry.iter().all(|hungry| *hungry <= longest),
            "{scene:?}: longest {longest:?}: {outcomes:?}"
        );
    }
}
