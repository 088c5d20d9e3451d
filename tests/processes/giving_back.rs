//! Giving back while another process keeps the lock: nothing is lost, and no call without a result waits for long.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use crate::layout_mirror::RawSegment;
use crate::scene;
use crate::scene::expect_permit;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use nix::sys::signal::Signal;
use shmlimit::declare::{Adaptive, Credit};
use shmlimit::request::AcquireFuture;
use shmlimit::snapshot::{HoldSnapshot, SetSnapshot};
use shmlimit::{Keyed, Limit, LimitSet, OpenOptions, Outcome, Permit, Request, Segment, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);
const SLOTS: u64 = 4;

/// A hundred times as long as a call without a result may take.
const LONG: Duration = Duration::from_secs(1);

/// A segment whose calls with a result wait for an hour: a test in which any other call waited like that would never
/// end.
fn create(path: &Path, set: SetDeclaration) -> Segment {
    OpenOptions::new()
        .lock_timeout(HOUR)
        .create(path, &scene::declaration().participants(8).add_set(set))
        .expect("a segment")
}

fn slots() -> SetDeclaration {
    SetDeclaration::new("api")
        .add_limit(Limit::concurrency("slots", SLOTS))
        .add_limit(Limit::rate("tokens", 1000, 1000 * HOUR))
}

/// A process that takes the lock of the first set and stops, when told to.
struct Stopper {
    child: Child,
    words: Arc<SharedWords>,
}

impl Stopper {
    /// Forked before this process has other threads.
    fn new(path: &Path) -> Self {
        let words = Arc::new(SharedWords::new(1));
        let child = Child::fork(|| {
            eventually("it is told to", || words[0].load(Ordering::SeqCst) == 1);
            RawSegment::open(path).lock().take_and_stop();
        });
        Self { child, words }
    }

    fn stops(self) -> Child {
        self.words[0].store(1, Ordering::SeqCst);
        self.child.wait_until_stopped();
        self.child
    }
}

fn stopped_with_the_lock(path: &Path) -> Child {
    Stopper::new(path).stops()
}

fn goes_on(child: Child) {
    child.send(Signal::SIGCONT);
    child.succeed();
}

fn with<'a, const N: usize>(set: &'a LimitSet, costs: [(&str, u64); N]) -> Request<'a> {
    let costs = costs.into_iter();
    costs.fold(set.request(), |request, (limit, cost)| {
        request.with(limit, cost).expect("declared")
    })
}

fn permit(set: &LimitSet) -> Permit<'_> {
    match with(set, [("tokens", 10)]).try_acquire() {
        Ok(Outcome::Admitted(permit)) => permit,
        other => panic!("{other:?}"),
    }
}

/// A copy of the first set. Takes no lock.
fn copy(segment: &Segment) -> SetSnapshot {
    segment.snapshot().expect("a copy").sets[0].clone()
}

fn returned(segment: &Segment) -> usize {
    let holds: Vec<HoldSnapshot> = copy(segment).holds;
    holds.iter().filter(|hold| hold.returned).count()
}

fn can_take_all(set: &LimitSet) -> bool {
    let request = set.request().with("slots", SLOTS).expect("declared");
    request.try_acquire().expect("works").is_admitted()
}

fn within_the_bound<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let answer = act();
    assert!(began.elapsed() < LONG, "{what} took {:?}", began.elapsed());
    answer
}

fn wait(set: &LimitSet) -> Pin<Box<AcquireFuture<'_>>> {
    polled(Box::pin(
        set.request()
            .with("tokens", 1)
            .expect("declared")
            .acquire_async(HOUR),
    ))
}

fn polled(mut future: Pin<Box<AcquireFuture<'_>>>) -> Pin<Box<AcquireFuture<'_>>> {
    let answer = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(answer.is_pending(), "it should wait: {answer:?}");
    future
}

/// Otherwise a live process would own them without a permit, and the limit would never admit anything again.
#[test]
fn permits_dropped_while_the_lock_is_stuck_come_back_when_it_is_not() {
    let test = "giving_back::permits_dropped_while_the_lock_is_stuck_come_back_when_it_is_not";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create(&path, slots());
        let api = segment.set("api").expect("declared");
        let permits: Vec<_> = (0..SLOTS).map(|_| permit(&api)).collect();
        let child = stopped_with_the_lock(&path);
        for (dropped, permit) in permits.into_iter().enumerate() {
            within_the_bound("a drop", || drop(permit));
            assert_eq!(
                returned(&segment),
                dropped + 1,
                "each is to be seen as given back"
            );
        }
        goes_on(child);
        assert!(can_take_all(&api));
        let copy = copy(&segment);
        assert_eq!(
            (copy.counts.reclaimed, returned(&segment)),
            (0, 0),
            "no process died"
        );
        assert_eq!(copy.limits[1].counts.unsettled, SLOTS);
    });
}

#[test]
fn what_was_released_while_the_lock_was_stuck_stays_charged_although_its_process_ends() {
    let test =
        "giving_back::what_was_released_while_the_lock_was_stuck_stays_charged_although_its_process_ends";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create(&path, slots());
        let api = segment.set("api").expect("declared");
        let words = SharedWords::new(1);
        let worker = Child::fork(|| {
            let mut settled = permit(&api);
            let mut reserved = permit(&api);
            let _ = settled.settle([("tokens", 30)]).expect("works");
            words[0].store(1, Ordering::SeqCst);
            eventually("the lock is stuck", || words[0].load(Ordering::SeqCst) == 2);
            within_the_bound("a release", || settled.release().expect("never fails"));
            within_the_bound("a release", || reserved.release().expect("never fails"));
            settled.release().expect("once more does nothing");
        });
        eventually("it holds", || words[0].load(Ordering::SeqCst) == 1);
        let child = stopped_with_the_lock(&path);
        words[0].store(2, Ordering::SeqCst);
        worker.succeed();
        goes_on(child);
        assert_eq!(segment.recover().expect("works").sets[0].reclaimed, 0);
        assert!(can_take_all(&api));
        let copy = copy(&segment);
        assert_eq!(copy.limits[1].remaining, 1000 - 30 - 10);
        assert_eq!((copy.counts.reclaimed, copy.limits[1].counts.unsettled), (0, 1));
    });
}

#[test]
fn many_returns_are_finished_by_one_operation_and_a_failure_is_learnt_from() {
    const MANY: u64 = 150;
    let test = "giving_back::many_returns_are_finished_by_one_operation_and_a_failure_is_learnt_from";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let limit = Limit::concurrency("slots", MANY)
            .adaptive(Adaptive::Aimd)
            .ceiling(MANY);
        let segment = create(&path, SetDeclaration::new("api").add_limit(limit));
        let api = segment.set("api").expect("declared");
        let take = || expect_permit(api.request().try_acquire());
        let mut permits: Vec<_> = (0..MANY).map(|_| take()).collect();
        let child = stopped_with_the_lock(&path);
        let mut failed = permits.pop().expect("one of them");
        failed.release_failed().expect("never fails");
        drop(permits);
        assert_eq!(returned(&segment), MANY as usize);
        goes_on(child);
        // An operation that changes nothing itself.
        let _ = api.request().peek().expect("works");
        let copy = copy(&segment);
        assert_eq!((copy.active, copy.holds.len()), (0, 0));
        assert_eq!(copy.limits[0].counts.failed, 1);
        // A tenth less because of the failure, and not a unit more because of the others, as no process knows how long
        // they took.
        assert_eq!(copy.limits[0].found_capacity, Some(MANY * 9 / 10));
    });
}

#[test]
fn futures_dropped_while_the_lock_is_stuck_leave_the_line_and_what_they_were_granted() {
    let test =
        "giving_back::futures_dropped_while_the_lock_is_stuck_leave_the_line_and_what_they_were_granted";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create(&path, slots());
        let api = segment.set("api").expect("declared");
        let stopper = Stopper::new(&path);
        let mut held: Vec<_> = (0..SLOTS).map(|_| permit(&api)).collect();
        let [granted, first, second] = [(); 3].map(|()| wait(&api));
        drop(held.pop());
        eventually("the first of them has what it asked for", || {
            copy(&segment).tickets.iter().any(|ticket| ticket.granted)
        });
        let child = stopper.stops();
        within_the_bound("dropping a future in the line", || drop(second));
        within_the_bound("dropping a future that was granted", || drop(granted));
        within_the_bound("dropping a future that is first", || drop(first));
        within_the_bound("dropping permits", || drop(held));
        goes_on(child);
        let _ = api
            .request()
            .with("tokens", 0)
            .expect("declared")
            .peek()
            .expect("works");
        let copy = copy(&segment);
        assert_eq!((copy.tickets.len(), copy.holds.len()), (0, 0), "{copy:?}");
        assert_eq!(
            copy.limits[1].remaining,
            1000 - 10 * SLOTS,
            "a wait that was given up costs nothing"
        );
    });
}

/// With the last handle for a segment, a process returns the batches that it drew. If it cannot get the lock for that,
/// they come back like those of a dead process.
#[test]
fn a_batch_of_a_process_that_detaches_while_the_lock_is_stuck_comes_back() {
    let test = "giving_back::a_batch_of_a_process_that_detaches_while_the_lock_is_stuck_comes_back";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let calls = Limit::calls("calls", 1_600, 10_000 * HOUR).credit(Credit::auto());
        drop(create(&path, SetDeclaration::new("api").add_limit(calls)));
        let open = || {
            let options = OpenOptions::new().lock_timeout(HOUR);
            options.open(&path).expect("opens")
        };
        let words = SharedWords::new(1);
        // Forked before this process has a handle, which the child would inherit.
        let worker = Child::fork(|| {
            let segment = open();
            let api = segment.set("api").expect("declared");
            assert!(api.request().check().expect("works").is_admitted());
            words[0].store(1, Ordering::SeqCst);
            eventually("the lock is stuck", || words[0].load(Ordering::SeqCst) == 2);
            within_the_bound("detaching", || drop((api, segment)));
        });
        eventually("it has drawn", || words[0].load(Ordering::SeqCst) == 1);
        let segment = open();
        let child = stopped_with_the_lock(&path);
        words[0].store(2, Ordering::SeqCst);
        worker.succeed();
        goes_on(child);
        segment.recover().expect("works");
        let copy = copy(&segment);
        assert_eq!(
            (copy.holds.len(), copy.limits[0].remaining),
            (0, 1_599),
            "{copy:?}"
        );
    });
}

#[test]
fn a_permit_abandoned_while_the_lock_is_stuck_costs_nothing_in_the_end() {
    let test = "giving_back::a_permit_abandoned_while_the_lock_is_stuck_costs_nothing_in_the_end";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create(&path, slots());
        let api = segment.set("api").expect("declared");
        let stopper = Stopper::new(&path);
        let mut unused = permit(&api);
        let child = stopper.stops();
        within_the_bound("abandoning", || unused.abandon());
        within_the_bound("dropping what was abandoned", || drop(unused));
        assert_eq!(copy(&segment).limits[1].remaining, 1000 - 10);
        goes_on(child);
        eventually("nothing is held and nothing charged", || {
            let copy = copy(&segment);
            (copy.active, copy.limits[1].remaining) == (0, 1000)
        });
    });
}

fn leased(lease: Duration) -> SetDeclaration {
    SetDeclaration::new("api")
        .add_limit(Limit::concurrency("slots", 1).lease(lease))
        .add_limit(Limit::rate("tokens", 1000, 1000 * HOUR))
}

#[test]
fn a_lease_is_renewed_and_what_it_covers_given_back_while_the_lock_is_stuck() {
    let test = "giving_back::a_lease_is_renewed_and_what_it_covers_given_back_while_the_lock_is_stuck";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create(&path, leased(HOUR));
        let api = segment.set("api").expect("declared");
        let first = permit(&api);
        let child = stopped_with_the_lock(&path);
        within_the_bound("a renewal", || first.heartbeat().expect("takes no lock"));
        assert!(!first.reclaimed());
        within_the_bound("a drop", || drop(first));
        goes_on(child);
        let second = permit(&api);
        second.heartbeat().expect("its own");
        drop(second);
        assert_eq!(copy(&segment).active, 0);
    });
}

/// One thread renews the leases of all segments of a process.
#[test]
fn leases_of_one_segment_are_renewed_while_the_lock_of_another_is_stuck() {
    let test = "giving_back::leases_of_one_segment_are_renewed_while_the_lock_of_another_is_stuck";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        // Long enough for a busy machine to renew it within a third of the time.
        let lease = Duration::from_secs(3);
        let [stuck_path, path] = ["stuck", "healthy"].map(|name| directory.join(name));
        let [stuck, healthy] = [&stuck_path, &path].map(|path| create(path, leased(lease)));
        let [stuck, healthy] = [&stuck, &healthy].map(|segment| segment.set("api").expect("declared"));
        let stopper = Stopper::new(&stuck_path);
        let [stuck_permit, healthy_permit] = [&stuck, &healthy].map(permit);
        stuck_permit.heartbeat_in_background().expect("a thread");
        // The thread also has futures of the stuck segment to look after, and a permit to give back.
        let mut unused = expect_permit(with(&stuck, [("slots", 0), ("tokens", 10)]).try_acquire());
        let waits = wait(&stuck);
        let child = stopper.stops();
        unused.abandon();
        healthy_permit.heartbeat_in_background().expect("a thread");
        let request = healthy.request().with("tokens", 1).expect("declared");
        let outcome = request.acquire(lease * 3 / 2).expect("works");
        assert!(!outcome.is_admitted(), "the lease of the healthy segment ran out");
        assert!(!healthy_permit.reclaimed() && !stuck_permit.reclaimed());
        within_the_bound("dropping a future", || drop(waits));
        goes_on(child);
        stuck_permit.heartbeat().expect("renewed without the lock");
    });
}

/// The holds of a shard serve all of its keys.
#[test]
fn a_granted_wait_that_is_cancelled_serves_those_of_other_keys_who_lack_a_hold() {
    let directory = tempfile::tempdir().expect("a directory");
    let set = SetDeclaration::new("api")
        .keyed(Keyed::new(10))
        .add_limit(Limit::concurrency("slots", 1))
        .holds(1);
    let segment = create(&directory.path().join("limits"), set);
    let api = segment.set("api").expect("declared");
    let [a, b, c] = ["a", "b", "c"].map(|key| api.request().for_key(key).expect("keyed"));
    for _ in 0..5 {
        let held = expect_permit(a.try_acquire());
        let [first, second] = [&b, &c].map(|request| polled(Box::pin(request.acquire_async(HOUR))));
        drop(held);
        let granted = || {
            let tickets = copy(&segment).tickets;
            tickets.iter().map(|ticket| ticket.granted).collect::<Vec<_>>()
        };
        // Either of the two keys may be served.
        let (served, waiting) = match granted()[..] {
            [true, false] => (first, second),
            [false, true] => (second, first),
            ref other => panic!("there is one hold: {other:?}"),
        };
        drop(served);
        assert_eq!(
            granted(),
            [true],
            "it goes to the other at once, not at its next look"
        );
        drop(waiting);
        assert_eq!(copy(&segment).active, 0);
    }
}
