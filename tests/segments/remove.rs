//! The end of a segment.

use std::path::PathBuf;
use std::time::Duration;

use shmlimit::{
    Declaration, Error, Limit, OpenError, OpenOptions, Removal, Segment, SegmentError, SetDeclaration,
};

fn segment() -> (tempfile::TempDir, PathBuf, Segment) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let set = SetDeclaration::new("api").add_limit(Limit::calls("requests", 10, Duration::from_secs(60)));
    let segment = Segment::create(&path, &Declaration::new().add_set(set)).expect("a segment");
    (directory, path, segment)
}

fn remove(path: &PathBuf, removal: Removal) -> Result<(), Error> {
    OpenOptions::new().remove(path, removal)
}

#[test]
fn a_segment_in_use_stays_and_names_who_uses_it() {
    let (_directory, path, segment) = segment();
    match remove(&path, Removal::Unused) {
        Err(Error::Open(OpenError::InUse { processes, .. })) => {
            let pids: Vec<u64> = processes.iter().map(|process| process.pid).collect();
            assert_eq!(pids, [u64::from(std::process::id())]);
        }
        other => panic!("{other:?}"),
    }
    let api = segment.set("api").expect("declared");
    assert!(api.request().try_acquire().expect("untouched").is_admitted());
    drop((api, segment));
    remove(&path, Removal::Unused).expect("unused by now");
    assert!(!path.exists());
}

#[test]
fn force_removes_a_segment_in_use_and_its_users_are_told() {
    let (_directory, path, segment) = segment();
    remove(&path, Removal::Forced).expect("forced");
    assert!(!path.exists());
    let api = segment.set("api").expect("declared");
    assert!(matches!(
        api.request().try_acquire(),
        Err(Error::Segment(SegmentError::Removed { .. }))
    ));
}

#[test]
fn a_retired_segment_is_removed_whichever_process_is_attached_to_it() {
    let (_directory, path, segment) = segment();
    segment.retire();
    assert!(matches!(
        Segment::open(&path),
        Err(Error::Segment(SegmentError::Removed { .. }))
    ));
    remove(&path, Removal::Unused).expect("of no use");
    assert!(matches!(
        remove(&path, Removal::Unused),
        Err(Error::Open(OpenError::NotFound { .. }))
    ));
}

#[test]
fn what_is_not_a_segment_is_never_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("notes");
    for content in [&b""[..], b"notes", &[b'n'; 10_000]] {
        std::fs::write(&path, content).expect("written");
        assert!(matches!(
            remove(&path, Removal::Forced),
            Err(Error::Open(OpenError::NotASegment { .. }))
        ));
        assert!(path.exists());
    }
}

#[test]
fn a_damaged_segment_is_removed_by_force_only() {
    let (_directory, path, segment) = segment();
    drop(segment);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("opened");
    file.set_len(100).expect("truncated");
    assert!(matches!(
        remove(&path, Removal::Unused),
        Err(Error::Open(OpenError::WrongSize { .. }))
    ));
    remove(&path, Removal::Forced).expect("forced");
    assert!(!path.exists());
}
