//! Where a segment may not be, and what must not be taken for one.
#![allow(unsafe_code, reason = "mounts, and damages the words of a mapping")]

use std::ffi::CStr;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::scene;
use crate::scene::mounts::{mount, on_file_system};
use crate::scene::names::names_in;
use crate::scene::process::{Child, SharedWords, TIMEOUT, in_own_process};
use memmap2::MmapRaw;
use nix::sys::stat::Mode;
use nix::unistd::{Uid, User, chown, geteuid, mkfifo};
use shmlimit::snapshot::SegmentReader;
use shmlimit::{
    Declaration, Error, Limit, OpenError, OpenOptions as SegmentOptions, Segment, SetDeclaration,
};

fn declaration() -> Declaration {
    let hour = Duration::from_secs(3600);
    scene::declaration().participants(4).add_set(
        SetDeclaration::new("api")
            .waiters(16)
            .add_limit(Limit::calls("calls", 10, hour)),
    )
}

fn create(path: &Path) {
    drop(Segment::create(path, &declaration()).expect("a segment"));
}

/// Checks that no way of opening follows what is at the path, changes it or waits for it.
fn check_untrusted(path: &Path, why: &str) {
    for attempt in [
        Segment::open(path).map(drop),
        Segment::open_or_create(path, &declaration()).map(drop),
    ] {
        match attempt {
            Err(Error::Open(OpenError::Untrusted {
                path: named,
                why: found,
            })) => {
                assert_eq!(named, path);
                assert!(found.contains(why), "{found}");
            }
            other => panic!("{} should not be trusted: {other:?}", path.display()),
        }
    }
    assert!(matches!(
        Segment::create(path, &declaration()),
        Err(Error::Open(OpenError::AlreadyExists { .. }))
    ));
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, link) = (directory.path().join("limits"), directory.path().join("link"));
    create(&path);
    symlink(&path, &link).expect("a link");
    check_untrusted(&link, "symbolic link");
    assert!(matches!(
        SegmentReader::open(&link),
        Err(Error::Open(OpenError::Untrusted { .. }))
    ));
    drop(Segment::open(&path).expect("the file itself"));
    // Nor is a link that leads nowhere followed, to create what it names.
    let (nowhere, dangling) = (
        directory.path().join("nowhere"),
        directory.path().join("dangling"),
    );
    symlink(&nowhere, &dangling).expect("a link");
    check_untrusted(&dangling, "symbolic link");
    assert!(!nowhere.exists());
}

#[test]
fn pipes_sockets_and_devices_are_not_segments() {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
    check_untrusted(&pipe, "not a regular file");
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    check_untrusted(&socket, "not a regular file");
    check_untrusted(Path::new("/dev/null"), "not a regular file");
}

#[test]
fn a_file_with_a_second_name_is_not_trusted_until_it_has_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, second) = (directory.path().join("limits"), directory.path().join("second"));
    create(&path);
    fs::hard_link(&path, &second).expect("a second name");
    check_untrusted(&path, "2 names");
    check_untrusted(&second, "2 names");
    fs::remove_file(&second).expect("removed");
    drop(Segment::open(&path).expect("one name"));
}

#[test]
fn a_file_that_anybody_may_write_is_trusted_only_on_demand() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    create(&path);
    fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("its mode");
    check_untrusted(&path, "everyone may write to it");
    let trusting = SegmentOptions::new().trust_any_owner(true);
    drop(trusting.open(&path).expect("told to trust it"));
}

#[test]
fn the_mode_is_0600_or_what_was_asked_for_whatever_the_umask() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, declaration, mode) in [
        ("default", declaration(), 0o600),
        ("asked", declaration().mode(0o660), 0o660),
        ("readable", declaration().mode(0o644), 0o644),
    ] {
        let path = directory.path().join(name);
        drop(Segment::create(&path, &declaration).expect("a segment"));
        assert_eq!(
            fs::metadata(&path).expect("a file").mode() & 0o7777,
            mode,
            "{name}"
        );
    }
}

/// The user `nobody`, if this process may act for others.
fn stranger() -> Option<Uid> {
    let nobody = User::from_name("nobody").ok().flatten()?.uid;
    if geteuid().is_root() {
        Some(nobody)
    } else {
        println!("skipped: only root can give files to others");
        None
    }
}

#[test]
fn a_strangers_file_in_a_directory_that_others_may_write_is_not_trusted() {
    let Some(stranger) = stranger() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    create(&path);
    chown(&path, Some(stranger), None).expect("given away");
    drop(Segment::open(&path).expect("put there by this test"));
    let given = |mode| fs::set_permissions(directory.path(), Permissions::from_mode(mode)).expect("its mode");
    given(0o770);
    check_untrusted(&path, &format!("belongs to user {stranger}"));
    check_untrusted(&path, "do not let its group or others write there (chmod 2750)");
    // Like /dev/shm, which all programs of the host need as it is.
    given(0o1777);
    check_untrusted(&path, &format!("belongs to user {stranger}"));
    check_untrusted(
        &path,
        "leave the mode of that directory as it is, and put the segment into a subdirectory",
    );
    drop(
        SegmentOptions::new()
            .trust_any_owner(true)
            .open(&path)
            .expect("told to trust it"),
    );
}

#[test]
fn a_file_that_this_user_may_not_write_is_an_error_that_says_so() {
    let test = "places::a_file_that_this_user_may_not_write_is_an_error_that_says_so";
    in_own_process(test, TIMEOUT, |directory| {
        let Some(stranger) = stranger() else { return };
        let path = directory.join("limits");
        create(&path);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("its mode");
        fs::set_permissions(directory, Permissions::from_mode(0o755)).expect("its mode");
        Child::fork(|| {
            nix::unistd::setuid(stranger).expect("another user");
            match Segment::open(&path) {
                Err(Error::Open(OpenError::Denied {
                    action: "open",
                    source,
                    why,
                    ..
                })) => {
                    assert_eq!(source.raw_os_error(), Some(libc::EACCES));
                    assert!(why.contains("mode 0644"), "{why}");
                }
                other => panic!("{other:?}"),
            }
            // Permission to read is enough to look.
            let reader = SegmentReader::open(&path).expect("readable");
            assert_eq!(reader.snapshot().expect("a copy").sets.len(), 1);
        })
        .succeed();
    });
}

/// Runs `body` with a small file system of its own.
fn on_small_file_system(test: &str, options: &CStr, body: impl FnOnce(&Path)) {
    on_file_system(test, c"tmpfs", options, body);
}

fn assert_no_space<T: std::fmt::Debug>(result: Result<T, Error>, path: &Path) -> u64 {
    match result {
        Err(Error::Open(OpenError::NoSpace {
            path: named, bytes, ..
        })) => {
            assert_eq!(named, path);
            bytes
        }
        other => panic!("there should be no room: {other:?}"),
    }
}

#[test]
fn a_full_file_system_is_an_error_at_creation_and_leaves_nothing() {
    let test = "places::a_full_file_system_is_an_error_at_creation_and_leaves_nothing";
    on_small_file_system(test, c"size=64k", |directory| {
        let path = directory.join("limits");
        let large = scene::declaration()
            .add_set(SetDeclaration::new("api").add_limit(Limit::concurrency("slots", 2000)));
        let bytes = assert_no_space(Segment::create(&path, &large), &path);
        assert!(bytes > 64 * 1024, "{bytes}");
        assert_no_space(Segment::open_or_create(&path, &large), &path);
        assert!(names_in(directory).is_empty(), "{:?}", names_in(directory));
        create(&path);
    });
}

#[test]
fn no_room_for_another_name_is_an_error_at_creation() {
    let test = "places::no_room_for_another_name_is_an_error_at_creation";
    on_small_file_system(test, c"nr_inodes=2", |directory| {
        create(&directory.join("first"));
        let path = directory.join("second");
        assert_no_space(Segment::create(&path, &declaration()), &path);
        assert_eq!(names_in(directory), ["first"]);
    });
}

/// A segment whose tables are mostly zeros, which a sparse copy leaves out.
fn mostly_zeros() -> Declaration {
    scene::declaration().participants(4).add_set(
        SetDeclaration::new("api")
            .waiters(4)
            .holds(500)
            .add_limit(Limit::concurrency("slots", 500)),
    )
}

/// Turns pages of zeros in a file into holes. Returns how many.
fn punch_holes(path: &Path) -> usize {
    let bytes = fs::read(path).expect("bytes");
    fs::remove_file(path).expect("removed");
    let file = File::create_new(path).expect("a file");
    file.set_len(bytes.len() as u64).expect("one hole");
    let mut holes = 0;
    for (page, offset) in bytes.chunks(4096).zip((0..).step_by(4096)) {
        if page.iter().any(|byte| *byte != 0) {
            file.write_all_at(page, offset).expect("room");
        } else {
            holes += 1;
        }
    }
    file.set_permissions(Permissions::from_mode(0o600))
        .expect("its mode");
    holes
}

/// Attaching must not allocate what a sparse copy left out: on some file systems, allocating means writing.
fn check_sparse_copy_is_refused(directory: &Path) {
    let path = directory.join("limits");
    drop(Segment::create(&path, &mostly_zeros()).expect("a segment"));
    drop(Segment::open(&path).expect("without holes"));
    assert!(punch_holes(&path) > 0);
    let before = (
        fs::read(&path).expect("bytes"),
        fs::metadata(&path).expect("it").blocks(),
    );
    for attempt in [
        Segment::open(&path).map(drop),
        Segment::open_or_create(&path, &mostly_zeros()).map(drop),
    ] {
        assert!(
            matches!(&attempt, Err(Error::Open(OpenError::Sparse { path: named })) if *named == path),
            "{attempt:?}"
        );
    }
    let after = (
        fs::read(&path).expect("bytes"),
        fs::metadata(&path).expect("it").blocks(),
    );
    assert!(before == after, "something was changed");
    // Looking needs no space.
    SegmentReader::open(&path).expect("readable");
}

#[test]
fn a_sparse_copy_is_refused_and_stays_as_it_is() {
    for directory in [Path::new("/dev/shm"), &std::env::temp_dir()] {
        check_sparse_copy_is_refused(tempfile::tempdir_in(directory).expect("a directory").path());
    }
}

/// If the kernel cannot allocate, the C library emulates it by storing into every page. This process attaches and
/// detaches while a second one counts in the file, and checks that no store is lost.
#[test]
fn attaching_stores_nothing_where_the_file_system_cannot_allocate() {
    let test = "places::attaching_stores_nothing_where_the_file_system_cannot_allocate";
    on_file_system(test, c"ramfs", c"mode=0700", |directory| {
        let path = directory.join("shared");
        drop(Segment::create(&path, &mostly_zeros()).expect("a segment"));
        let bytes = fs::read(&path).expect("bytes");
        // The C library stores into the byte of each page at the offset that the file's last byte has in its own page.
        // Here that belongs to pages of free holds, where nothing is read.
        let in_page = (bytes.len() - 8) % 4096;
        let unused: Vec<usize> = (0..bytes.len() / 4096)
            .filter(|page| bytes[page * 4096..][..4096].iter().all(|byte| *byte == 0))
            .collect();
        assert!(!unused.is_empty());
        let file = File::options().read(true).write(true).open(&path).expect("opens");
        let map = MmapRaw::map_raw(&file).expect("a mapping");
        let word_of = |page: &usize| {
            // SAFETY: the word lies in the mapping, is aligned, and every process uses it as an atomic.
            unsafe { AtomicU64::from_ptr(map.as_mut_ptr().add(page * 4096 + in_page).cast()) }
        };
        let words = SharedWords::new(1);
        let stop = &words[0];
        let writer = Child::fork(|| {
            let (mut value, mut lost) = (0, 0);
            while stop.load(Ordering::SeqCst) == 0 {
                for page in &unused {
                    let is_lost = word_of(page).swap(!value, Ordering::SeqCst) != value;
                    lost += u64::from(is_lost);
                }
                value = !value;
            }
            assert_eq!(lost, 0, "stores were lost");
        });
        for _ in 0..2000 {
            drop(Segment::open(&path).expect("opens"));
        }
        stop.store(1, Ordering::SeqCst);
        writer.succeed();
    });
}

#[test]
fn a_read_only_file_system_can_be_looked_at_and_no_more() {
    let test = "places::a_read_only_file_system_can_be_looked_at_and_no_more";
    on_small_file_system(test, c"size=1m", |directory| {
        let path = directory.join("limits");
        create(&path);
        mount(None, directory, None, libc::MS_REMOUNT | libc::MS_RDONLY, None).expect("read-only");
        let is_read_only = |result: Result<Segment, Error>, verb: &str| match result {
            Err(Error::Open(OpenError::NoPlace { action, source, .. })) => {
                assert_eq!((action, source.raw_os_error()), (verb, Some(libc::EROFS)));
            }
            other => panic!("{other:?}"),
        };
        is_read_only(Segment::open(&path), "open");
        is_read_only(Segment::open_or_create(&path, &declaration()), "open");
        is_read_only(
            Segment::create(directory.join("another"), &declaration()),
            "create",
        );
        let reader = SegmentReader::open(&path).expect("readable");
        let snapshot = reader.snapshot().expect("a copy");
        assert_eq!(snapshot.sets[0].limits[0].remaining, 10);
        assert!(snapshot.same_place);
    });
}

#[test]
fn a_path_that_leads_nowhere_is_not_found_and_names_the_path() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    assert!(
        matches!(Segment::open(&path), Err(Error::Open(OpenError::NotFound { path: named })) if named == path)
    );
    let deeper = path.join("limits");
    assert!(matches!(
        Segment::open(&deeper),
        Err(Error::Open(OpenError::NotFound { .. }))
    ));
    match Segment::create(&deeper, &declaration()) {
        Err(Error::Open(OpenError::NoPlace {
            action: "create",
            source,
            ..
        })) => {
            assert_eq!(source.raw_os_error(), Some(libc::ENOENT));
        }
        other => panic!("{other:?}"),
    }
}
