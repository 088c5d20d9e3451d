//! Requests are served in order of arrival, and every process is served equally often.
//!
//! Grants are numbered: in a set with a concurrency limit, a permit's fencing number rises by one with each permit of
//! the set, and so does `admitted` in a snapshot. So a snapshot foretells which request gets which grant: those that
//! wait in the queue get the very next ones, in the order of their tickets.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use crate::scene::{create_in, expect_permit};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use shmlimit::{Limit, Segment, SetDeclaration};

const WORKERS: usize = 16;

/// How long the workers compete.
const CONTEST: Duration = Duration::from_secs(if cfg!(debug_assertions) { 3 } else { 10 });

/// How long a worker holds what it got.
const WORK: Duration = Duration::from_millis(2);

/// More grants than a contest can have.
const MAX_GRANTS: usize = 1 << 20;

/// The contest's shared words.
struct Log {
    words: SharedWords,
}

impl Log {
    fn new() -> Self {
        Self {
            words: SharedWords::new(1 + WORKERS + MAX_GRANTS),
        }
    }

    fn is_over(&self) -> &AtomicU64 {
        &self.words[0]
    }

    /// How many grants each worker got.
    fn turns(&self) -> &[AtomicU64] {
        &self.words[1..=WORKERS]
    }

    /// The process that got the grant with that number.
    fn grant(&self, number: u64) -> &AtomicU64 {
        let number = usize::try_from(number).expect("a number of a short contest");
        &self.words[1 + WORKERS..][number]
    }
}

/// What a snapshot foretells: after this many grants, these processes are next.
struct Forecast {
    granted: u64,
    waiting: Vec<u64>,
}

fn forecast(segment: &Segment) -> Option<Forecast> {
    let snapshot = segment.snapshot().expect("a snapshot");
    let set = &snapshot.sets[0];
    if set.torn || set.words_in_flight != Some(0) {
        return None;
    }
    let tickets: Vec<_> = set.tickets.iter().filter(|ticket| !ticket.granted).collect();
    assert!(
        tickets
            .iter()
            .zip(tickets.iter().skip(1))
            .all(|(one, next)| one.number < next.number),
        "tickets are told in the order of their numbers"
    );
    let last_granted = set
        .tickets
        .iter()
        .filter(|ticket| ticket.granted)
        .map(|ticket| ticket.number)
        .max();
    if let (Some(granted), Some(waiting)) = (last_granted, tickets.first()) {
        assert!(
            granted < waiting.number,
            "a later ticket was granted before an earlier one"
        );
    }
    Some(Forecast {
        granted: set.counts.admitted,
        waiting: tickets
            .iter()
            .map(|ticket| ticket.owner_pid.expect("its owner lives"))
            .collect(),
    })
}

/// Jain's index of fairness: 1 if all got the same, 1/n if one got everything (Jain, Chiu, Hawe, 1984).
fn fairness(turns: &[u64]) -> f64 {
    let sum: f64 = turns.iter().map(|turns| *turns as f64).sum();
    let squares: f64 = turns.iter().map(|turns| (*turns as f64).powi(2)).sum();
    sum * sum / (turns.len() as f64 * squares)
}

fn compete(directory: &Path, set: SetDeclaration, work: Duration) {
    let (segment, set) = create_in(directory, set);
    let log = Log::new();
    // The number that the permit before the first one would have had.
    let before_all = {
        let first = expect_permit(set.request().acquire(TIMEOUT));
        first.fencing_number().expect("holds something") - 1
    };
    let workers: Vec<Child> = (0..WORKERS)
        .map(|worker| {
            let (log, set) = (&log, &set);
            Child::fork(move || {
                let request = set.request();
                while log.is_over().load(Ordering::Relaxed) == 0 {
                    let permit = expect_permit(request.acquire(TIMEOUT));
                    let number = permit.fencing_number().expect("holds something") - before_all;
                    log.grant(number)
                        .store(u64::from(std::process::id()), Ordering::Relaxed);
                    log.turns()[worker].fetch_add(1, Ordering::Relaxed);
                    sleep(work);
                }
            })
        })
        .collect();
    eventually("everybody has had a turn", || {
        log.turns().iter().all(|turns| turns.load(Ordering::Relaxed) > 0)
    });
    let turns = || -> Vec<u64> {
        let load = |turns: &AtomicU64| turns.load(Ordering::Relaxed);
        log.turns().iter().map(load).collect()
    };
    let before = turns();
    let started = Instant::now();
    let mut forecasts = Vec::new();
    while started.elapsed() < CONTEST {
        forecasts.extend(forecast(&segment));
        sleep(Duration::from_micros(500));
    }
    let after = turns();
    log.is_over().store(1, Ordering::Relaxed);
    workers.into_iter().for_each(Child::succeed);

    let mut predicted = 0;
    for Forecast { granted, waiting } in &forecasts {
        for (place, process) in waiting.iter().enumerate() {
            let number = granted + 1 + place as u64;
            let went_to = log.grant(number).load(Ordering::Relaxed);
            assert_eq!(
                went_to, *process,
                "grant {number} went to another than the first of its queue"
            );
            predicted += 1;
        }
    }
    let gained: Vec<u64> = after
        .iter()
        .zip(&before)
        .map(|(after, before)| after - before)
        .collect();
    let index = fairness(&gained);
    println!(
        "{} grants, {} snapshots, {predicted} grants foretold, index {index:.5}: {gained:?}",
        gained.iter().sum::<u64>(),
        forecasts.len(),
    );
    assert!(forecasts.len() >= 20 && predicted >= 100, "too little was seen");
    // A worker that is kept off its processor joins the end of the queue later, so a busy machine is a little less
    // even. If one process got everything, this would be 1/16.
    assert!(index >= 0.9, "{index}: {gained:?}");
    let snapshot = segment.snapshot().expect("a snapshot");
    assert!(snapshot.sets[0].tickets.is_empty() && snapshot.sets[0].holds.is_empty());
}

#[test]
fn places_are_given_in_the_order_of_tickets_and_evenly() {
    let test = "fairness::places_are_given_in_the_order_of_tickets_and_evenly";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let set = SetDeclaration::new("set").add_limit(Limit::concurrency("places", 2));
        compete(directory, set, WORK);
    });
}

#[test]
fn a_rate_is_given_in_the_order_of_tickets_and_evenly() {
    let test = "fairness::a_rate_is_given_in_the_order_of_tickets_and_evenly";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        // There are enough places for all of them: the places only number the grants.
        let set = SetDeclaration::new("set")
            .add_limit(Limit::calls("calls", 10, Duration::from_millis(10)))
            .add_limit(Limit::concurrency("places", 2 * WORKERS as u64));
        compete(directory, set, Duration::ZERO);
    });
}

#[test]
fn a_request_of_full_capacity_is_served_while_small_ones_keep_arriving() {
    let test = "fairness::a_request_of_full_capacity_is_served_while_small_ones_keep_arriving";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (segment, set) = create_in(
            directory,
            SetDeclaration::new("set").add_limit(Limit::concurrency("places", 4)),
        );
        let words = SharedWords::new(2);
        let [is_over, small_grants] = [&words[0], &words[1]];
        let small: Vec<Child> = (0..8)
            .map(|_| {
                Child::fork(|| {
                    while is_over.load(Ordering::Relaxed) == 0 {
                        let _permit = expect_permit(set.request().acquire(TIMEOUT));
                        small_grants.fetch_add(1, Ordering::Relaxed);
                        sleep(WORK);
                    }
                })
            })
            .collect();
        eventually("all places are taken", || {
            segment.snapshot().expect("a snapshot").sets[0].active == 4
        });
        let large = Child::fork(|| {
            let all = set.request().with("places", 4).expect("declared");
            for _ in 0..10 {
                let before = small_grants.load(Ordering::Relaxed);
                drop(expect_permit(all.acquire(TIMEOUT)));
                eventually("small requests are served in between", || {
                    small_grants.load(Ordering::Relaxed) > before
                });
            }
        });
        large.succeed();
        is_over.store(1, Ordering::Relaxed);
        small.into_iter().for_each(Child::succeed);
    });
}

#[test]
fn none_of_64_processes_starves_on_two_processors() {
    const CROWD: usize = 64;
    const TURNS: u64 = 20;
    let test = "fairness::none_of_64_processes_starves_on_two_processors";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let this = Pid::from_raw(0);
        let allowed = sched_getaffinity(this).expect("known");
        let mut two = CpuSet::new();
        (0..CpuSet::count())
            .filter(|processor| allowed.is_set(*processor).expect("in range"))
            .take(2)
            .for_each(|processor| two.set(processor).expect("in range"));
        sched_setaffinity(this, &two).expect("a part of what is allowed");
        let (_segment, set) = create_in(
            directory,
            SetDeclaration::new("set").add_limit(Limit::concurrency("places", 2)),
        );
        let words = SharedWords::new(1 + CROWD);
        let (is_over, turns) = (&words[0], &words[1..]);
        let crowd: Vec<Child> = (0..CROWD)
            .map(|number| {
                let set = &set;
                Child::fork(move || {
                    while is_over.load(Ordering::Relaxed) == 0 {
                        let _permit = expect_permit(set.request().acquire(TIMEOUT));
                        turns[number].fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        eventually("everybody is there", || {
            turns.iter().all(|turns| turns.load(Ordering::Relaxed) > 0)
        });
        let load = || -> Vec<u64> { turns.iter().map(|turns| turns.load(Ordering::Relaxed)).collect() };
        let before = load();
        let gained = || -> Vec<u64> {
            load()
                .iter()
                .zip(&before)
                .map(|(now, before)| now - before)
                .collect()
        };
        eventually("everybody has had many turns", || {
            gained().into_iter().all(|turns| turns >= TURNS)
        });
        let gained = gained();
        is_over.store(1, Ordering::Relaxed);
        crowd.into_iter().for_each(Child::succeed);
        let mean = gained.iter().sum::<u64>() / CROWD as u64;
        let min = gained.iter().min().expect("a crowd");
        println!("{min} turns at least, {mean} on average");
        assert!(
            mean <= 3 * min,
            "some are served far more often than others: {gained:?}"
        );
    });
}
