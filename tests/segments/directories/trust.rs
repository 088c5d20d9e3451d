//! Which directories and files are used, and which are refused.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use nix::sys::stat::{Mode, umask};
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Error, OpenError, OpenOptions, Segment};

use super::{declaring, names_of, place};
use crate::scene::process::{TIMEOUT, in_own_process};

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).expect("is there").mode() & 0o7777
}

#[test]
fn who_may_use_the_files_may_enter_the_directory_whatever_the_umask() {
    let test = "directories::trust::who_may_use_the_files_may_enter_the_directory_whatever_the_umask";
    in_own_process(test, TIMEOUT, |root| {
        for mask in [0, 0o022, 0o077] {
            umask(Mode::from_bits_truncate(mask));
            for (file, directory) in [(0o600, 0o700), (0o660, 0o750)] {
                let path = root.join(format!("{mask:o}-{file:o}.d"));
                drop(Segment::create(&path, &declaring(&[("chat", 1)]).mode(file)).expect("created"));
                assert_eq!((mode_of(&path.join("chat")), mode_of(&path)), (file, directory));
            }
        }
    });
}

#[test]
fn a_directory_that_exists_keeps_its_mode() {
    let (_root, path) = place();
    fs::create_dir(&path).expect("created");
    fs::set_permissions(&path, Permissions::from_mode(0o2750)).expect("its owner's right");
    drop(Segment::open_or_create(&path, &declaring(&[("chat", 1)])).expect("created"));
    assert_eq!(mode_of(&path), 0o2750);
}

fn untrusted(answer: Result<impl Sized, Error>) -> String {
    match answer.err() {
        Some(Error::Open(OpenError::Untrusted { why, .. })) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_that_everyone_may_write_is_used_if_it_is_sticky_or_trusted() {
    let (_root, path) = place();
    let list = declaring(&[("chat", 1)]);
    drop(Segment::create(&path, &list).expect("created"));
    fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("its owner's right");
    for why in [
        untrusted(Segment::open(&path)),
        untrusted(Segment::open_or_create(&path, &list)),
    ] {
        assert!(why.contains("chmod o-w"), "{why}");
    }
    let trusting = OpenOptions::new().trust_any_owner(true);
    assert!(trusting.open(&path).is_ok());
    fs::set_permissions(&path, Permissions::from_mode(0o1777)).expect("its owner's right");
    assert!(Segment::open(&path).is_ok());
}

#[test]
fn links_are_not_followed() {
    let (root, path) = place();
    let list = declaring(&[("chat", 1)]);
    drop(Segment::create(&path, &list).expect("created"));
    let link = root.path().join("link");
    symlink(&path, &link).expect("linked");
    for named in [link.clone(), link.join("")] {
        assert!(untrusted(Segment::open(&named)).contains("symbolic link"));
        assert!(untrusted(Segment::open_or_create(&named, &list)).contains("symbolic link"));
        assert!(untrusted(SegmentReader::open(&named)).contains("symbolic link"));
    }
    // Nor is the link of a file in it followed.
    symlink(path.join("chat"), path.join("mail")).expect("linked");
    let segment = Segment::open(&path).expect("opened");
    assert_eq!(names_of(&segment), ["chat"]);
    assert!(untrusted(segment.set("mail")).contains("symbolic link"));
}

#[test]
fn a_file_at_the_path_of_a_directory_is_an_error_that_says_so() {
    let root = tempfile::tempdir().expect("a directory");
    let file = root.path().join("limits");
    let list = declaring(&[("chat", 1)]);
    drop(Segment::create(&file, &list).expect("created"));
    let named = root.path().join("limits/");
    let answers = [
        Segment::open(&named).err(),
        Segment::create(&named, &list).err(),
        Segment::open_or_create(&named, &list).err(),
        SegmentReader::open(&named).err(),
        OpenOptions::new().remove(&named, shmlimit::Removal::Forced).err(),
    ];
    for answer in answers {
        match answer {
            Some(Error::Open(OpenError::NotADirectory { path })) => assert_eq!(path, file),
            other => panic!("{other:?}"),
        }
    }
    assert!(file.exists());
}

#[test]
fn an_empty_or_missing_directory_has_no_segment() {
    let (root, path) = place();
    for _ in 0..2 {
        let answers = [Segment::open(&path).err(), SegmentReader::open(&path).err()];
        for answer in answers {
            assert!(
                matches!(answer, Some(Error::Open(OpenError::NotFound { .. }))),
                "{answer:?}"
            );
        }
        fs::create_dir_all(&path).expect("created");
    }
    let below = root.path().join("missing/limits.d");
    match Segment::open_or_create(&below, &declaring(&[("chat", 1)])) {
        Err(Error::Open(OpenError::NoPlace { path, .. })) => assert_eq!(path, below),
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_that_are_not_those_of_sets_are_left_alone_or_named() {
    let (root, path) = place();
    drop(Segment::create(&path, &declaring(&[("chat", 1)])).expect("created"));
    for name in ["README", "notes", ".hidden", "with space"] {
        fs::write(path.join(name), "not a segment").expect("written");
    }
    fs::create_dir(path.join("directory")).expect("created");
    assert_eq!(names_of(&Segment::open(&path).expect("opened")), ["chat"]);
    let misplaced = |path: &Path| {
        let answers = [Segment::open(path).err(), SegmentReader::open(path).err()];
        answers.map(|answer| match answer {
            Some(Error::Open(OpenError::Misplaced { path, why })) => {
                format!("{}: {why}", path.file_name().expect("a name").display())
            }
            other => panic!("{other:?}"),
        })
    };
    // Copied by somebody.
    fs::copy(path.join("chat"), path.join("chat.bak")).expect("copied");
    for words in misplaced(&path) {
        assert!(
            words.starts_with("chat.bak: ") && words.contains("`chat`"),
            "{words}"
        );
    }
    fs::remove_file(path.join("chat.bak")).expect("removed");
    let file = root.path().join("two");
    drop(Segment::create(&file, &declaring(&[("one", 1), ("two", 1)])).expect("created"));
    fs::rename(&file, path.join("two")).expect("moved");
    for words in misplaced(&path) {
        assert!(words.starts_with("two: ") && words.contains("2 sets"), "{words}");
    }
    // Processes that name their sets do not look at it.
    assert!(Segment::open_or_create(&path, &declaring(&[("chat", 1)])).is_ok());
    OpenOptions::new()
        .remove(&path, shmlimit::Removal::Forced)
        .expect("removed");
    assert_eq!(super::names_in(&path).len(), 5, "files of others stay");
}
