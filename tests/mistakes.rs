//! Mistakes that other limiters have made and this one does not make. Each test has the name of one.
#![allow(
    unsafe_code,
    reason = "puts a clock of its own in the place of the C library's"
)]

mod layout_mirror;
mod scene;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use layout_mirror::RawSegment;
use nix::time::ClockId;
use scene::process::{Child, SharedWords, TIMEOUT, die, eventually, in_own_process};
use scene::{create, create_in, expect_permit, expect_refusal, first_set};
use shmlimit::declare::Align;
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Algorithm, Error, Limit, Permit, Refusal, Request, RequestError, Segment, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);

/// By how many seconds the wall clock of this process is set back.
static SET_BACK: AtomicI64 = AtomicI64::new(0);

/// Replaces the C library's function in this binary, for a wall clock that this process can set.
///
/// # Safety
///
/// The contract of the C library's function: `time` points to a writable timespec.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    // SAFETY: the caller's pointer is handed on.
    let answer = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    if answer == 0 && clock == libc::CLOCK_REALTIME {
        // SAFETY: the kernel has just written there.
        unsafe { (*time).tv_sec -= SET_BACK.load(Ordering::Relaxed) };
    }
    answer as libc::c_int
}

fn places(capacity: u64) -> SetDeclaration {
    SetDeclaration::new("set").add_limit(Limit::concurrency("places", capacity))
}

fn admitted<'a>(request: &Request<'a>) -> Permit<'a> {
    expect_permit(request.try_acquire())
}

fn refused(request: &Request) -> Refusal {
    expect_refusal(request.try_acquire())
}

fn now() -> u64 {
    let now = nix::time::clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    Duration::from(now).as_nanos() as u64
}

#[test]
fn charging_the_first_bucket_and_then_refusing_on_the_second() {
    let test = "charging_the_first_bucket_and_then_refusing_on_the_second";
    in_own_process(test, TIMEOUT, |directory| {
        let (segment, set) = create_in(
            directory,
            SetDeclaration::new("set")
                .add_limit(Limit::rate("input", 1_000, HOUR))
                .add_limit(Limit::rate("output", 10, HOUR)),
        );
        let request = set.request().with("input", 100).expect("declared");
        let request = request.with("output", 10).expect("declared");
        drop(admitted(&request));
        let children: Vec<Child> = (0..4)
            .map(|_| {
                Child::fork(|| {
                    for _ in 0..100 {
                        assert_eq!(refused(&request).binding(), Some("output"));
                    }
                    let timeout = Duration::from_millis(5);
                    assert!(!request.acquire(timeout).expect("works").is_admitted());
                })
            })
            .collect();
        children.into_iter().for_each(Child::succeed);
        let snapshot = segment.snapshot().expect("a snapshot");
        assert_eq!(snapshot.sets[0].limits[0].counts.taken, 100);
        assert!(snapshot.sets[0].limits[0].remaining >= 900);
    });
}

#[test]
fn reading_the_state_and_sleeping_and_then_taking_without_looking_again() {
    let test = "reading_the_state_and_sleeping_and_then_taking_without_looking_again";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        const WAITERS: usize = 8;
        const WINDOW: Duration = Duration::from_millis(40);
        let (_segment, set) = create_in(
            directory,
            SetDeclaration::new("set").add_limit(Limit::calls("calls", 1, WINDOW)),
        );
        let log = SharedWords::new(WAITERS);
        let before = now();
        drop(admitted(&set.request()));
        // All of them see the same wait, and one at a time gets its turn.
        let children: Vec<Child> = (0..WAITERS)
            .map(|number| {
                let (log, set) = (&log, &set);
                Child::fork(move || {
                    let outcome = set.request().acquire(TIMEOUT).expect("works");
                    assert!(outcome.is_admitted());
                    log[number].store(now(), Ordering::Relaxed);
                })
            })
            .collect();
        children.into_iter().for_each(Child::succeed);
        let mut passed: Vec<u64> = log
            .iter()
            .map(|instant| instant.load(Ordering::Relaxed))
            .collect();
        passed.sort_unstable();
        for (number, instant) in (1..).zip(passed) {
            let waited = Duration::from_nanos(instant - before);
            assert!(
                waited >= WINDOW * number,
                "the waiter of number {number} passed after {waited:?}"
            );
        }
    });
}

#[test]
fn sleeping_the_whole_window_where_less_would_do() {
    // A unit every 100 ms; the window would take an hour.
    let unit = Duration::from_millis(100);
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        let calls = Limit::calls("calls", 36_000, HOUR).algorithm(algorithm);
        let (_directory, _segment, set) = create(SetDeclaration::new("set").add_limit(calls));
        let all = set.request().with("calls", 36_000).expect("declared");
        drop(admitted(&all));
        // On a busy machine a unit may have come back already.
        let (started, refusal) = loop {
            let started = Instant::now();
            if let Err(refusal) = set.request().try_acquire().expect("works").into_result() {
                break (started, refusal);
            }
        };
        let wait = refusal.retry_after().expect("a retry time");
        assert!(wait <= unit, "{wait:?}");
        let outcome = set.request().acquire(TIMEOUT).expect("works");
        assert!(outcome.is_admitted() && started.elapsed() >= wait);
    }
    // In a window that was opened a while ago, less than the whole is left to wait for.
    let calls = Limit::calls("calls", 1, HOUR).algorithm(Algorithm::FixedWindow);
    let calls = calls.align(Align::FirstUse);
    let (_directory, _segment, set) = create(SetDeclaration::new("set").add_limit(calls));
    drop(admitted(&set.request()));
    sleep(unit);
    let wait = refused(&set.request()).retry_after().expect("a retry time");
    assert!(wait <= HOUR - unit, "{wait:?}");
}

#[test]
fn waiting_for_the_impossible() {
    in_own_process("waiting_for_the_impossible", TIMEOUT, |directory| {
        let (segment, set) = create_in(directory, places(2));
        let too_many = set.request().with("places", 3).expect("declared");
        let is_impossible = |outcome| {
            matches!(
                outcome,
                Err(Error::Request(RequestError::NeverAdmissible {
                    cost: 3,
                    max: 2,
                    ..
                }))
            )
        };
        assert!(is_impossible(too_many.acquire(None)));
        // Nor does it wait in a queue behind others.
        let permit = admitted(&set.request());
        let both = set.request().with("places", 2).expect("declared");
        let waiter = Child::fork(|| {
            assert!(both.acquire(TIMEOUT).expect("works").is_admitted());
        });
        eventually("a request waits", || first_set(&segment).tickets.len() == 1);
        assert!(is_impossible(too_many.acquire(None)));
        assert!(is_impossible(too_many.try_acquire()));
        drop(permit);
        waiter.succeed();
        assert_eq!(first_set(&segment).tickets.len(), 0);
    });
}

#[test]
fn a_cost_without_a_limit_charging_the_others_first() {
    let (_directory, segment, set) = create(
        SetDeclaration::new("set")
            .add_limit(Limit::calls("calls", 10, HOUR))
            .add_limit(Limit::rate("tokens", 10, HOUR)),
    );
    let taken = || {
        let snapshot = segment.snapshot().expect("a snapshot");
        [0, 1].map(|limit: usize| snapshot.sets[0].limits[limit].counts.taken)
    };
    // A limit that needs a cost and was given none.
    let outcome = set.request().try_acquire();
    assert!(matches!(
        outcome,
        Err(Error::Request(RequestError::CostRequired { .. }))
    ));
    // A cost for a limit that does not exist.
    let request = set.request().with("tokens", 5).expect("declared");
    assert!(matches!(
        request.with("tokns", 5),
        Err(Error::Request(RequestError::UnknownLimit { .. }))
    ));
    assert_eq!(taken(), [0, 0]);
}

#[test]
fn all_waiters_waking_together() {
    in_own_process("all_waiters_waking_together", TIMEOUT, |directory| {
        const WAITERS: usize = 6;
        let (segment, set) = create_in(directory, places(1));
        let raw = RawSegment::open(&directory.join("limits"));
        let words = SharedWords::new(2);
        let [passed, dismissed] = [&words[0], &words[1]];
        let held = admitted(&set.request());
        let waiters: Vec<Child> = (0..WAITERS)
            .map(|number| {
                let waiter = Child::fork(|| {
                    let permit = expect_permit(set.request().acquire(TIMEOUT));
                    let turn = passed.fetch_add(1, Ordering::Relaxed) + 1;
                    let may_go = |turn| dismissed.load(Ordering::Relaxed) >= turn;
                    eventually("it may give back what it has", || may_go(turn));
                    drop(permit);
                    // It does not end yet, because others are notified of the end of a process, too.
                    eventually("all have passed", || may_go(WAITERS as u64));
                });
                eventually("it waits", || first_set(&segment).tickets.len() == number + 1);
                waiter
            })
            .collect();
        drop(held);
        for turn in 1..=WAITERS as u64 {
            eventually("the next has passed", || passed.load(Ordering::Relaxed) == turn);
            assert_eq!(raw.futex_value(), turn, "one is told for each that goes");
            assert_eq!(first_set(&segment).tickets.len() as u64, WAITERS as u64 - turn);
            dismissed.store(turn, Ordering::Relaxed);
        }
        waiters.into_iter().for_each(Child::succeed);
    });
}

#[test]
fn releasing_what_was_never_taken() {
    in_own_process("releasing_what_was_never_taken", TIMEOUT, |directory| {
        let (segment, set) = create_in(directory, places(2));
        let active = || segment.snapshot().expect("a snapshot").sets[0].active;
        let mut first = admitted(&set.request());
        let second = admitted(&set.request());
        drop(refused(&set.request()));
        let late = set.request().acquire(Duration::from_millis(1)).expect("works");
        assert!(!late.is_admitted());
        drop(late);
        assert_eq!(active(), 2);
        // What another process took is not released.
        Child::fork(|| first.release().expect("does nothing")).succeed();
        assert_eq!(active(), 2);
        // Nothing is released a second time.
        first.release().expect("its own");
        first.release().expect("does nothing more");
        drop(first);
        assert_eq!(active(), 1);
        drop(second);
        assert_eq!(active(), 0);
    });
}

#[test]
fn an_exception_in_the_callers_block_leaking_what_was_held() {
    let (_directory, segment, set) = create(places(1));
    for _ in 0..3 {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _permit = admitted(&set.request());
            std::panic::resume_unwind(Box::new("the caller's mistake"));
        }));
        assert!(unwound.is_err());
    }
    let snapshot = segment.snapshot().expect("a snapshot");
    assert_eq!(
        (snapshot.sets[0].active, snapshot.sets[0].counts.admitted),
        (0, 3)
    );
}

#[test]
fn a_wall_clock_step_back_corrupting_the_state() {
    in_own_process(
        "a_wall_clock_step_back_corrupting_the_state",
        TIMEOUT,
        |directory| {
            let window = |name, algorithm| Limit::calls(name, 3, 24 * HOUR).algorithm(algorithm);
            let (segment, set) = create_in(
                directory,
                SetDeclaration::new("set")
                    .add_limit(window("by the day", Algorithm::FixedWindow))
                    .add_limit(window("steady", Algorithm::Gcra))
                    .add_limit(window("sliding", Algorithm::SlidingWindow)),
            );
            let wall_clock =
                || Duration::from(nix::time::clock_gettime(ClockId::CLOCK_REALTIME).expect("a clock"));
            drop(admitted(&set.request()));
            let before = wall_clock();
            for days in [1, 30, 3650] {
                SET_BACK.store(days * 24 * 3600, Ordering::Relaxed);
                assert!(wall_clock() < before, "the clock of this process can be set");
                // A process that only looks changes nothing; what was taken stays taken.
                let remaining: Vec<u64> = {
                    let snapshot = segment.snapshot().expect("a snapshot");
                    snapshot.sets[0]
                        .limits
                        .iter()
                        .map(|limit| limit.remaining)
                        .collect()
                };
                assert!(remaining.iter().all(|remaining| *remaining <= 2), "{remaining:?}");
            }
            drop(admitted(&set.request()));
            drop(admitted(&set.request()));
            let refusal = refused(&set.request());
            // No process is locked out until the old time comes round again.
            assert!(refusal.retry_after().expect("a retry time") <= 2 * 24 * HOUR);
            SET_BACK.store(0, Ordering::Relaxed);
            assert!(refused(&set.request()).retry_after().is_some());
            assert!(segment.recover().expect("works").sets[0].problem.is_none());
            assert_eq!(segment.snapshot().expect("a snapshot").sets[0].counts.rebuilds, 0);
        },
    );
}

#[test]
fn a_killed_holder_keeping_its_slot() {
    in_own_process("a_killed_holder_keeping_its_slot", TIMEOUT, |directory| {
        let (segment, set) = create_in(directory, places(2));
        for _ in 0..3 {
            let mut holder = Child::fork(|| {
                let both = set.request().with("places", 2).expect("declared");
                std::mem::forget(admitted(&both));
                die();
            });
            holder.wait();
            let outcome = set.request().acquire(TIMEOUT).expect("works");
            assert!(outcome.is_admitted());
        }
        let set = &segment.snapshot().expect("a snapshot").sets[0];
        assert_eq!((set.active, set.counts.reclaimed), (0, 3));
    });
}

#[test]
fn statistics_read_from_a_private_copy() {
    in_own_process("statistics_read_from_a_private_copy", TIMEOUT, |directory| {
        let (segment, set) = create_in(directory, places(2));
        let reader = SegmentReader::open(directory.join("limits")).expect("a segment");
        for round in 1..=3 {
            // A process that dies right afterwards is counted, too.
            let mut child = Child::fork(|| {
                drop(admitted(&set.request()));
                die();
            });
            child.wait();
            let again = Segment::open(directory.join("limits")).expect("a segment");
            for snapshot in [segment.snapshot(), reader.snapshot(), again.snapshot()] {
                let snapshot = snapshot.expect("a snapshot");
                assert_eq!(snapshot.sets[0].counts.admitted, round);
                assert_eq!(snapshot.sets[0].limits[0].counts.taken, round);
            }
        }
    });
}
