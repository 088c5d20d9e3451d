//! A process is attached to a segment once, however often it opens it.

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::scene;
use crate::scene::expect_permit;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use shmlimit::snapshot::SegmentReader;
use shmlimit::{
    Declaration, Error, Limit, OpenError, OpenOptions, Permit, Segment, SetDeclaration, VirtualClock,
};

fn declaration(participants: u32) -> Declaration {
    let set = SetDeclaration::new("api").add_limit(Limit::concurrency("in_flight", 400));
    scene::declaration().participants(participants).add_set(set)
}

fn take(segment: &Segment) -> Permit<'static> {
    let set = segment.set("api").expect("declared");
    expect_permit(set.request().try_acquire()).into_owned()
}

/// Processes that are attached, alive or not.
fn participants(path: &Path) -> Vec<u64> {
    let snapshot = SegmentReader::open(path)
        .expect("a segment")
        .snapshot()
        .expect("one");
    snapshot
        .participants
        .iter()
        .map(|participant| participant.pid)
        .collect()
}

fn maps_of(path: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the maps of this process");
    maps.lines()
        .filter(|line| line.contains(path.to_str().expect("Unicode")))
        .count()
}

#[test]
fn a_segment_is_opened_300_times_and_attached_once() {
    let test = "attachments::a_segment_is_opened_300_times_and_attached_once";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        let first = Segment::create(&path, &declaration(2)).expect("created");
        let maps = maps_of(&path);
        let others: Vec<Segment> = (0..300)
            .map(|_| Segment::open_or_create(&path, &declaration(2)).expect("opened"))
            .collect();
        assert_eq!(participants(&path), [u64::from(std::process::id())]);
        assert_eq!(maps_of(&path), maps, "mapped once");
        let permits: Vec<Permit<'_>> = others.iter().map(take).collect();
        // What one of them takes does not count as left behind for another.
        assert_eq!(first.recover().expect("works").sets[0].reclaimed, 0);
        assert!(permits.iter().all(|permit| !permit.reclaimed()));
        drop(others);
        drop(first);
        assert_eq!(participants(&path).len(), 1, "the permits keep it attached");
        drop(permits);
        assert_eq!(participants(&path).len(), 0, "the last permit has ended it");
        assert_eq!(maps_of(&path), 0);
        let again = Segment::open(&path).expect("opened");
        assert_eq!(participants(&path).len(), 1);
        drop(take(&again));
    });
}

#[test]
fn handles_with_other_options_share_the_attachment_and_keep_their_options() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let second = Duration::from_secs(1);
    let set = SetDeclaration::new("api").add_limit(Limit::calls("requests", 1, second));
    let _plain = Segment::create(&path, &scene::declaration().participants(1).add_set(set)).expect("created");
    let clock = VirtualClock::new(Duration::from_secs(1_000_000_000));
    let options = OpenOptions::new()
        .lock_timeout(second)
        .reclaim(false)
        .virtual_clock(&clock);
    let virtual_time = options.open(&path).expect("opened");
    let admits = |segment: &Segment| {
        let set = segment.set("api").expect("declared");
        set.request().try_acquire().expect("works").is_admitted()
    };
    assert!(admits(&virtual_time));
    assert!(!admits(&virtual_time));
    clock.advance_to(clock.now() + second);
    assert!(admits(&virtual_time));
    assert_eq!(participants(&path).len(), 1);
}

#[test]
fn threads_that_open_at_once_share_the_attachment() {
    let directory = tempfile::tempdir().expect("a directory");
    for round in 0..50 {
        let path = directory.path().join(format!("limits-{round}"));
        let barrier = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    let segment = Segment::open_or_create(&path, &declaration(1)).expect("opened");
                    let permit = take(&segment);
                    barrier.wait();
                    drop(permit);
                });
            }
        });
        assert_eq!(participants(&path).len(), 0, "round {round}");
    }
}

#[test]
fn a_forked_child_is_attached_once_by_what_it_inherits_and_what_it_opens() {
    let test = "attachments::a_forked_child_is_attached_once_by_what_it_inherits_and_what_it_opens";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        let words = SharedWords::new(2);
        let segment = Segment::create(&path, &declaration(2)).expect("created");
        let held = take(&segment);
        let child = Child::fork(|| {
            let others: Vec<Segment> = (0..50).map(|_| Segment::open(&path).expect("opened")).collect();
            let permits: Vec<Permit<'_>> = others.iter().chain([&segment]).map(take).collect();
            words[0].store(1, Ordering::SeqCst);
            eventually("the parent has let go", || words[1].load(Ordering::SeqCst) == 1);
            assert!(permits.iter().all(|permit| !permit.reclaimed()));
            drop(permits);
            drop(others);
        });
        eventually("the child holds permits", || words[0].load(Ordering::SeqCst) == 1);
        let mut pids = participants(&path);
        pids.sort_unstable();
        let mut expected = [std::process::id(), child.id()].map(u64::from);
        expected.sort_unstable();
        assert_eq!(pids, expected);
        drop(held);
        drop(segment);
        assert_eq!(participants(&path), [u64::from(child.id())]);
        words[1].store(1, Ordering::SeqCst);
        child.succeed();
    });
}

#[test]
fn too_many_are_told_by_participants_and_by_processes() {
    let test = "attachments::too_many_are_told_by_participants_and_by_processes";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        drop(Segment::create(&path, &declaration(2)).expect("created"));
        let words = SharedWords::new(2);
        let children: Vec<Child> = (0..2)
            .map(|_| {
                Child::fork(|| {
                    let _segments: Vec<Segment> =
                        (0..3).map(|_| Segment::open(&path).expect("opened")).collect();
                    words[0].fetch_add(1, Ordering::SeqCst);
                    eventually("they may go", || words[1].load(Ordering::SeqCst) == 1);
                })
            })
            .collect();
        eventually("both are attached", || words[0].load(Ordering::SeqCst) == 2);
        let error = Segment::open(&path).expect_err("no room");
        assert!(
            matches!(
                error,
                Error::Open(OpenError::TooManyParticipants {
                    capacity: 2,
                    processes: 2,
                    ..
                })
            ),
            "{error:?}"
        );
        let message = error.to_string();
        assert!(
            message.contains("2 participants are all taken, by 2 live processes"),
            "{message}"
        );
        assert!(message.contains("participants = "), "the cure: {message}");
        words[1].store(1, Ordering::SeqCst);
        children.into_iter().for_each(Child::succeed);
    });
}
