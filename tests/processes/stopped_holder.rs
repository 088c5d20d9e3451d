//! What others see of a process that stops, or dies, while it has a set's lock.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::layout_mirror::RawSegment;
use crate::scene;
use crate::scene::expect_permit;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use fastrand::Rng;
use nix::sys::signal::{Signal, raise};
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Error, Limit, LimitSet, OpenOptions, Segment, SegmentError, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);
const SLOTS: u64 = 3;

fn create(path: &Path) -> Segment {
    let set = SetDeclaration::new("api")
        .add_limit(Limit::concurrency("slots", SLOTS))
        .add_limit(Limit::rate("tokens", 1000, HOUR));
    OpenOptions::new()
        .lock_timeout(Duration::from_millis(20))
        .create(path, &scene::declaration().participants(8).add_set(set))
        .expect("a segment")
}

/// A segment in a directory: its path, and its set.
fn open_api(directory: &Path) -> (PathBuf, Segment, LimitSet) {
    let path = directory.join("limits");
    let segment = create(&path);
    let api = segment.set("api").expect("declared");
    (path, segment, api)
}

fn is_stuck<T>(result: Result<T, Error>, holder: &Child) -> bool {
    match result {
        Err(Error::Segment(SegmentError::LockStuck { set, process })) => {
            let pid = process.map(|process| process.pid);
            assert_eq!((set.as_str(), pid), ("api", Some(holder.id().into())));
            true
        }
        Err(error) => panic!("another error: {error}"),
        Ok(_) => false,
    }
}

fn can_take_all(api: &LimitSet) -> bool {
    let request = api.request().with("slots", SLOTS).expect("declared");
    request.try_acquire().expect("works").is_admitted()
}

#[test]
fn a_stopped_holder_is_named_and_when_it_goes_on_so_does_everybody() {
    let test = "stopped_holder::a_stopped_holder_is_named_and_when_it_goes_on_so_does_everybody";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (path, segment, api) = open_api(directory);
        let request = api.request().with("tokens", 100).expect("declared");
        let mut permit = expect_permit(request.try_acquire());
        let child = Child::fork(|| {
            RawSegment::open(&path).lock().take_and_stop();
        });
        child.wait_until_stopped();
        assert!(is_stuck(request.try_acquire(), &child));
        assert!(is_stuck(request.peek(), &child));
        assert!(is_stuck(permit.settle([("tokens", 60)]), &child));
        assert!(is_stuck(api.reset().run(), &child));
        let problem = segment.recover().expect("says what it could not do").sets[0]
            .problem
            .clone();
        assert!(
            problem.expect("a problem").contains(&child.id().to_string()),
            "the holder should be named"
        );
        // Looking needs no lock, and neither does attaching.
        for snapshot in [
            segment.snapshot().expect("a copy"),
            SegmentReader::open(&path)
                .expect("opens")
                .snapshot()
                .expect("a copy"),
            Segment::open(&path).expect("opens").snapshot().expect("a copy"),
        ] {
            assert_eq!(snapshot.sets[0].lock.holder_pid, Some(child.id()));
            assert!(!snapshot.sets[0].torn);
            assert_eq!(snapshot.sets[0].active, 1);
        }
        child.send(Signal::SIGCONT);
        child.succeed();
        // What failed is repeated, and happens once.
        assert_eq!(
            permit.settle([("tokens", 60)]).expect("works").refunded("tokens"),
            40
        );
        permit.release().expect("works");
        assert!(can_take_all(&api));
        let counts = segment.snapshot().expect("a copy").sets[0].counts;
        assert_eq!((counts.settled, counts.recoveries), (1, 0), "{counts:?}");
    });
}

/// Calls that return a result say that the lock is stuck, change nothing, and can be repeated.
#[test]
fn what_cannot_be_given_back_while_the_lock_is_stuck_is_given_back_once_when_it_is_repeated() {
    let test = "stopped_holder::what_cannot_be_given_back_while_the_lock_is_stuck_is_given_back_once_when_it_is_repeated";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (path, segment, api) = open_api(directory);
        let request = |slots, tokens| {
            let request = api.request().with("slots", slots).expect("declared");
            request.with("tokens", tokens).expect("declared")
        };
        let mut permit = expect_permit(request(1, 100).try_acquire());
        drop(expect_permit(request(0, 900).try_acquire()));
        let reserved = request(0, 200).reserve(HOUR).expect("works");
        let mut reservation = reserved.into_result().expect("to be had within the hour");
        assert!(!reservation.delay().is_zero());
        let child = Child::fork(|| {
            RawSegment::open(&path).lock().take_and_stop();
        });
        child.wait_until_stopped();
        for _ in 0..2 {
            assert!(is_stuck(permit.cancel(), &child));
            assert!(is_stuck(reservation.cancel(), &child));
        }
        child.send(Signal::SIGCONT);
        child.succeed();
        // The latest is cancelled first: then time has replenished nothing of those after it.
        assert!(reservation.cancel().expect("works"), "it is not due yet");
        permit.cancel().expect("works");
        let copy = segment.snapshot().expect("a copy").sets[0].clone();
        // What time has replenished meanwhile does not come back.
        let refunded = copy.limits[1].counts.refunded;
        assert!((1..=200 + 100).contains(&refunded), "{refunded}");
        assert_eq!(copy.active, 0);
        assert_eq!(copy.counts.settled, 2, "each happened once");
    });
}

#[test]
fn the_process_is_named_also_where_another_of_its_threads_has_the_lock() {
    let test = "stopped_holder::the_process_is_named_also_where_another_of_its_threads_has_the_lock";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (path, _segment, api) = open_api(directory);
        let child = Child::fork(|| {
            let (is_taken, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let lock = RawSegment::open(&path).lock();
                    lock.take();
                    is_taken.store(true, Ordering::SeqCst);
                    eventually("the process goes on", || is_over.load(Ordering::SeqCst));
                    lock.let_go();
                });
                eventually("the lock is taken", || is_taken.load(Ordering::SeqCst));
                raise(Signal::SIGSTOP).expect("stops");
                is_over.store(true, Ordering::SeqCst);
            });
        });
        child.wait_until_stopped();
        assert!(is_stuck(
            api.request().with("tokens", 1).unwrap().try_acquire(),
            &child
        ));
        child.send(Signal::SIGCONT);
        child.succeed();
        assert!(can_take_all(&api));
    });
}

#[test]
fn a_permit_whose_process_ends_after_a_drop_without_the_lock_is_given_back_once() {
    let test = "stopped_holder::a_permit_whose_process_ends_after_a_drop_without_the_lock_is_given_back_once";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (path, segment, api) = open_api(directory);
        let words = SharedWords::new(1);
        let dropper = Child::fork(|| {
            let held = api.request().with("slots", SLOTS).unwrap().try_acquire();
            let held = held.expect("works").into_result().expect("free");
            words[0].store(1, Ordering::SeqCst);
            eventually("the lock is held", || words[0].load(Ordering::SeqCst) == 2);
            drop(held);
        });
        eventually("the child holds", || words[0].load(Ordering::SeqCst) == 1);
        let lock = RawSegment::open(&path).lock();
        lock.take();
        words[0].store(2, Ordering::SeqCst);
        dropper.succeed();
        lock.let_go();
        assert!(
            can_take_all(&api),
            "the next owner of the lock finishes the return"
        );
        let counts = segment.snapshot().expect("a copy").sets[0].counts;
        assert_eq!(counts.reclaimed, 0, "{counts:?}");
    });
}

#[test]
fn a_killed_holder_is_recovered_from_by_the_next_process() {
    let test = "stopped_holder::a_killed_holder_is_recovered_from_by_the_next_process";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (path, segment, api) = open_api(directory);
        let child = Child::fork(|| {
            RawSegment::open(&path).lock().take_and_stop();
        });
        child.wait_until_stopped();
        let request = api.request().with("tokens", 1).expect("declared");
        assert!(is_stuck(request.try_acquire(), &child));
        child.kill();
        let lock = segment.snapshot().expect("a copy").sets[0].lock;
        assert!(lock.owner_died, "{lock:?}");
        for process in 0..3 {
            Child::fork(|| assert!(can_take_all(&api), "process {process}")).succeed();
        }
        let snapshot = segment.snapshot().expect("a copy");
        assert_eq!(snapshot.sets[0].counts.recoveries, 1);
        assert_eq!(snapshot.sets[0].lock.holder_pid, None);
        assert!(!snapshot.sets[0].lock.owner_died);
    });
}

/// Acquires and gives back for ever.
fn work(api: &LimitSet) -> ! {
    let mut dice = Rng::with_seed(1);
    let mut request = api.request().with("tokens", 0).expect("declared");
    loop {
        request
            .set_cost("slots", 1 + dice.u64(..SLOTS))
            .expect("declared");
        let mut permit = expect_permit(request.try_acquire());
        permit.settle([("tokens", 0)]).expect("works");
    }
}

/// Stops the only worker again and again, until it has often enough been stopped with the lock: a copy of the file then
/// shows a half-done operation.
#[test]
fn a_worker_stopped_anywhere_in_an_operation_harms_no_other_and_a_copy_starts_cold() {
    const TIMES: u32 = 5;
    let test =
        "stopped_holder::a_worker_stopped_anywhere_in_an_operation_harms_no_other_and_a_copy_starts_cold";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (path, segment, api) = open_api(directory);
        let asking = api.request().with("slots", 0).expect("declared");
        let worker = Child::fork(|| work(&api));
        let mut stuck = 0;
        let mut half_done = 0;
        eventually("the worker was stopped with the lock a few times", || {
            worker.send(Signal::SIGSTOP);
            worker.wait_until_stopped();
            if is_stuck(asking.peek(), &worker) {
                stuck += 1;
                let original = segment.snapshot().expect("a copy").sets[0].clone();
                assert_eq!(original.lock.holder_pid, Some(worker.id()));
                half_done += u32::from(original.words_in_flight != Some(0));
                let copy_path = directory.join(format!("copy-{stuck}"));
                fs::copy(&path, &copy_path).expect("a copy");
                let copy = Segment::open(&copy_path).expect("starts cold");
                let copied = copy.set("api").expect("declared");
                eventually("the copy gives back what its void holders held", || {
                    can_take_all(&copied)
                });
                let snapshot = copy.snapshot().expect("a copy");
                assert_eq!(snapshot.cold_starts, 1);
                assert!(!snapshot.sets[0].poisoned && snapshot.sets[0].active == 0);
                let after = segment.snapshot().expect("a copy").sets[0].clone();
                assert_eq!(after.counts, original.counts, "the original was touched");
                assert_eq!(after.lock, original.lock, "the original was touched");
            }
            worker.send(Signal::SIGCONT);
            stuck == TIMES
        });
        println!("stopped with the lock {stuck} times, with words changed {half_done} times");
        worker.kill();
        eventually("all is given back", || can_take_all(&api));
        let snapshot = segment.snapshot().expect("a copy");
        assert_eq!(snapshot.cold_starts, 0);
        assert!(!snapshot.sets[0].poisoned);
    });
}
