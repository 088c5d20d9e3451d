//! Waiting in the queue, within one process and across processes.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::scene;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use crate::scene::{create, create_in, expect_permit, expect_refusal, queued};
use shmlimit::{Error, Limit, PermitError, RefusalReason, RequestError, SetDeclaration};

const MINUTE: Duration = Duration::from_secs(60);

fn places(capacity: u64) -> SetDeclaration {
    SetDeclaration::new("set").add_limit(Limit::concurrency("places", capacity))
}

#[test]
fn a_waiter_gets_what_another_process_gives_back() {
    in_own_process(
        "waiting::a_waiter_gets_what_another_process_gives_back",
        TIMEOUT,
        |directory| {
            let (segment, set) = create_in(directory, places(1));
            let permit = expect_permit(set.request().acquire(None));
            let child = Child::fork(|| {
                let outcome = set.request().acquire(TIMEOUT).expect("works");
                assert!(outcome.is_admitted());
            });
            eventually("the child waits", || queued(&segment) == 1);
            let waiting_since = Instant::now();
            eventually("it has waited for some time", || {
                waiting_since.elapsed() > Duration::from_millis(5)
            });
            let has_waited = waiting_since.elapsed();
            drop(permit);
            child.succeed();
            let seen = scene::first_set(&segment);
            assert_eq!((seen.counts.admitted, seen.counts.waited), (2, 1));
            assert_eq!(seen.wait_times.iter().sum::<u64>(), 1);
            // The sum of one wait is that wait, which its bucket bounds. Clocks differ by microseconds.
            let bucket = seen.wait_times.iter().position(|waits| *waits == 1);
            let end = Duration::from_micros(1 << bucket.expect("counted once"));
            assert!(seen.wait_time + Duration::from_millis(1) > has_waited, "{seen:?}");
            assert!((end / 2..end).contains(&seen.wait_time), "{seen:?}");
            set.reset().counters().run().expect("works");
            assert_eq!(scene::first_set(&segment).wait_time, Duration::ZERO);
        },
    );
}

#[test]
fn a_wait_that_is_too_long_ends_in_a_refusal_that_says_what_bound() {
    let (_directory, segment, set) = create(places(1));
    let permit = expect_permit(set.request().try_acquire());
    let started = Instant::now();
    let timeout = Duration::from_millis(20);
    let refusal = expect_refusal(set.request().acquire(timeout));
    assert!(started.elapsed() >= timeout);
    assert_eq!(refusal.binding(), Some("places"));
    assert_eq!(refusal.reason(), RefusalReason::Concurrency);
    let snapshot = segment.snapshot().expect("a snapshot");
    assert!(snapshot.sets[0].tickets.is_empty());
    assert_eq!(snapshot.sets[0].counts.timed_out, 1);
    drop(permit);
    assert!(set.request().try_acquire().expect("works").is_admitted());
}

#[test]
fn a_rate_is_waited_for_to_the_instant() {
    let set = SetDeclaration::new("set").add_limit(Limit::calls("calls", 1, Duration::from_millis(30)));
    let (_directory, _segment, set) = create(set);
    let first = Instant::now();
    for _ in 0..5 {
        assert!(set.request().acquire(TIMEOUT).expect("works").is_admitted());
    }
    // The first is taken at once, and each of the others a window after the one before.
    assert!(first.elapsed() >= Duration::from_millis(4 * 30));
}

#[test]
fn no_request_waits_for_the_impossible() {
    let (_directory, _segment, set) = create(places(2));
    let request = set.request().with("places", 3).expect("declared");
    let outcome = request.acquire(None);
    assert!(matches!(
        outcome,
        Err(Error::Request(RequestError::NeverAdmissible { .. }))
    ));
}

#[test]
fn no_request_waits_for_the_impossible_behind_others_either() {
    let (_directory, segment, set) = create(places(2));
    let all = set.request().with("places", 2).expect("declared");
    let permit = expect_permit(all.try_acquire());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            set.request()
                .acquire(TIMEOUT)
                .map(|outcome| outcome.is_admitted())
        });
        eventually("it waits", || queued(&segment) == 1);
        let request = set.request().with("places", 3).expect("declared");
        let outcome = request.acquire(Duration::from_millis(100));
        assert!(
            matches!(outcome, Err(Error::Request(RequestError::NeverAdmissible { .. }))),
            "{outcome:?}"
        );
        drop(permit);
        assert!(waiter.join().expect("ends").expect("works"));
    });
}

#[test]
fn one_more_than_may_wait_is_refused() {
    in_own_process(
        "waiting::one_more_than_may_wait_is_refused",
        TIMEOUT,
        |directory| {
            let (segment, set) = create_in(directory, places(1).waiters(2));
            let permit = expect_permit(set.request().try_acquire());
            let children: Vec<Child> = (0..2)
                .map(|_| {
                    Child::fork(|| {
                        assert!(set.request().acquire(TIMEOUT).expect("works").is_admitted());
                    })
                })
                .collect();
            eventually("both wait", || queued(&segment) == 2);
            let refusal = expect_refusal(set.request().acquire(TIMEOUT));
            assert_eq!(refusal.reason(), RefusalReason::QueueFull);
            assert!(
                refusal.to_string().starts_with("the queue of set `set` is full")
                    && refusal.to_string().contains("declare more `waiters`"),
                "{refusal}"
            );
            assert_eq!(refusal.binding(), Some("places"));
            drop(permit);
            children.into_iter().for_each(Child::succeed);
        },
    );
}

#[test]
fn no_request_overtakes_and_a_large_request_is_not_starved() {
    in_own_process(
        "waiting::no_request_overtakes_and_a_large_request_is_not_starved",
        TIMEOUT,
        |directory| {
            let (segment, set) = create_in(directory, places(4));
            let one = set.request();
            let permits: Vec<_> = (0..3).map(|_| expect_permit(one.try_acquire())).collect();
            let child = Child::fork(|| {
                let all = set.request().with("places", 4).expect("declared");
                assert!(all.acquire(TIMEOUT).expect("works").is_admitted());
            });
            eventually("the large request waits", || queued(&segment) == 1);
            let refusal = expect_refusal(one.try_acquire());
            assert_eq!(refusal.binding(), Some("places"));
            assert_eq!(refusal.retry_after(), None);
            drop(permits);
            child.succeed();
            assert!(one.try_acquire().expect("works").is_admitted());
        },
    );
}

#[test]
fn the_dead_in_line_do_not_stop_the_others() {
    in_own_process(
        "waiting::the_dead_in_line_do_not_stop_the_others",
        TIMEOUT,
        |directory| {
            let (segment, set) = create_in(directory, places(1));
            let admitted = SharedWords::new(1);
            let permit = expect_permit(set.request().try_acquire());
            let wait = || {
                let permit = expect_permit(set.request().acquire(TIMEOUT));
                admitted[0].fetch_add(1, Ordering::Relaxed);
                drop(permit);
            };
            let mut children = Vec::new();
            for number in 1..=6 {
                children.push(Child::fork(wait));
                eventually("it waits", || queued(&segment) == number);
            }
            // The first, one in the middle, and the last but one.
            for index in [4, 2, 0] {
                children.remove(index).kill();
            }
            drop(permit);
            children.into_iter().for_each(Child::succeed);
            assert_eq!(admitted[0].load(Ordering::Relaxed), 3);
            let report = segment.recover().expect("works");
            assert!(report.sets[0].problem.is_none());
            let snapshot = segment.snapshot().expect("a snapshot");
            assert!(snapshot.sets[0].tickets.is_empty() && snapshot.sets[0].holds.is_empty());
        },
    );
}

#[test]
fn what_a_killed_holder_held_goes_to_the_first_in_line() {
    in_own_process(
        "waiting::what_a_killed_holder_held_goes_to_the_first_in_line",
        TIMEOUT,
        |directory| {
            let (segment, set) = create_in(directory, places(1));
            let holder = Child::fork(|| {
                std::mem::forget(expect_permit(set.request().try_acquire()));
                loop {
                    std::thread::park();
                }
            });
            eventually("it is held", || {
                segment.snapshot().expect("a snapshot").sets[0].active == 1
            });
            let waiter = Child::fork(|| {
                assert!(set.request().acquire(TIMEOUT).expect("works").is_admitted());
            });
            eventually("the other waits", || queued(&segment) == 1);
            holder.kill();
            waiter.succeed();
        },
    );
}

#[test]
fn a_refund_serves_the_first_in_line_before_its_time() {
    in_own_process(
        "waiting::a_refund_serves_the_first_in_line_before_its_time",
        TIMEOUT,
        |directory| {
            let set = SetDeclaration::new("set").add_limit(Limit::rate("tokens", 100, 60 * MINUTE));
            let (segment, set) = create_in(directory, set);
            let request = |cost| set.request().with("tokens", cost).expect("declared");
            let mut permit = expect_permit(request(100).try_acquire());
            let child = Child::fork(|| {
                assert!(request(50).acquire(None).expect("works").is_admitted());
            });
            eventually("it waits", || queued(&segment) == 1);
            let _ = permit.settle([("tokens", 10)]).expect("works");
            child.succeed();
        },
    );
}

#[test]
fn an_expired_lease_serves_the_first_in_line_and_the_late_holder_is_told() {
    let lease = Duration::from_millis(30);
    let set = SetDeclaration::new("set").add_limit(Limit::concurrency("places", 1).lease(lease));
    let (_directory, segment, set) = create(set);
    let started = Instant::now();
    let mut late = expect_permit(set.request().try_acquire());
    late.heartbeat().expect("in time");
    let next = expect_permit(set.request().acquire(TIMEOUT));
    assert!(started.elapsed() >= lease);
    assert!(late.reclaimed() && !next.reclaimed());
    assert!(next.fencing_number() > late.fencing_number());
    assert!(matches!(
        late.heartbeat(),
        Err(Error::Permit(PermitError::Reclaimed { .. }))
    ));
    late.release()
        .expect("the work is done, and no error would undo it");
    assert!(late.reclaimed() && !next.reclaimed());
    let snapshot = segment.snapshot().expect("a snapshot");
    assert_eq!(snapshot.sets[0].active, 1);
    assert_eq!(snapshot.sets[0].counts.expired, 1);
}

#[test]
fn a_waiter_for_a_hold_is_woken_by_the_death_of_its_owner() {
    in_own_process(
        "waiting::a_waiter_for_a_hold_is_woken_by_the_death_of_its_owner",
        TIMEOUT,
        |directory| {
            // There is room for more, but no hold to take it with.
            let (segment, set) = create_in(directory, places(10).holds(1));
            let round = || {
                let child = Child::fork(|| {
                    let _permit = set.request().acquire(None).expect("works");
                    std::thread::sleep(MINUTE);
                });
                eventually("the child holds", || {
                    segment.snapshot().expect("a snapshot").sets[0].holds.len() == 1
                });
                std::thread::scope(|scope| {
                    let waiter = scope.spawn(|| {
                        let outcome = set.request().acquire(TIMEOUT).expect("works");
                        assert!(outcome.is_admitted());
                        Instant::now()
                    });
                    eventually("it waits", || queued(&segment) == 1);
                    let killed = Instant::now();
                    child.kill();
                    waiter.join().expect("admitted") - killed
                })
            };
            // A process that waits for time alone sleeps for a second without looking. On a busy machine anything may
            // take that long, but not always.
            assert!((0..10).any(|_| round() < Duration::from_millis(500)));
        },
    );
}
