//! The bounds of limits with credit, checked in every window of random traces: with several processes on a virtual
//! clock that are told one after the other what to do, and some of which are killed. Also what random kills leave
//! behind.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::scene::ALGORITHMS;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use fastrand::Rng;
use shmlimit::declare::{Align, Credit};
use shmlimit::{
    Algorithm, Declaration, Keyed, Limit, LimitSet, OpenOptions, Segment, SetDeclaration, VirtualClock,
};

const PROCESSES: usize = 3;
const STEPS: usize = 1_200;
const BATCH: u64 = 6;
const KEY: &str = "somebody";

/// 2026-01-01T00:00:00Z, in nanoseconds.
const NEW_YEAR: u64 = 1_767_225_600_000_000_000;

fn ask(set: &LimitSet, cost: u64) -> bool {
    let request = set.request().with("calls", cost).expect("declared");
    let checked = if set.is_keyed() {
        request.for_key(KEY).expect("a key").check()
    } else {
        request.check()
    };
    checked.expect("works").is_admitted()
}

/// What one process is told and answers: an instant, a cost, and the number of the step, which the answer repeats.
struct Post<'a>(&'a [AtomicU64]);

impl Post<'_> {
    const WORDS: usize = 4;

    fn tell(&self, step: u64, instant: u64, cost: u64) -> bool {
        self.0[0].store(instant, Ordering::Relaxed);
        self.0[1].store(cost, Ordering::Relaxed);
        self.0[2].store(step, Ordering::Release);
        eventually("the answer comes", || {
            self.0[3].load(Ordering::Acquire) / 2 == step
        });
        self.0[3].load(Ordering::Relaxed) % 2 == 1
    }

    fn obey(&self, set: &LimitSet, clock: &VirtualClock) -> ! {
        // A process that replaces a killed one may be told something before it first looks.
        let mut done = self.0[3].load(Ordering::Relaxed) / 2;
        loop {
            let step = self.0[2].load(Ordering::Acquire);
            if step == done {
                std::thread::yield_now();
                continue;
            }
            clock.advance_to(Duration::from_nanos(self.0[0].load(Ordering::Relaxed)));
            let is_admitted = ask(set, self.0[1].load(Ordering::Relaxed));
            done = step;
            self.0[3].store(2 * step + u64::from(is_admitted), Ordering::Release);
        }
    }
}

/// The costs that were admitted, each with its instant, in a random trace in which a process is killed now and then.
fn trace(directory: &Path, set: SetDeclaration, window: u64, seed: u64) -> Vec<(u64, u64)> {
    let clock = VirtualClock::new(Duration::from_nanos(NEW_YEAR));
    let segment = OpenOptions::new()
        .virtual_clock(&clock)
        .create(directory.join("limits"), &Declaration::new().add_set(set))
        .expect("a segment");
    let set = segment.set("api").expect("declared");
    let words = SharedWords::new(PROCESSES * Post::WORDS);
    let posts: Vec<Post<'_>> = words.chunks(Post::WORDS).map(Post).collect();
    let start = |post: &Post<'_>| Child::fork(|| post.obey(&set, &clock));
    let mut children: Vec<Option<Child>> = posts.iter().map(|post| Some(start(post))).collect();
    let mut dice = Rng::with_seed(seed);
    let mut now = NEW_YEAR;
    let mut admitted = Vec::new();
    for step in 1..=STEPS as u64 {
        now += match dice.u64(..8) {
            0 => dice.u64(..window),
            1 | 2 => 0,
            _ => dice.u64(..window / 16),
        };
        let process = dice.u64(..PROCESSES as u64) as usize;
        if dice.u64(..60) == 0 {
            children[process].take().expect("alive").kill();
            clock.advance_to(Duration::from_nanos(now));
            segment.recover().expect("works");
            children[process] = Some(start(&posts[process]));
        }
        let cost = if dice.u64(..3) == 0 {
            1 + dice.u64(..BATCH + 1)
        } else {
            1
        };
        if posts[process].tell(step, now, cost) {
            admitted.push((now, cost));
        }
    }
    children.into_iter().flatten().for_each(Child::kill);
    admitted
}

/// The most that was admitted in any stretch of this length.
fn max_in_any(admitted: &[(u64, u64)], window: u64) -> u64 {
    let of_one = |start: usize| {
        let begin = admitted[start].0;
        let inside = admitted[start..]
            .iter()
            .take_while(|(instant, _)| *instant < begin + window);
        inside.map(|(_, cost)| cost).sum::<u64>()
    };
    (0..admitted.len()).map(of_one).max().unwrap_or(0)
}

fn limit(window: u64, algorithm: Algorithm, credit: Credit) -> Limit {
    Limit::calls("calls", 20, Duration::from_nanos(window))
        .algorithm(algorithm)
        .credit(credit)
}

#[test]
fn no_window_sees_more_than_the_bound_and_less_than_a_batch_for_each_process() {
    let test = "bounds::no_window_sees_more_than_the_bound_and_less_than_a_batch_for_each_process";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        for (seed, algorithm) in (1..).zip(ALGORITHMS) {
            let window = 1_000_000_007;
            let limit = limit(window, algorithm, Credit::batch(BATCH));
            let bound = limit.bound().expect("a rate");
            assert_eq!(bound.per_process, BATCH - 1);
            let set = SetDeclaration::new("api").add_limit(limit);
            let set = if seed % 2 == 0 {
                set.keyed(Keyed::new(10))
            } else {
                set
            };
            let directory = tempfile::tempdir_in(directory).expect("a directory");
            let admitted = trace(directory.path(), set, window, seed);
            let max = max_in_any(&admitted, window);
            let allowed = bound.units + bound.per_process * PROCESSES as u64;
            assert!(max <= allowed, "{algorithm:?}: {max}, not {allowed}");
            // The limit was really used: its capacity was reached in some window.
            assert!(max >= 20, "{algorithm:?}: {max}");
        }
    });
}

#[test]
fn no_window_sees_more_than_the_bound_and_what_automatic_batches_left() {
    let test = "bounds::no_window_sees_more_than_the_bound_and_what_automatic_batches_left";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        const CAPACITY: u64 = 160;
        let (step, window) = (1_000_000_007, 8 * 1_000_000_007);
        for (seed, algorithm) in (11..).zip([Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket])
        {
            let limit = Limit::calls("calls", CAPACITY, Duration::from_nanos(window))
                .algorithm(algorithm)
                .credit(Credit::auto());
            let bound = limit.bound().expect("a rate");
            assert_eq!(bound.per_process, CAPACITY / 16 - 1);
            let set = SetDeclaration::new("api").add_limit(limit);
            let directory = tempfile::tempdir_in(directory).expect("a directory");
            let admitted = trace(directory.path(), set, step, seed);
            let left: u64 = (1..=PROCESSES as u64)
                .map(|process| CAPACITY / (16 * process) - 1)
                .sum();
            let max = max_in_any(&admitted, window);
            assert!(max <= bound.units + left, "{algorithm:?}: {max}");
            // The limit was really used.
            assert!(max >= CAPACITY, "{algorithm:?}: {max}");
            // Whatever is spent was charged before. At the beginning, nothing is left over from earlier.
            let mut spent = 0;
            for (instant, cost) in &admitted {
                spent += cost;
                let earned = u128::from(instant - admitted[0].0) * u128::from(CAPACITY) / u128::from(window);
                assert!(
                    u128::from(spent) <= u128::from(CAPACITY) + earned,
                    "{algorithm:?}"
                );
            }
        }
    });
}

#[test]
fn no_window_sees_more_than_its_capacity_where_batches_end_with_it() {
    let test = "bounds::no_window_sees_more_than_its_capacity_where_batches_end_with_it";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let window = 1_000_000_000;
        for (seed, is_keyed) in [(7, false), (8, true)] {
            let limit = limit(
                window,
                Algorithm::FixedWindow,
                Credit::batch(BATCH).window_coupled(true),
            );
            assert_eq!(limit.bound().expect("a rate").per_process, 0);
            let set = SetDeclaration::new("api").add_limit(limit);
            let set = if is_keyed { set.keyed(Keyed::new(10)) } else { set };
            let directory = tempfile::tempdir_in(directory).expect("a directory");
            let admitted = trace(directory.path(), set, window, seed);
            let windows = admitted.chunk_by(|one, next| one.0 / window == next.0 / window);
            let max = windows
                .map(|window| window.iter().map(|(_, cost)| cost).sum::<u64>())
                .max();
            assert!((11..=20).contains(&max.unwrap_or(0)), "{max:?}");
            assert!(max_in_any(&admitted, window) <= 40);
        }
    });
}

#[test]
fn a_batch_ends_with_the_window_that_began_with_the_first_use() {
    let clock = VirtualClock::new(Duration::from_nanos(NEW_YEAR));
    let directory = tempfile::tempdir().expect("a directory");
    let limit = limit(
        1_000_000,
        Algorithm::FixedWindow,
        Credit::batch(BATCH).window_coupled(true),
    );
    let set = SetDeclaration::new("api").add_limit(limit.align(Align::FirstUse));
    let segment = OpenOptions::new()
        .virtual_clock(&clock)
        .create(directory.path().join("limits"), &Declaration::new().add_set(set))
        .expect("a segment");
    let set = segment.set("api").expect("declared");
    let at = |nanos| clock.advance_to(Duration::from_nanos(NEW_YEAR + nanos));
    let remaining = || set.request().peek().expect("works")[0].remaining;
    assert!(ask(&set, 1));
    at(999_999);
    assert!(ask(&set, 1));
    assert_eq!(remaining(), 14);
    at(1_000_000);
    assert!(ask(&set, 1));
    // Taken from the next window: what was left of the first one is gone.
    assert_eq!(remaining(), 14);
    assert_eq!((0..30).filter(|_| ask(&set, 1)).count(), 19);
}

/// Others may use what permits did not, at most once, and only in windows in which the limit gives it back.
#[test]
fn no_window_sees_more_used_than_the_bound_whatever_permits_give_back() {
    const WINDOW: u64 = 20_000_000;
    for (seed, algorithm) in [
        (11, Algorithm::Gcra),
        (12, Algorithm::TokenBucket),
        (13, Algorithm::Gcra),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let clock = VirtualClock::new(Duration::from_nanos(NEW_YEAR));
        let limit = limit(WINDOW, algorithm, Credit::batch(BATCH));
        let bound = limit.bound().expect("a rate");
        let set = SetDeclaration::new("api").add_limit(limit);
        let segment = OpenOptions::new()
            .virtual_clock(&clock)
            .create(directory.path().join("limits"), &Declaration::new().add_set(set))
            .expect("a segment");
        let set = segment.set("api").expect("declared");
        let mut dice = Rng::with_seed(seed);
        let mut now = NEW_YEAR;
        // When each permit was admitted, and what it has used.
        let mut used: Vec<(u64, u64)> = Vec::new();
        let mut held = Vec::new();
        for _ in 0..20 * STEPS {
            now += match dice.u64(..40) {
                0 => dice.u64(..2 * WINDOW),
                1..20 => 0,
                _ => dice.u64(..WINDOW / 32),
            };
            clock.advance_to(Duration::from_nanos(now));
            // After long pauses, many permits at once give back everything.
            let gives_back = if dice.u64(..300) == 0 { held.len() } else { 0 };
            for _ in 0..gives_back {
                let (mut permit, position): (shmlimit::Permit<'_>, usize) = held.remove(0);
                permit.settle([("calls", 0)]).expect("works");
                used[position] = (used[position].0, 0);
                while ask(&set, 1) {
                    used.push((now, 1));
                }
            }
            let cost = 1 + dice.u64(..BATCH + 1);
            let request = set.request().with("calls", cost).expect("declared");
            if let Ok(permit) = request.try_acquire().expect("works").into_result() {
                held.push((permit, used.len()));
                used.push((now, cost));
            }
            if held.len() > 100 {
                drop(held.remove(0));
            }
        }
        let max = max_in_any(&used, WINDOW);
        let allowed = bound.units + bound.per_process;
        assert!(max <= allowed, "{algorithm:?}: {max}, not {allowed}");
        assert!(max >= 20, "{algorithm:?}: {max}");
    }
}

/// No more is ever admitted than was charged and not given back, and a kill loses less than a batch.
#[test]
fn processes_killed_at_random_spend_nothing_twice_and_lose_less_than_a_batch_each() {
    let test = "bounds::processes_killed_at_random_spend_nothing_twice_and_lose_less_than_a_batch_each";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        const KILLS: u64 = 300;
        const CAPACITY: u64 = 1 << 40;
        let year = Duration::from_secs(3600 * 24 * 365);
        let limit = Limit::calls("calls", CAPACITY, year).credit(Credit::batch(BATCH));
        let set = SetDeclaration::new("api").add_limit(limit).keyed(Keyed::new(10));
        let clock = VirtualClock::new(Duration::from_nanos(NEW_YEAR));
        let segment: Segment = OpenOptions::new()
            .virtual_clock(&clock)
            .create(directory.join("limits"), &Declaration::new().add_set(set))
            .expect("a segment");
        let set = segment.set("api").expect("declared");
        // Counted before each request and after it: one that was admitted at the kill may count either way.
        let words = SharedWords::new(2);
        let mut dice = Rng::with_seed(42);
        let mut unsure = 0;
        for _ in 0..KILLS {
            let begun = words[0].load(Ordering::Relaxed);
            let child = Child::fork(|| {
                loop {
                    words[0].fetch_add(1, Ordering::Relaxed);
                    if ask(&set, 1) {
                        words[1].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            let enough = begun + 1 + dice.u64(..200);
            eventually("it works", || words[0].load(Ordering::Relaxed) >= enough);
            child.kill();
            unsure += words[0].load(Ordering::Relaxed) - words[1].load(Ordering::Relaxed) - unsure;
        }
        segment.recover().expect("works");
        let admitted = words[1].load(Ordering::Relaxed);
        let snapshot = segment.snapshot().expect("a copy");
        let counts = snapshot.sets[0].limits[0].counts;
        assert!(snapshot.sets[0].holds.is_empty());
        assert!(unsure <= KILLS);
        let remaining = set.request().for_key(KEY).expect("keyed").peek().expect("works")[0].remaining;
        let kept = CAPACITY - remaining;
        assert!(kept >= admitted, "{counts:?}: {admitted}");
        assert!(
            kept <= admitted + unsure + KILLS * (BATCH - 1),
            "{counts:?}: {admitted}"
        );
        // If a process was killed while it drew a batch, that is undone, but it may have been counted. The same goes
        // for what it gave back.
        let counted = counts.taken - counts.reclaimed - counts.refunded;
        assert!(counted.abs_diff(kept) <= KILLS * BATCH, "{counts:?}: {kept}");
        assert!(counts.admitted <= admitted + unsure, "{counts:?}: {admitted}");
        // Units are lost only by a kill in the few instructions between a draw and its record, or while a batch is
        // taken back.
        assert!(
            counts.admitted + KILLS * BATCH >= admitted,
            "{counts:?}: {admitted}"
        );
    });
}
