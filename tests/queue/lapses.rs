//! A grant that is not collected passes on to others that wait, and its owner keeps its place in the queue.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::scene::clock::Scene;
use crate::scene::process::{Child, TIMEOUT, eventually, in_own_process};
use crate::scene::{create, create_in, expect_permit, first_set, queued};
use nix::sys::signal::Signal;
use shmlimit::request::AcquireFuture;
use shmlimit::{Algorithm, Declaration, Limit, LimitSet, Permit, SetDeclaration};

const SECOND: Duration = Duration::from_secs(1);

fn places(capacity: u64) -> SetDeclaration {
    SetDeclaration::new("set").add_limit(Limit::concurrency("places", capacity))
}

type Waiting<'a> = Pin<Box<AcquireFuture<'a>>>;

/// Polls once; nothing says when to poll again.
fn poll<'a>(waiting: &mut Waiting<'a>) -> Option<Permit<'a>> {
    match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(expect_permit(outcome)),
        Poll::Pending => None,
    }
}

/// A future that has taken its place in the queue.
fn waiting(set: &LimitSet) -> Waiting<'_> {
    let mut waiting = Box::pin(set.request().acquire_async(None));
    assert!(poll(&mut waiting).is_none(), "it waits");
    waiting
}

#[test]
fn threads_of_a_stopped_process_cost_those_behind_one_grace_and_keep_their_places() {
    in_own_process(
        "lapses::threads_of_a_stopped_process_cost_those_behind_one_grace_and_keep_their_places",
        TIMEOUT,
        |directory| {
            let (segment, set) = create_in(directory, places(1));
            let permit = expect_permit(set.request().try_acquire());
            let child = Child::fork(|| {
                thread::scope(|scope| {
                    for _ in 0..8 {
                        scope.spawn(|| drop(expect_permit(set.request().acquire(TIMEOUT))));
                    }
                });
            });
            eventually("all of them wait", || queued(&segment) == 8);
            child.send(Signal::SIGSTOP);
            child.wait_until_stopped();
            drop(permit);
            // The first is granted the place, and does not come for it.
            let permit = expect_permit(set.request().acquire(TIMEOUT));
            let seen = first_set(&segment);
            assert_eq!((seen.counts.lapsed, seen.tickets.len()), (1, 8), "{seen:?}");
            drop(permit);
            for _ in 0..3 {
                // Those that do not look take nothing from those that come.
                drop(expect_permit(set.request().acquire(TIMEOUT)));
            }
            assert_eq!(first_set(&segment).counts.lapsed, 1);
            child.send(Signal::SIGCONT);
            child.succeed();
            let seen = first_set(&segment);
            assert_eq!((seen.tickets.len(), seen.holds.len()), (0, 0), "{seen:?}");
        },
    );
}

#[test]
fn futures_that_nobody_polls_cost_those_behind_one_grace_and_are_served_in_order() {
    let (_directory, segment, set) = create(places(1));
    let permit = expect_permit(set.request().try_acquire());
    let mut left: Vec<_> = (0..6).map(|_| waiting(&set)).collect();
    drop(permit);
    let permit = expect_permit(set.request().acquire(TIMEOUT));
    assert_eq!(first_set(&segment).counts.lapsed, 1);
    // From the last to the first: each takes its place again.
    for future in left.iter_mut().rev() {
        assert!(poll(future).is_none());
    }
    assert_eq!(queued(&segment), 6);
    drop(permit);
    for mut future in left {
        let mut permit = poll(&mut future);
        eventually("it is its turn", || {
            permit = permit.take().or_else(|| poll(&mut future));
            permit.is_some()
        });
    }
    let seen = first_set(&segment);
    assert_eq!((seen.tickets.len(), seen.holds.len()), (0, 0), "{seen:?}");
}

#[test]
fn what_a_lapsed_grant_took_of_a_rate_comes_back() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
        let limit = Limit::calls("calls", 1, 10 * SECOND).algorithm(algorithm);
        let scene = Scene::new(SetDeclaration::new("set").add_limit(limit));
        let set = scene.set();
        drop(expect_permit(set.request().try_acquire()));
        let mut silent = waiting(&set);
        let mut behind = waiting(&set);
        scene.pass(10 * SECOND);
        assert!(!set.request().try_acquire().expect("works").is_admitted());
        scene.pass(2 * SECOND);
        // Polled now and then, because nothing says when a virtual clock moves. The charge is undone, so `behind` is
        // admitted.
        eventually("who is behind is admitted", || poll(&mut behind).is_some());
        assert_eq!(scene.snapshot().counts.lapsed, 1);
        assert!(poll(&mut silent).is_none());
        scene.pass(10 * SECOND);
        eventually("its turn has come again", || poll(&mut silent).is_some());
    }
}

#[test]
fn a_grant_is_kept_for_as_long_as_is_declared_then() {
    let kept = |seconds| Declaration::new().add_set(places(1).collect_within(seconds * SECOND));
    let scene = Scene::new(places(1).collect_within(60 * SECOND));
    let set = scene.set();
    let permit = expect_permit(set.request().try_acquire());
    let mut silent = waiting(&set);
    drop(permit);
    scene.pass(59 * SECOND);
    assert!(!set.request().try_acquire().expect("works").is_admitted());
    scene.segment.apply(&kept(120)).expect("a live change");
    scene.pass(2 * SECOND);
    assert!(!set.request().try_acquire().expect("works").is_admitted());
    scene.pass(60 * SECOND);
    let permit = expect_permit(set.request().try_acquire());
    assert_eq!(scene.snapshot().counts.lapsed, 1);
    // Now less: the grant that was to be kept for two minutes is kept for one second.
    assert!(poll(&mut silent).is_none());
    drop(permit);
    scene.segment.apply(&kept(1)).expect("a live change");
    assert!(!set.request().try_acquire().expect("works").is_admitted());
    scene.pass(2 * SECOND);
    drop(expect_permit(set.request().try_acquire()));
    assert_eq!(scene.snapshot().counts.lapsed, 2);
    eventually("its turn has come again", || poll(&mut silent).is_some());
}

#[test]
fn a_grant_that_nobody_else_waits_for_stays_until_it_is_collected() {
    let scene = Scene::new(places(1));
    let set = scene.set();
    let permit = expect_permit(set.request().try_acquire());
    let mut late = waiting(&set);
    drop(permit);
    scene.pass(3600 * SECOND);
    assert!(poll(&mut late).is_some());
    assert_eq!(scene.snapshot().counts.lapsed, 0);
}

#[test]
fn who_asks_once_gets_what_a_silent_process_was_granted_long_ago() {
    let scene = Scene::new(places(1));
    let set = scene.set();
    let permit = expect_permit(set.request().try_acquire());
    let mut silent = waiting(&set);
    drop(permit);
    scene.pass(2 * SECOND);
    let permit = expect_permit(set.request().try_acquire());
    assert!(poll(&mut silent).is_none());
    drop(permit);
    assert!(poll(&mut silent).is_some());
}

#[test]
fn a_ticket_that_was_passed_over_can_be_given_up() {
    let scene = Scene::new(places(1));
    let set = scene.set();
    let permit = expect_permit(set.request().try_acquire());
    let silent = waiting(&set);
    drop(permit);
    scene.pass(2 * SECOND);
    let permit = expect_permit(set.request().try_acquire());
    drop(silent);
    let seen = scene.snapshot();
    assert_eq!((seen.tickets.len(), seen.counts.cancelled), (0, 1));
    drop(permit);
}
