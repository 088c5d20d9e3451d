//! What the workers found, as a table.

use std::fmt;
use std::ops::AddAssign;

/// What was found of one operation, at one depth, in one way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Instructions that were stepped.
    pub instructions: u64,
    /// Crash states that were recovered and checked.
    pub states: u64,
    pub torn: u64,
    pub stuck: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.states += other.states;
        self.torn += other.torn;
        self.stuck += other.stuck;
    }
}

/// The three ways in which an operation is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Stepped once; every distinct state recovered in a copy.
    Copies,
    /// Really killed.
    Killed,
    /// The recoverer killed as well.
    Twice,
}

#[derive(Clone, Debug, Default)]
pub struct Row {
    pub name: &'static str,
    pub copies: Tally,
    pub killed: Tally,
    pub twice: Tally,
}

impl Row {
    pub fn of(&mut self, way: Way) -> &mut Tally {
        match way {
            Way::Copies => &mut self.copies,
            Way::Killed => &mut self.killed,
            Way::Twice => &mut self.twice,
        }
    }

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
        }
        total
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<36}|{:^32}|{:^32}|{:^33}|",
            "", "stepped, copies recovered", "killed", "recoverer killed too"
        )?;
        write!(f, "{:<36}|", "operation")?;
        for _ in 0..3 {
            write!(
                f,
                "{:>12}{:>9}{:>5}{:>6}|",
                "instructions", "states", "torn", "stuck"
            )?;
        }
        writeln!(f)?;
        for row in self.0.iter().chain([&self.total()]) {
            write!(f, "{:<36}|", row.name)?;
            for tally in [row.copies, row.killed, row.twice] {
                write!(
                    f,
                    "{:>12}{:>9}{:>5}{:>6}|",
                    tally.instructions, tally.states, tally.torn, tally.stuck
                )?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
