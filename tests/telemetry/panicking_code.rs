//! Code of the program that panics when it is notified: whatever was asked for, nothing stays taken or queued.

use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::layout_mirror::RawSegment;
use crate::scene;
use crate::scene::expected_panics::{Expected, PanicsAgain, panics};
use crate::scene::process::{Child, TIMEOUT, eventually, in_own_process};
use crate::scene::{expect_permit, first_set};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use nix::sys::signal::{Signal, raise};
use shmlimit::pool::PoolStrategy;
use shmlimit::{Error, Keyed, Limit, LimitPool, LimitSet, OpenOptions, Segment, SetDeclaration};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Subscriber};

const BRIEFLY: Duration = Duration::from_millis(1);

/// Panics at each event.
struct Panicking;

impl Subscriber for Panicking {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        panic_any(PanicsAgain);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn wait_for<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

/// A verb with its name: it asks for one place, and drops what it gets.
type Verb = (&'static str, fn(&LimitSet, Option<Duration>));

const VERBS: [Verb; 6] = [
    ("acquire", |set, timeout| {
        drop(set.request().acquire(timeout).expect("works"));
    }),
    ("acquire_while", |set, timeout| {
        drop(set.request().acquire_while(timeout, || true).expect("works"));
    }),
    ("acquire_async", |set, timeout| {
        drop(wait_for(set.request().acquire_async(timeout)).expect("works"));
    }),
    ("acquire_owned", |set, timeout| {
        drop(wait_for(set.request().acquire_async(timeout).into_owned()).expect("works"));
    }),
    ("pool", |set, timeout| {
        let pool = LimitPool::new([set.clone()], PoolStrategy::RoundRobin).expect("a pool");
        drop(pool.request().acquire(timeout).expect("works"));
    }),
    ("asynchronous pool", |set, timeout| {
        let pool = LimitPool::new([set.clone()], PoolStrategy::RoundRobin).expect("a pool");
        drop(wait_for(pool.request().acquire_async(timeout)).expect("works"));
    }),
];

fn places() -> SetDeclaration {
    SetDeclaration::new("set").add_limit(Limit::concurrency("places", 1))
}

/// How many holds and tickets there are.
fn taken(segment: &Segment) -> (usize, usize) {
    let seen = first_set(segment);
    (seen.holds.len(), seen.tickets.len())
}

#[test]
fn an_observer_that_panics_leaves_nothing_taken_by_any_verb() {
    for (name, verb) in VERBS {
        let directory = tempfile::tempdir().expect("a directory");
        let segment = OpenOptions::new()
            .on_request_event(|_| panic_any(Expected))
            .create(
                directory.path().join("limits"),
                &scene::declaration().add_set(places()),
            )
            .expect("a segment");
        let set = segment.set("set").expect("declared");
        let permit = expect_permit(set.request().try_acquire());
        for timeout in [Duration::ZERO, BRIEFLY] {
            assert!(panics(|| verb(&set, Some(timeout))), "{name}: a refusal");
            assert_eq!(taken(&segment), (1, 0), "{name}, refused");
        }
        // The wait that ends with a permit.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| panics(|| verb(&set, None)));
            eventually("it waits", || taken(&segment) == (1, 1));
            drop(permit);
            assert!(waiting.join().expect("no other panic"), "{name}: a wait");
        });
        assert_eq!(taken(&segment), (0, 0), "{name}, admitted");
    }
}

#[test]
fn an_observer_that_panics_leaves_nothing_taken_of_a_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let declaration = scene::declaration().add_set(places().keyed(Keyed::new(8)));
    let segment = OpenOptions::new()
        .on_request_event(|_| panic_any(Expected))
        .create(directory.path().join("limits"), &declaration)
        .expect("a segment");
    let set = segment.set("set").expect("declared");
    let request = set.request().for_key("key").expect("keyed");
    let permit = expect_permit(request.try_acquire());
    let verbs: [&dyn Fn(); 4] = [
        &|| drop(request.try_acquire()),
        &|| drop(request.acquire(BRIEFLY)),
        &|| drop(request.acquire_while(None, || panic_any(Expected))),
        &|| drop(wait_for(request.acquire_async(BRIEFLY))),
    ];
    for (number, verb) in verbs.into_iter().enumerate() {
        assert!(panics(verb), "verb {number}");
        assert_eq!(taken(&segment), (1, 0), "verb {number}");
    }
    drop(permit);
    assert_eq!(taken(&segment), (0, 0));
}

#[test]
fn iterators_and_visitors_that_panic_change_nothing() {
    let declared = SetDeclaration::new("set")
        .keyed(Keyed::new(8))
        .add_limit(Limit::rate("tokens", 100, Duration::from_secs(3600)))
        .add_limit(Limit::concurrency("places", 1));
    let (_directory, segment, set) = scene::create(declared);
    let request = set.request().with("tokens", 60).expect("declared");
    let mut permit = expect_permit(request.for_key("key").expect("keyed").try_acquire());
    let usage = [("tokens", 10), ("tokens", 20)].into_iter();
    let usage = usage.map(|(name, used)| {
        if used == 20 {
            panic_any(Expected)
        } else {
            (name, used)
        }
    });
    assert!(panics(|| drop(permit.settle(usage))));
    assert!(panics(|| {
        let _ = segment.key_snapshots("set", |_| panic_any(Expected));
    }));
    assert!(permit.settle([("tokens", 10)]).is_ok(), "it was not settled");
    drop(permit);
    assert_eq!(taken(&segment), (0, 0));
    let left = set.key("key").expect("keyed").forecast().expect("works")[0].spendable;
    assert!(left >= 90, "{left}");
}

#[test]
fn a_subscriber_that_panics_when_a_death_is_reported_leaves_nothing_taken() {
    let test = "panicking_code::a_subscriber_that_panics_when_a_death_is_reported_leaves_nothing_taken";
    in_own_process(test, 4 * TIMEOUT, |directory| {
        for (number, (name, verb)) in VERBS.into_iter().enumerate() {
            for with_lock in [true, false] {
                let path = directory.join(format!("limits-{number}-{with_lock}"));
                let declaration = scene::declaration().participants(8).add_set(places());
                let segment = Segment::create(&path, &declaration).expect("a segment");
                let set = segment.set("set").expect("declared");
                let dead = Child::fork(|| {
                    if with_lock {
                        RawSegment::open(&path).lock().take_and_stop();
                    } else {
                        let _permit = expect_permit(set.request().try_acquire());
                        raise(Signal::SIGSTOP).expect("stops");
                    }
                });
                dead.wait_until_stopped();
                dead.kill();
                let has_panicked = with_default(Panicking, || panics(|| verb(&set, Some(TIMEOUT))));
                assert!(!has_panicked, "{name}, {with_lock}: the caller is not to blame");
                assert_eq!(taken(&segment), (0, 0), "{name}, {with_lock}");
                drop(expect_permit(set.request().try_acquire()));
            }
        }
    });
}

/// Panics when it is dropped.
struct PanicsAtTheEnd;

impl Drop for PanicsAtTheEnd {
    fn drop(&mut self) {
        panic_any(Expected);
    }
}

#[test]
fn a_subscriber_that_panics_while_a_panic_drops_a_permit_does_not_end_the_process() {
    let lease = Duration::from_secs(30);
    let places = Limit::concurrency("places", 1).lease(lease);
    let scene = scene::clock::Scene::new(SetDeclaration::new("set").add_limit(places));
    let set = scene.set();
    let permit = expect_permit(set.request().try_acquire());
    scene.pass(lease);
    let other = expect_permit(set.request().try_acquire());
    with_default(Panicking, || {
        assert!(panics(|| {
            let _lost = permit;
            let _first = PanicsAtTheEnd;
        }));
    });
    assert_eq!(taken(&scene.segment), (1, 0));
    drop(other);
    assert_eq!(taken(&scene.segment), (0, 0));
}

/// Panics in the call with this number, and registers metrics that do.
struct PanickingRecorder {
    calls_left: Arc<AtomicUsize>,
}

impl PanickingRecorder {
    fn call(&self) {
        call(&self.calls_left);
    }
}

fn call(left: &AtomicUsize) {
    if left.fetch_sub(1, Ordering::SeqCst) == 0 {
        panic_any(Expected);
    }
}

/// A counter or gauge of the recorder.
struct PanickingMetric(Arc<AtomicUsize>);

impl CounterFn for PanickingMetric {
    fn increment(&self, _: u64) {
        call(&self.0);
    }

    fn absolute(&self, _: u64) {
        call(&self.0);
    }
}

impl GaugeFn for PanickingMetric {
    fn increment(&self, _: f64) {
        call(&self.0);
    }

    fn decrement(&self, _: f64) {
        call(&self.0);
    }

    fn set(&self, _: f64) {
        call(&self.0);
    }
}

impl Recorder for PanickingRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        self.call();
        Counter::from_arc(Arc::new(PanickingMetric(Arc::clone(&self.calls_left))))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        self.call();
        Gauge::from_arc(Arc::new(PanickingMetric(Arc::clone(&self.calls_left))))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn a_recorder_that_panics_in_any_of_its_calls_changes_nothing() {
    let (_directory, segment, set) = scene::create(places());
    let permit = expect_permit(set.request().try_acquire());
    let mut panicked = 0;
    for calls in 0.. {
        let recorder = PanickingRecorder {
            calls_left: Arc::new(AtomicUsize::new(calls)),
        };
        let snapshot = segment.snapshot().expect("a copy");
        let has_panicked = with_local_recorder(&recorder, || panics(|| snapshot.record_metrics()));
        assert_eq!(taken(&segment), (1, 0), "call {calls}");
        if !has_panicked {
            break;
        }
        panicked += 1;
    }
    assert!(panicked > 10, "{panicked}");
    drop(permit);
    drop(expect_permit(set.request().try_acquire()));
}
