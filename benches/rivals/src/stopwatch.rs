//! The times of all operations, taken in turn.

use std::time::{Duration, Instant};

use crate::common::operations::Operation;
use crate::common::tenth_percentile;

struct Measured {
    group: &'static str,
    name: &'static str,
    /// Nanoseconds, one entry for each round.
    rounds: Vec<f64>,
}

/// The times of every operation in every round.
pub struct Measurements {
    all: Vec<Measured>,
}

impl Measurements {
    /// Measures all operations in turn, `rounds` times over; each is repeated for `turn` before the next has its turn.
    pub fn take(mut operations: Vec<Operation>, rounds: usize, turn: Duration) -> Self {
        let times: Vec<u64> = operations
            .iter_mut()
            .map(|operation| times_in_a_turn(operation, turn))
            .collect();
        let mut all: Vec<Measured> = operations
            .iter()
            .map(|operation| Measured {
                group: operation.group,
                name: operation.name,
                rounds: Vec::with_capacity(rounds),
            })
            .collect();
        for _ in 0..rounds {
            for ((operation, measured), times) in operations.iter_mut().zip(&mut all).zip(&times) {
                let taken = time(operation, *times);
                measured.rounds.push(taken.as_nanos() as f64 / *times as f64);
            }
        }
        Self { all }
    }

    /// Prints a row for each operation, with its ratio to the operation `base`.
    pub fn print(&self, base: &str) {
        println!("| | what | ns | ratio to the floor |");
        println!("|---|---|---:|---:|");
        for measured in &self.all {
            println!(
                "| {} | {} | {:.1} | {:.2} |",
                measured.group,
                measured.name,
                tenth_percentile(&measured.rounds),
                self.ratio(measured.name, base)
            );
        }
    }

    /// The tenth percentile of the operation's times, in nanoseconds.
    pub fn tenth_percentile(&self, name: &str) -> f64 {
        tenth_percentile(self.rounds(name))
    }

    /// The median of the operation's times, in nanoseconds.
    pub fn median(&self, name: &str) -> f64 {
        let mut rounds = self.rounds(name).to_vec();
        rounds.sort_by(f64::total_cmp);
        rounds[rounds.len() / 2]
    }

    /// The operation's time as a multiple of that of `other`.
    pub fn ratio(&self, name: &str, other: &str) -> f64 {
        tenth_percentile(self.rounds(name)) / tenth_percentile(self.rounds(other))
    }

    fn rounds(&self, name: &str) -> &[f64] {
        let measured = self.all.iter().find(|measured| measured.name == name);
        &measured.expect("an operation of that name").rounds
    }
}

/// How many times the operation fits into a turn. Warms it up on the way.
fn times_in_a_turn(operation: &mut Operation, turn: Duration) -> u64 {
    let mut times = 1;
    loop {
        let taken = time(operation, times);
        if taken >= turn {
            return times;
        }
        times *= 2;
    }
}

fn time(operation: &mut Operation, times: u64) -> Duration {
    let begin = Instant::now();
    (operation.run)(times);
    begin.elapsed()
}
