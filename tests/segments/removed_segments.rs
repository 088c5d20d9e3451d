//! A segment whose file is deleted, moved or replaced: its users find out, and the limit is not split.
#![allow(unsafe_code, reason = "closes a descriptor that is not its own, and mounts")]

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::scene;
use crate::scene::expect_permit;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use shmlimit::declare::Credit;
use shmlimit::{Declaration, Error, Limit, LimitSet, RemovalCause, Segment, SegmentError, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);

fn declaration() -> Declaration {
    let set = SetDeclaration::new("api")
        .add_limit(Limit::calls("requests", 20, HOUR))
        .add_limit(Limit::rate("tokens", 1000, HOUR))
        .add_limit(Limit::concurrency("slots", 20));
    scene::declaration().participants(8).add_set(set)
}

fn open(path: &Path) -> (Segment, LimitSet) {
    let segment = Segment::open_or_create(path, &declaration()).expect("a segment");
    let api = segment.set("api").expect("declared");
    (segment, api)
}

/// Asks without taking anything: what removed the segment, if anything did.
fn removal(api: &LimitSet) -> Option<(std::path::PathBuf, RemovalCause)> {
    let mut request = api.request();
    for limit in ["requests", "tokens", "slots"] {
        request.set_cost(limit, 0).expect("declared");
    }
    match request.try_acquire() {
        Ok(_) => None,
        Err(Error::Segment(SegmentError::Removed { path, cause })) => Some((path, cause)),
        Err(other) => panic!("{other:?}"),
    }
}

/// Waits until a handle says that its segment was removed.
fn wait_for_removal(api: &LimitSet, path: &Path, expected: RemovalCause) {
    eventually("the removal is noticed", || match removal(api) {
        None => false,
        Some(found) => {
            assert_eq!(found, (path.to_owned(), expected));
            true
        }
    });
    assert!(removal(api).is_some(), "it stays removed");
}

fn admitted(api: &LimitSet) -> usize {
    let request = api.request().with("requests", 1).expect("declared");
    let request = request.with("tokens", 0).expect("declared");
    let request = request.with("slots", 0).expect("declared");
    (0..30)
        .filter(|_| request.try_acquire().is_ok_and(|outcome| outcome.is_admitted()))
        .count()
}

#[test]
fn handles_of_a_deleted_file_admit_nothing_beside_its_successor() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let (_old, old_api) = open(&path);
    fs::remove_file(&path).expect("deleted");
    wait_for_removal(&old_api, &path, RemovalCause::Deleted);
    let (_new, new_api) = open(&path);
    assert_eq!((admitted(&old_api), admitted(&new_api)), (0, 20));
    let message = old_api.request().try_acquire().map(drop);
    // That `tokens` has no default is found first.
    assert!(message.is_err());
    let request = old_api.request().with("tokens", 1).expect("declared");
    let message = request.try_acquire().map(drop).unwrap_err().to_string();
    assert!(
        message.contains("limits was removed: its file was deleted"),
        "{message}"
    );
    assert!(message.contains("open the path again"), "{message}");
}

#[test]
fn handles_of_a_file_that_another_was_moved_over_admit_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, next) = (directory.path().join("limits"), directory.path().join("next"));
    let (_old, old_api) = open(&path);
    drop(open(&next));
    fs::rename(&next, &path).expect("moved");
    wait_for_removal(&old_api, &path, RemovalCause::Deleted);
    let (_new, new_api) = open(&path);
    assert_eq!((admitted(&old_api), admitted(&new_api)), (0, 20));
}

#[test]
fn a_file_that_was_moved_is_used_on_until_another_segment_is_at_its_path() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, aside) = (directory.path().join("limits"), directory.path().join("aside"));
    let (_old, old_api) = open(&path);
    fs::rename(&path, &aside).expect("moved");
    let stays = || {
        // Longer than the time between two checks.
        let looks_passed = std::time::Instant::now() + Duration::from_millis(1500);
        eventually("two looks have passed", || {
            assert_eq!(removal(&old_api), None);
            std::time::Instant::now() > looks_passed
        });
    };
    stays();
    // This file is no segment that could split the limit.
    fs::write(&path, "notes").expect("a file");
    stays();
    fs::remove_file(&path).expect("deleted");
    let (_moved, moved_api) = open(&aside);
    let (_new, new_api) = open(&path);
    wait_for_removal(&old_api, &path, RemovalCause::Replaced);
    // Handles that were opened by the file's present path continue.
    assert_eq!(removal(&moved_api), None);
    assert_eq!((admitted(&moved_api), admitted(&new_api)), (20, 20));
}

#[test]
fn a_file_with_another_name_left_is_not_taken_for_deleted() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, second) = (directory.path().join("limits"), directory.path().join("second"));
    let (_old, old_api) = open(&path);
    fs::hard_link(&path, &second).expect("a second name");
    fs::remove_file(&path).expect("deleted");
    let looks_passed = std::time::Instant::now() + Duration::from_millis(1500);
    eventually("a look has passed", || {
        assert_eq!(removal(&old_api), None);
        std::time::Instant::now() > looks_passed
    });
    fs::remove_file(&second).expect("deleted");
    wait_for_removal(&old_api, &path, RemovalCause::Deleted);
}

#[test]
fn permits_of_a_removed_segment_are_settled_released_and_cancelled_as_ever() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let (segment, api) = open(&path);
    let take = || {
        let request = api.request().with("tokens", 10).expect("declared");
        expect_permit(request.try_acquire())
    };
    let (mut settled, mut cancelled, dropped) = (take(), take(), take());
    segment.retire();
    assert!(removal(&api).is_some());
    assert_eq!(
        settled
            .settle([("tokens", 4)])
            .expect("settles")
            .refunded("tokens"),
        6
    );
    settled.heartbeat().expect("nothing is amiss");
    settled.release().expect("releases");
    cancelled.cancel().expect("cancels");
    drop(dropped);
    assert_eq!(segment.snapshot().expect("a copy").sets[0].active, 0);
}

#[test]
fn what_waits_in_a_deleted_file_ends_with_that() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let (segment, api) = open(&path);
    let all = api.request().with("slots", 20).expect("declared");
    let all = all.with("requests", 0).expect("declared");
    let _held = expect_permit(all.try_acquire());
    thread::scope(|scope| {
        let threads = [None, Some(10 * TIMEOUT)].map(|timeout| {
            let all = &all;
            scope.spawn(move || all.acquire(timeout).map(drop))
        });
        let futures = [None, Some(10 * TIMEOUT)].map(|timeout| {
            let all = &all;
            scope.spawn(move || smol::block_on(all.acquire_async(timeout)).map(drop))
        });
        eventually("they wait", || {
            segment.snapshot().expect("a copy").sets[0].tickets.len() == 4
        });
        fs::remove_file(&path).expect("deleted");
        for waiting in threads.into_iter().chain(futures) {
            let outcome = waiting.join().expect("no panic");
            let cause = RemovalCause::Deleted;
            assert!(
                matches!(&outcome, Err(Error::Segment(SegmentError::Removed { cause: found, .. })) if *found == cause),
                "{outcome:?}"
            );
        }
    });
}

#[test]
fn a_forked_child_that_never_used_its_handle_finds_the_file_deleted() {
    let test = "removed_segments::a_forked_child_that_never_used_its_handle_finds_the_file_deleted";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        let (_segment, api) = open(&path);
        let words = SharedWords::new(2);
        let children = [0, 1].map(|word| {
            let (words, api, path) = (&words, &api, &path);
            Child::fork(move || {
                if word == 0 {
                    assert_eq!(removal(api), None);
                }
                words[word].store(1, Ordering::SeqCst);
                eventually("the file is deleted", || !path.exists());
                wait_for_removal(api, path, RemovalCause::Deleted);
                // A grandchild that has to join first.
                Child::fork(|| wait_for_removal(api, path, RemovalCause::Deleted)).succeed();
            })
        });
        eventually("they are ready", || {
            words.iter().all(|word| word.load(Ordering::SeqCst) == 1)
        });
        fs::remove_file(&path).expect("deleted");
        for child in children {
            child.succeed();
        }
    });
}

#[test]
fn a_process_whose_descriptors_were_closed_hears_from_the_others() {
    let test = "removed_segments::a_process_whose_descriptors_were_closed_hears_from_the_others";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        let (_segment, api) = open(&path);
        let words = SharedWords::new(1);
        let child = Child::fork(|| {
            assert_eq!(removal(&api), None);
            words[0].store(1, Ordering::SeqCst);
            eventually("the file is deleted", || !path.exists());
            wait_for_removal(&api, &path, RemovalCause::Deleted);
        });
        eventually("it is ready", || words[0].load(Ordering::SeqCst) == 1);
        let first = File::open("/dev/null").expect("a descriptor").as_raw_fd();
        for number in 3..first.max(64) {
            // SAFETY: closing touches no memory, and what is closed is only ever used by its number.
            unsafe { libc::close(number) };
        }
        assert_eq!(removal(&api), None);
        fs::remove_file(&path).expect("deleted");
        wait_for_removal(&api, &path, RemovalCause::Deleted);
        child.succeed();
    });
}

/// Moves this process into mount and user namespaces of its own, if that is permitted.
fn in_own_mounts() -> bool {
    let (user, group) = (nix::unistd::getuid(), nix::unistd::getgid());
    // SAFETY: no memory is involved; the process has one thread that does anything.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } != 0 {
        println!("skipped: no mount namespace of its own: {}", Errno::last());
        return false;
    }
    let maps = [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{user} {user} 1")),
        ("/proc/self/gid_map", format!("{group} {group} 1")),
    ];
    maps.iter().all(|(file, text)| fs::write(file, text).is_ok())
}

#[test]
fn a_file_that_is_reached_through_a_bind_mount_is_deleted_only_when_it_is() {
    let test = "removed_segments::a_file_that_is_reached_through_a_bind_mount_is_deleted_only_when_it_is";
    in_own_process(test, TIMEOUT, |directory| {
        let (host, inner) = (directory.join("host"), directory.join("inner"));
        for place in [&host, &inner] {
            fs::create_dir(place).expect("a directory");
        }
        let (path, mounted) = (host.join("limits"), inner.join("limits"));
        let (_segment, api) = open(&path);
        let words = SharedWords::new(1);
        let child = Child::fork(|| {
            File::create(&mounted).expect("a place to mount the file on");
            let names = [&path, &mounted]
                .map(|name| std::ffi::CString::new(name.as_os_str().as_encoded_bytes()).expect("no zeros"));
            // The test binary has threads that wait, so only a forked child may change its user namespace.
            let is_mounted = in_own_mounts() && {
                // SAFETY: both strings are alive, and a bind mount needs neither type nor data.
                let outcome = unsafe {
                    libc::mount(
                        names[0].as_ptr(),
                        names[1].as_ptr(),
                        std::ptr::null(),
                        libc::MS_BIND,
                        std::ptr::null(),
                    )
                };
                outcome == 0
            };
            if !is_mounted {
                println!("skipped: no bind mount: {}", Errno::last());
                words[0].store(1, Ordering::SeqCst);
                return;
            }
            let (_segment, api) = open(&mounted);
            assert_eq!(removal(&api), None);
            words[0].store(1, Ordering::SeqCst);
            eventually("the file is deleted", || !path.exists());
            wait_for_removal(&api, &mounted, RemovalCause::Deleted);
            // The mount still leads to the deleted file, which is not a segment for new users.
            assert!(matches!(
                Segment::open(&mounted),
                Err(Error::Segment(SegmentError::Removed {
                    cause: RemovalCause::Deleted,
                    ..
                }))
            ));
        });
        eventually("it is mounted", || words[0].load(Ordering::SeqCst) == 1);
        assert_eq!(removal(&api), None);
        fs::remove_file(&path).expect("deleted");
        child.succeed();
        wait_for_removal(&api, &path, RemovalCause::Deleted);
    });
}

#[test]
fn a_successor_that_takes_long_to_open_holds_up_one_thread_only() {
    let test = "removed_segments::a_successor_that_takes_long_to_open_holds_up_one_thread_only";
    // Run in a process in which no other test forks: a child has all descriptors, and the lock with them, until it
    // execs.
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        let (old, old_api) = open(&path);
        fs::remove_file(&path).expect("deleted");
        wait_for_removal(&old_api, &path, RemovalCause::Deleted);
        let (_new, _) = open(&path);
        let attaching = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .expect("the successor");
        let lock = |kind: libc::c_int| {
            let lock = libc::flock {
                l_type: kind as libc::c_short,
                l_whence: libc::SEEK_SET as libc::c_short,
                l_start: (1 << 40) - 1,
                l_len: 1,
                l_pid: 0,
            };
            fcntl(&attaching, FcntlArg::F_OFD_SETLK(&lock)).expect("no other process attaches");
        };
        lock(libc::F_WRLCK);
        let descriptors = || {
            let entries = fs::read_dir("/proc/self/fd").expect("listed");
            entries
                .filter(|entry| {
                    let entry = entry.as_ref().expect("an entry");
                    fs::read_link(entry.path()).is_ok_and(|target| target == path)
                })
                .count()
        };
        let before = descriptors();
        thread::scope(|scope| {
            let opening = scope.spawn(|| old.successor());
            eventually("it is opened", || descriptors() > before);
            // Longer than the first pause.
            let pause_passed = std::time::Instant::now() + Duration::from_millis(50);
            eventually("a pause has passed", || std::time::Instant::now() > pause_passed);
            assert!(old.successor().is_none());
            assert!(!opening.is_finished(), "the other thread was waited for");
            lock(libc::F_UNLCK);
        });
        eventually("the successor is open", || old.successor().is_some());
    });
}

#[test]
fn a_process_that_admits_from_a_batch_finds_out_that_the_file_was_deleted_or_replaced() {
    let credit = Credit::batch(1_000_000);
    let limit = Limit::calls("requests", 2_000_000, HOUR).credit(credit);
    let declaration = scene::declaration().add_set(SetDeclaration::new("api").add_limit(limit));
    for cause in [RemovalCause::Deleted, RemovalCause::Replaced] {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, aside) = (directory.path().join("limits"), directory.path().join("aside"));
        let segment = Segment::create(&path, &declaration).expect("a segment");
        let api = segment.set("api").expect("declared");
        assert!(api.request().check().expect("in use").is_admitted());
        if cause == RemovalCause::Deleted {
            fs::remove_file(&path).expect("deleted");
        } else {
            fs::rename(&path, &aside).expect("moved");
        }
        let _successor = Segment::create(&path, &declaration).expect("a segment");
        let mut admitted = 1;
        eventually("the removal is noticed", || match api.request().check() {
            Ok(checked) => {
                assert!(checked.is_admitted());
                admitted += 1;
                assert!(admitted < 1_000_000, "from the batch alone");
                false
            }
            Err(Error::Segment(SegmentError::Removed { cause: found, .. })) => found == cause,
            Err(other) => panic!("{other:?}"),
        });
    }
}
