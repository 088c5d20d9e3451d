//! Eight processes hammer a rate: together they never get more than it allows, in any window, and get nearly all of
//! it.
//!
//! Each process notes the time before and after each grant, on the segment's clock. A grant lies somewhere between
//! the two, so only grants that lie in a window for certain are counted against it.
//!
//! No run may exceed a bound. Giving nearly everything needs processors that are not busy with other things, so it only
//! has to be seen in one of a few runs.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use nix::time::{ClockId, clock_gettime};
use shmlimit::declare::Align;
use shmlimit::{Algorithm, Declaration, Limit, OpenOptions, Segment, SetDeclaration};

const PROCESSES: usize = 8;
const WINDOW: u64 = 200_000_000;
const CAPACITY: u64 = 500;

/// Windows that a run touches. It starts and ends halfway between two boundaries of UTC, so that the first and the
/// last window have time to be used up as well.
const WINDOWS: u64 = 6;

/// The number of runs, of which one must use the limit up.
const ATTEMPTS: usize = 10;

/// How long a refused process leaves the lock to others: were all eight to spin on few processors, most of the time
/// the lock's holder would be waiting for one.
const PAUSE: Duration = Duration::from_micros(20);

/// Room for the grants of one process: more than all processes together can be given.
const MAX_GRANTS: usize = 3 * (WINDOWS as usize + 1) * CAPACITY as usize;

/// A grant happened between these two instants, both included.
#[derive(Clone, Copy, Debug)]
struct Grant {
    before: u64,
    after: u64,
}

/// What one run gave.
struct Run {
    /// Ordered by the time before each grant.
    grants: Vec<Grant>,
    /// Between the first grant and the last attempt, in nanoseconds.
    lasted: u64,
    /// The wall clock less the clock of the grants, unless the difference changed meanwhile.
    utc_offset: Option<u64>,
}

fn nanos(clock: ClockId) -> u64 {
    let time = Duration::from(clock_gettime(clock).expect("a clock"));
    u64::try_from(time.as_nanos()).expect("a time in range")
}

fn boot_nanos() -> u64 {
    nanos(ClockId::CLOCK_BOOTTIME)
}

fn utc_offset() -> u64 {
    nanos(ClockId::CLOCK_REALTIME).wrapping_sub(boot_nanos())
}

/// The grants of one process: how many, then the instants.
struct Log<'a>(&'a [AtomicU64]);

impl<'a> Log<'a> {
    const WORDS: usize = 1 + 2 * MAX_GRANTS;

    fn of(words: &'a SharedWords, process: usize) -> Self {
        Self(&words[process * Self::WORDS..(process + 1) * Self::WORDS])
    }

    fn note(&self, grant: Grant) {
        let count = self.0[0].load(Ordering::Relaxed) as usize;
        assert!(count < MAX_GRANTS, "far more was granted than any limit allows");
        self.0[1 + 2 * count].store(grant.before, Ordering::Relaxed);
        self.0[2 + 2 * count].store(grant.after, Ordering::Relaxed);
        self.0[0].store(count as u64 + 1, Ordering::Release);
    }

    fn grants(&self) -> impl Iterator<Item = Grant> + use<'a> {
        let count = self.0[0].load(Ordering::Acquire) as usize;
        self.0[1..=2 * count].chunks_exact(2).map(|pair| Grant {
            before: pair[0].load(Ordering::Relaxed),
            after: pair[1].load(Ordering::Relaxed),
        })
    }
}

/// Asks until the end, and notes each grant.
fn hammer(segment: &Segment, log: &Log<'_>, ready: &AtomicU64, start: &AtomicU64) {
    let set = segment.set("api").expect("declared");
    let request = set.request();
    request.peek().expect("works");
    ready.fetch_add(1, Ordering::SeqCst);
    eventually("the run starts", || start.load(Ordering::SeqCst) != 0);
    let start = start.load(Ordering::SeqCst);
    let end = start + WINDOWS.saturating_sub(1) * WINDOW;
    loop {
        let before = boot_nanos();
        if before < start {
            std::hint::spin_loop();
        } else if before >= end {
            return;
        } else if request.try_acquire().expect("works").is_admitted() {
            let after = boot_nanos();
            log.note(Grant { before, after });
        } else {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Runs in a process of its own until a run has been given 99 % of what `allowed` says. `check` is given every run.
fn run_until_used_up(test: &str, limit: Limit, allowed: impl Fn(&Run) -> u64, check: impl Fn(&Run)) {
    in_own_process(test, 5 * TIMEOUT, |directory| {
        let used_up = (0..ATTEMPTS).any(|attempt| {
            let run = run(&directory.join(format!("limits-{attempt}")), limit.clone());
            let (given, allowed) = (run.grants.len() as u64, allowed(&run));
            println!(
                "{test}: {given} granted of {allowed} allowed ({:.2} %), at most {} in a window",
                100.0 * given as f64 / allowed as f64,
                run.max_within(WINDOW),
            );
            check(&run);
            given * 100 >= allowed * 99
        });
        assert!(used_up, "no run was given 99 % of what it was allowed");
    });
}

fn run(path: &Path, limit: Limit) -> Run {
    let declaration = Declaration::new().add_set(SetDeclaration::new("api").add_limit(limit));
    let segment = OpenOptions::new()
        .lock_timeout(TIMEOUT)
        .create(path, &declaration)
        .expect("a segment");
    let logs = SharedWords::new(PROCESSES * Log::WORDS);
    let control = SharedWords::new(2);
    let (ready, start) = (&control[0], &control[1]);
    let children: Vec<Child> = (0..PROCESSES)
        .map(|process| Child::fork(|| hammer(&segment, &Log::of(&logs, process), ready, start)))
        .collect();
    eventually("all processes are ready", || {
        ready.load(Ordering::SeqCst) == PROCESSES as u64
    });
    let offset = utc_offset();
    let utc = boot_nanos().wrapping_add(offset);
    let halfway = utc.next_multiple_of(WINDOW) + WINDOW / 2;
    start.store(halfway.wrapping_sub(offset), Ordering::SeqCst);
    for child in children {
        child.succeed();
    }
    let mut grants: Vec<Grant> = (0..PROCESSES)
        .flat_map(|process| Log::of(&logs, process).grants())
        .collect();
    grants.sort_by_key(|grant| grant.before);
    let end = start.load(Ordering::SeqCst) + (WINDOWS - 1) * WINDOW;
    let first = grants.iter().map(|grant| grant.after).min().expect("some grants");
    assert_eq!(
        segment.snapshot().expect("a copy").sets[0].counts.admitted,
        grants.len() as u64
    );
    Run {
        lasted: end - first,
        utc_offset: (utc_offset().abs_diff(offset) < 1_000_000).then_some(offset),
        grants,
    }
}

impl Run {
    /// The most grants that lie in one window of `length` for certain, wherever it starts.
    fn max_within(&self, length: u64) -> u64 {
        let grants = &self.grants;
        let counts = (0..grants.len()).map(|first| {
            let end = grants[first].before + length;
            grants[first..]
                .iter()
                .take_while(|grant| grant.before < end)
                .filter(|grant| grant.after < end)
                .count() as u64
        });
        counts.max().unwrap_or(0)
    }

    fn check_windows(&self, length: u64, bound: u64) {
        let max = self.max_within(length);
        assert!(max <= bound, "{max} in {length} ns, which may hold {bound}");
    }

    /// How many stretches of `length` have begun.
    fn begun(&self, length: u64) -> u64 {
        self.lasted.div_ceil(length)
    }
}

/// What a rate with a burst allows in `length`: the burst, and what is replenished.
fn replenished(length: u64, burst: u64) -> u64 {
    burst + u64::try_from(u128::from(CAPACITY) * u128::from(length) / u128::from(WINDOW)).expect("small")
}

fn calls(algorithm: Algorithm) -> Limit {
    Limit::calls("requests", CAPACITY, Duration::from_nanos(WINDOW)).algorithm(algorithm)
}

/// What the limit itself says that it admits at most in any window.
fn bound(limit: &Limit) -> u64 {
    limit.bound().expect("a bound").units
}

/// Algorithms that replenish continuously are also bounded in longer and shorter windows.
fn check_continuous(test: &str, algorithm: Algorithm, burst: u64) {
    run_until_used_up(
        test,
        calls(algorithm).burst(burst),
        |run| replenished(run.lasted, burst),
        |run| {
            run.check_windows(WINDOW, bound(&calls(algorithm).burst(burst)));
            for length in [
                WINDOW / 50,
                WINDOW / 10,
                WINDOW / 2,
                3 * WINDOW,
                2 * WINDOWS * WINDOW,
            ] {
                run.check_windows(length, replenished(length, burst) + 1);
            }
        },
    );
}

#[test]
fn gcra_never_gives_more_than_capacity_and_burst() {
    let test = "rate_bound::gcra_never_gives_more_than_capacity_and_burst";
    check_continuous(test, Algorithm::Gcra, CAPACITY);
}

#[test]
fn a_token_bucket_never_gives_more_than_capacity_and_burst() {
    let test = "rate_bound::a_token_bucket_never_gives_more_than_capacity_and_burst";
    check_continuous(test, Algorithm::TokenBucket, CAPACITY / 5);
}

#[test]
fn a_leaky_bucket_never_gives_more_than_capacity_and_burst() {
    let test = "rate_bound::a_leaky_bucket_never_gives_more_than_capacity_and_burst";
    check_continuous(test, Algorithm::LeakyBucket, CAPACITY / 5);
}

#[test]
fn fixed_windows_of_utc_give_their_capacity_each() {
    run_until_used_up(
        "rate_bound::fixed_windows_of_utc_give_their_capacity_each",
        calls(Algorithm::FixedWindow),
        |_| WINDOWS * CAPACITY,
        |run| {
            run.check_windows(WINDOW, bound(&calls(Algorithm::FixedWindow)));
            // If the wall clock was set meanwhile, no process knows which window a grant was in.
            let Some(offset) = run.utc_offset else { return };
            let margin = 1_000_000;
            let window = |instant: u64| instant.wrapping_add(offset) / WINDOW;
            let first = window(run.grants[0].before);
            for number in first..first + WINDOWS {
                let is_inside = |grant: &&Grant| {
                    window(grant.before - margin) == number && window(grant.after + margin) == number
                };
                let inside = run.grants.iter().filter(is_inside).count() as u64;
                assert!(inside <= CAPACITY, "{inside} in one window of UTC");
            }
        },
    );
}

#[test]
fn fixed_windows_of_first_use_give_their_capacity_each() {
    let limit = calls(Algorithm::FixedWindow).align(Align::FirstUse);
    run_until_used_up(
        "rate_bound::fixed_windows_of_first_use_give_their_capacity_each",
        limit.clone(),
        |run| run.begun(WINDOW) * CAPACITY,
        |run| run.check_windows(WINDOW, bound(&limit)),
    );
}

#[test]
fn a_sliding_window_never_gives_more_than_its_capacity() {
    run_until_used_up(
        "rate_bound::a_sliding_window_never_gives_more_than_its_capacity",
        calls(Algorithm::SlidingWindow),
        |run| run.begun(WINDOW) * CAPACITY,
        |run| run.check_windows(WINDOW, bound(&calls(Algorithm::SlidingWindow))),
    );
}

#[test]
fn a_sliding_window_counter_stays_within_its_documented_error() {
    const BUCKETS: u64 = 10;
    let limit = calls(Algorithm::SlidingWindowCounter).buckets(BUCKETS as u32);
    run_until_used_up(
        "rate_bound::a_sliding_window_counter_stays_within_its_documented_error",
        limit.clone(),
        // Nothing is refused that would fit if every unit counted for a sub-window longer than the window.
        |run| run.begun(WINDOW + WINDOW / BUCKETS) * CAPACITY,
        |run| {
            run.check_windows(WINDOW, bound(&limit));
            run.check_windows(WINDOW - WINDOW / BUCKETS, CAPACITY);
        },
    );
}
