//! The results of checks.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::exit::Failure;
use crate::text::human;

/// One check and its result.
#[derive(Debug, Serialize)]
pub struct Check {
    pub check: &'static str,
    pub passed: bool,
    /// What was seen, in words.
    pub what: String,
    /// Measurements; times are in seconds.
    pub figures: BTreeMap<&'static str, f64>,
}

impl Check {
    /// A check with its outcome: the measurements if it passed, otherwise what went wrong.
    pub fn of(check: &'static str, outcome: Result<Seen, Failure>) -> Self {
        match outcome {
            Ok(seen) => Self {
                check,
                passed: true,
                what: seen.what,
                figures: seen.figures,
            },
            Err(failure) => Self {
                check,
                passed: false,
                what: failure.message,
                figures: BTreeMap::new(),
            },
        }
    }
}

/// What a check that passed has found.
#[derive(Debug, Default)]
pub struct Seen {
    what: String,
    figures: BTreeMap<&'static str, f64>,
}

impl Seen {
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            figures: BTreeMap::new(),
        }
    }

    pub fn figure(mut self, name: &'static str, value: f64) -> Self {
        self.figures.insert(name, value);
        self
    }

    pub fn time(self, name: &'static str, value: Duration) -> Self {
        self.figure(name, value.as_secs_f64())
    }
}

/// Repeated measurements of the same time.
#[derive(Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    pub fn add(&mut self, time: Duration) {
        self.0.push(time);
        self.0.sort_unstable();
    }

    /// The time that this percentage of the measurements does not exceed.
    fn percentile(&self, percent: usize) -> Duration {
        let index = (self.0.len() * percent).div_ceil(100).saturating_sub(1);
        self.0.get(index).copied().unwrap_or_default()
    }

    pub fn text(&self) -> String {
        format!(
            "{} (median), {} (99 of 100), {} (longest of {})",
            human::duration(self.percentile(50)),
            human::duration(self.percentile(99)),
            human::duration(self.percentile(100)),
            self.0.len()
        )
    }

    pub fn add_to(&self, seen: Seen) -> Seen {
        seen.time("median", self.percentile(50))
            .time("p99", self.percentile(99))
            .time("longest", self.percentile(100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let mut times = Times::default();
        for millis in (1..=200).rev() {
            times.add(Duration::from_millis(millis));
        }
        for (percent, millis) in [(50, 100), (99, 198), (100, 200)] {
            assert_eq!(times.percentile(percent), Duration::from_millis(millis));
        }
        assert_eq!(Times::default().percentile(50), Duration::ZERO);
    }
}
