//! Places that each key has for itself, and that hosts share.

use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use shmlimit::declare::{FleetLease, Outage};
use shmlimit::fleet::{LeaseReply, StoreProblem};
use shmlimit::{Keyed, Limit, Permit, RefusalReason, SetDeclaration};

use super::host::{Host, LEASE, MINUTE, fleet};
use super::scene::process::{TIMEOUT, eventually};
use super::scene::{expect_permit, expect_refusal, queued};
use super::store::Store;

const MOMENT: Duration = Duration::from_millis(1);

fn places(capacity: u64, fleet: FleetLease) -> SetDeclaration {
    SetDeclaration::new("api")
        .keyed(Keyed::new(1000))
        .add_limit(Limit::concurrency("places", capacity).fleet(fleet))
}

impl Host {
    fn try_place(&self, key: &str) -> Option<Permit<'static>> {
        let set = self.scene.set();
        let request = set.request().for_key(key).expect("a key");
        let outcome = request.try_acquire().expect("a decision").into_result();
        outcome.ok().map(Permit::into_owned)
    }

    /// Takes a place of a key, and asks the store for it if necessary.
    fn place(&self, key: &str) -> Permit<'static> {
        for _ in 0..20 {
            if let Some(permit) = self.try_place(key) {
                return permit;
            }
            self.scene.pass(LEASE / 16);
            self.ask();
        }
        panic!("no place of {key} in more than a lease");
    }

    /// Lets time pass and keeps asking the store, as a process on duty does.
    fn go_on(&self, time: Duration) {
        for _ in 0..32 {
            self.scene.pass(time / 32);
            self.ask();
        }
    }

    fn places_leased(&self) -> u64 {
        let limits = self.store.limits.lock().expect("no panic while locked");
        let names: Vec<String> = limits.keys().cloned().collect();
        drop(limits);
        names.iter().map(|name| self.store.outstanding(name)).sum()
    }
}

#[test]
fn the_first_place_of_a_key_waits_for_the_store() {
    let host = Host::of_set(places(2, fleet()), &Store::default());
    let set = host.scene.set();
    let request = set.request().for_key("a").expect("a key");
    assert_eq!(
        expect_refusal(request.try_acquire()).reason(),
        RefusalReason::LeasePending
    );
    assert_eq!(host.ask(), 1);
    let held = [host.place("a"), host.place("a")];
    // Each key has places of its own.
    let _other = host.place("b");
    assert_eq!(
        expect_refusal(request.try_acquire()).reason(),
        RefusalReason::Concurrency
    );
    host.go_on(4 * LEASE);
    assert!(
        held.iter().all(|permit| !permit.reclaimed()),
        "they are renewed for as long as they are held"
    );
    drop(held);
    host.go_on(4 * LEASE);
    assert_eq!(
        host.places_leased(),
        2,
        "of the other key one is held, and one in hand"
    );
}

#[test]
fn who_waits_for_a_place_of_a_key_is_admitted_when_the_answer_comes() {
    let host = Host::of_set(places(2, fleet()), &Store::default());
    let set = host.scene.set();
    thread::scope(|scope| {
        let request = set.request().for_key("a").expect("a key");
        let waiter = scope.spawn(move || expect_permit(request.acquire(TIMEOUT)).release());
        eventually("the request waits", || queued(&host.scene.segment) == 1);
        host.ask();
        assert!(waiter.join().is_ok(), "admitted");
    });
}

/// This is so with and without keys.
#[test]
fn a_place_that_other_hosts_wait_for_is_given_back_as_soon_as_it_is_released() {
    let of_all = SetDeclaration::new("api").add_limit(Limit::concurrency("places", 4).fleet(fleet()));
    for (declared, is_keyed) in [(of_all, false), (places(4, fleet()), true)] {
        let host = Host::of_set(declared, &Store::default());
        let set = host.scene.set();
        let take = || {
            let request = set.request();
            let request = if is_keyed {
                request.for_key("a").expect("a key")
            } else {
                request
            };
            request.try_acquire().expect("a decision").into_result().ok()
        };
        let _ = take();
        host.go_on(LEASE / 4);
        let released = take().expect("leased");
        host.go_on(LEASE / 4);
        let held = take().expect("one is in hand");
        // Other hosts wait: nothing more is granted, and once this host has one place, it takes no new ones.
        let (mut answers, mut steps) = (0, 0);
        while answers < 4 {
            host.scene.pass(LEASE / 32);
            for asked in host.duty.ask().expect("works") {
                let nothing = LeaseReply::granting(asked.request(), 0, LEASE);
                let reply = LeaseReply {
                    ceiling: 1,
                    ..nothing
                };
                host.duty.install(&asked, &reply).expect("works");
                answers += 1;
            }
            steps += 1;
            assert!(steps < 200, "{answers} answers");
        }
        host.scene.pass(MOMENT);
        assert!(
            host.duty.ask().expect("works").is_empty(),
            "there is nothing to say"
        );
        drop(released);
        // For as long as requests for keys are gathered.
        host.scene.pass(10 * MOMENT);
        let asked = host.duty.ask().expect("works");
        let kept: Vec<_> = asked.iter().map(|asked| asked.request().held).collect();
        assert_eq!(kept, [1], "keyed: {is_keyed}");
        drop(held);
    }
}

/// Two keys are in use, and the answers for one of them do not come.
#[test]
fn a_key_whose_lease_runs_out_loses_its_places_and_no_other_does() {
    let store = Store::default();
    let host = Host::of_set(places(4, fleet()), &store);
    let lost = [host.place("lost"), host.place("lost")];
    let renewed = host.place("renewed");
    for _ in 0..64 {
        host.scene.pass(LEASE / 16);
        for asked in host.duty.ask().expect("works") {
            let request = asked.request();
            // One place of the other key is in use, and one in hand.
            let is_lost = request.held + request.wanted > 2;
            if !is_lost {
                let reply = store.answer(request, host.scene.clock.now()).expect("answers");
                host.duty.install(&asked, &reply).expect("works");
            }
        }
    }
    assert!(lost.iter().all(Permit::reclaimed) && !renewed.reclaimed());
    let counts = host.scene.snapshot().limits[0].counts;
    assert_eq!(counts.reclaimed, 2);
    assert_eq!(host.scene.snapshot().active, 1);
    // An answer that comes late gives them nothing back.
    host.go_on(LEASE);
    assert!(lost.iter().all(Permit::reclaimed) && !renewed.reclaimed());
    let _again = host.place("lost");
}

/// With the policy `safe`, two of each key's places are left when the store is out for longer than a lease.
#[test]
fn the_youngest_places_of_each_key_above_what_is_left_are_lost() {
    let host = Host::of_set(places(8, fleet().outage(Outage::Safe).safe(2)), &Store::default());
    let mut held = Vec::new();
    for key in ["a", "b", "a", "c", "b", "a", "a"] {
        held.push((key, host.place(key)));
        host.scene.pass(MOMENT);
    }
    for _ in 0..20 {
        host.scene.pass(LEASE / 8);
        host.fail(StoreProblem::Unreachable);
    }
    let lost: Vec<bool> = held.iter().map(|(_, permit)| permit.reclaimed()).collect();
    assert_eq!(lost, [false, false, false, false, false, true, true]);
    assert_eq!(host.scene.snapshot().active, 5);
    // A new key has two places, too.
    assert!(host.try_place("new").is_some());
}

#[test]
fn numbers_of_places_of_a_key_rise_from_host_to_host() {
    let store = Store::default();
    let hosts = [(); 2].map(|()| Host::of_set(places(1, fleet()), &store));
    let mut numbers = Vec::new();
    for turn in 0..6 {
        let host = &hosts[turn % 2];
        let permit = host.place("mutex");
        numbers.push(permit.fleet_fencing_number().expect("a number"));
        drop(permit);
        for host in &hosts {
            host.go_on(4 * LEASE);
        }
    }
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
}

#[test]
fn a_host_that_drains_keeps_the_places_of_keys_that_are_held_and_gives_them_back_then() {
    let host = Host::of_set(places(4, fleet()), &Store::default());
    let held = host.place("a");
    drop(host.place("b"));
    host.scene.segment.fleet().set_draining(true).expect("works");
    host.go_on(8 * LEASE);
    assert!(!held.reclaimed(), "it is renewed");
    assert_eq!(host.places_leased(), 1);
    assert!(!host.lease().given_back);
    drop(held);
    host.go_on(2 * LEASE);
    assert!(host.lease().given_back);
    assert_eq!(host.places_leased(), 0);
}

/// In a set that also counts calls of each key, places are renewed in time, although a rate may be asked for later.
#[test]
fn places_are_renewed_in_time_beside_a_limit_with_a_longer_lease() {
    let short = Duration::from_millis(400);
    let calls = Limit::calls("calls", 6000, MINUTE).fleet(FleetLease::new("org/api/long").lease(5 * LEASE));
    let places = Limit::concurrency("places", 4).fleet(fleet().lease(short));
    let set = SetDeclaration::new("api")
        .keyed(Keyed::new(100))
        .add_limit(calls)
        .add_limit(places);
    let host = Host::of_set(set, &Store::default());
    let mut held = None;
    for _ in 0..20 {
        host.scene.pass(short / 16);
        host.ask();
        held = held.or_else(|| host.try_place("a"));
    }
    let held = held.expect("admitted");
    // The process on duty wakes when something is due.
    let ends_at = host.scene.clock.now() + 10 * short;
    while host.scene.clock.now() < ends_at {
        let due_in = host.duty.due_in().expect("a place is held");
        host.scene.pass(due_in.max(MOMENT));
        host.ask();
        assert!(!held.reclaimed());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Hosts take and give back places of a few keys, and some stop asking for a while: no more places of a key are
    /// held than there are, if holders look whether they still have theirs.
    #[test]
    fn no_key_has_more_places_held_than_there_are(
        capacity in 1_u64..4,
        steps in prop::collection::vec((0_usize..3, 0_usize..2, 0_u8..8), 50..200),
    ) {
        let store = Store::default();
        let hosts = [(); 3].map(|()| Host::of_set(places(capacity, fleet()), &store));
        let mut held: Vec<(usize, usize, Permit<'static>)> = Vec::new();
        for (host, key, what) in steps {
            let name = ["a", "b"][key];
            match what {
                0..3 => held.extend(hosts[host].try_place(name).map(|permit| (host, key, permit))),
                3..5 => {
                    hosts[host].ask();
                }
                5 => {
                    if let Some(at) = held.iter().position(|(of, which, _)| (*of, *which) == (host, key)) {
                        drop(held.remove(at));
                    }
                }
                _ => {
                    let passed = if what == 6 { LEASE / 9 } else { LEASE / 2 };
                    for host in &hosts {
                        host.scene.pass(passed);
                    }
                }
            }
            for key in 0..2 {
                let whole = held.iter().filter(|(_, of, permit)| *of == key && !permit.reclaimed()).count();
                prop_assert!(whole as u64 <= capacity, "{} of {}", whole, capacity);
            }
        }
    }
}
