//! Where a segment may not be, and what must not be taken for one.

mod process;

use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::{Uid, User, chown, geteuid, mkfifo};
use process::{Child, PATIENCE, in_own_process};
use shmlimit::{
    Declaration, Error, Limit, OpenOptions as SegmentOptions, Segment, SegmentReader, SetDeclaration,
};

fn declaration() -> Declaration {
    let hour = Duration::from_secs(3600);
    Declaration::new()
        .participants(4)
        .set(SetDeclaration::new("api").limit(Limit::calls("calls", 10, hour)))
}

fn create(path: &Path) {
    drop(Segment::create(path, &declaration()).expect("a segment"));
}

/// No way to open leads to what is at the path, and none of them changes or waits for it.
fn check_untrusted(path: &Path, why: &str) {
    for attempt in [
        Segment::open(path).map(drop),
        Segment::open_or_create(path, &declaration()).map(drop),
    ] {
        match attempt {
            Err(Error::Untrusted {
                path: named,
                why: found,
            }) => {
                assert_eq!(named, path);
                assert!(found.contains(why), "{found}");
            }
            other => panic!("{} should not be trusted: {other:?}", path.display()),
        }
    }
    assert!(matches!(
        Segment::create(path, &declaration()),
        Err(Error::AlreadyExists { .. })
    ));
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, link) = (folder.path().join("limits"), folder.path().join("link"));
    create(&path);
    symlink(&path, &link).expect("a link");
    check_untrusted(&link, "symbolic link");
    assert!(matches!(SegmentReader::open(&link), Err(Error::Untrusted { .. })));
    drop(Segment::open(&path).expect("the file itself"));
    // Nor is one that leads nowhere, to create what it names.
    let (nowhere, dangling) = (folder.path().join("nowhere"), folder.path().join("dangling"));
    symlink(&nowhere, &dangling).expect("a link");
    check_untrusted(&dangling, "symbolic link");
    assert!(!nowhere.exists());
}

#[test]
fn pipes_sockets_devices_and_folders_are_not_segments() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
    check_untrusted(&pipe, "not a regular file");
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    check_untrusted(&socket, "not a regular file");
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).expect("a folder");
    check_untrusted(&inner, "not a regular file");
    check_untrusted(Path::new("/dev/null"), "not a regular file");
}

#[test]
fn a_file_with_a_second_name_is_not_trusted_until_it_has_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, second) = (folder.path().join("limits"), folder.path().join("second"));
    create(&path);
    fs::hard_link(&path, &second).expect("a second name");
    check_untrusted(&path, "2 names");
    check_untrusted(&second, "2 names");
    fs::remove_file(&second).expect("removed");
    drop(Segment::open(&path).expect("one name"));
}

#[test]
fn a_file_that_anybody_may_write_is_trusted_only_on_demand() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits");
    create(&path);
    fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("its mode");
    check_untrusted(&path, "anybody may write it");
    let trusting = SegmentOptions::new().trust_any_owner(true);
    drop(trusting.open(&path).expect("told to trust it"));
}

#[test]
fn the_mode_is_0600_or_what_was_asked_for_whatever_the_umask() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, declaration, mode) in [
        ("default", declaration(), 0o600),
        ("asked", declaration().mode(0o660), 0o660),
        ("readable", declaration().mode(0o644), 0o644),
    ] {
        let path = folder.path().join(name);
        drop(Segment::create(&path, &declaration).expect("a segment"));
        assert_eq!(
            fs::metadata(&path).expect("a file").mode() & 0o7777,
            mode,
            "{name}"
        );
    }
}

/// The user `nobody`, where this process may act for others.
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
fn a_strangers_file_in_a_folder_that_others_may_write_is_not_trusted() {
    let Some(stranger) = stranger() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits");
    create(&path);
    chown(&path, Some(stranger), None).expect("given away");
    drop(Segment::open(&path).expect("nobody else can have put it there"));
    fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).expect("its mode");
    check_untrusted(&path, &format!("belongs to user {stranger}"));
    drop(
        SegmentOptions::new()
            .trust_any_owner(true)
            .open(&path)
            .expect("told to trust it"),
    );
}

#[test]
fn a_file_that_this_user_may_not_write_is_an_error_that_says_so() {
    let test = "a_file_that_this_user_may_not_write_is_an_error_that_says_so";
    in_own_process(test, PATIENCE, |folder| {
        let Some(stranger) = stranger() else { return };
        let path = folder.join("limits");
        create(&path);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("its mode");
        fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("its mode");
        Child::fork(|| {
            nix::unistd::setuid(stranger).expect("somebody else");
            match Segment::open(&path) {
                Err(Error::Io {
                    action: "open",
                    source,
                    ..
                }) => {
                    assert_eq!(source.raw_os_error(), Some(libc::EACCES));
                }
                other => panic!("{other:?}"),
            }
            // Looking needs no more than permission to read.
            let reader = SegmentReader::open(&path).expect("readable");
            assert_eq!(reader.snapshot().expect("a copy").sets.len(), 1);
        })
        .succeed();
    });
}

/// Runs `body` with a file system of its own mounted, where that is permitted; nobody else sees it.
fn on_small_file_system(test: &str, options: &CStr, body: impl FnOnce(&Path)) {
    in_own_process(test, PATIENCE, |folder| {
        // SAFETY: no memory is involved; the process's other thread waits.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            println!("skipped: no mount namespace of its own: {}", Errno::last());
            return;
        }
        let target = folder.join("small");
        fs::create_dir(&target).expect("a folder");
        mount(None, Path::new("/"), libc::MS_REC | libc::MS_PRIVATE, None).expect("private mounts");
        if let Err(error) = mount(Some(c"tmpfs"), &target, 0, Some(options)) {
            println!("skipped: no file system of its own: {error}");
            return;
        }
        body(&target);
    });
}

fn mount(
    kind: Option<&CStr>,
    target: &Path,
    flags: libc::c_ulong,
    options: Option<&CStr>,
) -> Result<(), Errno> {
    let target = CString::new(target.as_os_str().as_bytes()).expect("no zero in it");
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: every string is terminated and outlives the call.
    let answer = unsafe {
        libc::mount(
            c"none".as_ptr(),
            target.as_ptr(),
            pointer(kind),
            flags,
            pointer(options).cast(),
        )
    };
    Errno::result(answer).map(drop)
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect()
}

fn assert_no_space<T: std::fmt::Debug>(result: Result<T, Error>, path: &Path) -> u64 {
    match result {
        Err(Error::NoSpace { path: named, bytes }) => {
            assert_eq!(named, path);
            bytes
        }
        other => panic!("there should be no room: {other:?}"),
    }
}

#[test]
fn a_full_file_system_is_an_error_at_creation_and_leaves_nothing() {
    let test = "a_full_file_system_is_an_error_at_creation_and_leaves_nothing";
    on_small_file_system(test, c"size=64k", |folder| {
        let path = folder.join("limits");
        let large =
            Declaration::new().set(SetDeclaration::new("api").limit(Limit::concurrency("slots", 2000)));
        let bytes = assert_no_space(Segment::create(&path, &large), &path);
        assert!(bytes > 64 * 1024, "{bytes}");
        assert_no_space(Segment::open_or_create(&path, &large), &path);
        assert!(names_in(folder).is_empty(), "{:?}", names_in(folder));
        create(&path);
    });
}

#[test]
fn no_room_for_another_name_is_an_error_at_creation() {
    let test = "no_room_for_another_name_is_an_error_at_creation";
    on_small_file_system(test, c"nr_inodes=2", |folder| {
        create(&folder.join("first"));
        let path = folder.join("second");
        assert_no_space(Segment::create(&path, &declaration()), &path);
        assert_eq!(names_in(folder), ["first"]);
    });
}

#[test]
fn a_sparse_copy_on_a_full_file_system_is_an_error_and_not_a_fault() {
    let test = "a_sparse_copy_on_a_full_file_system_is_an_error_and_not_a_fault";
    on_small_file_system(test, c"size=64k", |folder| {
        let path = folder.join("limits");
        // Its tables of holds are zeros, which a sparse copy leaves out.
        let mostly_zeros = Declaration::new().participants(4).set(
            SetDeclaration::new("api")
                .waiters(4)
                .holds(500)
                .limit(Limit::concurrency("slots", 500)),
        );
        drop(Segment::create(&path, &mostly_zeros).expect("a segment"));
        let bytes = fs::read(&path).expect("bytes");
        fs::remove_file(&path).expect("removed");
        let used = bytes.iter().rposition(|byte| *byte != 0).expect("some content") + 1;
        fs::write(&path, &bytes[..used]).expect("the start of it");
        let file = OpenOptions::new().write(true).open(&path).expect("a file");
        file.set_len(bytes.len() as u64).expect("a hole to the end");
        fill_up(&folder.join("filler"));
        let error = assert_no_space(Segment::open(&path), &path);
        assert_eq!(error, bytes.len() as u64);
        assert!(fs::read(&path).expect("bytes") == bytes, "something was changed");
        fs::remove_file(folder.join("filler")).expect("removed");
        drop(Segment::open(&path).expect("room for it now"));
    });
}

fn fill_up(path: &Path) {
    use std::io::Write;
    let mut file = File::create(path).expect("a file");
    while file.write_all(&[1; 4096]).is_ok() {}
}

#[test]
fn a_read_only_file_system_can_be_looked_at_and_no_more() {
    let test = "a_read_only_file_system_can_be_looked_at_and_no_more";
    on_small_file_system(test, c"size=1m", |folder| {
        let path = folder.join("limits");
        create(&path);
        mount(None, folder, libc::MS_REMOUNT | libc::MS_RDONLY, None).expect("read-only");
        let is_read_only = |result: Result<Segment, Error>, verb: &str| match result {
            Err(Error::Io { action, source, .. }) => {
                assert_eq!((action, source.raw_os_error()), (verb, Some(libc::EROFS)));
            }
            other => panic!("{other:?}"),
        };
        is_read_only(Segment::open(&path), "open");
        is_read_only(Segment::open_or_create(&path, &declaration()), "open");
        is_read_only(Segment::create(folder.join("another"), &declaration()), "create");
        let reader = SegmentReader::open(&path).expect("readable");
        let snapshot = reader.snapshot().expect("a copy");
        assert_eq!(snapshot.sets[0].limits[0].remaining, 10);
        assert!(snapshot.same_place);
    });
}

#[test]
fn a_path_that_leads_nowhere_is_not_found_and_names_the_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits");
    assert!(matches!(Segment::open(&path), Err(Error::NotFound { path: named }) if named == path));
    let deeper = path.join("limits");
    assert!(matches!(Segment::open(&deeper), Err(Error::NotFound { .. })));
    match Segment::create(&deeper, &declaration()) {
        Err(Error::Io {
            action: "create",
            source,
            ..
        }) => {
            assert_eq!(source.raw_os_error(), Some(libc::ENOENT));
        }
        other => panic!("{other:?}"),
    }
}
