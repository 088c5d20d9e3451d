//! Segments with robust mutexes and processes of other PID namespaces, where the same number means another process.
#![allow(unsafe_code, reason = "enters namespaces")]

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::layout_mirror::RawSegment;
use crate::layout_mirror::words::control;
use crate::scene::namespaces::namespace;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use nix::errno::Errno;
use nix::sys::signal::{Signal, raise};
use shmlimit::declare::LockKind;
use shmlimit::{Declaration, Error, Limit, OpenError, Segment, SetDeclaration};

const SLOTS: u64 = 3;

fn create(path: &Path) -> Segment {
    let set = SetDeclaration::new("api").add_limit(Limit::concurrency("slots", SLOTS));
    let declaration = Declaration::new()
        .lock(LockKind::RobustMutex)
        .participants(8)
        .add_set(set);
    Segment::create(path, &declaration).expect("a segment")
}

fn can_take_all(segment: &Segment) -> bool {
    let api = segment.set("api").expect("declared");
    let request = api.request().with("slots", SLOTS).expect("declared");
    request.try_acquire().expect("works").is_admitted()
}

/// Runs `body` in the first process of a new PID namespace, if that is permitted.
fn in_new_namespace(body: impl FnOnce()) -> Option<Child> {
    // SAFETY: no memory is involved. Only processes forked from now on are in the new namespace.
    if unsafe { libc::unshare(libc::CLONE_NEWPID) } == 0 {
        Some(Child::fork(body))
    } else {
        println!("skipped: no PID namespace of its own: {}", Errno::last());
        None
    }
}

fn cold_starts(segment: &Segment) -> u64 {
    segment.snapshot().expect("a copy").cold_starts
}

#[test]
fn a_segment_in_use_in_another_namespace_is_refused_and_not_touched() {
    let test = "namespaces::a_segment_in_use_in_another_namespace_is_refused_and_not_touched";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create(&path);
        let outer = namespace();
        let before = fs::read(&path).expect("bytes");
        let child = in_new_namespace(|| {
            let inner = namespace();
            assert_ne!(inner, outer);
            match Segment::open(&path) {
                Err(Error::Open(OpenError::ForeignNamespace {
                    path: named,
                    what,
                    found,
                    expected,
                })) => {
                    assert_eq!(
                        (named, what, found, expected),
                        (path.clone(), "PID", outer, inner)
                    );
                }
                other => panic!("{other:?}"),
            }
        });
        let Some(child) = child else { return };
        child.succeed();
        assert!(fs::read(&path).expect("bytes") == before, "something was changed");
        assert!(can_take_all(&segment));
    });
}

#[test]
fn a_segment_that_no_process_uses_is_adopted_by_another_namespace_and_back() {
    let test = "namespaces::a_segment_that_no_process_uses_is_adopted_by_another_namespace_and_back";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        drop(create(&path));
        let words = SharedWords::new(1);
        let child = in_new_namespace(|| {
            let segment = Segment::open(&path).expect("starts cold");
            assert_eq!(cold_starts(&segment), 1);
            assert!(can_take_all(&segment));
            words[0].store(1, Ordering::SeqCst);
            eventually("the other was refused", || words[0].load(Ordering::SeqCst) == 2);
        });
        let Some(child) = child else { return };
        eventually("it is adopted", || words[0].load(Ordering::SeqCst) == 1);
        assert!(matches!(
            Segment::open(&path),
            Err(Error::Open(OpenError::ForeignNamespace { what: "PID", .. }))
        ));
        words[0].store(2, Ordering::SeqCst);
        child.succeed();
        let segment = Segment::open(&path).expect("starts cold");
        assert_eq!(cold_starts(&segment), 2);
    });
}

/// A child forked into other namespaces inherits its handles and opens nothing, so nothing has checked that it can use
/// them. If it were not refused, its permits would be given to others while it lives.
fn check_forked_child_is_refused(test: &str, flag: libc::c_int, namespace: &str) {
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create(&path);
        let api = segment.set("api").expect("declared");
        // SAFETY: no memory is involved. Only processes forked from now on are in the new namespace.
        if unsafe { libc::unshare(flag) } != 0 {
            println!("skipped: no {namespace} namespace of its own: {}", Errno::last());
            return;
        }
        let before = segment.snapshot().expect("a copy");
        Child::fork(|| {
            let is_refused = |attempt: Result<(), Error>| match attempt {
                Err(Error::Open(OpenError::ForeignNamespace {
                    path: named, what, ..
                })) => {
                    assert_eq!((named, what), (path.clone(), namespace));
                }
                other => panic!("{other:?}"),
            };
            for _ in 0..3 {
                is_refused(api.request().try_acquire().map(drop));
                is_refused(api.reset().run());
                is_refused(Segment::open(&path).map(drop));
            }
        })
        .succeed();
        let after = segment.snapshot().expect("a copy");
        assert_eq!(after.participants.len(), before.participants.len());
        assert_eq!(after.sets[0].counts, before.sets[0].counts);
        assert!(can_take_all(&segment));
    });
}

#[test]
fn a_child_forked_into_another_pid_namespace_does_not_join() {
    let test = "namespaces::a_child_forked_into_another_pid_namespace_does_not_join";
    check_forked_child_is_refused(test, libc::CLONE_NEWPID, "PID");
}

#[test]
fn a_child_forked_into_another_time_namespace_does_not_join() {
    let test = "namespaces::a_child_forked_into_another_time_namespace_does_not_join";
    check_forked_child_is_refused(test, libc::CLONE_NEWTIME, "time");
}

/// `/proc` still shows the outer namespace here, in which the number of the inner process belongs to another process
/// that is alive.
#[test]
fn a_process_table_of_another_namespace_is_not_asked_who_lives() {
    let test = "namespaces::a_process_table_of_another_namespace_is_not_asked_who_lives";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        drop(create(&path));
        let number_of_the_living = std::process::id();
        let child = in_new_namespace(|| {
            let last = (number_of_the_living - 1).to_string();
            if let Err(error) = fs::write("/proc/sys/kernel/ns_last_pid", last) {
                println!("skipped: cannot choose the number of a process: {error}");
                return;
            }
            let holder = Child::fork(|| {
                assert_eq!(std::process::id(), number_of_the_living);
                let segment = Segment::open(&path).expect("starts cold");
                let api = segment.set("api").expect("declared");
                let request = api.request().with("slots", SLOTS).expect("declared");
                let _held = request.try_acquire().expect("works");
                raise(Signal::SIGSTOP).expect("stops");
            });
            holder.wait_until_stopped();
            let segment = Segment::open(&path).expect("opens");
            for _ in 0..100 {
                assert!(!can_take_all(&segment), "taken from the living");
            }
            holder.kill();
            eventually("what the dead held is given back", || can_take_all(&segment));
        });
        if let Some(child) = child {
            child.succeed();
        }
    });
}

/// The clock of the child's namespace is behind. With what its thread measured in the parent, time would seem to be
/// ahead, and limits would stand still until the clock had caught up.
#[test]
fn a_child_forked_into_another_time_namespace_measures_time_anew() {
    let test = "namespaces::a_child_forked_into_another_time_namespace_measures_time_anew";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (used, theirs) = (directory.join("used"), directory.join("theirs"));
        let segment = create(&used);
        let api = segment.set("api").expect("declared");
        drop(create(&theirs));
        // SAFETY: no memory is involved. Only processes forked from now on are in the new namespace.
        if unsafe { libc::unshare(libc::CLONE_NEWTIME) } != 0 {
            println!("skipped: no time namespace of its own: {}", Errno::last());
            return;
        }
        let up = fs::read_to_string("/proc/uptime").expect("text");
        let up: u64 = up
            .split('.')
            .next()
            .and_then(|text| text.parse().ok())
            .expect("seconds");
        // The offsets of this thread are those of the new namespace, into which its children are forked.
        let offsets = format!("/proc/{}/timens_offsets", nix::unistd::gettid());
        fs::write(offsets, format!("boottime -{} 0", up / 2)).expect("a clock that is behind");
        for _ in 0..5 {
            // Repeated until the processor's counter can be used.
            for _ in 0..20_000 {
                drop(api.request().try_acquire().expect("works"));
            }
            Child::fork(|| {
                let segment = Segment::open(&theirs).expect("starts cold, or is this namespace's by now");
                assert!(can_take_all(&segment));
                let raw = RawSegment::open(&theirs);
                let seen = raw.word(raw.control() + control::LAST_SEEN);
                let since_the_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
                // The segment clock began with the wall clock when the segment was created, and has run on since.
                let most = since_the_epoch.as_nanos() + 60_000_000_000;
                assert!(
                    u128::from(seen) <= most || up < 240,
                    "ahead by {} ns",
                    u128::from(seen) - most
                );
            })
            .succeed();
        }
    });
}
