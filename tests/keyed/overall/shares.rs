//! Which key is served next of what all keys share, and how much of it each gets.
//!
//! The quota is for an hour and used up, and a reset gives it back as often as somebody is to be served.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::{keyed, overall_places};
use crate::limits::{ask, take};
use crate::scene::process::{TIMEOUT, eventually};
use crate::scene::{create, expect_permit, first_set, queued};
use shmlimit::declare::Scope;
use shmlimit::{Limit, LimitSet, RefusalReason, Request, Segment, Tier};

const HOUR: Duration = Duration::from_secs(3600);

/// So many units an hour of all keys.
fn hourly(capacity: u64) -> Limit {
    Limit::rate("units", capacity, HOUR).scope(Scope::AllKeys)
}

fn of_units<'a>(set: &'a LimitSet, units: u64) -> Request<'a> {
    set.request().with("units", units).expect("declared")
}

/// Uses up what there is of an hour.
fn use_up(set: &LimitSet, capacity: u64) {
    drop(take("first", &of_units(set, capacity)));
}

/// Has a thread for each key in `keys` wait, one after the other, and serves all of them. Returns the keys as they were
/// served.
fn served_in_turn(segment: &Segment, set: &LimitSet, keys: &[&str]) -> Vec<String> {
    let served = Mutex::new(Vec::new());
    let count = || served.lock().expect("no panic").len();
    std::thread::scope(|scope| {
        for (before, key) in keys.iter().enumerate() {
            let served = &served;
            scope.spawn(move || {
                let request = of_units(set, 1);
                drop(expect_permit(
                    request.for_key(*key).expect("a key").acquire(TIMEOUT),
                ));
                served.lock().expect("no panic").push((*key).to_owned());
            });
            eventually("it waits", || queued(segment) == before + 1);
        }
        for already in 0..keys.len() {
            set.reset().run().expect("works");
            eventually("another was served", || count() == already + 1);
        }
    });
    served.into_inner().expect("no panic")
}

#[test]
fn a_tenant_with_forty_requests_does_not_keep_the_next_one_waiting() {
    let (_directory, segment, set) = create(keyed().add_limit(hourly(1)));
    use_up(&set, 1);
    let keys: Vec<&str> = std::iter::repeat_n("busy", 40).chain(["light"]).collect();
    let served = served_in_turn(&segment, &set, &keys);
    assert_eq!(served[..3], ["busy", "light", "busy"]);
}

#[test]
fn keys_are_served_by_the_weights_of_their_tiers() {
    let set = keyed().add_limit(hourly(1)).add_tier(Tier::new("gold").weight(3));
    let (_directory, segment, set) = create(set);
    set.assign("golden", "gold").expect("a tier");
    use_up(&set, 1);
    let keys: Vec<&str> = (0..40).map(|at| ["golden", "plain"][at % 2]).collect();
    let served = served_in_turn(&segment, &set, &keys);
    let golden = |until: usize| served[..until].iter().filter(|key| *key == "golden").count();
    for until in [8, 16, 24] {
        assert!(golden(until).abs_diff(until * 3 / 4) <= 1, "{served:?}");
    }
}

#[test]
fn a_key_that_reserves_sixteen_times_what_it_uses_gets_as_much_as_one_that_does_not() {
    const CAPACITY: u64 = 16;
    let (_directory, segment, set) = create(keyed().add_limit(hourly(CAPACITY)));
    use_up(&set, CAPACITY);
    let used = [AtomicU64::new(0), AtomicU64::new(0)];
    let is_over = AtomicBool::new(false);
    let sum = || used.iter().map(|used| used.load(Ordering::SeqCst)).sum::<u64>();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (set, used, is_over) = (&set, &used, &is_over);
            scope.spawn(move || {
                let (key, reserved) = [("careful", CAPACITY), ("exact", 1)][thread % 2];
                let request = of_units(set, reserved);
                let request = request.for_key(key).expect("a key");
                while !is_over.load(Ordering::SeqCst) {
                    let mut permit = expect_permit(request.acquire(TIMEOUT));
                    permit.settle([("units", 1)]).expect("works");
                    used[thread % 2].fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        while sum() < 400 {
            set.reset().run().expect("works");
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::SeqCst);
        // Those that still wait are let go.
        eventually("all of them are served", || {
            set.reset().run().expect("works");
            first_set(&segment).tickets.is_empty()
        });
    });
    let [careful, exact] = used.map(AtomicU64::into_inner);
    assert!(
        careful.min(exact) * 100 >= (careful + exact) * 40,
        "{careful} and {exact}"
    );
}

#[test]
fn a_key_may_wait_as_often_as_places_to_wait_are_left() {
    let (_directory, segment, set) = create(keyed().add_limit(overall_places(1)).waiters(8));
    let request = set.request();
    let held = take("holder", &request);
    std::thread::scope(|scope| {
        let wait = |key: &'static str, before: usize| {
            let request = &request;
            scope.spawn(move || {
                drop(expect_permit(
                    request.for_key(key).expect("a key").acquire(TIMEOUT),
                ))
            });
            eventually("it waits", || queued(&segment) == before + 1);
        };
        for before in 0..4 {
            wait("busy", before);
        }
        let busy = request.for_key("busy").expect("a key");
        let refused = busy.acquire(TIMEOUT).expect("works").into_result();
        assert_eq!(
            refused.expect_err("half of them").reason(),
            RefusalReason::QueueFull
        );
        wait("light", 4);
        wait("other", 5);
        drop(held);
    });
    assert_eq!(first_set(&segment).counts.waited, 6);
    assert!(ask("busy", &request).is_ok());
}
