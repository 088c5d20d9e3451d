//! Requests that find nothing leased, and wait for the store's answer.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use shmlimit::declare::{FleetLease, Outage};
use shmlimit::fleet::StoreProblem;
use shmlimit::pool::PoolStrategy;
use shmlimit::{Error, Limit, LimitPool, RefusalReason, SetDeclaration};

use super::host::{Host, KEY, LEASE, MINUTE, declaring};
use super::scene::expect_refusal;
use super::scene::process::eventually;
use super::store::Store;

/// Much longer than any of these tests takes.
const COLD_WAIT: Duration = Duration::from_secs(10);

fn waiting(capacity: u64) -> Limit {
    let lease = FleetLease::new(KEY)
        .lease(LEASE)
        .outage(Outage::SpendOut)
        .cold_wait(COLD_WAIT);
    Limit::calls("calls", capacity, MINUTE).fleet(lease)
}

/// A host whose first lease has ended, unused.
fn cold(capacity: u64) -> Host {
    let host = Host::new(waiting(capacity), &Store::default());
    host.ask();
    host.scene.pass(2 * LEASE);
    host.ask();
    assert_eq!((host.left(), host.duty.due_in()), (0, None));
    host
}

/// Whether a request made by another thread is admitted, if the store is asked as soon as that is due.
fn admitted_while_asking(host: &Host, admit: impl Fn() -> bool + Send) -> bool {
    thread::scope(|scope| {
        let admitted = scope.spawn(admit);
        eventually("a request is due", || host.duty.due_in() == Some(Duration::ZERO));
        host.ask();
        admitted.join().expect("a decision")
    })
}

#[test]
fn the_first_request_waits_for_the_answer_of_the_store_whichever_verb_it_is() {
    let host = cold(6000);
    assert!(admitted_while_asking(&host, || host.is_admitted()));
    assert_eq!(
        host.scene.snapshot().counts.refused_lease,
        0,
        "a wait is no refusal"
    );
    let host = cold(6000);
    let check = || {
        let set = host.scene.set();
        let checked = set.request().check().expect("a decision");
        checked.is_admitted()
    };
    assert!(admitted_while_asking(&host, check));
}

/// The answer of a future that is polled once before the store is asked, and then until it is ready.
fn answer_of_a_task<T>(host: &Host, future: impl Future<Output = Result<T, Error>>) -> T {
    let mut future = pin!(future);
    let mut poll = || future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending(), "a poll must not wait");
    eventually("a request is due", || host.duty.due_in() == Some(Duration::ZERO));
    host.ask();
    let mut answer = None;
    eventually("the task's answer", || match poll() {
        Poll::Pending => false,
        Poll::Ready(ready) => {
            answer = Some(ready.expect("a decision"));
            true
        }
    });
    answer.expect("it was ready")
}

#[test]
fn a_task_waits_for_the_answer_of_the_store_without_blocking_its_thread() {
    let host = cold(6000);
    let set = host.scene.set();
    let outcome = answer_of_a_task(&host, set.request().acquire_async(Duration::ZERO));
    assert!(outcome.is_admitted());
    for (failover, timeout) in [(false, Duration::ZERO), (true, Duration::ZERO), (true, COLD_WAIT)] {
        let host = cold(6000);
        let set = host.scene.set().clone();
        let pool = LimitPool::new([set], PoolStrategy::RoundRobin).expect("a pool");
        let pool = pool.failover(failover);
        let chosen = answer_of_a_task(&host, pool.request().acquire_async(timeout));
        assert!(
            chosen.outcome.is_admitted(),
            "failover {failover}, timeout {timeout:?}"
        );
    }
}

#[test]
fn an_answer_that_grants_nothing_ends_the_wait() {
    // What was leased and not reported counts as spent, and is replenished within a minute.
    let host = cold(1);
    host.scene.pass(LEASE);
    let began = Instant::now();
    assert!(!admitted_while_asking(&host, || host.is_admitted()));
    assert!(
        !host.is_admitted(),
        "what is known to be used up is refused at once"
    );
    assert!(began.elapsed() < COLD_WAIT);
}

/// Ends the sleep of the thread that polls.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn an_answer_that_grants_nothing_ends_the_wait_of_a_task_and_wakes_it() {
    let began = Instant::now();
    let host = cold(1);
    host.scene.pass(LEASE);
    let set = host.scene.set();
    let mut future = pin!(set.request().acquire_async(Duration::ZERO));
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut poll = || future.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(poll().is_pending(), "a poll must not wait");
    eventually("a request is due", || host.duty.due_in() == Some(Duration::ZERO));
    host.ask();
    let outcome = loop {
        match poll() {
            Poll::Pending => thread::park_timeout(COLD_WAIT),
            Poll::Ready(outcome) => break outcome.expect("a decision"),
        }
        assert!(began.elapsed() < COLD_WAIT, "nothing wakes it");
    };
    assert!(!outcome.is_admitted());
}

#[test]
fn nothing_waits_for_a_store_that_is_out_or_that_nobody_asks() {
    let began = Instant::now();
    let host = Host::new(waiting(6000), &Store::default());
    host.fail(StoreProblem::Unreachable);
    let refusal = expect_refusal(host.scene.set().request().try_acquire());
    assert_eq!(refusal.reason(), RefusalReason::StoreOut);
    let Host { scene, duty, .. } = Host::declared(
        &declaring(SetDeclaration::new("api").add_limit(waiting(6000))),
        &Store::default(),
    );
    drop(duty);
    let refusal = expect_refusal(scene.set().request().try_acquire());
    assert_eq!(refusal.reason(), RefusalReason::LeasePending);
    assert!(began.elapsed() < COLD_WAIT);
}
