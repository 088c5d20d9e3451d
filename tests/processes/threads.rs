//! One handle, many threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::scene::{create, first_set};
use shmlimit::{Limit, LimitSet, Permit, Segment, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);
const SLOTS: u64 = 4;
const THREADS: usize = 8;

fn slots() -> (tempfile::TempDir, Segment, LimitSet) {
    create(SetDeclaration::new("api").add_limit(Limit::concurrency("slots", SLOTS)))
}

fn try_take(api: &LimitSet) -> Option<Permit<'_>> {
    api.request().try_acquire().expect("works").into_result().ok()
}

#[test]
fn threads_never_hold_more_than_the_capacity_between_them() {
    let (_directory, segment, _) = slots();
    let held = AtomicU64::new(0);
    let admitted = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let api = segment.set("api").expect("declared");
                let mut rounds = 0;
                while rounds < 2000 {
                    let Some(mut permit) = try_take(&api) else {
                        thread::yield_now();
                        continue;
                    };
                    rounds += 1;
                    admitted.fetch_add(1, Ordering::Relaxed);
                    let now = held.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= SLOTS, "{now} held of {SLOTS}");
                    held.fetch_sub(1, Ordering::SeqCst);
                    if rounds % 2 == 0 {
                        permit.release().expect("its own");
                    }
                }
            });
        }
    });
    let snapshot = segment.snapshot().expect("a copy");
    assert_eq!(snapshot.sets[0].active, 0);
    assert_eq!(snapshot.sets[0].counts.admitted, admitted.load(Ordering::Relaxed));
    assert_eq!(snapshot.participants.len(), 1, "threads share a place");
}

#[test]
fn threads_share_one_rate_to_the_unit() {
    let (_directory, _segment, api) =
        create(SetDeclaration::new("api").add_limit(Limit::calls("calls", 10_000, 1000 * HOUR)));
    let admitted: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| (0..).take_while(|_| try_take(&api).is_some()).count() as u64))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum()
    });
    assert_eq!(admitted, 10_000);
}

#[test]
fn a_permit_may_be_given_back_by_another_thread() {
    let (_directory, segment, api) = slots();
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel::<Permit<'_>>();
        scope.spawn(move || {
            for mut permit in receiver {
                permit.release().expect("held by the process, not by the thread");
            }
        });
        let mut sent = 0;
        while sent < 2000 {
            if let Some(permit) = try_take(&api) {
                sender.send(permit).expect("the other thread lives");
                sent += 1;
            }
        }
    });
    assert_eq!(first_set(&segment).active, 0);
}

#[test]
fn what_a_thread_held_stays_held_when_the_thread_ends() {
    let (_directory, segment, api) = slots();
    let permits: Vec<Permit<'_>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..SLOTS)
            .map(|_| scope.spawn(|| try_take(&api).expect("room")))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    for _ in 0..100 {
        assert!(try_take(&api).is_none(), "taken from a living process");
    }
    assert_eq!(segment.recover().expect("works").sets[0].reclaimed, 0);
    drop(permits);
    assert_eq!(first_set(&segment).active, 0);
}

#[test]
fn a_panic_that_unwinds_through_a_permit_gives_it_back() {
    let (_directory, segment, _) = slots();
    let outcome = thread::scope(|scope| {
        let panics = || {
            let api = segment.set("api").expect("declared");
            let _permit = try_take(&api).expect("room");
            assert_eq!(first_set(&segment).active, 1);
            std::panic::resume_unwind(Box::new("on purpose"));
        };
        scope.spawn(panics).join()
    });
    assert!(outcome.is_err());
    assert_eq!(first_set(&segment).active, 0);
}

#[test]
fn an_owned_permit_outlives_the_handles_in_a_thread_of_its_own() {
    let (directory, segment, api) = slots();
    let permit = try_take(&api).expect("room").into_owned();
    drop((api, segment));
    let (sender, receiver) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        receiver.recv().expect("told to end");
        drop(permit);
    });
    let again = Segment::open(directory.path().join("limits")).expect("opens");
    assert_eq!(first_set(&again).active, 1);
    assert_eq!(
        again.snapshot().expect("a copy").participants.len(),
        1,
        "one process"
    );
    sender.send(()).expect("the thread lives");
    thread.join().expect("no panic");
    assert_eq!(first_set(&again).active, 0);
    assert_eq!(again.snapshot().expect("a copy").participants.len(), 1);
}
