//! On an overlay, the lock by which a process shows that it lives ends with its descriptor, so no process can attach
//! there.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::layout_mirror::RawSegment;
use crate::layout_mirror::words::header;
use crate::scene;
use crate::scene::mounts::{Overlay, on_overlay};
use crate::scene::names;
use crate::scene::process::Child;
use shmlimit::declare::{Checkpoint, OnMismatch};
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Declaration, Error, Limit, OpenError, OpenOptions, Removal, Segment, SetDeclaration};

fn declaration(places: u64) -> Declaration {
    scene::declaration()
        .participants(4)
        .add_set(SetDeclaration::new("api").add_limit(Limit::concurrency("places", places)))
}

#[track_caller]
fn assert_refused<T>(outcome: Result<T, Error>, path: &Path) {
    match outcome.map(drop) {
        Err(error @ Error::Open(OpenError::LocksNotKept { .. })) => {
            let text = error.to_string();
            for part in ["an overlay", "/dev/shm", "volume", &path.display().to_string()] {
                assert!(text.contains(part), "{part} in {text}");
            }
        }
        other => panic!("{}: {other:?}", path.display()),
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let mut names = names::names_in(directory);
    names.retain(|name| name != "inner");
    names
}

/// The overlay itself, and a directory of it that is mounted elsewhere.
fn places(overlay: &Overlay) -> [&Path; 2] {
    [&overlay.merged, &overlay.bound]
}

#[test]
fn nothing_is_created_there_and_no_file_is_left() {
    let test = "overlays::nothing_is_created_there_and_no_file_is_left";
    on_overlay(test, |overlay| {
        for directory in places(overlay) {
            let path = directory.join("limits");
            assert_refused(Segment::create(&path, &declaration(1)), &path);
            assert_refused(Segment::open_or_create(&path, &declaration(1)), &path);
            assert_eq!(names_in(directory), [""; 0]);
        }
        // The overlay lies on a file system like any other.
        Segment::create(overlay.upper.join("limits"), &declaration(1)).expect("on tmpfs");
    });
}

#[test]
fn nothing_is_restored_there_from_a_checkpoint() {
    let test = "overlays::nothing_is_restored_there_from_a_checkpoint";
    on_overlay(test, |overlay| {
        let kept = overlay.upper.with_file_name("kept");
        let with_checkpoint = declaration(1).checkpoint(Checkpoint::new(&kept));
        let source = overlay.lower.with_file_name("source");
        let segment = Segment::create(&source, &with_checkpoint).expect("on tmpfs");
        assert!(segment.checkpoint(&kept).expect("written"));
        for directory in places(overlay) {
            let path = directory.join("limits");
            assert_refused(Segment::open_or_create(&path, &with_checkpoint), &path);
            assert_refused(Segment::create(&path, &with_checkpoint), &path);
            assert_eq!(names_in(directory), [""; 0]);
            // A damaged one is not replaced either, because a process may use it.
            fs::copy(&source, &path).expect("a copy");
            RawSegment::open(&path).set_word(header::SETS, u64::MAX);
            assert_refused(Segment::open_or_create(&path, &with_checkpoint), &path);
            assert_eq!(names_in(directory), ["limits"]);
            fs::remove_file(&path).expect("removed");
        }
        // The checkpoint may lie there, because no lock on it has to outlive its descriptor.
        assert!(segment.checkpoint(overlay.merged.join("kept")).expect("written"));
    });
}

#[test]
fn what_is_copied_there_is_neither_opened_nor_replaced_nor_removed_without_force() {
    let test = "overlays::what_is_copied_there_is_neither_opened_nor_replaced_nor_removed_without_force";
    on_overlay(test, |overlay| {
        let source = overlay.lower.join("limits");
        let _segment = Segment::create(&source, &declaration(1)).expect("on tmpfs");
        let copy = overlay.bound.join("limits");
        fs::copy(&source, &copy).expect("a copy");
        for path in [overlay.merged.join("limits"), copy] {
            assert_refused(Segment::open(&path), &path);
            for mismatch in [OnMismatch::Apply, OnMismatch::Error, OnMismatch::RecreateIfUnused] {
                let options = OpenOptions::new().on_mismatch(mismatch);
                for places in [1, 2] {
                    assert_refused(options.open_or_create(&path, &declaration(places)), &path);
                }
            }
            let inode = fs::metadata(&path).expect("there").ino();
            assert_refused(OpenOptions::new().remove(&path, Removal::Unused), &path);
            assert_eq!(fs::metadata(&path).expect("there").ino(), inode);

            // Looking is possible; the process table says who lives.
            let reader = SegmentReader::open(&path).expect("readable");
            let participants = reader.snapshot().expect("a copy").participants;
            assert!(participants.iter().all(|it| it.alive), "{participants:?}");
            assert_eq!(participants.len(), 1);
            let obstacles = reader.diagnose().expect("a diagnosis").obstacles;
            let is_it = |error: &Error| matches!(error, Error::Open(OpenError::LocksNotKept { .. }));
            assert_eq!(
                obstacles.iter().filter(|error| is_it(error)).count(),
                1,
                "{obstacles:?}"
            );

            OpenOptions::new()
                .remove(&path, Removal::Forced)
                .expect("by force");
            assert!(!path.exists());
        }
    });
}

#[test]
fn a_file_that_is_mounted_into_a_container_by_itself_is_as_it_was_before() {
    let test = "overlays::a_file_that_is_mounted_into_a_container_by_itself_is_as_it_was_before";
    on_overlay(test, |overlay| {
        let source = overlay.lower.with_file_name("source");
        let segment = Segment::create(&source, &declaration(1)).expect("on tmpfs");
        let api = segment.set("api").expect("declared");
        let held = scene::expect_permit(api.request().try_acquire());
        let path = overlay.merged.join("limits");
        fs::write(&path, "").expect("a place to mount on");
        scene::mounts::mount(Some(&source), &path, None, libc::MS_BIND, None).expect("a bind mount");
        Child::fork(|| {
            let segment = Segment::open(&path).expect("on tmpfs");
            let api = segment.set("api").expect("declared");
            scene::expect_refusal(api.request().acquire(Duration::ZERO));
        })
        .succeed();
        drop(held);
    });
}
