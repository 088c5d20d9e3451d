//! Segments without a path: shared with forked children and with processes that open the descriptor, and never taken
//! for deleted.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::scene::process::{Child, TIMEOUT, eventually, in_own_process};
use crate::scene::{declaration, expect_permit, expect_refusal, first_set};
use nix::sys::prctl::set_pdeathsig;
use shmlimit::declare::{Checkpoint, OnMismatch};
use shmlimit::snapshot::SegmentReader;
use shmlimit::{
    Declaration, Error, Limit, OpenError, OpenOptions, Removal, RemovalCause, Segment, SegmentError,
    SetDeclaration, VirtualClock,
};

const MINUTE: Duration = Duration::from_secs(60);

fn places(capacity: u64) -> Declaration {
    declaration().add_set(SetDeclaration::new("set").add_limit(Limit::concurrency("places", capacity)))
}

/// The variable with the segment's path in the environment of a program that a test executes.
const PATH: &str = "SHMLIMIT_TEST_ANONYMOUS";

#[test]
fn it_limits_threads_and_leaves_no_file() {
    let segment = Segment::anonymous(&places(2)).expect("a segment");
    let set = segment.set("set").expect("declared");
    let held = std::thread::scope(|scope| {
        let take = || scope.spawn(|| expect_permit(set.request().try_acquire()));
        [take(), take()].map(|thread| thread.join().expect("no panic"))
    });
    drop(expect_refusal(set.request().try_acquire()));
    drop(held);
    drop(expect_permit(set.request().try_acquire()));
    assert!(
        segment.path().starts_with("/proc"),
        "{}",
        segment.path().display()
    );
    let target = fs::read_link(segment.path()).expect("a descriptor");
    assert!(
        target.starts_with("/memfd:anonymous segment (deleted)"),
        "{}",
        target.display()
    );
}

#[test]
fn each_is_one_of_its_own() {
    let [one, other] = [(); 2].map(|()| Segment::anonymous(&places(1)).expect("a segment"));
    let (one, other) = (
        one.set("set").expect("declared"),
        other.set("set").expect("declared"),
    );
    let _held = expect_permit(one.request().try_acquire());
    drop(expect_permit(other.request().try_acquire()));
}

#[test]
fn what_asks_whether_the_file_is_still_there_never_calls_it_removed() {
    // Checked at most once a second, by the segment's clock.
    let segment = Segment::anonymous(&places(1)).expect("a segment");
    let set = segment.set("set").expect("declared");
    let started = std::time::Instant::now();
    eventually("several looks are over", || {
        drop(expect_permit(set.request().try_acquire()));
        started.elapsed() > Duration::from_millis(2500)
    });
    assert_eq!(segment.removal(), None);
    assert!(segment.successor().is_none());
}

#[test]
fn forked_children_share_it_and_what_they_held_comes_back_when_they_are_killed() {
    in_own_process(
        "anonymous::forked_children_share_it_and_what_they_held_comes_back_when_they_are_killed",
        TIMEOUT,
        |_| {
            let segment = Segment::anonymous(&places(2)).expect("a segment");
            let set = segment.set("set").expect("declared");
            let own = expect_permit(set.request().try_acquire());
            let child = Child::fork(|| {
                let _held = expect_permit(set.request().try_acquire());
                drop(expect_refusal(set.request().try_acquire()));
                // Its own children join, too.
                Child::fork(|| drop(expect_refusal(set.request().try_acquire()))).succeed();
                loop {
                    std::thread::park();
                }
            });
            eventually("the child holds a place", || first_set(&segment).holds.len() == 2);
            drop(expect_refusal(set.request().try_acquire()));
            child.kill();
            // A live process is not taken for dead, and a dead one is.
            let second = expect_permit(set.request().acquire(TIMEOUT));
            drop((own, second));
        },
    );
}

#[test]
fn a_child_outlives_the_parent_that_made_it() {
    in_own_process(
        "anonymous::a_child_outlives_the_parent_that_made_it",
        TIMEOUT,
        |directory| {
            let done = directory.join("done");
            Child::fork(|| {
                let segment = Segment::anonymous(&places(1)).expect("a segment");
                let set = segment.set("set").expect("declared");
                let parent = std::process::id();
                let ready = directory.join("ready");
                let child = Child::fork(|| {
                    set_pdeathsig(None).expect("its own signal");
                    fs::write(&ready, "").expect("writes");
                    eventually("the parent is gone", || parent_id() != parent);
                    drop(expect_permit(set.request().try_acquire()));
                    fs::write(&done, "").expect("writes");
                });
                eventually("the child would survive", || ready.exists());
                // It is left running.
                std::mem::forget(child);
            })
            .succeed();
            eventually("the grandchild used it", || done.exists());
        },
    );
}

#[test]
fn an_executed_child_opens_it_by_its_path_while_its_maker_lives() {
    if let Some(path) = std::env::var_os(PATH) {
        let segment = Segment::open(Path::new(&path)).expect("its maker lives");
        let set = segment.set("set").expect("declared");
        drop(expect_refusal(set.request().try_acquire()));
        return;
    }
    let segment = Segment::anonymous(&places(1)).expect("a segment");
    let set = segment.set("set").expect("declared");
    let _held = expect_permit(set.request().try_acquire());
    let status = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "anonymous::an_executed_child_opens_it_by_its_path_while_its_maker_lives",
        ])
        .env(PATH, segment.path())
        .status()
        .expect("runs");
    assert!(status.success());
}

#[test]
fn by_its_path_others_look_at_it_change_it_and_retire_it() {
    let segment = Segment::anonymous(&places(1)).expect("a segment");
    let set = segment.set("set").expect("declared");
    let reader = SegmentReader::open(segment.path()).expect("readable");
    assert_eq!(reader.snapshot().expect("a copy").sets[0].name, "set");
    let other = Segment::open_or_create(segment.path(), &places(1)).expect("the same");
    other.apply(&places(2)).expect("a live change");
    let held = [(); 2].map(|()| expect_permit(set.request().try_acquire()));
    drop(held);
    let in_use = OpenOptions::new().remove(segment.path(), Removal::Unused);
    assert!(
        matches!(in_use, Err(Error::Open(OpenError::InUse { .. }))),
        "{in_use:?}"
    );
    OpenOptions::new()
        .remove(segment.path(), Removal::Forced)
        .expect("retired");
    let Err(Error::Segment(SegmentError::Removed { cause, .. })) = set.request().try_acquire() else {
        panic!("it was retired");
    };
    assert_eq!(cause, RemovalCause::Retired);
    assert!(segment.successor().is_none());
    let error = Segment::open_or_create(segment.path(), &places(2)).expect_err("nothing takes its place");
    assert!(
        error.to_string().contains("no other can take its place"),
        "{error}"
    );
}

#[test]
fn what_needs_a_path_says_so() {
    let checkpoint = places(1).checkpoint(Checkpoint::new("/dev/shm/never-made.checkpoint"));
    let segment = Segment::anonymous(&places(1)).expect("a segment");
    let recreating = OpenOptions::new().on_mismatch(OnMismatch::RecreateIfUnused);
    let path = segment.path();
    let closed: PathBuf = "/proc/self/fd/987654".into();
    for (outcome, words) in [
        (Segment::anonymous(&checkpoint), "it cannot have a checkpoint"),
        (
            recreating.open_or_create(path, &places(2)),
            "no other segment can take its place",
        ),
        (Segment::create(path, &places(1)), "exists"),
        (Segment::open(&closed), "no process has it open"),
        (
            Segment::open_or_create(&closed, &places(1)),
            "no process has it open",
        ),
    ] {
        let error = outcome.expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_descriptor_of_another_file_is_not_followed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let segment = Segment::create(&path, &places(1)).expect("a segment");
    let file = fs::File::open(&path).expect("opens");
    let by_number = format!("/proc/self/fd/{}", file.as_raw_fd());
    let error = Segment::open(&by_number).expect_err("a link").to_string();
    assert!(error.contains("name the file itself"), "{error}");
    // A deleted segment is not taken for an anonymous one.
    fs::remove_file(&path).expect("removed");
    let error = Segment::open(&by_number).expect_err("a link").to_string();
    assert!(error.contains("name the file itself"), "{error}");
    drop(segment);
}

#[test]
fn it_follows_a_virtual_clock_and_can_be_moved_on_from_when_retired() {
    let clock = VirtualClock::new(MINUTE);
    let set = SetDeclaration::new("set").add_limit(Limit::calls("calls", 1, MINUTE));
    let segment = OpenOptions::new()
        .virtual_clock(&clock)
        .anonymous(&declaration().add_set(set))
        .expect("a segment");
    let set = segment.set("set").expect("declared");
    for minutes in 1..4 {
        drop(expect_permit(set.request().acquire(None)));
        assert_eq!(clock.now(), minutes * MINUTE);
    }
    segment.retire();
    assert!(set.request().try_acquire().is_err());
}
