//! Many workers on one limit: how much they get done together, how evenly, and how long one of them is kept waiting.
//! For comparison, each number of processes also runs without sharing anything, to show the scheduler's pauses, which
//! are not the lock's doing, and on a bare robust lock, to show how unevenly that serves, which is not the limit's
//! doing.

use std::path::Path;
use std::time::Duration;

use super::processes::{Share, Work, side_by_side, threads_side_by_side};

/// What a crowd achieved together.
#[derive(Clone, Copy, Debug)]
pub struct Together {
    /// Operations per second.
    pub rate: f64,
    /// Jain's index of fairness: 1 if all did the same amount, 1/n if one did everything.
    pub jain: f64,
    /// The longest time for which any of them did nothing.
    pub longest_gap: Duration,
}

impl Together {
    fn of(shares: &[Share]) -> Self {
        let done = |power: i32| {
            shares
                .iter()
                .map(|share| (share.done as f64).powi(power))
                .sum::<f64>()
        };
        Self {
            rate: shares.iter().map(|share| share.rate()).sum(),
            jain: done(1).powi(2) / (shares.len() as f64 * done(2)),
            longest_gap: shares
                .iter()
                .map(|share| share.longest_gap)
                .max()
                .unwrap_or_default(),
        }
    }

    /// The median of each figure over several rounds.
    fn median(mut rounds: Vec<Self>) -> Self {
        let middle = rounds.len() / 2;
        rounds.sort_by(|one, other| one.rate.total_cmp(&other.rate));
        let rate = rounds[middle].rate;
        rounds.sort_by(|one, other| one.jain.total_cmp(&other.jain));
        let jain = rounds[middle].jain;
        rounds.sort_by_key(|round| round.longest_gap);
        Self {
            rate,
            jain,
            longest_gap: rounds[middle].longest_gap,
        }
    }
}

/// How many work at once, and on what.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// The number of processes, or of threads of one process.
    pub count: usize,
    /// Whether they are threads.
    pub is_of_threads: bool,
    /// On one limit.
    pub on_one_limit: Together,
    /// As many processes on a bare robust lock.
    pub on_a_bare_lock: Together,
    /// As many processes that share nothing.
    pub without_a_lock: Together,
}

impl Crowd {
    /// The longest stall, as a multiple of the longest gap without a lock.
    pub fn stall_ratio(&self) -> f64 {
        self.on_one_limit.longest_gap.as_secs_f64() / self.without_a_lock.longest_gap.as_secs_f64()
    }
}

const CROWDS: [(usize, bool); 6] = [
    (1, false),
    (2, false),
    (32, false),
    (64, false),
    (2, true),
    (32, true),
];

/// Measures every crowd in turn, `rounds` times for `time`.
pub fn measure(directory: &Path, rounds: usize, time: Duration) -> Vec<Crowd> {
    let mut results = vec![(Vec::new(), Vec::new(), Vec::new()); CROWDS.len()];
    for _ in 0..rounds {
        for ((count, is_of_threads), (limited, bare, alone)) in CROWDS.into_iter().zip(&mut results) {
            let shares = if is_of_threads {
                threads_side_by_side(directory, count, time)
            } else {
                side_by_side(directory, Work::OneLimit, count, time)
            };
            limited.push(Together::of(&shares));
            bare.push(Together::of(&side_by_side(directory, Work::Floor, count, time)));
            alone.push(Together::of(&side_by_side(directory, Work::Alone, count, time)));
        }
    }
    CROWDS
        .into_iter()
        .zip(results)
        .map(|((count, is_of_threads), (limited, bare, alone))| Crowd {
            count,
            is_of_threads,
            on_one_limit: Together::median(limited),
            on_a_bare_lock: Together::median(bare),
            without_a_lock: Together::median(alone),
        })
        .collect()
}

/// Prints a row for each crowd.
pub fn print(crowds: &[Crowd], rounds: usize, time: Duration) {
    println!("On one limit, try_acquire and drop: {rounds} rounds of {time:?} each in turn, medians.\n");
    println!(
        "| at once | total M op/s | Jain's index | a bare lock | no lock | longest stall | a bare lock | no lock | ratio |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    for crowd in crowds {
        let what = if crowd.is_of_threads {
            "threads"
        } else {
            "processes"
        };
        let (limited, bare, alone) = (crowd.on_one_limit, crowd.on_a_bare_lock, crowd.without_a_lock);
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "| {} {what} | {:.2} | {:.3} | {:.3} | {:.3} | {:.1} ms | {:.1} ms | {:.1} ms | {:.2} |",
            crowd.count,
            limited.rate / 1e6,
            limited.jain,
            bare.jain,
            alone.jain,
            millis(limited.longest_gap),
            millis(bare.longest_gap),
            millis(alone.longest_gap),
            crowd.stall_ratio(),
        );
    }
}
