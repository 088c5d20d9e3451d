//! The labels of holds: seen by all processes, each hold's own, complete, and only if declared.

use std::future::Future;
use std::path::Path;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::scene;
use crate::scene::clock::Scene;
use crate::scene::process::{Child, TIMEOUT, die, in_own_process};
use crate::scene::{create, create_in, expect_permit};
use nix::sys::signal::{Signal, raise};
use shmlimit::request::AcquireFuture;
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Keyed, Limit, Outcome, Permit, Request, Segment, SetDeclaration};

const MINUTE: Duration = Duration::from_secs(60);

fn labelled() -> SetDeclaration {
    SetDeclaration::new("work").labels(true)
}

fn slots(count: u64) -> SetDeclaration {
    labelled().add_limit(Limit::concurrency("slots", count))
}

fn labels(segment: &Segment) -> Vec<Option<String>> {
    let sets = segment.snapshot().expect("a copy").sets;
    sets.into_iter()
        .flat_map(|set| set.holds)
        .map(|hold| hold.label)
        .collect()
}

fn some(labels: &[&str]) -> Vec<Option<String>> {
    labels.iter().map(|label| Some((*label).to_owned())).collect()
}

fn take<'a>(request: &Request<'a>) -> Permit<'a> {
    expect_permit(request.try_acquire())
}

fn poll<'a>(
    future: &mut (impl Future<Output = Result<Outcome<'a>, shmlimit::Error>> + Unpin),
) -> Option<Permit<'a>> {
    let polled = std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()));
    match polled {
        Poll::Ready(outcome) => Some(outcome.expect("a decision").into_result().expect("admitted")),
        Poll::Pending => None,
    }
}

#[test]
fn another_process_sees_what_a_hold_is_labelled_with_also_of_a_holder_that_is_dead() {
    let test = "labels::another_process_sees_what_a_hold_is_labelled_with_also_of_a_holder_that_is_dead";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let (_segment, _work) = create_in(directory, slots(3));
        let attach = || {
            let segment = Segment::open(&path).expect("a segment");
            segment.set("work").expect("declared")
        };
        let child = Child::fork(|| {
            let work = attach();
            let _permit = take(&work.request().label("nightly import"));
            raise(Signal::SIGSTOP).expect("stops");
        });
        child.wait_until_stopped();
        let mut dead = Child::fork(|| {
            let work = attach();
            std::mem::forget(take(&work.request().label("gone")));
            die()
        });
        dead.wait();
        let snapshot = SegmentReader::open(&path).and_then(|reader| reader.snapshot());
        let seen: Vec<(bool, Option<String>)> = snapshot.expect("a copy").sets[0]
            .holds
            .iter()
            .map(|hold| (hold.owner_alive, hold.label.clone()))
            .collect();
        assert_eq!(
            seen,
            [
                (true, Some("nightly import".to_owned())),
                (false, Some("gone".to_owned()))
            ]
        );
        child.send(Signal::SIGCONT);
        child.succeed();
    });
}

#[test]
fn each_hold_has_its_own_label_and_who_gives_none_has_none() {
    let (_directory, segment, work) = create(slots(3));
    let _first = take(&work.request().label("first"));
    let _second = take(&work.request());
    let _third = work.request().label("third").acquire(MINUTE).expect("a decision");
    assert_eq!(
        labels(&segment),
        [Some("first".to_owned()), None, Some("third".to_owned())]
    );
}

#[test]
fn a_hold_that_is_used_again_does_not_have_the_label_of_the_one_before() {
    let (_directory, segment, work) = create(slots(1));
    for labels_of_next in [None, Some("another"), Some("")] {
        drop(take(&work.request().label("the one before")));
        let request = work.request();
        let request = match labels_of_next {
            Some(label) => request.label(label),
            None => request,
        };
        let permit = take(&request);
        assert_eq!(labels(&segment), [labels_of_next.map(str::to_owned)]);
        drop(permit);
        assert_eq!(labels(&segment), []);
    }
}

#[test]
fn a_label_of_more_than_64_bytes_is_cut_at_a_character() {
    let (_directory, segment, work) = create(slots(2));
    let long = "x".repeat(63);
    let _permits =
        [format!("{long}yz"), format!("{long}\u{fc}")].map(|label| take(&work.request().label(label)));
    assert_eq!(labels(&segment), some(&[&format!("{long}y"), &long]));
}

#[test]
fn a_permit_keeps_its_label_until_it_is_released() {
    let (_directory, segment, work) = create(slots(1));
    let permit = take(&work.request().label("moved")).into_owned();
    let mut permit = std::thread::spawn(move || permit).join().expect("no panic");
    assert_eq!(labels(&segment), some(&["moved"]));
    permit.release().expect("works");
    assert_eq!(labels(&segment), []);
}

#[test]
fn what_is_granted_to_a_waiter_has_its_label_from_when_the_waiter_takes_it() {
    let (_directory, segment, work) = create(slots(1));
    let first = take(&work.request().label("first"));
    let mut waiting = work.request().label("second").acquire_async(None);
    assert!(poll(&mut waiting).is_none());
    drop(first);
    assert_eq!(labels(&segment), [None]);
    let second = poll(&mut waiting).expect("it was granted");
    assert_eq!(labels(&segment), some(&["second"]));
    drop(second);

    let first = take(&work.request().label("first"));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let outcome = work.request().label("third").acquire(TIMEOUT);
            let _permit = outcome.expect("a decision").into_result().expect("in time");
            labels(&segment)
        });
        scene::process::eventually("the other waits", || {
            !segment.snapshot().expect("a copy").sets[0].tickets.is_empty()
        });
        drop(first);
        assert_eq!(waiter.join().expect("no panic"), some(&["third"]));
    });
}

#[test]
fn a_waiter_that_comes_too_late_for_what_it_was_granted_does_not_label_what_is_anothers() {
    // The grant may be collected for longer than the lease lasts, so the lease ends it.
    let set = labelled()
        .collect_within(3 * MINUTE)
        .add_limit(Limit::concurrency("slots", 1).lease(MINUTE));
    let scene = Scene::new(set);
    let work = scene.set();
    let first = take(&work.request());
    let mut waiting: AcquireFuture<'_> = work.request().label("late").acquire_async(None);
    assert!(poll(&mut waiting).is_none());
    drop(first);
    scene.pass(2 * MINUTE);
    let _other = take(&work.request().label("in time"));
    let late = poll(&mut waiting).expect("it was granted");
    assert!(late.reclaimed());
    assert_eq!(labels(&scene.segment), some(&["in time"]));
}

#[test]
fn holds_of_keys_are_labelled_in_every_shard() {
    let set = labelled()
        .keyed(Keyed::new(10_000))
        .add_limit(Limit::concurrency("slots", 1));
    let (_directory, segment, work) = create(set);
    let keys: Vec<String> = (0..40).map(|number| format!("tenant {number}")).collect();
    let permits: Vec<Permit<'_>> = keys
        .iter()
        .map(|key| {
            let request = work.request().label(format!("for {key}"));
            let outcome = request.for_key(key).expect("a key").try_acquire();
            outcome.expect("a decision").into_result().expect("room")
        })
        .collect();
    let set = &segment.snapshot().expect("a copy").sets[0];
    assert_eq!(set.holds.len(), permits.len());
    for hold in &set.holds {
        let key = hold.key.as_ref().and_then(|key| key.text()).expect("a key");
        assert_eq!(hold.label.as_deref(), Some(&*format!("for {key}")));
    }
}

#[test]
fn only_sets_that_are_declared_to_keep_labels_do_and_others_need_no_memory_for_it() {
    let (directory, segment, work) = create(slots(1).labels(false).holds(100));
    let _permit = take(&work.request().label("not kept"));
    assert_eq!(labels(&segment), [None]);
    let path = directory.path().join("others");
    let others =
        Segment::create(&path, &scene::declaration().add_set(slots(1).holds(100))).expect("a segment");
    let holds_bytes =
        |path: &Path| SegmentReader::open(path).expect("a segment").memory().sets[0].holds_bytes;
    let without = holds_bytes(segment.path());
    // The labels are rounded up to a cache line.
    assert_eq!(
        holds_bytes(others.path()) - without,
        (100 * 72_u64).next_multiple_of(64)
    );
}
