//! Those who wait are served by the limits that their key has now.

use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::thread;

use shmlimit::OpenOptions;

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn one_a_day() -> SetDeclaration {
    let day = Duration::from_secs(86_400);
    keyed(10)
        .limit(Limit::calls("requests", 2, day).algorithm(Algorithm::FixedWindow))
        .tier(Tier::new("gold").capacity("requests", 10))
        .tier(Tier::new("free").capacity("requests", 1))
}

struct Real {
    _folder: tempfile::TempDir,
    segment: Segment,
}

impl Real {
    fn new() -> Self {
        Self::of(one_a_day())
    }

    fn of(set: SetDeclaration) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("limits");
        let segment = OpenOptions::new().create(path, &Declaration::new().set(set));
        Self {
            _folder: folder,
            segment: segment.expect("a segment"),
        }
    }

    /// Waits until a request of the key waits.
    fn wait_for_waiter(&self) {
        let began = std::time::Instant::now();
        while self.segment.snapshot().expect("no error").sets[0]
            .tickets
            .is_empty()
        {
            assert!(began.elapsed() < LONG, "nothing waits");
            thread::yield_now();
        }
    }
}

#[test]
fn a_waiter_is_served_when_its_key_comes_into_a_larger_tier() {
    let real = Real::new();
    let set = real.segment.set("api").expect("declared");
    let two = set.request().with("requests", 2).expect("declared");
    let key = set.key("a").expect("keyed");
    drop(
        key.try_acquire(&two)
            .expect("no error")
            .into_result()
            .expect("room"),
    );
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let key = set.key("a").expect("keyed");
            key.acquire(&two, LONG).expect("no error").is_admitted()
        });
        real.wait_for_waiter();
        set.assign("a", "gold").expect("a tier");
        assert!(waiter.join().expect("no panic"));
    });
}

#[test]
fn a_waiter_is_served_when_a_request_brings_its_key_into_a_larger_tier() {
    let real = Real::new();
    let set = real.segment.set("api").expect("declared");
    let two = set.request().with("requests", 2).expect("declared");
    let key = set.key("a").expect("keyed");
    drop(
        key.try_acquire(&two)
            .expect("no error")
            .into_result()
            .expect("room"),
    );
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let key = set.key("a").expect("keyed");
            key.acquire(&two, LONG).expect("no error").is_admitted()
        });
        real.wait_for_waiter();
        let gold = two.clone().with_tier("gold").expect("a tier");
        assert!(
            key.try_acquire(&gold).expect("no error").is_admitted(),
            "behind it, and served after it"
        );
        assert!(waiter.join().expect("no panic"));
    });
    let verdicts = key.peek(&two).expect("no error");
    assert_eq!(verdicts[0].remaining, 10 - 6);
}

#[test]
fn a_waiter_that_its_new_tier_never_admits_gets_the_error() {
    let real = Real::new();
    let set = real.segment.set("api").expect("declared");
    let two = set.request().with("requests", 2).expect("declared");
    let key = set.key("a").expect("keyed");
    drop(
        key.try_acquire(&two)
            .expect("no error")
            .into_result()
            .expect("room"),
    );
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let key = set.key("a").expect("keyed");
            key.acquire(&two, LONG).map(|outcome| outcome.is_admitted())
        });
        real.wait_for_waiter();
        set.assign("a", "free").expect("a tier");
        match waiter.join().expect("no panic") {
            Err(Error::NeverAdmissible { most, .. }) => assert_eq!(most, 1),
            other => panic!("{other:?}"),
        }
    });
}

fn two_a_day() -> SetDeclaration {
    let day = Duration::from_secs(86_400);
    SetDeclaration::new("api")
        .keyed(Keyed::new(10).overrides(true))
        .limit(Limit::calls("requests", 2, day))
}

#[test]
fn a_waiter_is_served_when_its_key_is_given_a_larger_capacity() {
    let real = Real::of(two_a_day());
    let set = real.segment.set("api").expect("declared");
    let two = set.request().with("requests", 2).expect("declared");
    let key = set.key("a").expect("keyed");
    drop(
        key.try_acquire(&two)
            .expect("no error")
            .into_result()
            .expect("room"),
    );
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let key = set.key("a").expect("keyed");
            let admitted = key.acquire(&two, LONG).expect("no error");
            let permit = admitted.into_result().expect("served");
            permit.verdicts().next().expect("one limit").most_at_once
        });
        real.wait_for_waiter();
        // Of a day's refill of so many, two come in no time.
        key.override_capacity("requests", 1 << 40).expect("a capacity");
        assert_eq!(waiter.join().expect("no panic"), 1 << 40);
    });
}

#[test]
fn a_waiter_that_the_new_capacity_never_admits_gets_the_error() {
    let real = Real::of(two_a_day());
    let set = real.segment.set("api").expect("declared");
    let two = set.request().with("requests", 2).expect("declared");
    let key = set.key("a").expect("keyed");
    drop(
        key.try_acquire(&two)
            .expect("no error")
            .into_result()
            .expect("room"),
    );
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let key = set.key("a").expect("keyed");
            key.acquire(&two, LONG).map(|outcome| outcome.is_admitted())
        });
        real.wait_for_waiter();
        key.override_capacity("requests", 1).expect("a capacity");
        match waiter.join().expect("no panic") {
            Err(Error::NeverAdmissible { most, .. }) => assert_eq!(most, 1),
            other => panic!("{other:?}"),
        }
    });
}

/// Between the grant and the claim, the capacity may change once more.
#[test]
fn what_was_granted_by_another_capacity_is_claimed_and_refunded_by_what_is_known() {
    let hour = Duration::from_secs(3600);
    let scene = Scene::new(
        SetDeclaration::new("api")
            .keyed(Keyed::new(10).overrides(true))
            .limit(Limit::rate("units", 4, hour).algorithm(Algorithm::TokenBucket))
            .limit(Limit::concurrency("in_flight", 1)),
    );
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    let two = set.request().with("units", 2).expect("declared");
    let held = key
        .try_acquire(&two)
        .expect("no error")
        .into_result()
        .expect("room");
    let mut waiting = Box::pin(key.acquire_async(&two, None));
    let mut poll = || waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    // Granted, and not claimed yet.
    drop(held);
    key.override_capacity("units", 100).expect("a capacity");
    let Poll::Ready(outcome) = poll() else {
        panic!("it was granted")
    };
    let mut permit = outcome.expect("no error").into_result().expect("granted");
    let said: Vec<(u64, u64)> = permit
        .verdicts()
        .map(|verdict| (verdict.remaining, verdict.most_at_once))
        .collect();
    assert_eq!(said, [(0, 100), (0, 1)]);
    // By which capacity it was reserved is not known any more.
    let settled = permit.settle([("units", 0)]).expect("not settled yet");
    assert_eq!(settled.refunded("units"), 0);
}
