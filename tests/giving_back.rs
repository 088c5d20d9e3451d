//! What is given back while another process keeps the lock: nothing of it is lost, and no call without a result waits
//! for long.

mod process;
mod raw_segment;

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use process::{Child, PATIENCE, in_own_process};
use raw_segment::RawSegment;
use shmlimit::{
    Declaration, HoldSnapshot, Limit, LimitSet, OpenOptions, Outcome, Permit, Segment, SetDeclaration,
};

const HOUR: Duration = Duration::from_secs(3600);
const SLOTS: u64 = 4;

/// A hundred times as long as a call without a result may take.
const LONG: Duration = Duration::from_secs(1);

/// A segment whose calls with a result wait for an hour: a test in which another one does so comes to no end.
fn create(path: &Path, set: SetDeclaration) -> Segment {
    OpenOptions::new()
        .lock_timeout(HOUR)
        .create(path, &Declaration::new().participants(8).set(set))
        .expect("a segment")
}

fn slots() -> SetDeclaration {
    SetDeclaration::new("api")
        .limit(Limit::concurrency("slots", SLOTS))
        .limit(Limit::rate("tokens", 1000, HOUR))
}

/// A process that has the lock of the first set, and is stopped.
fn stopped_with_the_lock(path: &Path) -> Child {
    let child = Child::fork(|| {
        let lock = RawSegment::open(path).lock();
        lock.take();
        raise(Signal::SIGSTOP).expect("stops");
        lock.let_go();
    });
    child.wait_until_stopped();
    child
}

fn goes_on(child: Child) {
    child.send(Signal::SIGCONT);
    child.succeed();
}

fn permit(set: &LimitSet) -> Permit<'_> {
    match set.try_acquire(&set.request().with("tokens", 10).expect("declared")) {
        Ok(Outcome::Admitted(permit)) => permit,
        other => panic!("{other:?}"),
    }
}

fn holds(segment: &Segment) -> Vec<HoldSnapshot> {
    segment.snapshot().expect("a copy").sets[0].holds.clone()
}

fn can_take_all(set: &LimitSet) -> bool {
    let request = set.request().with("slots", SLOTS).expect("declared");
    set.try_acquire(&request).expect("works").is_admitted()
}

fn within_the_bound<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let answer = act();
    assert!(began.elapsed() < LONG, "{what} took {:?}", began.elapsed());
    answer
}

#[test]
fn permits_dropped_while_the_lock_is_stuck_come_back_when_it_is_not() {
    let test = "permits_dropped_while_the_lock_is_stuck_come_back_when_it_is_not";
    in_own_process(test, 2 * PATIENCE, |folder| {
        let path = folder.join("limits");
        let segment = create(&path, slots());
        let api = segment.set("api").expect("declared");
        let permits: Vec<_> = (0..SLOTS).map(|_| permit(&api)).collect();
        let child = stopped_with_the_lock(&path);
        for (dropped, permit) in permits.into_iter().enumerate() {
            within_the_bound("a drop", || drop(permit));
            let marked = holds(&segment).iter().filter(|hold| hold.returned).count();
            assert_eq!(marked, dropped + 1, "each is to be seen as given back");
        }
        goes_on(child);
        assert!(can_take_all(&api));
        let counts = segment.snapshot().expect("a copy").sets[0].clone();
        assert_eq!(counts.counts.reclaimed, 0, "nobody died");
        assert_eq!(counts.limits[1].counts.unsettled, SLOTS);
    });
}
