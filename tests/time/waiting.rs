//! Waits by a virtual clock: timeouts are measured by it, and those that wait move it.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use crate::scene::clock::{NEW_YEAR, Scene};
use crate::scene::process::{TIMEOUT, eventually};
use crate::scene::{expect_permit, expect_refusal};
use shmlimit::pool::PoolStrategy;
use shmlimit::request::RequestEventKind;
use shmlimit::{Keyed, Limit, LimitPool, OpenOptions, ReserveOutcome, Segment, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);

/// One a day: no test takes that long, so a wait that is over has not slept for real.
fn one_a_day() -> SetDeclaration {
    SetDeclaration::new("set").add_limit(Limit::calls("calls", 1, 24 * HOUR))
}

fn one_place() -> SetDeclaration {
    SetDeclaration::new("set").add_limit(Limit::concurrency("places", 1))
}

/// A segment at the new year whose clock is moved by those that wait.
fn scene(set: SetDeclaration) -> Scene {
    let scene = Scene::new(set);
    let _ = scene.clock.clone().auto_advance(true);
    scene
}

fn passed(scene: &Scene) -> Duration {
    scene.clock.now() - NEW_YEAR
}

/// The segment, and for each wait how long it took by the clock and whether it was admitted.
fn watched(scene: &Scene) -> (Segment, Receiver<(Duration, bool)>) {
    let (sender, waits) = channel();
    let segment = OpenOptions::new()
        .virtual_clock(&scene.clock)
        .on_request_event(move |event| {
            if let RequestEventKind::Waited { waited, admitted } = event.what {
                sender.send((waited, admitted)).expect("somebody listens");
            }
        })
        .open(scene.path())
        .expect("the same");
    (segment, waits)
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
        .block_on(future)
}

#[test]
fn a_wait_that_time_alone_ends_moves_the_clock_to_its_turn() {
    let scene = scene(one_a_day());
    let set = scene.set();
    for day in 0..100 {
        drop(expect_permit(set.request().acquire(None)));
        assert_eq!(passed(&scene), day * 24 * HOUR);
    }
}

#[test]
fn a_wait_in_vain_moves_the_clock_to_the_end_of_its_timeout() {
    for set in [one_a_day(), one_place()] {
        let scene = scene(set);
        let set = scene.set();
        let held = expect_permit(set.request().try_acquire());
        for hours in 1..=5 {
            drop(expect_refusal(set.request().acquire(HOUR)));
            assert_eq!(passed(&scene), hours * HOUR);
        }
        assert_eq!(scene.snapshot().counts.timed_out, 5);
        drop(held);
    }
}

#[test]
fn futures_wait_by_the_clock_as_threads_do() {
    let scene = scene(one_a_day());
    let set = scene.set();
    drop(expect_permit(set.request().try_acquire()));
    block_on(async {
        drop(expect_refusal(set.request().acquire_async(HOUR).await));
        assert_eq!(passed(&scene), HOUR);
        drop(expect_permit(set.request().acquire_async(None).await));
        assert_eq!(passed(&scene), 24 * HOUR);
    });
}

#[test]
fn a_future_that_waits_for_a_place_times_out_by_the_clock() {
    let scene = scene(one_place());
    let set = scene.set();
    let held = expect_permit(set.request().try_acquire());
    block_on(async {
        drop(expect_refusal(set.request().acquire_async(HOUR).await));
    });
    assert_eq!(passed(&scene), HOUR);
    drop(held);
}

#[test]
fn keys_and_pools_wait_by_the_clock() {
    let scene = scene(one_a_day().keyed(Keyed::new(8)));
    let set = scene.set();
    let [one, other] = ["a", "b"].map(|key| set.request().for_key(key).expect("a key"));
    drop(expect_permit(one.try_acquire()));
    drop(expect_refusal(one.acquire(HOUR)));
    drop(expect_permit(other.acquire(HOUR)));
    assert_eq!(passed(&scene), HOUR);

    let scene = self::scene(one_a_day());
    let set = scene.set();
    let pool = LimitPool::new([set.clone()], PoolStrategy::RoundRobin).expect("a pool");
    for outcomes in 0..2 {
        let outcome = pool.request().acquire(HOUR).expect("works").outcome;
        assert_eq!(outcome.is_admitted(), outcomes == 0);
    }
    assert_eq!(passed(&scene), HOUR);
}

#[test]
fn the_clock_stops_at_the_timeout_of_one_who_waits_behind() {
    const TIMEOUTS: [Option<Duration>; 4] = [
        None,
        Some(HOUR),
        Some(HOUR.saturating_mul(2)),
        Some(HOUR.saturating_mul(3)),
    ];
    let scene = Scene::new(one_a_day());
    let (segment, waits) = watched(&scene);
    let set = segment.set("set").expect("declared");
    drop(expect_permit(set.request().try_acquire()));
    thread::scope(|scope| {
        for (before, timeout) in (0..).zip(TIMEOUTS) {
            eventually("those before it wait", || {
                scene.snapshot().tickets.len() == before
            });
            let set = &set;
            scope.spawn(move || set.request().acquire(timeout).expect("works").is_admitted());
        }
        eventually("all of them wait", || scene.snapshot().tickets.len() == 4);
        let _ = scene.clock.clone().auto_advance(true);
    });
    // The clock waits for those whose time has come, so each wait ends at its own time by the clock. The clock moves on
    // as soon as the waiter has looked, so only the waiter itself can tell that time.
    let mut waits: Vec<_> = waits.try_iter().collect();
    waits.sort_unstable();
    let expected: Vec<_> = TIMEOUTS[1..]
        .iter()
        .map(|timeout| (timeout.expect("not the first"), false))
        .chain([(24 * HOUR, true)])
        .collect();
    assert_eq!(waits, expected);
}

#[test]
fn who_waits_for_a_place_leaves_its_holder_the_time_to_give_it_back() {
    let scene = scene(one_place());
    let set = scene.set();
    let held = expect_permit(set.request().try_acquire());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| expect_permit(set.request().acquire(None)));
        eventually("it waits", || scene.snapshot().tickets.len() == 1);
        drop(held);
        drop(waiter.join().expect("no panic"));
    });
    assert_eq!(passed(&scene), Duration::ZERO, "nobody had a timeout");
}

#[test]
fn a_lease_that_ends_is_an_instant_like_any_other() {
    let scene = scene(SetDeclaration::new("set").add_limit(Limit::concurrency("places", 1).lease(HOUR)));
    let set = scene.set();
    let held = expect_permit(set.request().try_acquire());
    drop(expect_permit(set.request().acquire(24 * HOUR)));
    assert_eq!(passed(&scene), HOUR);
    assert!(held.reclaimed());
}

#[test]
fn a_future_that_nobody_polls_does_not_stop_the_clock_for_ever() {
    let scene = scene(one_a_day());
    let set = scene.set();
    drop(expect_permit(set.request().try_acquire()));
    let mut left = Box::pin(set.request().acquire_async(HOUR));
    let still = scene.clock.clone().auto_advance(false);
    let polled = left
        .as_mut()
        .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(polled.is_pending());
    let _ = still.auto_advance(true);
    drop(expect_permit(set.request().acquire(48 * HOUR)));
    drop(left);
}

#[test]
fn reservations_are_due_by_the_clock() {
    let scene = scene(one_a_day());
    let set = scene.set();
    let reserve = || match set.request().reserve(48 * HOUR).expect("works") {
        ReserveOutcome::Reserved(reservation) => reservation,
        ReserveOutcome::Refused(refusal) => panic!("{refusal}"),
    };
    drop(reserve());
    let mut second = reserve();
    assert_eq!(second.remaining_delay(), 24 * HOUR);
    scene.pass(HOUR);
    assert_eq!(second.remaining_delay(), 23 * HOUR);
    scene.pass(23 * HOUR);
    assert_eq!(second.remaining_delay(), Duration::ZERO);
    assert!(!second.cancel().expect("works"), "it came too late");
}

#[test]
fn an_event_says_how_long_it_waited_by_the_clock() {
    let scene = scene(one_a_day());
    let (segment, waits) = watched(&scene);
    let set = segment.set("set").expect("declared");
    drop(expect_permit(set.request().try_acquire()));
    drop(expect_refusal(set.request().acquire(HOUR)));
    assert_eq!(waits.try_recv(), Ok((HOUR, false)));
}

#[test]
fn by_a_clock_that_stands_still_who_waits_does_so_until_it_is_moved() {
    let scene = Scene::new(one_a_day());
    let set = scene.set();
    drop(expect_permit(set.request().try_acquire()));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| set.request().acquire(HOUR).expect("works").is_admitted());
        eventually("it waits", || scene.snapshot().tickets.len() == 1);
        assert_eq!(passed(&scene), Duration::ZERO);
        scene.pass(HOUR);
        assert!(!waiter.join().expect("no panic"));
    });
    assert!(TIMEOUT < HOUR);
}
