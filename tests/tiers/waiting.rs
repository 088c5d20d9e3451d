//! Waiters are served by the limits that their key has now.

use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Instant;

use shmlimit::declare::Align;

use super::*;

const LONG: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

/// Uses up what a key may use, lets a request for as much wait, and changes something meanwhile. Returns how much the
/// key may use at once under the limit that admitted the request.
fn waits_while(declared: SetDeclaration, change: impl FnOnce(&LimitSet, &Request)) -> Result<u64, Error> {
    let (_directory, segment, set) = create(declared);
    let two = set.request().for_key("a").expect("keyed");
    let two = two.with("requests", 2).expect("declared");
    assert!(two.check().expect("no error").is_admitted());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let outcome = two.acquire(LONG)?;
            let permit = outcome.into_result().expect("served in time");
            Ok(permit.verdicts().next().expect("one limit").burst)
        });
        let began = Instant::now();
        while segment.snapshot().expect("no error").sets[0].tickets.is_empty() {
            assert!(began.elapsed() < LONG, "nothing waits");
            thread::yield_now();
        }
        change(&set, &two);
        waiter.join().expect("no panic")
    })
}

fn two_a_day() -> Limit {
    Limit::calls("requests", 2, DAY)
}

fn with_tiers() -> SetDeclaration {
    // The window begins with the first use, because a day of the calendar may end meanwhile.
    let fixed = two_a_day()
        .algorithm(Algorithm::FixedWindow)
        .align(Align::FirstUse);
    keyed(10)
        .add_limit(fixed)
        .add_tier(Tier::new("gold").capacity("requests", 10))
        .add_tier(Tier::new("free").capacity("requests", 1))
}

fn with_overrides() -> SetDeclaration {
    SetDeclaration::new("api")
        .keyed(Keyed::new(10).overrides(true))
        .add_limit(two_a_day())
}

/// So many a day that two of them are replenished in no time.
const PLENTY: u64 = 1 << 40;

#[test]
fn a_waiter_is_served_when_its_key_comes_into_a_larger_tier() {
    let served = waits_while(with_tiers(), |set, _| {
        set.key("a").expect("keyed").assign("gold").expect("a tier")
    });
    assert_eq!(served.expect("no error"), 10);
}

#[test]
fn a_waiter_is_served_when_a_request_brings_its_key_into_a_larger_tier() {
    let served = waits_while(with_tiers(), |_, two| {
        let gold = two.clone().with_tier("gold").expect("a tier");
        assert!(
            gold.check().expect("no error").is_admitted(),
            "behind it, and served after it"
        );
        let left = two.peek().expect("no error")[0].remaining;
        assert_eq!(left, 10 - 6);
    });
    assert_eq!(served.expect("no error"), 10);
}

#[test]
fn a_waiter_that_its_new_tier_never_admits_gets_the_error() {
    match waits_while(with_tiers(), |set, _| {
        set.key("a").expect("keyed").assign("free").expect("a tier")
    }) {
        Err(Error::Request(RequestError::NeverAdmissible { max, .. })) => assert_eq!(max, 1),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_waiter_is_served_when_its_key_is_given_a_larger_capacity() {
    let served = waits_while(with_overrides(), |set, _| {
        set.key("a")
            .expect("keyed")
            .override_capacity("requests", PLENTY)
            .expect("a capacity");
    });
    assert_eq!(served.expect("no error"), PLENTY);
}

#[test]
fn a_waiter_is_served_when_a_request_names_a_larger_capacity_for_its_key() {
    let served = waits_while(with_overrides(), |_, two| {
        let named = two.clone().with_override("requests", PLENTY);
        let outcome = named.expect("a capacity").acquire(LONG);
        assert!(outcome.expect("no error").is_admitted());
    });
    assert_eq!(served.expect("no error"), PLENTY);
}

#[test]
fn a_waiter_that_the_new_capacity_never_admits_gets_the_error() {
    let served = waits_while(with_overrides(), |set, _| {
        set.key("a")
            .expect("keyed")
            .override_capacity("requests", 1)
            .expect("a capacity");
    });
    match served {
        Err(Error::Request(RequestError::NeverAdmissible { max, .. })) => assert_eq!(max, 1),
        other => panic!("{other:?}"),
    }
}

/// Between the grant and the claim, the capacity may change once more.
#[test]
fn what_was_granted_by_another_capacity_is_claimed_and_refunded_by_what_is_known() {
    let hour = Duration::from_secs(3600);
    let scene = Scene::new(
        SetDeclaration::new("api")
            .keyed(Keyed::new(10).overrides(true))
            .add_limit(Limit::rate("units", 4, hour).algorithm(Algorithm::TokenBucket))
            .add_limit(Limit::concurrency("in_flight", 1)),
    );
    let set = scene.set();
    let two = set.request().with("units", 2).expect("declared");
    let held = expect_permit(two.for_key("a").expect("keyed").try_acquire());
    let mut waiting = Box::pin(two.for_key("a").expect("keyed").acquire_async(None));
    let mut poll = || waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    // Granted, and not claimed yet.
    drop(held);
    set.key("a")
        .expect("keyed")
        .override_capacity("units", 100)
        .expect("a capacity");
    let Poll::Ready(outcome) = poll() else {
        panic!("it was granted")
    };
    let mut permit = outcome.expect("no error").into_result().expect("granted");
    let said: Vec<(u64, u64)> = permit
        .verdicts()
        .map(|verdict| (verdict.remaining, verdict.burst))
        .collect();
    assert_eq!(said, [(0, 100), (0, 1)]);
    // Under which capacity it was reserved is no longer known.
    let settled = permit.settle([("units", 0)]).expect("not settled yet");
    assert_eq!(settled.refunded("units"), 0);
}

#[test]
fn who_waits_in_vain_for_more_than_its_key_may_have_since_learns_that() {
    let (_directory, segment, set) = create(
        SetDeclaration::new("api")
            .keyed(Keyed::new(10).overrides(true))
            .add_limit(Limit::concurrency("slots", 5)),
    );
    let request = |slots| set.request().with("slots", slots).expect("declared");
    let held = expect_permit(request(5).for_key("a").expect("keyed").try_acquire());
    let mut context = Context::from_waker(Waker::noop());

    let (one, five) = (request(1), request(5));
    let mut first = Box::pin(one.for_key("a").expect("keyed").acquire_async(LONG));
    assert!(first.as_mut().poll(&mut context).is_pending());
    let mut behind = Box::pin(
        five.for_key("a")
            .expect("keyed")
            .acquire_async(Duration::from_secs(1)),
    );
    assert!(behind.as_mut().poll(&mut context).is_pending());
    set.key("a")
        .expect("keyed")
        .override_capacity("slots", 2)
        .expect("a row");

    let began = Instant::now();
    let answer = loop {
        if let Poll::Ready(answer) = behind.as_mut().poll(&mut context) {
            break answer;
        }
        assert!(began.elapsed() < LONG, "its time is never up");
        thread::yield_now();
    };
    let error = answer.expect_err("never admissible");
    assert!(
        matches!(&error, Error::Request(RequestError::NeverAdmissible { limit, cost: 5, max: 2, .. }) if limit == "slots"),
        "{error:?}"
    );
    assert_eq!(segment.snapshot().expect("no error").sets[0].tickets.len(), 1);
    drop(held);
    assert!(
        first.as_mut().poll(&mut context).is_ready(),
        "served all the same"
    );
}
