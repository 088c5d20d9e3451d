//! Limits per key: each key has its own limits, its own queue, and its own holds.

use std::time::Duration;

use crate::queues::block_on;
use crate::scene;
use crate::scene::clock::{NANOSECOND, NEW_YEAR, Scene};
use crate::scene::process::{Child, TIMEOUT, die, eventually, in_own_process};
use crate::scene::{create, create_in, first_set, queued};
use shmlimit::{
    Algorithm, Error, Keyed, Limit, LimitSet, Outcome, Permit, Refusal, RefusalReason, Request, RequestError,
    ReserveOutcome, Segment, SetDeclaration,
};

const MINUTE: Duration = Duration::from_secs(60);

pub(super) fn keyed(max_keys: u64) -> SetDeclaration {
    SetDeclaration::new("api").keyed(Keyed::new(max_keys))
}

fn calls(capacity: u64) -> Limit {
    Limit::calls("requests", capacity, MINUTE)
}

pub(super) fn ask<'a>(key: &str, request: &Request<'a>) -> Result<Permit<'a>, Refusal> {
    let request = request.for_key(key).expect("keyed");
    request.try_acquire().expect("a decision").into_result()
}

pub(super) fn try_take<'a>(key: &str, request: &Request<'a>) -> Option<Permit<'a>> {
    ask(key, request).ok()
}

pub(super) fn take<'a>(key: &str, request: &Request<'a>) -> Permit<'a> {
    try_take(key, request).expect("there is room")
}

/// Whether the request is admitted for the key when it waits.
pub(super) fn is_served(key: &str, request: &Request<'_>) -> bool {
    let asked = request.for_key(key).expect("keyed");
    asked.acquire(TIMEOUT).expect("works").is_admitted()
}

/// How much of the first limit a key has left.
pub(super) fn remaining(set: &LimitSet, key: &str) -> u64 {
    let request = set.request().with("requests", 0).expect("valid");
    let verdicts = request.for_key(key).expect("a key").peek().expect("works");
    verdicts[0].remaining
}

#[test]
fn each_key_has_limits_of_its_own() {
    let (_directory, segment, set) = create(keyed(100).add_limit(calls(3)));
    let request = set.request();
    for round in 1..=3 {
        for key in ["a", "b", "c"] {
            assert!(try_take(key, &request).is_some(), "number {round} of {key}");
        }
    }
    for key in ["a", "b", "c"] {
        let refused = request
            .for_key(key)
            .expect("a key")
            .try_acquire()
            .expect("a decision");
        let Outcome::Refused(refusal) = refused else {
            panic!("a fourth of three for {key}");
        };
        assert_eq!(
            (refusal.reason(), refusal.binding()),
            (RefusalReason::Rate, Some("requests"))
        );
        assert!(refusal.retry_after().expect("a retry time") <= MINUTE / 3);
    }
    assert!(try_take("d", &request).is_some());
    let set = first_set(&segment);
    assert_eq!((set.counts.admitted, set.counts.refused_rate), (10, 3));
    let keys = set.keys.expect("keyed");
    assert_eq!(
        (
            keys.in_use,
            set.counts.refused_table_full,
            keys.evicted_unused,
            keys.evicted_in_use
        ),
        (4, 0, 0, 0)
    );
}

#[test]
fn a_sliding_window_may_refuse_a_key_early_by_a_64th_of_the_window_and_never_admits_late() {
    const CAPACITY: usize = 500;
    const WINDOW: Duration = Duration::from_secs(64);
    let limit = Limit::calls("requests", CAPACITY as u64, WINDOW).algorithm(Algorithm::SlidingWindow);
    let scene = Scene::new(keyed(1).add_limit(limit));
    let set = scene.set();
    let request = set.request();
    let mut admitted: Vec<Duration> = Vec::new();
    let mut seed = 1_u64;
    let mut early = 0;
    for _ in 0..20_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        scene.pass(Duration::from_micros(seed >> 46));
        let now = scene.clock.now();
        // How many were admitted in the stretch of this length that ends now.
        let within = |length: Duration| admitted.len() - admitted.partition_point(|at| *at + length <= now);
        if try_take("a", &request).is_some() {
            assert!(within(WINDOW) < CAPACITY, "one more than the capacity");
            admitted.push(now);
        } else {
            assert!(within(WINDOW + WINDOW / 64) >= CAPACITY, "refused early by more");
            early += usize::from(within(WINDOW) < CAPACITY);
        }
    }
    assert!(early > 0, "the log tells no more than 64 apart");
}

#[test]
fn keys_are_told_apart_by_every_byte_and_by_their_length() {
    let (_directory, segment, set) = create(keyed(100).add_limit(calls(1)));
    let request = set.request();
    let long = vec![7; 65_536];
    let mut other = long.clone();
    other[65_535] = 8;
    let keys: [&[u8]; 8] = [
        b"a",
        b"a\0",
        b"\0",
        b"\0\0",
        b"\xff\xfe",
        &long[1..],
        &long,
        &other,
    ];
    for admitted in [true, false] {
        for key in keys {
            let outcome = request
                .for_key(key)
                .expect("a key")
                .try_acquire()
                .expect("a decision");
            assert_eq!(outcome.is_admitted(), admitted, "{} bytes", key.len());
        }
    }
    assert_eq!(first_set(&segment).keys.expect("keyed").in_use, 8);
}

#[test]
fn an_empty_key_and_one_that_is_too_long_are_errors() {
    let (_directory, segment, set) = create(keyed(100).add_limit(calls(1)));
    for bytes in [0, 65_537, 1 << 20] {
        match set.key(vec![0; bytes]) {
            Err(Error::Request(RequestError::InvalidKey {
                set,
                bytes: given,
                max,
                ..
            })) => assert_eq!((set.as_str(), given, max), ("api", bytes, 65_536)),
            other => panic!("a key of {bytes} bytes: {other:?}"),
        }
    }
    assert_eq!(first_set(&segment).keys.expect("keyed").in_use, 0);
}

#[test]
fn a_keyed_set_needs_a_key_and_another_knows_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let declaration = scene::declaration()
        .add_set(keyed(10).add_limit(calls(1)))
        .add_set(SetDeclaration::new("plain").add_limit(calls(1)));
    let segment = Segment::create(directory.path().join("limits"), &declaration).expect("a segment");
    let (api, plain) = (
        segment.set("api").expect("declared"),
        segment.set("plain").expect("declared"),
    );
    assert!(api.is_keyed() && !plain.is_keyed());
    assert!(matches!(plain.key("a"), Err(Error::Request(RequestError::NotKeyed { set })) if set == "plain"));
    let request = api.request();
    let needs_key = |error: Option<Error>| matches!(error, Some(Error::Request(RequestError::KeyRequired { set })) if set == "api");
    assert!(needs_key(request.try_acquire().err()));
    assert!(needs_key(request.acquire(None).err()));
    assert!(needs_key(request.reserve(MINUTE).err()));
    assert!(needs_key(request.peek().err()));
    assert!(needs_key(block_on(request.acquire_async(None)).err()));
    let counts = first_set(&segment).counts;
    assert_eq!((counts.admitted, counts.refused_rate), (0, 0));
}

#[test]
fn keys_that_are_not_stored_leave_no_trace_in_the_file() {
    for (stores, found) in [(true, true), (false, false)] {
        let declaration = SetDeclaration::new("api")
            .keyed(Keyed::new(100).store_keys(stores))
            .add_limit(calls(1));
        let (_directory, segment, set) = create(declaration);
        let secret = "alice@example.org";
        let request = set.request();
        assert!(try_take(secret, &request).is_some());
        assert!(try_take(secret, &request).is_none());
        assert!(try_take("bob@example.org", &request).is_some());
        let file = std::fs::read(segment.path()).expect("the file");
        let is_there = file
            .windows(secret.len())
            .any(|window| window == secret.as_bytes());
        assert_eq!(is_there, found, "with store_keys = {stores}");
    }
}

#[test]
fn all_limits_of_a_key_are_taken_or_none() {
    let set = keyed(10)
        .add_limit(calls(10))
        .add_limit(Limit::rate("tokens", 100, MINUTE))
        .add_limit(Limit::concurrency("in_flight", 2));
    let (_directory, segment, set) = create(set);
    let request = |tokens| set.request().with("tokens", tokens).expect("declared");
    let first = take("a", &request(90));
    let refused = request(20)
        .for_key("a")
        .expect("a key")
        .try_acquire()
        .expect("a decision");
    let Outcome::Refused(refusal) = refused else {
        panic!("110 of 100");
    };
    assert_eq!(refusal.binding(), Some("tokens"));
    let verdicts: Vec<_> = refusal.verdicts().map(|it| (it.limit, it.admitted)).collect();
    assert_eq!(
        verdicts,
        [("requests", true), ("tokens", false), ("in_flight", true)]
    );
    assert_eq!(remaining(&set, "a"), 9, "a refusal takes nothing");
    assert_eq!(first_set(&segment).active, 1);
    let second = take("a", &request(10));
    let refused = request(0)
        .for_key("a")
        .expect("a key")
        .try_acquire()
        .expect("a decision");
    assert_eq!(
        refused
            .into_result()
            .map(drop)
            .expect_err("three of two")
            .reason(),
        RefusalReason::Concurrency
    );
    assert!(try_take("b", &request(100)).is_some());
    drop((first, second));
    assert_eq!(first_set(&segment).active, 0);
}

#[test]
fn what_a_key_holds_comes_back_to_it_alone() {
    let (_directory, segment, set) = create(keyed(10).add_limit(Limit::concurrency("in_flight", 2)));
    let request = set.request();
    let mut a = [take("a", &request), take("a", &request)];
    let b = take("b", &request);
    assert!(try_take("a", &request).is_none());
    let second_of_b = take("b", &request);
    a[0].release().expect("works");
    a[0].release().expect("once more does nothing");
    assert!(try_take("b", &request).is_none());
    let again = take("a", &request);
    assert!(try_take("a", &request).is_none());
    drop((a, b, second_of_b, again));
    let snapshot = first_set(&segment);
    assert_eq!((snapshot.active, snapshot.holds.len()), (0, 0));
    assert_eq!(snapshot.limits[0].counts.high_water, 2);
}

#[test]
fn every_key_may_hold_one_at_the_same_time() {
    const KEYS: usize = 2_000;
    let (_directory, segment, set) = create(keyed(KEYS as u64).add_limit(Limit::concurrency("in_flight", 1)));
    let request = set.request();
    let permits: Vec<Permit<'_>> = (0..KEYS).map(|key| take(&key.to_string(), &request)).collect();
    assert_eq!(first_set(&segment).holds.len(), KEYS);
    assert!(try_take("7", &request).is_none());
    drop(permits);
}

#[test]
fn what_a_dead_process_held_comes_back_to_its_keys() {
    in_own_process(
        "limits::what_a_dead_process_held_comes_back_to_its_keys",
        TIMEOUT,
        |directory| {
            let (segment, set) =
                create_in(directory, keyed(10).add_limit(Limit::concurrency("in_flight", 1)));
            let request = set.request();
            let own = take("own", &request);
            let mut child = Child::fork(|| {
                let _held = [take("a", &request), take("b", &request)];
                die()
            });
            child.wait();
            for key in ["a", "b"] {
                eventually("it is given back", || try_take(key, &request).is_some());
            }
            assert!(try_take("own", &request).is_none(), "the living keep theirs");
            drop(own);
            let snapshot = first_set(&segment);
            assert_eq!((snapshot.counts.reclaimed, snapshot.active), (2, 0));
        },
    );
}

#[test]
fn a_key_reserves_ahead_for_itself_alone() {
    let scene = Scene::new(keyed(10).add_limit(calls(1)));
    let set = scene.set();
    let request = set.request();
    let reserve = |key: &str| match request
        .for_key(key)
        .expect("keyed")
        .reserve(3 * MINUTE)
        .expect("works")
    {
        ReserveOutcome::Reserved(reservation) => Some(reservation),
        ReserveOutcome::Refused(_) => None,
    };
    let delays: Vec<_> = (0..4).map(|_| reserve("a").expect("in time").delay()).collect();
    assert_eq!(delays, [Duration::ZERO, MINUTE, 2 * MINUTE, 3 * MINUTE]);
    assert!(reserve("a").is_none());
    assert_eq!(reserve("b").expect("free").delay(), Duration::ZERO);
}

#[test]
fn a_settle_refunds_the_key_that_paid_and_charges_the_key_that_used() {
    let limit = Limit::rate("requests", 100, MINUTE);
    let scene = Scene::new(keyed(10).add_limit(limit));
    let (segment, set) = (&scene.segment, scene.set());
    let request = set.request().with("requests", 50).expect("declared");
    let (mut a, mut b) = (take("a", &request), take("b", &request));
    assert_eq!(
        a.settle([("requests", 10)]).expect("works").refunded("requests"),
        40
    );
    assert_eq!(
        b.settle([("requests", 130)])
            .expect("works")
            .overdraft("requests"),
        80
    );
    assert_eq!(
        (remaining(&set, "a"), remaining(&set, "b"), remaining(&set, "c")),
        (90, 0, 100)
    );
    // b is 30 below zero, and its units come back at 100 a minute.
    scene.pass(MINUTE * 30 / 100);
    assert_eq!(remaining(&set, "b"), 0);
    scene.pass(MINUTE / 100);
    assert_eq!(remaining(&set, "b"), 1);
    let counts = first_set(segment).limits[0].counts;
    assert_eq!((counts.refunded, counts.overdraft), (40, 80));
}

#[test]
fn a_key_starts_again_alone_and_the_set_with_all_its_keys() {
    let set = keyed(10)
        .add_limit(calls(2))
        .add_limit(Limit::concurrency("in_flight", 5));
    let (_directory, segment, set) = create(set);
    let request = set.request();
    let held: Vec<_> = ["a", "b"]
        .iter()
        .flat_map(|key| [take(key, &request), take(key, &request)])
        .collect();
    assert!(!set.key("nobody").expect("a key").reset().run().expect("works"));
    assert!(matches!(
        set.key("a").expect("a key").reset().limits(["absent"]).run(),
        Err(Error::Request(RequestError::UnknownLimit { .. }))
    ));
    assert!(
        set.key("a")
            .expect("a key")
            .reset()
            .limits(["requests"])
            .run()
            .expect("works")
    );
    assert_eq!((remaining(&set, "a"), remaining(&set, "b")), (2, 0));
    set.reset().counters().run().expect("works");
    assert_eq!((remaining(&set, "a"), remaining(&set, "b")), (2, 2));
    let after = first_set(&segment);
    assert_eq!(
        (after.counts.admitted, after.active),
        (0, 4),
        "what is held stays held"
    );
    drop(held);
    assert_eq!(first_set(&segment).active, 0);
}

#[test]
fn a_refund_from_before_a_reset_of_its_key_is_void() {
    let limit = Limit::rate("requests", 100, MINUTE);
    let scene = Scene::new(keyed(10).add_limit(limit));
    let set = scene.set();
    let request = set.request().with("requests", 80).expect("declared");
    let mut before = take("a", &request);
    // The second and the third reset must not do less than the first.
    for reset in 1..=3 {
        assert!(set.key("a").expect("a key").reset().run().expect("works"));
        scene.clock.advance_to(NEW_YEAR + 2 * reset * NANOSECOND);
        let after = take("a", &request);
        let settled = before.settle([("requests", 0)]).expect("works");
        assert_eq!(settled.refunded("requests"), 0, "reset {reset}");
        assert_eq!(remaining(&set, "a"), 20);
        before = after;
    }
}

#[test]
fn a_reset_of_a_key_serves_who_waits_for_it() {
    let (_directory, segment, set) = create(keyed(10).add_limit(Limit::calls("requests", 1, 60 * MINUTE)));
    let request = set.request();
    let _used = take("a", &request);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| is_served("a", &request));
        eventually("it waits", || queued(&segment) == 1);
        assert!(set.key("a").expect("a key").reset().run().expect("works"));
        assert!(waiter.join().expect("no panic"));
    });
}

#[test]
fn keys_are_the_same_in_forked_children_and_in_who_opens_the_segment() {
    in_own_process(
        "limits::keys_are_the_same_in_forked_children_and_in_who_opens_the_segment",
        TIMEOUT,
        |directory| {
            let (segment, set) = create_in(
                directory,
                keyed(10).add_limit(Limit::calls("requests", 3, 60 * MINUTE)),
            );
            let request = set.request();
            assert!(try_take("a", &request).is_some());
            Child::fork(|| assert!(try_take("a", &request).is_some())).succeed();
            Child::fork(|| {
                let opened = Segment::open(segment.path()).expect("opens");
                let set = opened.set("api").expect("declared");
                assert!(try_take("a", &set.request()).is_some());
            })
            .succeed();
            assert!(try_take("a", &request).is_none());
            assert_eq!(first_set(&segment).keys.expect("keyed").in_use, 1);
        },
    );
}

#[test]
fn a_permit_of_a_key_is_inert_in_a_forked_child() {
    in_own_process(
        "limits::a_permit_of_a_key_is_inert_in_a_forked_child",
        TIMEOUT,
        |directory| {
            let (_segment, set) =
                create_in(directory, keyed(10).add_limit(Limit::concurrency("in_flight", 1)));
            let request = set.request();
            let mut permit = take("a", &request);
            Child::fork(|| {
                permit.release().expect("does nothing");
                assert!(try_take("a", &request).is_none());
            })
            .succeed();
            assert!(try_take("a", &request).is_none());
            permit.release().expect("works");
            assert!(try_take("a", &request).is_some());
        },
    );
}

#[test]
fn settling_as_reserved_makes_no_row_for_a_key_that_has_none_any_more() {
    let limit = Limit::rate("requests", 100, MINUTE);
    let scene = Scene::new(keyed(10).add_limit(limit));
    let (segment, set) = (&scene.segment, scene.set());
    let request = set.request().with("requests", 80).expect("declared");
    let [mut as_reserved, mut above] = ["as reserved", "above"].map(|key| take(key, &request));
    scene.clock.advance_to(NEW_YEAR + 2 * MINUTE);
    let has_row = |key: &str| segment.key_snapshot("api", key).expect("works").is_some();
    // Both are replenished, and their rows are given to other keys.
    for number in 0.. {
        if !has_row("as reserved") && !has_row("above") {
            break;
        }
        drop(try_take(&format!("key-{number}"), &request));
    }
    scene.clock.advance_to(NEW_YEAR + 5 * MINUTE);
    let settled = as_reserved.settle([("requests", 80)]).expect("works");
    assert_eq!(
        (settled.refunded("requests"), settled.overdraft("requests")),
        (0, 0)
    );
    assert!(!has_row("as reserved"));
    let settled = above.settle([("requests", 81)]).expect("works");
    assert_eq!(settled.overdraft("requests"), 1);
    assert!(has_row("above"), "there is something to charge");
    assert_eq!(remaining(&set, "above"), 99);
}

#[test]
fn a_reservation_gets_the_row_of_a_key_whose_holder_is_dead() {
    let test = "limits::a_reservation_gets_the_row_of_a_key_whose_holder_is_dead";
    in_own_process(test, TIMEOUT, |directory| {
        let set = keyed(10)
            .add_limit(calls(3))
            .add_limit(Limit::concurrency("slots", 1));
        let (_segment, set) = create_in(directory, set);
        let mut child = Child::fork(|| {
            // A row whose key holds something is not given to another. A row whose key holds nothing is as if it had
            // never been used.
            let holding = set.request().with("requests", 0).expect("declared");
            let keys = (0..).map(|number| format!("key-{number}"));
            let permits = keys.map_while(|key| try_take(&key, &holding));
            std::mem::forget(permits.collect::<Vec<_>>());
            die();
        });
        child.wait();
        let request = set.request().with("slots", 0).expect("declared");
        let outcome = request
            .for_key("another")
            .expect("keyed")
            .reserve(Duration::ZERO)
            .expect("works");
        assert!(matches!(outcome, ReserveOutcome::Reserved(_)), "{outcome:?}");
    });
}
