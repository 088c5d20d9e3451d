//! No ticket is granted after its time is up, whatever its owner does: those behind it only wait for what the limits
//! need.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::scene::clock::Scene;
use crate::scene::process::{Child, TIMEOUT, eventually, in_own_process};
use crate::scene::{create, create_in, expect_permit, expect_refusal, first_set, queued};
use nix::sys::signal::Signal;
use shmlimit::request::AcquireFuture;
use shmlimit::{Keyed, Limit, LimitSet, Outcome, SetDeclaration};

const SECOND: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(8);

fn places(capacity: u64) -> SetDeclaration {
    SetDeclaration::new("set").add_limit(Limit::concurrency("places", capacity))
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn ready<T>(polled: Poll<T>) -> T {
    match polled {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits still"),
    }
}

#[test]
fn threads_of_a_stopped_process_whose_time_is_up_keep_nothing_from_others() {
    in_own_process(
        "deadlines::threads_of_a_stopped_process_whose_time_is_up_keep_nothing_from_others",
        TIMEOUT,
        |directory| {
            let (segment, set) = create_in(directory, places(1));
            let permit = expect_permit(set.request().try_acquire());
            let child = Child::fork(|| {
                // Long enough for all of them to be seen in the queue, however busy the machine is.
                let wait = || expect_refusal(set.request().acquire(WAIT));
                thread::scope(|scope| {
                    let waiters: Vec<_> = (0..8).map(|_| scope.spawn(wait)).collect();
                    for waiter in waiters {
                        let refusal = waiter.join().expect("no panic");
                        assert!(refusal.binding().is_some(), "{refusal}");
                    }
                });
            });
            eventually("all of them wait", || queued(&segment) == 8);
            child.send(Signal::SIGSTOP);
            child.wait_until_stopped();
            let stopped = Instant::now();
            eventually("their time is up", || stopped.elapsed() > WAIT);
            drop(permit);
            let permit = expect_permit(set.request().acquire(TIMEOUT));
            let seen = first_set(&segment);
            assert_eq!((seen.tickets.len(), seen.counts.timed_out), (0, 8));
            drop(permit);
            child.send(Signal::SIGCONT);
            child.succeed();
            assert_eq!(first_set(&segment).counts.timed_out, 8, "each is counted once");
        },
    );
}

/// Futures that were polled once and whose time is up.
fn wait_in_vain(set: &LimitSet, number: usize) -> Vec<Pin<Box<AcquireFuture<'_>>>> {
    let wait = || Box::pin(set.request().acquire_async(SECOND));
    let mut left: Vec<_> = std::iter::repeat_with(wait).take(number).collect();
    for future in &mut left {
        assert!(poll_once(future).is_pending());
    }
    let since = Instant::now();
    eventually("their time is up", || since.elapsed() > SECOND);
    left
}

#[test]
fn a_future_that_nobody_polls_is_not_granted_after_its_time() {
    let (_directory, segment, set) = create(places(1));
    let permit = expect_permit(set.request().try_acquire());
    let left = wait_in_vain(&set, 4);
    drop(permit);
    let permit = expect_permit(set.request().acquire(TIMEOUT));
    drop(permit);
    for mut future in left {
        let refusal = expect_refusal(ready(poll_once(&mut future)));
        assert_eq!(refusal.binding(), Some("places"));
    }
    let seen = first_set(&segment);
    assert_eq!((seen.tickets.len(), seen.counts.timed_out), (0, 4));
}

/// Ten seconds per call, so a wait for one with a timeout of five is in vain.
fn calls(keyed: bool) -> SetDeclaration {
    let set = SetDeclaration::new("set").add_limit(Limit::calls("calls", 1, 10 * SECOND));
    if keyed { set.keyed(Keyed::new(8)) } else { set }
}

fn take(set: &LimitSet, keyed: bool) -> bool {
    let outcome = if keyed {
        set.request().for_key("key").expect("a key").try_acquire()
    } else {
        set.request().try_acquire()
    };
    outcome.expect("works").is_admitted()
}

#[test]
fn by_a_virtual_clock_a_time_is_up_by_that_clock() {
    for keyed in [false, true] {
        let scene = Scene::new(calls(keyed));
        let set = scene.set();
        assert!(take(&set, keyed));
        let mut request = set.request();
        if keyed {
            request.set_key("key").expect("keyed");
        }
        let mut waiting = Box::pin(request.acquire_async(5 * SECOND).into_owned());
        assert!(poll_once(&mut waiting).is_pending());
        scene.pass(20 * SECOND);
        assert!(
            take(&set, keyed),
            "the place of what waits in vain is the next one's"
        );
        let outcome = ready(poll_once(&mut waiting)).expect("works");
        assert!(matches!(outcome, Outcome::Refused(_)), "keyed: {keyed}");
        let seen = scene.snapshot();
        assert_eq!((seen.tickets.len(), seen.counts.timed_out), (0, 1));
    }
}

#[test]
fn what_is_granted_in_time_may_be_collected_later() {
    let scene = Scene::new(calls(false));
    let set = scene.set();
    assert!(take(&set, false));
    let mut waiting = Box::pin(set.request().acquire_async(15 * SECOND));
    assert!(poll_once(&mut waiting).is_pending());
    scene.pass(12 * SECOND);
    // Serves the queue.
    assert!(!take(&set, false));
    scene.pass(8 * SECOND);
    assert!(ready(poll_once(&mut waiting)).expect("works").is_admitted());
}

#[test]
fn tickets_whose_time_is_up_make_room_for_those_who_come() {
    let (_directory, segment, set) = create(places(1).waiters(2));
    let _permit = expect_permit(set.request().try_acquire());
    let _left = wait_in_vain(&set, 2);
    eventually("there is room in the queue", || {
        let mut waiting = Box::pin(set.request().acquire_async(TIMEOUT));
        poll_once(&mut waiting).is_pending()
    });
    assert_eq!(first_set(&segment).counts.timed_out, 2);
}

#[test]
fn who_waited_before_a_throttle_looks_when_it_ends() {
    let (_directory, segment, set) = create(places(1));
    let started = Instant::now();
    for _ in 0..30 {
        let mut permit = expect_permit(set.request().acquire(TIMEOUT));
        thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(expect_permit(set.request().acquire(TIMEOUT))));
            eventually("it waits", || queued(&segment) == 1);
            permit.throttled(Duration::from_millis(10)).expect("works");
            drop(permit);
            waiter.join().expect("no panic");
        });
    }
    // A process that is not notified sleeps for a second each time.
    assert!(started.elapsed() < 20 * SECOND, "{:?}", started.elapsed());
}

#[test]
fn a_queue_goes_on_at_the_instant_at_which_a_throttle_ends() {
    for pause in [50, 100, 400, 1000].map(Duration::from_millis) {
        let scene = Scene::new(places(1));
        let set = scene.set();
        let mut permit = expect_permit(set.request().try_acquire());
        let began = scene.clock.now();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(expect_permit(set.request().acquire(None))));
            eventually("it waits", || scene.snapshot().tickets.len() == 1);
            permit.throttled(pause).expect("works");
            let _ = scene.clock.clone().auto_advance(true);
            waiter.join().expect("no panic");
        });
        assert_eq!(scene.clock.now() - began, pause);
    }
}

#[test]
fn who_comes_after_many_whose_time_is_up_waits_for_what_the_rate_needs() {
    let limit = Limit::calls("calls", 10, SECOND).burst(1);
    let scene = Scene::new(SetDeclaration::new("set").add_limit(limit));
    let set = scene.set();
    drop(expect_permit(set.request().try_acquire()));
    let mut left: Vec<_> = (0..8)
        .map(|_| Box::pin(set.request().acquire_async(SECOND / 20)))
        .collect();
    for future in &mut left {
        assert!(poll_once(future).is_pending());
    }
    scene.pass(SECOND / 20);
    let _ = scene.clock.clone().auto_advance(true);
    // Nobody has polled them since.
    let began = scene.clock.now();
    for calls in 0..3 {
        drop(expect_permit(set.request().acquire(None)));
        assert_eq!(scene.clock.now() - began, SECOND / 20 + calls * SECOND / 10);
    }
    drop(left);
}
