//! What is checked from outside: at any time, and after everything was given back.

use std::time::Duration;

use shmlimit::snapshot::{SegmentReader, SetSnapshot};
use shmlimit::{LimitSet, Segment};

use crate::scene::onlooker;
use crate::scene::process::eventually;
use crate::sets::{KEYS, LARGEST, PLACES_OF_ALL};
use crate::truth::Count;
use crate::{PROCESSES, World};

/// Compares the segment, without locks, with the truth, until the test is over.
pub fn look_on(world: &World) {
    let truth = &world.truth;
    let goes_on = |_: &SegmentReader| {
        truth.check();
        truth.get(Count::IsOver) == 0
    };
    onlooker::look_on(&world.segment, Duration::from_micros(500), goes_on, check_held);
}

fn check_held(set: &SetSnapshot) {
    let held_of = |limit: &str| -> u64 {
        let amounts = set.holds.iter().filter_map(|hold| hold.amounts.get(limit));
        amounts.sum()
    };
    match &*set.name {
        "plain" => assert!(held_of("slots") <= LARGEST.slots, "{set:?}"),
        "leased" => assert!(held_of("leases") <= LARGEST.leases, "{set:?}"),
        _ => {}
    }
    assert_eq!(set.active + set.of_dead, set.holds.len() as u64, "{set:?}");
}

/// Checks, after all live processes have given back what they had, that nothing is left of the dead: everything can be
/// held at once, and not a unit more. `kills` is how many have died so far.
pub fn check_that_nothing_is_left(world: &World, segment: &Segment, kills: u64) {
    let truth = &world.truth;
    let report = segment.recover().expect("works");
    for set in &report.sets {
        assert_eq!(set.problem, None);
    }
    let capacity_of = |set: &str| {
        let declared = segment.declaration_in_force().expect("readable");
        let set = declared
            .sets()
            .iter()
            .find(|it| it.name() == set)
            .expect("declared");
        set.limits()[0]
            .capacity()
            .to_string()
            .parse::<u64>()
            .expect("a number")
    };
    let plain = segment.set("plain").expect("declared");
    check_whole(&plain, "slots", capacity_of("plain"), || {
        truth.add(Count::AdmittedToPlain)
    });
    let leased = segment.set("leased").expect("declared");
    check_whole(&leased, "leases", capacity_of("leased"), || {
        truth.add(Count::AdmittedToLeased)
    });
    check_keys(world, segment, capacity_of("keyed"));

    let snapshot = segment.snapshot().expect("a copy");
    assert_eq!(snapshot.cold_starts, 0);
    assert!(
        snapshot.participants.iter().all(|participant| participant.alive),
        "{:?}",
        snapshot.participants
    );
    for set in &snapshot.sets {
        assert!(!set.torn && !set.poisoned, "{set:?}");
        assert_eq!(set.of_dead, 0, "{set:?}");
        assert!(set.tickets.is_empty(), "{set:?}");
        assert_eq!(set.words_in_flight, Some(0), "{set:?}");
        if set.name == "drawn" {
            // Each process keeps its batch for a while, and what it admits from the batch is counted later.
            assert!(set.holds.len() <= PROCESSES, "{set:?}");
            continue;
        }
        assert_eq!((set.active, set.holds.len()), (0, 0), "{set:?}");
        let admitted = truth.get(match &*set.name {
            "plain" => Count::AdmittedToPlain,
            "keyed" => Count::AdmittedToKeyed,
            "leased" => Count::AdmittedToLeased,
            "tenants" => Count::AdmittedToTenants,
            _ => Count::AdmittedToShared,
        });
        let bounds = admitted..=admitted + kills + truth.get(Count::Unsure);
        assert!(
            bounds.contains(&set.counts.admitted),
            "{:?}, not in {bounds:?}",
            set.counts
        );
    }
    let reader = SegmentReader::open(&world.segment).expect("readable");
    for shard in reader.diagnose().expect("readable").shards {
        let is_sound = shard.adds_up == Some(true)
            && !shard.unfinished_returns
            && !shard.half_done
            && shard.poison.is_none()
            && shard.admissible_heads.is_empty();
        assert!(is_sound, "{shard:?}");
    }
}

/// Checks that all of a concurrency limit can be held, and that one more is refused.
fn check_whole(set: &LimitSet, limit: &str, capacity: u64, admitted: impl Fn()) {
    let with = |units| {
        let request = set.request();
        let request = match set.name() {
            "plain" => request.with("tokens", 0).and_then(|it| it.with("calls", 0)),
            _ => Ok(request),
        };
        request.and_then(|it| it.with(limit, units)).expect("declared")
    };
    // A refused process looks for dead ones itself, so nothing else needs to happen.
    let (all, one) = (with(capacity), with(1));
    eventually("all of it can be held at once", || {
        let Ok(permit) = all.try_acquire().expect("works").into_result() else {
            return false;
        };
        admitted();
        let is_more_admitted = one.try_acquire().expect("works").is_admitted();
        if is_more_admitted {
            // If this process got no processor in time, the lease has run out.
            assert!(permit.reclaimed(), "more than there is");
            admitted();
        }
        drop(permit);
        !is_more_admitted
    });
}

fn check_keys(world: &World, segment: &Segment, capacity: u64) {
    let set = segment.set("keyed").expect("declared");
    let with = |units| {
        let request = set.request().with("calls", 0);
        request.and_then(|it| it.with("places", units)).expect("declared")
    };
    let (all, one) = (with(capacity), with(1));
    for key in KEYS {
        eventually("all places of a key can be held at once", || {
            let Ok(permit) = all
                .for_key(key)
                .expect("keyed")
                .try_acquire()
                .expect("works")
                .into_result()
            else {
                return false;
            };
            world.truth.add(Count::AdmittedToKeyed);
            assert!(
                !one.for_key(key)
                    .expect("keyed")
                    .try_acquire()
                    .expect("works")
                    .is_admitted(),
                "more than there is"
            );
            drop(permit);
            true
        });
    }
    let of_all = |units| {
        let request = set.request().with("calls", 0).and_then(|it| it.with("places", 0));
        let request = request.and_then(|it| it.with("of_all", units)).expect("declared");
        request
            .for_key(KEYS[0])
            .expect("keyed")
            .try_acquire()
            .expect("works")
            .into_result()
    };
    eventually("all places of all keys can be held at once", || {
        let Ok(permit) = of_all(PLACES_OF_ALL) else {
            return false;
        };
        world.truth.add(Count::AdmittedToKeyed);
        assert!(of_all(1).is_err(), "more than there is");
        drop(permit);
        true
    });
}
