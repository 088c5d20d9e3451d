//! Children that are forked while other threads of their parent are in the middle of something.
#![allow(
    unsafe_code,
    reason = "takes the place of a function of the C library, and forks beside other threads"
)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::layout_mirror::RawSegment;
use crate::scene;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use nix::unistd::alarm;
use shmlimit::declare::Checkpoint;
use shmlimit::{Error, Limit, OpenOptions, Segment, SegmentError, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);

/// How long a child may take for something that it does at once.
const SECONDS_OF_CHILD: u32 = 120;

/// Whether threads that ask how many processors there are are held up there, and whether one is at the moment.
static IS_HELD_UP: AtomicBool = AtomicBool::new(false);
static IS_INSIDE: AtomicBool = AtomicBool::new(false);

/// Replaces the C library's function. A thread may lose its processor here for a while, as at any instruction.
#[unsafe(no_mangle)]
extern "C" fn sched_getaffinity(
    pid: libc::pid_t,
    size: libc::size_t,
    set: *mut libc::cpu_set_t,
) -> libc::c_int {
    while IS_HELD_UP.load(Ordering::SeqCst) {
        IS_INSIDE.store(true, Ordering::SeqCst);
        thread::sleep(Duration::from_micros(100));
    }
    // SAFETY: the caller's arguments are handed on, and the contract is the same.
    let answer = unsafe { libc::syscall(libc::SYS_sched_getaffinity, pid, size, set) };
    if answer > 0 { 0 } else { answer as libc::c_int }
}

fn create(path: &Path) -> Segment {
    let set = SetDeclaration::new("api")
        .add_limit(Limit::concurrency("slots", 4))
        .add_limit(Limit::calls("calls", 1_000_000, HOUR));
    let kept = path.with_extension("kept");
    let declaration = scene::declaration()
        .participants(64)
        .checkpoint(Checkpoint::new(kept))
        .add_set(set);
    OpenOptions::new()
        .lock_timeout(Duration::from_millis(300))
        .open_or_create(path, &declaration)
        .expect("a segment")
}

#[test]
fn a_child_does_not_wait_for_a_thread_that_was_finding_out_how_many_processors_there_are() {
    let test = "forked_in_the_middle::\
                a_child_does_not_wait_for_a_thread_that_was_finding_out_how_many_processors_there_are";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create(&path);
        let api = segment.set("api").expect("declared");
        let holder = Child::fork(|| RawSegment::open(&path).lock().take_and_stop());
        holder.wait_until_stopped();
        IS_HELD_UP.store(true, Ordering::SeqCst);
        thread::scope(|scope| {
            let waits = scope.spawn(|| api.request().try_acquire().map(drop));
            eventually("the thread asks", || IS_INSIDE.load(Ordering::SeqCst));
            let child = Child::fork(|| {
                alarm::set(SECONDS_OF_CHILD);
                IS_HELD_UP.store(false, Ordering::SeqCst);
                let refused = api.request().try_acquire().map(drop);
                assert!(
                    matches!(refused, Err(Error::Segment(SegmentError::LockStuck { .. }))),
                    "{refused:?}"
                );
            });
            child.succeed();
            IS_HELD_UP.store(false, Ordering::SeqCst);
            let refused = waits.join().expect("no panic");
            assert!(
                matches!(refused, Err(Error::Segment(SegmentError::LockStuck { .. }))),
                "{refused:?}"
            );
        });
        holder.kill();
    });
}

/// What the threads of the parent do over and over. Children are forked in the middle of it.
fn work(path: &Path, segment: &Segment, thread: usize) {
    let api = segment.set("api").expect("declared");
    match thread {
        0 => drop(create(path)),
        1 => drop(Segment::open(path).expect("opens").snapshot().expect("a copy")),
        2 => drop(
            segment
                .checkpoint(path.with_extension("kept"))
                .expect("a checkpoint"),
        ),
        _ => {
            let permit = api.request().acquire(Duration::from_millis(20)).expect("works");
            if let Ok(permit) = permit.into_result() {
                permit.heartbeat_in_background().expect("renews");
            }
        }
    }
}

#[test]
fn a_child_that_is_forked_at_any_moment_can_do_everything() {
    let test = "forked_in_the_middle::a_child_that_is_forked_at_any_moment_can_do_everything";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create(&path);
        let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        let words = SharedWords::new(1);
        thread::scope(|scope| {
            for thread in 0..5 {
                let (path, segment, is_over, rounds) = (&path, &segment, &is_over, &rounds);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        work(path, segment, thread);
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for nth in 1..=40 {
                let before = rounds.load(Ordering::Relaxed);
                eventually("the threads work", || rounds.load(Ordering::Relaxed) > before);
                Child::fork(|| {
                    alarm::set(SECONDS_OF_CHILD);
                    for thread in [3, 0, 1] {
                        work(&path, &segment, thread);
                    }
                    let _ = segment.checkpoint_failure();
                    words[0].fetch_add(1, Ordering::Relaxed);
                })
                .succeed();
                assert_eq!(words[0].load(Ordering::Relaxed), nth);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}
