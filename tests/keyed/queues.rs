//! Each key of a set has its own queue.

use std::time::Duration;

use crate::limits::{is_served, keyed, take, try_take};
use crate::scene::process::{Child, TIMEOUT, eventually, in_own_process};
use crate::scene::{create, create_in, expect_permit, first_set, queued};
use shmlimit::Limit;

pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
        .block_on(future)
}

#[test]
fn a_key_waits_in_a_line_of_its_own() {
    let (_directory, segment, set) = create(keyed(10).add_limit(Limit::concurrency("in_flight", 1)));
    let request = set.request();
    let held = take("a", &request);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| is_served("a", &request));
        eventually("it waits", || queued(&segment) == 1);
        // Other keys neither wait behind it nor serve it.
        for _ in 0..10 {
            drop(take("b", &request));
        }
        let late = request
            .for_key("a")
            .expect("a key")
            .acquire(Duration::from_millis(1));
        assert!(!late.expect("works").is_admitted(), "no request overtakes");
        assert_eq!(queued(&segment), 1);
        drop(held);
        assert!(waiter.join().expect("no panic"));
    });
    let counts = first_set(&segment).counts;
    assert_eq!((counts.waited, counts.timed_out), (1, 1));
}

/// All keys of a shard share its holds, so a request that waits for a hold may be served by the release of any key.
#[test]
fn the_last_hold_given_back_goes_to_a_waiter_for_one_in_any_queue() {
    let set = keyed(10).add_limit(Limit::concurrency("in_flight", 1)).holds(1);
    let (_directory, segment, set) = create(set);
    let request = set.request();
    for _ in 0..20 {
        let held = take("a", &request);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(is_served("b", &request)));
            eventually("it waits", || queued(&segment) == 1);
            drop(held);
            assert_eq!(
                queued(&segment),
                0,
                "it has what it waited for as soon as that is given back"
            );
        });
    }
}

#[test]
fn many_threads_wait_in_the_queues_of_many_keys_and_all_are_served_in_turn() {
    const KEYS: usize = 8;
    let set = keyed(100)
        .add_limit(Limit::concurrency("in_flight", 1))
        .waiters(256);
    let (_directory, segment, set) = create(set);
    let request = set.request();
    let served = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2 * KEYS {
            let (request, served) = (&request, &served);
            scope.spawn(move || {
                let key = &format!("key-{}", thread % KEYS);
                for _ in 0..50 {
                    drop(expect_permit(
                        request.for_key(key).expect("keyed").acquire(TIMEOUT),
                    ));
                    served.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(served.into_inner(), 2 * KEYS as u64 * 50);
    let snapshot = first_set(&segment);
    assert_eq!((snapshot.active, snapshot.tickets.len()), (0, 0));
    assert_eq!(snapshot.limits[0].counts.high_water, 1, "each key to itself");
}

#[test]
fn processes_wait_in_the_line_of_a_key_and_the_dead_leave_it() {
    in_own_process(
        "queues::processes_wait_in_the_line_of_a_key_and_the_dead_leave_it",
        TIMEOUT,
        |directory| {
            let (segment, set) =
                create_in(directory, keyed(10).add_limit(Limit::concurrency("in_flight", 1)));
            let request = set.request();
            let held = take("a", &request);
            let wait = || assert!(is_served("a", &request));
            let first = Child::fork(wait);
            eventually("the first waits", || queued(&segment) == 1);
            let second = Child::fork(wait);
            eventually("the second waits", || queued(&segment) == 2);
            first.kill();
            assert!(try_take("b", &request).is_some());
            drop(held);
            second.succeed();
            // The process that recovers the set finds the dead one.
            segment.recover().expect("works");
            let snapshot = first_set(&segment);
            assert_eq!((snapshot.active, snapshot.tickets.len()), (0, 0));
            assert_eq!(snapshot.counts.reclaimed_tickets, 1);
        },
    );
}

#[test]
fn futures_wait_in_the_queues_of_their_keys_and_leave_them_when_dropped() {
    let (_directory, segment, set) = create(keyed(10).add_limit(Limit::concurrency("in_flight", 1)));
    let request = set.request();
    block_on(async {
        let [a, b] = ["a", "b"];
        let held = request
            .for_key(a)
            .expect("keyed")
            .acquire_async(None)
            .await
            .expect("works");
        let mut dropped = Box::pin(request.for_key(a).expect("keyed").acquire_async(TIMEOUT));
        let poll = tokio::time::timeout(Duration::from_millis(1), &mut dropped).await;
        assert!(poll.is_err(), "it waits");
        let served = request.for_key(a).expect("keyed").acquire_async(TIMEOUT);
        let other = request
            .for_key(b)
            .expect("keyed")
            .acquire_async(TIMEOUT)
            .await
            .expect("works");
        assert!(other.is_admitted(), "another key is not held up");
        drop(dropped);
        let (served, ()) = tokio::join!(served, async { drop(held) });
        assert!(served.expect("works").is_admitted());
    });
    let snapshot = first_set(&segment);
    assert_eq!(
        (snapshot.active, snapshot.tickets.len(), snapshot.counts.cancelled),
        (0, 0, 1)
    );
}

#[test]
fn a_wait_for_time_is_served_at_its_instant_key_by_key() {
    let limit = Limit::calls("requests", 1, Duration::from_millis(20));
    let (_directory, segment, set) = create(keyed(10).add_limit(limit));
    let request = set.request();
    std::thread::scope(|scope| {
        for key in ["a", "b", "c"] {
            let request = &request;
            scope.spawn(move || {
                for _ in 0..5 {
                    assert!(is_served(key, request));
                }
            });
        }
    });
    assert_eq!(first_set(&segment).counts.admitted, 15);
}
