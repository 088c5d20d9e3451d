//! Each system call of an operation that can fail because the system is short of something fails once. The operation
//! succeeds all the same or says what failed, nothing is lost or left behind, and a later attempt works.

#[path = "../scene/mod.rs"]
mod scene;
mod supervisor;

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use nix::errno::Errno;
use scene::process::{Child, SharedWords, TIMEOUT, in_own_process};
use shmlimit::snapshot::{SegmentReader, SegmentSnapshot};
use shmlimit::{Declaration, Error, Limit, OpenError, OpenOptions, Removal, Segment, SetDeclaration};
use supervisor::with_a_failing_call;

const ERRORS: [Errno; 6] = [
    Errno::ENOSPC,
    Errno::EMFILE,
    Errno::ENFILE,
    Errno::ENOMEM,
    Errno::EINTR,
    Errno::EPERM,
];

/// No operation makes this many calls.
const MAX_CALLS: u64 = 2_000;

/// A short wait that ends only when its time is over.
const SHORT: Duration = Duration::from_millis(20);

fn declaration() -> Declaration {
    scene::declaration().participants(4).add_set(
        SetDeclaration::new("api")
            .add_limit(Limit::concurrency("slots", 1).lease(Duration::from_secs(60)))
            .waiters(4),
    )
}

fn path(directory: &Path) -> PathBuf {
    directory.join("limits")
}

fn segment(directory: &Path) -> Segment {
    Segment::open_or_create(path(directory), &declaration()).expect("a segment")
}

fn snapshot(directory: &Path) -> SegmentSnapshot {
    let reader = SegmentReader::open(path(directory)).expect("a segment");
    reader.snapshot().expect("a copy")
}

/// The operation to perform with one call failing, prepared beforehand.
type Operation = Box<dyn FnOnce() -> Result<(), Error>>;

/// Fails each call of an operation in turn, with each error, each time in a separate process, until none is left. The
/// preparation happens in that process, or is inherited from the process that forks it.
fn fail_each_call(test: &str, prepare: fn(&Path) -> Operation, inherits: bool, max_attached: usize) {
    in_own_process(test, 10 * TIMEOUT, |directory| {
        let mut failures = 0;
        for errno in ERRORS {
            let mut errors = 0;
            let mut number = 0;
            loop {
                number += 1;
                assert!(number < MAX_CALLS, "it goes on making calls");
                let place = directory.join(format!("{errno:?}-{number}"));
                fs::create_dir(&place).expect("a directory");
                let words = SharedWords::new(2);
                let inherited = inherits.then(|| prepare(&place));
                let child = Child::fork(|| {
                    let operation = inherited.unwrap_or_else(|| prepare(&place));
                    let (outcome, failed) = with_a_failing_call(errno, number, operation);
                    words[0].store(failed.map_or(0, |call| call as u64 + 1), Ordering::SeqCst);
                    if let Err(error) = outcome {
                        assert!(failed.is_some(), "nothing failed, and still: {error}");
                        words[1].store(1, Ordering::SeqCst);
                        check_error(&error, errno, failed.unwrap_or(-1));
                    }
                    check_leftovers(&place, max_attached);
                    // Does the same again, in the same process: the failure has left nothing behind that is in the way.
                    let again = prepare(&place)();
                    again.unwrap_or_else(|error| panic!("after {errno} of call {failed:?}: {error}"));
                });
                child.succeed();
                errors += words[1].load(Ordering::SeqCst);
                check_afterwards(&place);
                fs::remove_dir_all(&place).expect("removed");
                if words[0].load(Ordering::SeqCst) == 0 {
                    break;
                }
            }
            println!(
                "{test}: {errno:?}: {} calls failed, {errors} were errors",
                number - 1
            );
            failures += number - 1;
        }
        assert!(failures > 0, "no call failed: the filter does nothing");
    });
}

/// The calls that an error names if a filter forbids them.
const FORBIDDEN: [(&str, libc::c_long); 4] = [
    ("fstatfs", libc::SYS_fstatfs),
    ("getrandom", libc::SYS_getrandom),
    ("fallocate", libc::SYS_fallocate),
    ("renameat2", libc::SYS_renameat2),
];

/// Checks that the system's error is in ours, or one that means the same.
fn check_error(error: &Error, errno: Errno, call: libc::c_long) {
    let is_told = match error {
        Error::Open(OpenError::Io { source, .. } | OpenError::Unsupported { source, .. }) => {
            let code = source.raw_os_error();
            // pthread reports this for a thread that cannot be started.
            code == Some(errno as i32) || code == Some(Errno::EAGAIN as i32)
        }
        Error::Open(OpenError::NoSpace { .. }) => errno == Errno::ENOSPC,
        // As if a filter had answered. The error must name the call that failed.
        Error::Open(OpenError::CallForbidden {
            call: named, source, ..
        }) => source.raw_os_error() == Some(errno as i32) && FORBIDDEN.contains(&(*named, call)),
        _ => false,
    };
    assert!(is_told, "{errno} of call {call} came out as {error:?}");
}

/// Checks that nothing but the segment is in the directory, that nothing is held, and that no more processes are in the
/// segment than are attached.
fn check_leftovers(directory: &Path, max_attached: usize) {
    for entry in fs::read_dir(directory).expect("a directory") {
        assert_eq!(entry.expect("an entry").path(), path(directory), "left behind");
    }
    if path(directory).exists() {
        let snapshot = snapshot(directory);
        assert_eq!(snapshot.cold_starts, 0, "taken for a file of another boot");
        let set = &snapshot.sets[0];
        assert_eq!((set.active, set.tickets.len()), (0, 0), "{set:?}");
        let attached = snapshot.participants.iter().filter(|it| it.alive).count();
        assert!(attached <= max_attached, "{:?}", snapshot.participants);
    }
}

/// Checks, when the process is gone, that everything it had is available to others.
fn check_afterwards(directory: &Path) {
    let segment = segment(directory);
    let alive = segment.snapshot().expect("a copy").participants;
    assert_eq!(alive.iter().filter(|it| it.alive).count(), 1, "{alive:?}");
    let api = segment.set("api").expect("declared");
    assert!(api.request().try_acquire().expect("works").is_admitted());
}

#[test]
fn creating_a_segment() {
    fail_each_call(
        "creating_a_segment",
        |directory| {
            let path = path(directory);
            let _ = fs::remove_file(&path);
            Box::new(move || Segment::create(&path, &declaration()).map(drop))
        },
        false,
        0,
    );
}

#[test]
fn attaching_to_a_segment() {
    fail_each_call(
        "attaching_to_a_segment",
        |directory| {
            drop(segment(directory));
            let path = path(directory);
            Box::new(move || Segment::open(&path).map(drop))
        },
        false,
        0,
    );
}

#[test]
fn joining_in_a_forked_child() {
    fail_each_call(
        "joining_in_a_forked_child",
        |directory| {
            let segment = segment(directory);
            Box::new(move || {
                let api = segment.set("api")?;
                let take = || {
                    api.request()
                        .try_acquire()
                        .map(|outcome| assert!(outcome.is_admitted()))
                };
                take().inspect_err(|_| take().expect("the later try works"))
            })
        },
        true,
        // The process that passed it on may not have left yet.
        1,
    );
}

#[test]
fn removing_a_segment() {
    fail_each_call(
        "removing_a_segment",
        |directory| {
            drop(Segment::open_or_create(path(directory), &declaration()).expect("a segment"));
            let path = path(directory);
            Box::new(move || OpenOptions::new().remove(&path, Removal::Unused))
        },
        false,
        0,
    );
}

#[test]
fn waiting_in_line() {
    fail_each_call(
        "waiting_in_line",
        |directory| {
            let segment = segment(directory);
            Box::new(move || {
                let api = segment.set("api")?;
                let held = api.request().try_acquire()?.into_result();
                let refused = api.request().acquire(SHORT)?;
                assert!(held.is_err() || !refused.is_admitted());
                Ok(())
            })
        },
        false,
        1,
    );
}

/// Wakes the thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

#[test]
fn waiting_as_a_future() {
    fail_each_call(
        "waiting_as_a_future",
        |directory| {
            let segment = segment(directory);
            Box::new(move || {
                let api = segment.set("api")?;
                let _held = api.request().try_acquire()?.into_result();
                let refused = block_on(api.request().acquire_async(SHORT))?;
                assert!(!refused.is_admitted());
                Ok(())
            })
        },
        false,
        1,
    );
}

#[test]
fn renewing_leases_in_the_background() {
    fail_each_call(
        "renewing_leases_in_the_background",
        |directory| {
            let segment = segment(directory);
            Box::new(move || {
                let api = segment.set("api")?;
                let Ok(permit) = api.request().try_acquire()?.into_result() else {
                    panic!("nothing is held");
                };
                permit.heartbeat_in_background()
            })
        },
        false,
        1,
    );
}
