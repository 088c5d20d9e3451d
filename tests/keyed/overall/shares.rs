//! Which key is next to be served with what all keys share, and how much of it each gets.
//!
//! The quota is for an hour and is used up. Whenever somebody is to be served, a reset gives it back.

use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{MINUTE, keyed, overall_places};
use crate::limits::{ask, take};
use crate::scene::clock::Scene;
use crate::scene::process::{TIMEOUT, eventually};
use crate::scene::{create, expect_permit, first_set, queued};
use shmlimit::declare::Scope;
use shmlimit::request::AcquireFuture;
use shmlimit::snapshot::TicketSnapshot;
use shmlimit::{Declaration, Limit, LimitSet, RefusalReason, Request, Segment, Tier};

const HOUR: Duration = Duration::from_secs(3600);

/// This many units an hour for all keys.
fn hourly(capacity: u64) -> Limit {
    Limit::rate("units", capacity, HOUR).scope(Scope::AllKeys)
}

fn of_units<'a>(set: &'a LimitSet, units: u64) -> Request<'a> {
    set.request().with("units", units).expect("declared")
}

/// Uses up the units of the hour.
fn use_up(set: &LimitSet, capacity: u64) {
    drop(take("first", &of_units(set, capacity)));
}

/// Has a thread for each key in `keys` wait, one after the other, for this many units, of which it uses one, and serves
/// all of them. Returns the keys in the order in which they were served.
fn served_in_turn(segment: &Segment, set: &LimitSet, keys: &[(&str, u64)]) -> Vec<String> {
    let served = Mutex::new(Vec::new());
    let count = || served.lock().expect("no panic").len();
    std::thread::scope(|scope| {
        for (before, (key, reserved)) in keys.iter().enumerate() {
            let served = &served;
            scope.spawn(move || {
                let request = of_units(set, *reserved);
                let mut permit = expect_permit(request.for_key(*key).expect("a key").acquire(TIMEOUT));
                permit.settle([("units", 1)]).expect("works");
                served.lock().expect("no panic").push((*key).to_owned());
            });
            eventually("it waits", || queued(segment) == before + 1);
        }
        while count() < keys.len() {
            let already = count();
            set.reset().run().expect("works");
            eventually("all are served that were granted something", || {
                count() > already && count() + queued(segment) == keys.len()
            });
        }
    });
    served.into_inner().expect("no panic")
}

#[test]
fn a_tenant_with_forty_requests_does_not_keep_the_next_one_waiting() {
    let (_directory, segment, set) = create(keyed().add_limit(hourly(1)));
    use_up(&set, 1);
    let keys: Vec<_> = std::iter::repeat_n(("busy", 1), 40)
        .chain([("light", 1)])
        .collect();
    let served = served_in_turn(&segment, &set, &keys);
    assert_eq!(served[..3], ["busy", "light", "busy"]);
}

#[test]
fn keys_are_served_by_the_weights_of_their_tiers() {
    let set = keyed().add_limit(hourly(1)).add_tier(Tier::new("gold").weight(3));
    let (_directory, segment, set) = create(set);
    set.key("golden").expect("keyed").assign("gold").expect("a tier");
    use_up(&set, 1);
    let keys: Vec<_> = (0..40).map(|at| (["golden", "plain"][at % 2], 1)).collect();
    let served = served_in_turn(&segment, &set, &keys);
    let golden = |until: usize| served[..until].iter().filter(|key| *key == "golden").count();
    for until in [8, 16, 24] {
        assert!(golden(until).abs_diff(until * 3 / 4) <= 1, "{served:?}");
    }
}

#[test]
fn a_key_that_reserves_sixteen_times_what_it_uses_gets_as_much_as_one_that_does_not_but_for_a_request() {
    const CAPACITY: u64 = 16;
    let (_directory, segment, set) = create(keyed().add_limit(hourly(CAPACITY)));
    use_up(&set, CAPACITY);
    let keys: Vec<_> = (0..60)
        .map(|at| [("careful", CAPACITY), ("exact", 1)][at % 2])
        .collect();
    let served = served_in_turn(&segment, &set, &keys);
    // While both wait, neither is ahead of the other by more than one request of each.
    for until in 1..=40 {
        let careful = served[..until].iter().filter(|key| *key == "careful").count() as u64;
        let exact = until as u64 - careful;
        assert!(careful.abs_diff(exact) <= CAPACITY + 1, "{served:?}");
    }
}

/// Lets a key hold one of two places for a long time, during which `change` is made, and then wait for another one,
/// ahead of a key that has held nothing. Returns whether it is served first nevertheless.
fn is_first_after_holding_for_long(change: impl FnOnce(&LimitSet)) -> bool {
    let set = keyed()
        .add_limit(overall_places(2))
        .add_tier(Tier::new("gold").weight(10));
    let scene = Scene::new(set);
    let set = scene.set();
    let request = set.request();
    let held = take("holder", &request);
    let _other = take("other", &request);
    let look = &mut Context::from_waker(Waker::noop());
    let mut wait = ["holder", "newcomer"].map(|key| {
        let waiting = request.for_key(key).expect("a key").acquire_async(None);
        Box::pin(waiting.into_owned())
    });
    for waiting in &mut wait {
        assert!(waiting.as_mut().poll(look).is_pending());
    }
    scene.pass(Duration::from_secs(100));
    change(&set);
    drop(held);
    let served = wait.each_mut().map(|waiting| waiting.as_mut().poll(look));
    let is_served = served.each_ref().map(Poll::is_ready);
    assert_ne!(is_served[0], is_served[1], "there is one place");
    is_served[0]
}

#[test]
fn a_key_is_charged_for_the_places_that_it_holds_though_it_is_reset_meanwhile() {
    assert!(!is_first_after_holding_for_long(|_| {}));
    assert!(!is_first_after_holding_for_long(|set| {
        let key = set.key("holder").expect("a key");
        key.reset().run().expect("works");
    }));
}

#[test]
fn a_key_is_charged_for_the_places_that_it_holds_though_its_tier_changes_meanwhile() {
    assert!(!is_first_after_holding_for_long(|set| {
        set.key("holder").expect("keyed").assign("gold").expect("a tier");
    }));
}

/// Begins to wait for this many places for each key, in this order.
fn wait_for_places(set: &LimitSet, asked: &[(&str, u64)]) -> Vec<Pin<Box<AcquireFuture<'static>>>> {
    let asked = asked.iter().map(|(key, places)| {
        let request = set.request().with("places", *places).expect("declared");
        let waiting = request.for_key(*key).expect("a key").acquire_async(None);
        let mut waiting = Box::pin(waiting.into_owned());
        let look = &mut Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(look).is_pending(), "{key}");
        waiting
    });
    asked.collect()
}

#[test]
fn a_change_that_leaves_several_keys_no_hope_serves_the_key_behind_them_at_once() {
    let places = |capacity| keyed().add_limit(overall_places(capacity));
    let scene = Scene::new(places(5));
    let set = scene.set();
    let _held = take("holder", &set.request());
    let _waiting = wait_for_places(&set, &[("a", 5), ("b", 5), ("c", 5), ("small", 1)]);
    let lower = Declaration::new().add_set(places(4));
    scene.segment.apply(&lower).expect("a live change");
    assert_eq!(scene.snapshot().counts.waited, 1, "{:?}", scene.snapshot());
}

#[test]
fn all_keys_of_a_silent_process_are_passed_over_at_once() {
    let scene = Scene::new(keyed().add_limit(overall_places(3)));
    let set = scene.set();
    let request = set.request();
    let [_held, first, second] = ["x", "y", "z"].map(|key| take(key, &request));
    let silent = ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"].map(|key| (key, 3));
    let _waiting = wait_for_places(&set, &[&[("granted", 1)], &silent[..]].concat());
    // The place is granted to the first waiter, which never claims it.
    drop(first);
    scene.pass(MINUTE);
    drop(second);
    let seen = scene.snapshot();
    let passed_over = seen.tickets.iter().filter(|ticket| ticket.passed_over);
    assert_eq!((seen.counts.lapsed, passed_over.count()), (1, 9), "{seen:?}");
}

/// Has a key wait behind another that is meanwhile charged for its places. Returns whether the key is served as soon as
/// there is something for it, and not a second later.
fn is_served_in_time_ahead_of_who_is_charged() -> bool {
    let (_directory, segment, set) = create(keyed().add_limit(hourly(18_000)).add_limit(overall_places(10)));
    let held = take("charged", &of_units(&set, 1));
    use_up(&set, 17_999);
    let is_served_within = |key: &str, units: u64, millis: u64| {
        let request = of_units(&set, units);
        let asked = request.for_key(key).expect("a key");
        let answer = asked.acquire(Duration::from_millis(millis));
        answer.expect("works").is_admitted()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(!is_served_within("charged", 1_000, 1_200)));
        eventually("it is first", || queued(&segment) == 1);
        let waiter = scope.spawn(|| is_served_within("small", 1, 900));
        // By then, it has looked for dead processes, and is asleep.
        let sleeps = |ticket: &TicketSnapshot| ticket.waiting_for > Duration::from_millis(30);
        eventually("another sleeps behind it", || {
            let tickets = first_set(&segment).tickets;
            tickets.len() == 2 && tickets.iter().all(sleeps)
        });
        drop(held);
        waiter.join().expect("no panic")
    })
}

#[test]
fn a_key_computes_when_time_serves_it_once_another_that_was_first_is_charged_for_its_places() {
    // On a busy machine, the key may be served too late once. If nobody wakes it, it always is.
    assert!((0..5).any(|_| is_served_in_time_ahead_of_who_is_charged()));
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
