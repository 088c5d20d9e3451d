//! Who sleeps on a virtual clock, and until when, so that those who wait can move it.

use std::collections::HashMap;

use crate::shm::time::clock::boot_nanos;

/// How long a wait for what others hold gives them to return it before it moves the clock, in nanoseconds of real time.
const GRACE: u64 = 20_000_000;

/// How long a sleeper whose time has come can keep the clock from moving on, in nanoseconds of real time. A future that
/// nobody polls would otherwise stop it forever.
const PATIENCE: u64 = 1_000_000_000;

/// What can end a wait, besides its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedBy {
    /// Nothing but time.
    TimeAlone,
    /// Others, who give something back or leave the queue ahead of it.
    Others,
}

#[derive(Clone, Copy, Debug)]
struct Sleeper {
    /// On the virtual clock.
    until: u64,
    served_by: ServedBy,
}

/// The sleepers of one process on one clock.
#[derive(Debug, Default)]
pub(super) struct VirtualWaits {
    /// By an address that no other wait has.
    sleepers: HashMap<usize, Sleeper>,
    /// When a wait last began, ended or moved the clock, in boot time.
    changed_at: u64,
}

impl VirtualWaits {
    /// Notes that a wait sleeps until `until`, at `now` on the virtual clock. Returns the instant to which the clock
    /// moves, unless somebody has to look first.
    pub(super) fn sleep(&mut self, wait: usize, until: u64, served_by: ServedBy, now: u64) -> Option<u64> {
        let real = boot_nanos();
        if self.sleepers.insert(wait, Sleeper { until, served_by }).is_none() {
            self.changed_at = real;
        }
        let unchanged_for = real.saturating_sub(self.changed_at);
        if unchanged_for > PATIENCE {
            self.sleepers
                .retain(|other, sleeper| *other == wait || sleeper.until > now);
        }
        let next = self.sleepers.values().min_by_key(|sleeper| sleeper.until)?;
        let others_had_time = next.served_by == ServedBy::TimeAlone || unchanged_for >= GRACE;
        // If the time of one has come, that one has to look first.
        if next.until <= now || next.until == u64::MAX || !others_had_time {
            return None;
        }
        self.changed_at = real;
        Some(next.until)
    }

    /// The first instant after `now` until which anybody sleeps.
    pub(super) fn next_after(&self, now: u64) -> Option<u64> {
        let instants = self.sleepers.values().map(|sleeper| sleeper.until);
        instants.filter(|until| (now + 1..u64::MAX).contains(until)).min()
    }

    /// Whether a wait does not sleep, or only until `now`.
    pub(super) fn is_due(&self, wait: usize, now: u64) -> bool {
        self.sleepers
            .get(&wait)
            .is_none_or(|sleeper| sleeper.until <= now)
    }

    pub(super) fn end(&mut self, wait: usize) {
        if self.sleepers.remove(&wait).is_some() {
            self.changed_at = boot_nanos();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_to_the_first_instant_that_anybody_sleeps_to() {
        let mut waits = VirtualWaits::default();
        assert_eq!(waits.sleep(1, 50, ServedBy::TimeAlone, 10), Some(50));
        assert_eq!(waits.sleep(2, 20, ServedBy::TimeAlone, 10), Some(20));
        assert_eq!(waits.sleep(3, 90, ServedBy::TimeAlone, 10), Some(20));
    }

    #[test]
    fn the_clock_stands_still_until_a_sleeper_whose_time_has_come_has_looked() {
        let mut waits = VirtualWaits::default();
        assert_eq!(waits.sleep(1, 20, ServedBy::TimeAlone, 10), Some(20));
        assert_eq!(waits.sleep(2, 90, ServedBy::TimeAlone, 20), None);
        waits.end(1);
        assert_eq!(waits.sleep(2, 90, ServedBy::TimeAlone, 20), Some(90));
    }

    #[test]
    fn who_waits_for_others_leaves_them_time_and_who_waits_for_ever_never_moves_the_clock() {
        let mut waits = VirtualWaits::default();
        assert_eq!(waits.sleep(1, 20, ServedBy::Others, 10), None);
        waits.changed_at -= GRACE;
        assert_eq!(waits.sleep(1, 20, ServedBy::Others, 10), Some(20));
        waits.end(1);
        waits.changed_at = 0;
        assert_eq!(waits.sleep(2, u64::MAX, ServedBy::Others, 10), None);
    }

    #[test]
    fn who_never_looks_does_not_stop_the_clock_for_ever() {
        let mut waits = VirtualWaits::default();
        assert_eq!(waits.sleep(1, 20, ServedBy::TimeAlone, 10), Some(20));
        assert_eq!(waits.sleep(2, 90, ServedBy::TimeAlone, 20), None);
        waits.changed_at -= PATIENCE + 1;
        assert_eq!(waits.sleep(2, 90, ServedBy::TimeAlone, 20), Some(90));
    }
}
