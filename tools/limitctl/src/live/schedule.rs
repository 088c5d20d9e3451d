//! Decides when to look again.

use std::time::{Duration, Instant};

/// Instants at equal intervals, however long the work at each of them takes. Missed instants are skipped.
#[derive(Debug)]
pub struct Schedule {
    every: Duration,
    next: Instant,
}

impl Schedule {
    /// A schedule whose first instant is one interval from now.
    pub fn starting(now: Instant, every: Duration) -> Self {
        Self {
            every,
            next: now + every,
        }
    }

    /// The time until the next instant, or zero if it has come.
    pub fn remaining(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// Advances to the first instant after now.
    pub fn advance(&mut self, now: Instant) {
        let late = now.saturating_duration_since(self.next).as_nanos();
        let missed = late / self.every.as_nanos().max(1);
        let missed = u32::try_from(missed).unwrap_or(u32::MAX);
        self.next += self.every.saturating_mul(missed.saturating_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_that_were_missed_are_left_out_and_the_others_stay_where_they_are() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut schedule = Schedule::starting(start, Duration::from_millis(100));
        assert_eq!(schedule.remaining(at(0)), Duration::from_millis(100));
        assert_eq!(schedule.remaining(at(130)), Duration::ZERO);
        schedule.advance(at(130));
        assert_eq!(schedule.remaining(at(130)), Duration::from_millis(70));
        schedule.advance(at(555));
        assert_eq!(schedule.remaining(at(555)), Duration::from_millis(45));
    }
}
