//! Waiting for what all keys share: first come, first served among keys, except for those that their own limits refuse.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{MINUTE, keyed, overall_places};
use crate::limits::{ask, is_served, take, try_take};
use crate::queues::block_on;
use crate::scene::process::{Child, TIMEOUT, eventually, in_own_process};
use crate::scene::{create, create_in, expect_permit, first_set, queued};
use shmlimit::declare::Scope;
use shmlimit::{Limit, RefusalReason, Request};

fn own_places(capacity: u64) -> Limit {
    Limit::concurrency("own", capacity)
}

/// A request for this many of the places that all keys share.
fn of_places<'a>(request: &Request<'a>, places: u64) -> Request<'a> {
    request.clone().with("places", places).expect("declared")
}

#[test]
fn keys_are_served_in_the_order_in_which_they_came() {
    let (_directory, segment, set) = create(keyed().add_limit(own_places(1)).add_limit(overall_places(1)));
    let request = set.request();
    let held = take("holder", &request);
    let turn = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for place in 0..8 {
            let (request, turn) = (&request, &turn);
            scope.spawn(move || {
                let key = request.for_key(format!("key-{place}")).expect("a key");
                let permit = expect_permit(key.acquire(TIMEOUT));
                assert_eq!(turn.fetch_add(1, Ordering::SeqCst), place, "out of turn");
                drop(permit);
            });
            eventually("it waits", || queued(&segment) as u64 == place + 1);
        }
        let refused = ask("late", &request).expect_err("nobody overtakes");
        assert_eq!(refused.reason(), RefusalReason::Concurrency);
        drop(held);
    });
    let seen = first_set(&segment);
    assert_eq!((seen.active, seen.tickets.len(), seen.counts.waited), (0, 0, 8));
}

#[test]
fn a_key_that_its_own_limits_refuse_keeps_nobody_waiting() {
    let (_directory, segment, set) = create(keyed().add_limit(own_places(1)).add_limit(overall_places(2)));
    let request = set.request();
    let held = take("a", &request);
    std::thread::scope(|scope| {
        let parked = scope.spawn(|| is_served("a", &request));
        eventually("it waits for a place of its own", || queued(&segment) == 1);
        // The request of `a` would be first, but its key has no place left.
        for key in ["b", "c", "b"] {
            drop(take(key, &request));
            assert!(is_served(key, &request));
        }
        assert_eq!(queued(&segment), 1);
        let last = take("b", &request);
        let waiter = scope.spawn(|| is_served("c", &request));
        eventually("another waits for the last place", || queued(&segment) == 2);
        drop(last);
        assert!(waiter.join().expect("no panic"), "past the one that is parked");
        drop(held);
        assert!(parked.join().expect("no panic"));
    });
}

#[test]
fn a_large_request_is_not_starved_by_small_ones_of_other_keys() {
    let (_directory, segment, set) = create(keyed().add_limit(overall_places(4)));
    let request = set.request();
    let held: Vec<_> = ["a", "b", "c"].map(|key| take(key, &request)).into();
    let large = of_places(&request, 4);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| is_served("large", &large));
        eventually("it waits for all of them", || queued(&segment) == 1);
        assert!(try_take("small", &request).is_none(), "though one is free");
        let small = scope.spawn(|| is_served("small", &request));
        eventually("the small one waits behind it", || queued(&segment) == 2);
        for permit in held {
            drop(permit);
        }
        assert!(waiter.join().expect("no panic") && small.join().expect("no panic"));
    });
}

#[test]
fn a_request_that_gives_up_lets_those_behind_it_go_on() {
    let (_directory, segment, set) = create(keyed().add_limit(overall_places(2)));
    let request = set.request();
    let _held = take("a", &request);
    let large = of_places(&request, 2);
    std::thread::scope(|scope| {
        let large = scope.spawn(|| is_served_within(Duration::from_millis(300), "large", &large));
        eventually("it waits for both", || queued(&segment) == 1);
        let small = scope.spawn(|| is_served("small", &request));
        eventually("a small one waits behind it", || queued(&segment) == 2);
        assert!(!large.join().expect("no panic"), "its time is up");
        assert!(small.join().expect("no panic"), "woken by the one that left");
    });
    assert_eq!(first_set(&segment).counts.timed_out, 1);
}

fn is_served_within(timeout: Duration, key: &str, request: &Request<'_>) -> bool {
    let asked = request.for_key(key).expect("a key");
    asked.acquire(timeout).expect("works").is_admitted()
}

#[test]
fn time_alone_serves_all_keys_that_wait() {
    let tokens = Limit::calls("tokens", 200, Duration::from_secs(1))
        .burst(1)
        .scope(Scope::AllKeys);
    let own = Limit::calls("own", 50, Duration::from_secs(1)).burst(1);
    let (_directory, segment, set) = create(keyed().add_limit(own).add_limit(tokens));
    let request = set.request();
    std::thread::scope(|scope| {
        for key in 0..6 {
            let request = &request;
            scope.spawn(move || {
                for _ in 0..20 {
                    assert!(is_served(&format!("key-{key}"), request));
                }
            });
        }
    });
    let seen = first_set(&segment);
    assert_eq!((seen.counts.admitted, seen.tickets.len()), (120, 0));
}

#[test]
fn a_refusal_behind_others_says_when_both_can_be_served() {
    let tokens = Limit::rate("tokens", 60, MINUTE).scope(Scope::AllKeys);
    let (_directory, segment, set) = create(keyed().add_limit(tokens));
    let of = |cost: u64| set.request().with("tokens", cost).expect("declared");
    drop(take("a", &of(60)));
    let large = of(60);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| is_served_within(Duration::from_secs(2), "b", &large));
        eventually("it waits for a minute", || queued(&segment) == 1);
        let refused = ask("c", &of(1)).expect_err("behind the other");
        assert_eq!(refused.binding(), Some("tokens"));
        let wait = refused.retry_after().expect("by time");
        assert!(
            wait > Duration::from_secs(55),
            "{wait:?}: the other is served only then"
        );
        assert!(!waiter.join().expect("no panic"));
    });
}

#[test]
fn the_dead_leave_the_order_and_what_they_held_goes_to_the_next() {
    in_own_process(
        "overall::waiting::the_dead_leave_the_order_and_what_they_held_goes_to_the_next",
        TIMEOUT,
        |directory| {
            let set = keyed().add_limit(own_places(1)).add_limit(overall_places(1));
            let (segment, set) = create_in(directory, set);
            let request = set.request();
            let holder = Child::fork(|| {
                let _held = take("holder", &request);
                std::thread::park();
            });
            eventually("it holds the place", || first_set(&segment).active == 1);
            let first = Child::fork(|| assert!(is_served("first", &request)));
            eventually("the first waits", || queued(&segment) == 1);
            let second = Child::fork(|| assert!(is_served("second", &request)));
            eventually("the second waits", || queued(&segment) == 2);
            first.kill();
            holder.kill();
            second.succeed();
            segment.recover().expect("works");
            let seen = first_set(&segment);
            assert_eq!(
                (seen.active, seen.tickets.len(), seen.limits[1].remaining),
                (0, 0, 1)
            );
        },
    );
}

#[test]
fn futures_of_many_keys_share_one_place() {
    let (_directory, segment, set) = create(keyed().add_limit(own_places(1)).add_limit(overall_places(1)));
    let request = set.request();
    block_on(async {
        let serve = async |key: usize| {
            for _ in 0..10 {
                let key = request.for_key(format!("key-{}", key % 5)).expect("a key");
                drop(expect_permit(key.acquire_async(TIMEOUT).await));
                tokio::task::yield_now().await;
            }
        };
        let all = futures_of(10, serve);
        tokio::time::timeout(TIMEOUT, all).await.expect("in time");
    });
    let seen = first_set(&segment);
    assert_eq!(
        (seen.active, seen.tickets.len(), seen.counts.admitted),
        (0, 0, 100)
    );
}

async fn futures_of<F: Future<Output = ()>>(count: usize, make: impl Fn(usize) -> F) {
    let mut futures: Vec<_> = (0..count).map(|index| Box::pin(make(index))).collect();
    std::future::poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}
