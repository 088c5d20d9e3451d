//! Segments with slot locks, which processes of several PID namespaces share: the holder of a lock is a participant,
//! and waiters find out by themselves that it died.
#![allow(unsafe_code, reason = "enters namespaces")]

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::layout_mirror::RawSegment;
use crate::scene::expect_permit;
use crate::scene::namespaces::{has_namespaces, in_new_namespace, namespace};
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use fastrand::Rng;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use shmlimit::declare::LockKind;
use shmlimit::snapshot::{ProcessId, SegmentReader};
use shmlimit::{
    Declaration, Error, Limit, LimitSet, OpenError, OpenOptions, Removal, Segment, SegmentError,
    SetDeclaration,
};

const SLOTS: u64 = 3;

fn create(path: &Path) -> Segment {
    let set = SetDeclaration::new("api").add_limit(Limit::concurrency("slots", SLOTS));
    let declaration = Declaration::new()
        .lock(LockKind::Slot)
        .participants(8)
        .add_set(set);
    Segment::create(path, &declaration).expect("a segment")
}

fn open_for(path: &Path, lock_timeout: Duration) -> LimitSet {
    let segment = OpenOptions::new().lock_timeout(lock_timeout).open(path);
    segment.expect("opens").set("api").expect("declared")
}

fn can_take_all(api: &LimitSet) -> bool {
    let request = api.request().with("slots", SLOTS).expect("declared");
    request.try_acquire().expect("works").is_admitted()
}

fn pause() -> ! {
    loop {
        std::thread::park();
    }
}

/// A segment for processes of several namespaces, if this process may make any.
fn create_for_namespaces(directory: &Path) -> Option<(PathBuf, Segment)> {
    let path = directory.join("limits");
    has_namespaces().then(|| (path.clone(), create(&path)))
}

#[test]
fn a_death_with_the_lock_is_noticed_by_the_process_that_waits_for_it() {
    const DEATHS: usize = if cfg!(debug_assertions) { 100 } else { 1000 };
    let test = "slot_lock::a_death_with_the_lock_is_noticed_by_the_process_that_waits_for_it";
    in_own_process(test, 3 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create(&path);
        let api = open_for(&path, TIMEOUT);
        let raw = RawSegment::open(&path);
        let mut dice = Rng::with_seed(u64::from(std::process::id()));
        let mut times = Vec::new();
        for _ in 0..DEATHS {
            let words = SharedWords::new(1);
            let holder = Child::fork(|| {
                RawSegment::open(&path).lock().take_for_good();
                words[0].store(1, Ordering::SeqCst);
                pause();
            });
            eventually("the lock is taken", || words[0].load(Ordering::SeqCst) == 1);
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    assert!(can_take_all(&api));
                    Instant::now()
                });
                eventually("it waits", || raw.has_lock_waiters());
                // Not for synchronisation: the death is to come at any time between two of the waiter's checks.
                std::thread::sleep(Duration::from_micros(dice.u64(..10_000)));
                let killed = Instant::now();
                holder.kill();
                times.push(waiter.join().expect("takes the lock over") - killed);
            });
        }
        times.sort_unstable();
        let counts = segment.snapshot().expect("a copy").sets[0].counts;
        assert_eq!(counts.recoveries, DEATHS as u64);
        println!(
            "a death with the lock was noticed after {:.1} ms (median), {:.1} ms (of a hundred, the slowest but one), {:.1} ms \
             (at most)",
            times[DEATHS / 2].as_secs_f64() * 1e3,
            times[DEATHS * 99 / 100 - 1].as_secs_f64() * 1e3,
            times[DEATHS - 1].as_secs_f64() * 1e3,
        );
    });
}

/// Ends the first thread of this process. Another thread runs `then` once the first has ended, and never ends.
fn outlive_the_first_thread(then: impl FnOnce() + Send + 'static) -> ! {
    std::thread::spawn(|| {
        let first = format!("/proc/self/task/{}/stat", std::process::id());
        let status = || std::fs::read_to_string(&first).expect("a readable /proc");
        eventually("the first thread has ended", || status().contains(") Z "));
        then();
        pause()
    });
    // SAFETY: the thread ends here and now, and what is on its stack stays as it is.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("the thread has ended")
}

/// The kernel releases the byte of a dead process last, perhaps after gigabytes of its memory. Here it is never
/// released, because the open file is this process's, too.
#[test]
fn a_lock_is_taken_from_a_process_that_runs_no_more_although_its_byte_is_locked_still() {
    let test =
        "slot_lock::a_lock_is_taken_from_a_process_that_runs_no_more_although_its_byte_is_locked_still";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create(&path);
        let raw = RawSegment::open(&path);
        // No wait for the lock of a dead process is this long.
        let patient = open_for(&path, Duration::from_secs(20));
        let impatient = open_for(&path, Duration::from_millis(30));
        for (is_reaped, has_threads) in [(false, false), (true, false), (false, true), (true, true)] {
            let lock = raw.lock();
            let words: &SharedWords = Box::leak(Box::new(SharedWords::new(1)));
            let mut holder = Child::fork(|| {
                lock.pass_to_this_process(&raw);
                lock.take();
                if has_threads {
                    outlive_the_first_thread(|| words[0].store(1, Ordering::SeqCst));
                }
                words[0].store(1, Ordering::SeqCst);
                pause();
            });
            eventually("the lock is taken", || words[0].load(Ordering::SeqCst) == 1);
            let refused = impatient.request().try_acquire();
            assert!(
                matches!(refused, Err(Error::Segment(SegmentError::LockStuck { .. }))),
                "taken from the living: {refused:?}"
            );
            holder.send(Signal::SIGKILL);
            eventually("it has died", || holder.has_ended());
            if is_reaped {
                holder.wait();
            }
            assert!(
                can_take_all(&patient),
                "reaped: {is_reaped}, threads: {has_threads}"
            );
            drop(lock);
            drop(holder);
        }
        assert_eq!(segment.snapshot().expect("a copy").sets[0].counts.recoveries, 4);
    });
}

#[test]
fn processes_of_two_namespaces_with_the_same_ids_share_limits_and_give_back_for_each_others_dead() {
    let test = "slot_lock::processes_of_two_namespaces_with_the_same_ids_share_limits_and_give_back_for_each_others_dead";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let Some((path, segment)) = create_for_namespaces(directory) else {
            return;
        };
        let words = SharedWords::new(2);
        let (stage, inner) = (&words[0], &words[1]);
        let at = |expected| eventually("it is its turn", || stage.load(Ordering::SeqCst) == expected);
        // Both have the id 1.
        let holder = in_new_namespace(|| {
            assert_eq!(std::process::id(), 1);
            let api = open_for(&path, TIMEOUT);
            let held = api.request().with("slots", SLOTS).expect("declared");
            let _held = expect_permit(held.try_acquire());
            inner.store(namespace(), Ordering::SeqCst);
            stage.store(1, Ordering::SeqCst);
            pause();
        });
        at(1);
        let waiter = in_new_namespace(|| {
            assert_eq!(std::process::id(), 1);
            let api = open_for(&path, TIMEOUT);
            for _ in 0..100 {
                assert!(!can_take_all(&api), "taken from the living");
            }
            stage.store(2, Ordering::SeqCst);
            // Through the queue: it is not notified of deaths in the other namespace, so it polls.
            drop(expect_permit(api.request().acquire(None)));
            stage.store(3, Ordering::SeqCst);
        });
        at(2);
        let snapshot = segment.snapshot().expect("a copy");
        assert_eq!(snapshot.lock_kind, LockKind::Slot);
        let names: Vec<_> = snapshot
            .participants
            .iter()
            .map(|it| (it.pid, it.pid_namespace))
            .collect();
        let holders_namespace = Some(inner.load(Ordering::SeqCst));
        assert_eq!(names[0], (u64::from(std::process::id()), None));
        assert_eq!(names[1], (1, holders_namespace));
        assert_eq!(names[2].0, 1);
        assert!(
            ![Some(namespace()), names[1].1, None, Some(0)].contains(&names[2].1),
            "{names:?}"
        );
        assert!(snapshot.participants.iter().all(|it| it.alive));
        let hold = &snapshot.sets[0].holds[0];
        assert_eq!(
            (hold.owner_pid, hold.owner_namespace),
            (Some(1), holders_namespace)
        );
        match OpenOptions::new().remove(&path, Removal::Unused) {
            Err(Error::Open(OpenError::InUse { processes, .. })) => {
                let expected = names.iter().map(|(pid, namespace)| ProcessId {
                    pid: *pid,
                    namespace: *namespace,
                });
                assert_eq!(processes, expected.collect::<Vec<_>>());
            }
            other => panic!("{other:?}"),
        }
        // The parent dies and, by its death signal, so does the first process of the namespace.
        holder.kill();
        waiter.succeed();
        at(3);
        let snapshot = segment.snapshot().expect("a copy");
        assert_eq!((snapshot.sets[0].counts.reclaimed, snapshot.cold_starts), (1, 0));
        assert!(can_take_all(&segment.set("api").expect("declared")));
    });
}

#[test]
fn a_stopped_holder_in_another_namespace_is_named_with_it_and_nothing_is_taken_from_it() {
    let test =
        "slot_lock::a_stopped_holder_in_another_namespace_is_named_with_it_and_nothing_is_taken_from_it";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let Some((path, segment)) = create_for_namespaces(directory) else {
            return;
        };
        let words = SharedWords::new(2);
        let holder = in_new_namespace(|| {
            words[1].store(namespace(), Ordering::SeqCst);
            // The first process of a namespace cannot stop itself.
            let stopped = Child::fork(|| {
                RawSegment::open(&path).lock().take_and_stop();
            });
            stopped.wait_until_stopped();
            words[0].store(u64::from(stopped.id()), Ordering::SeqCst);
            eventually("it is looked at", || words[0].load(Ordering::SeqCst) == 0);
            stopped.send(Signal::SIGCONT);
            stopped.succeed();
        });
        eventually("it is stopped", || words[0].load(Ordering::SeqCst) != 0);
        let expected = ProcessId {
            pid: words[0].load(Ordering::SeqCst),
            namespace: Some(words[1].load(Ordering::SeqCst)),
        };
        let api = open_for(&path, Duration::from_millis(30));
        match api.request().try_acquire() {
            Err(Error::Segment(SegmentError::LockStuck { process, .. })) => {
                assert_eq!(process, Some(expected));
            }
            other => panic!("{other:?}"),
        }
        let lock = SegmentReader::open(&path)
            .expect("opens")
            .snapshot()
            .expect("a copy")
            .sets[0]
            .lock;
        assert_eq!(lock.holder_pid.map(u64::from), Some(expected.pid));
        assert_eq!(
            (lock.holder_namespace, lock.owner_died),
            (expected.namespace, false)
        );
        words[0].store(0, Ordering::SeqCst);
        holder.succeed();
        assert!(can_take_all(&api));
        assert_eq!(segment.snapshot().expect("a copy").sets[0].counts.recoveries, 0);
    });
}

#[test]
fn a_child_forked_into_another_pid_namespace_joins_and_one_in_another_time_namespace_does_not() {
    let test = "slot_lock::a_child_forked_into_another_pid_namespace_joins_and_one_in_another_time_namespace_does_not";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let Some((path, segment)) = create_for_namespaces(directory) else {
            return;
        };
        let api = segment.set("api").expect("declared");
        let held = expect_permit(api.request().try_acquire());
        in_new_namespace(|| {
            let _held = expect_permit(api.request().try_acquire());
            let other = expect_permit(api.request().try_acquire());
            assert!(!api.request().try_acquire().expect("works").is_admitted());
            drop(other);
            assert_eq!(segment.snapshot().expect("a copy").participants.len(), 2);
        })
        .succeed();
        drop(held);
        assert!(can_take_all(&api), "what the dead child held is given back");
        // SAFETY: no memory is involved. Only processes forked from now on are in the new namespace.
        if unsafe { libc::unshare(libc::CLONE_NEWTIME) } != 0 {
            println!("skipped: no time namespace of its own: {}", Errno::last());
            return;
        }
        Child::fork(|| {
            for refused in [
                api.request().try_acquire().map(drop),
                Segment::open(&path).map(drop),
            ] {
                assert!(matches!(
                    refused,
                    Err(Error::Open(OpenError::ForeignNamespace { what: "time", .. }))
                ));
            }
        })
        .succeed();
    });
}

#[test]
fn a_lock_that_a_dead_process_left_is_taken_over_by_the_next_to_attach() {
    let test = "slot_lock::a_lock_that_a_dead_process_left_is_taken_over_by_the_next_to_attach";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        drop(create(&path));
        Child::fork(|| RawSegment::open(&path).lock().take_for_good()).succeed();
        let lock = || {
            SegmentReader::open(&path)
                .expect("opens")
                .snapshot()
                .expect("a copy")
                .sets[0]
                .lock
        };
        assert!(lock().owner_died && !lock().is_held());
        let segment = Segment::open(&path).expect("opens");
        assert!(can_take_all(&segment.set("api").expect("declared")));
        let snapshot = segment.snapshot().expect("a copy");
        assert_eq!((snapshot.sets[0].counts.recoveries, snapshot.cold_starts), (1, 0));
        assert!(!lock().owner_died);
    });
}
