//! What the workers found, in tables.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

/// What was found about one operation, at one depth, in one way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Instructions that were stepped.
    pub instructions: u64,
    /// Crash states that were recovered and checked.
    pub states: u64,
    pub torn: u64,
    pub stuck: u64,
    /// States in which something was not given back.
    pub lost: u64,
    /// Calls that found the lock stuck, were repeated and then had their result.
    pub repeated: u64,
    pub delays: Delays,
}

/// How long after a real kill it took the first waiter to get what it waited for.
#[derive(Clone, Copy)]
pub struct Delays {
    /// Delays are counted together if they are the same number of sixteenths of a doubling above a microsecond.
    counts: [u64; Self::COUNTS],
    pub worst_nanos: u64,
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            counts: [0; Self::COUNTS],
            worst_nanos: 0,
        }
    }
}

impl fmt::Debug for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {:?}", self.count(), self.median())
    }
}

impl Delays {
    const PER_DOUBLING: f64 = 16.0;
    const COUNTS: usize = 400;
    pub const WORDS: usize = Self::COUNTS + 1;

    pub fn note(&mut self, delay: Duration) {
        let doublings = (delay.as_secs_f64() * 1e6).max(1.0).log2();
        let place = ((doublings * Self::PER_DOUBLING) as usize).min(Self::COUNTS - 1);
        self.counts[place] += 1;
        self.worst_nanos = self
            .worst_nanos
            .max(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX));
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Exact to a sixteenth of a doubling.
    pub fn median(&self) -> Duration {
        let mut left = self.count() / 2;
        let place = self.counts.iter().position(|count| {
            let is_here = *count > left;
            left = left.saturating_sub(*count);
            is_here
        });
        let doublings = place.unwrap_or_default() as f64 / Self::PER_DOUBLING;
        Duration::from_secs_f64(doublings.exp2() / 1e6)
    }

    pub fn to_words(self) -> impl Iterator<Item = u64> {
        self.counts.into_iter().chain([self.worst_nanos])
    }

    pub fn from_words(words: &[u64]) -> Self {
        let (counts, rest) = words.split_first_chunk().expect("as many as were sent");
        Self {
            counts: *counts,
            worst_nanos: rest[0],
        }
    }
}

impl AddAssign for Delays {
    fn add_assign(&mut self, other: Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.worst_nanos = self.worst_nanos.max(other.worst_nanos);
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.states += other.states;
        self.torn += other.torn;
        self.stuck += other.stuck;
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.delays += other.delays;
    }
}

/// The three ways in which an operation is killed, and the one in which it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Stepped once, and every distinct state recovered in a copy.
    Copies,
    /// Killed for real.
    Killed,
    /// The recoverer killed as well.
    Twice,
    /// Stopped, and then allowed to go on.
    Stopped,
}

#[derive(Clone, Debug, Default)]
pub struct Row {
    pub name: &'static str,
    pub copies: Tally,
    pub killed: Tally,
    pub twice: Tally,
    pub stopped: Tally,
}

impl Row {
    pub fn of(&mut self, way: Way) -> &mut Tally {
        match way {
            Way::Copies => &mut self.copies,
            Way::Killed => &mut self.killed,
            Way::Twice => &mut self.twice,
            Way::Stopped => &mut self.stopped,
        }
    }

    /// The sum of all kills.
    pub fn total(&self) -> Tally {
        let mut total = self.copies;
        total += self.killed;
        total += self.twice;
        total
    }
}

pub struct Table(pub Vec<Row>);

impl Table {
    pub fn total(&self) -> Row {
        let mut total = Row {
            name: "total",
            ..Row::default()
        };
        for row in &self.0 {
            total.copies += row.copies;
            total.killed += row.killed;
            total.twice += row.twice;
            total.stopped += row.stopped;
        }
        total
    }

    fn with_total(&self) -> impl Iterator<Item = Row> {
        self.0.iter().cloned().chain([self.total()])
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<36}|{:^37}|{:^37}|{:^37}|",
            "", "stepped, copies recovered", "killed", "recoverer killed too"
        )?;
        write!(f, "{:<36}|", "operation")?;
        for _ in 0..3 {
            write!(
                f,
                "{:>12}{:>9}{:>5}{:>6}{:>5}|",
                "instructions", "states", "torn", "stuck", "lost"
            )?;
        }
        writeln!(f)?;
        for row in self.with_total() {
            write!(f, "{:<36}|", row.name)?;
            for tally in [row.copies, row.killed, row.twice] {
                write!(
                    f,
                    "{:>12}{:>9}{:>5}{:>6}{:>5}|",
                    tally.instructions, tally.states, tally.torn, tally.stuck, tally.lost
                )?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The second table: stopped at every instruction.
pub struct StoppedTable<'a>(pub &'a Table);

impl fmt::Display for StoppedTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<36}|{:>9}{:>9}{:>24}{:>6}{:>10}|",
            "stopped, others give back", "states", "leaked", "stuck beyond the bound", "torn", "repeated"
        )?;
        for row in self.0.with_total().filter(|row| row.stopped.states > 0) {
            let tally = row.stopped;
            writeln!(
                f,
                "{:<36}|{:>9}{:>9}{:>24}{:>6}{:>10}|",
                row.name, tally.states, tally.lost, tally.stuck, tally.torn, tally.repeated
            )?;
        }
        Ok(())
    }
}
