//! Computes rates from counters at two instants.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::Serialize;
use shmlimit::snapshot::{KeyLabel, LimitCounts, SetCounts, SetSnapshot};

/// How many rates of a set are kept: at one per second, five minutes of them.
pub const MAX_HISTORY: usize = 300;

/// Requests per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    pub admitted: f64,
    pub refused: f64,
}

/// What happens in a set.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SetActivity {
    /// None at the first look.
    pub rates: Option<Rates>,
    /// Requests per second that timed out while they waited.
    pub timed_out: Option<f64>,
    /// The rates of each limit, in the order of the declaration; none at the first look.
    pub limits: Vec<Option<Rates>>,
    /// The rates of the last looks, the newest last.
    pub history: VecDeque<Rates>,
    /// The keys that were asked for most often since the previous look.
    pub hottest: Vec<KeyActivity>,
    /// The keys that were refused most often, without keys that never were.
    pub most_refused: Vec<RefusedKey>,
    /// For each limit that keys have for themselves and hosts do not share, the key that has used most of its own.
    pub fullest: Vec<FullestKey>,
}

/// What happens with a key.
#[derive(Clone, Debug, Serialize)]
pub struct KeyActivity {
    pub key: KeyLabel,
    /// None at the first look, and if the set has too many keys.
    pub rates: Option<Rates>,
    /// Requests in its queue.
    pub queued: u64,
}

/// How often a key was refused since it got its row, or since the counters were reset.
#[derive(Clone, Debug, Serialize)]
pub struct RefusedKey {
    pub key: KeyLabel,
    pub admitted: u64,
    pub refused: u64,
}

/// How much of a limit is used by the key that has used most of it.
#[derive(Clone, Debug, Serialize)]
pub struct FullestKey {
    pub limit: String,
    pub key: KeyLabel,
    pub used: u64,
    pub capacity: u64,
}

/// Counters of decisions, at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub admitted: u64,
    pub refused: u64,
    pub timed_out: u64,
}

/// The counters of a set and its limits, at an instant.
#[derive(Debug, Default)]
pub struct SetTotals {
    set: Totals,
    limits: BTreeMap<String, Totals>,
}

impl Totals {
    fn of_set(counts: &SetCounts) -> Self {
        Self {
            admitted: counts.admitted,
            refused: counts.refused(),
            timed_out: counts.timed_out,
        }
    }

    fn of_limit(counts: &LimitCounts) -> Self {
        Self {
            admitted: counts.admitted,
            refused: counts.refused,
            timed_out: 0,
        }
    }

    /// What was counted since `before`, or everything if the counters were reset meanwhile.
    pub fn since(self, before: Self) -> Self {
        let grown = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Self {
            admitted: grown(self.admitted, before.admitted),
            refused: grown(self.refused, before.refused),
            timed_out: grown(self.timed_out, before.timed_out),
        }
    }

    /// These counts in a span of time, as rates.
    pub fn rates(self, elapsed: Duration) -> Rates {
        Rates {
            admitted: per_second(self.admitted, elapsed),
            refused: per_second(self.refused, elapsed),
        }
    }
}

impl SetTotals {
    pub fn of(set: &SetSnapshot) -> Self {
        let limits = set.limits.iter();
        Self {
            set: Totals::of_set(&set.counts),
            limits: limits
                .map(|limit| (limit.name.clone(), Totals::of_limit(&limit.counts)))
                .collect(),
        }
    }

    /// The activity of the set between two looks, without its keys. Appends the set's rates to `history`.
    pub fn activity(
        &self,
        set: &SetSnapshot,
        since: Option<(&Self, Duration)>,
        history: &mut VecDeque<Rates>,
    ) -> SetActivity {
        let grown = since.map(|(before, elapsed)| (self.set.since(before.set), elapsed));
        let rates = grown.map(|(grown, elapsed)| grown.rates(elapsed));
        if let Some(rates) = rates {
            if history.len() == MAX_HISTORY {
                history.pop_front();
            }
            history.push_back(rates);
        }
        let of_limit = |name: &String| {
            let (before, elapsed) = since?;
            let grown = self.limits.get(name)?.since(*before.limits.get(name)?);
            Some(grown.rates(elapsed))
        };
        SetActivity {
            rates,
            timed_out: grown.map(|(grown, elapsed)| per_second(grown.timed_out, elapsed)),
            limits: set.limits.iter().map(|limit| of_limit(&limit.name)).collect(),
            history: history.clone(),
            hottest: Vec::new(),
            most_refused: Vec::new(),
            fullest: Vec::new(),
        }
    }
}

/// A rate for display; no decision depends on it.
fn per_second(number: u64, elapsed: Duration) -> f64 {
    let seconds = elapsed.as_secs_f64();
    if seconds > 0.0 {
        number as f64 / seconds
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn totals(admitted: u64, refused: u64, timed_out: u64) -> Totals {
        Totals {
            admitted,
            refused,
            timed_out,
        }
    }

    #[test]
    fn a_rate_is_what_was_counted_meanwhile_by_the_time() {
        let grown = totals(150, 40, 7).since(totals(100, 40, 2));
        assert_eq!(grown, totals(50, 0, 5));
        let rates = grown.rates(Duration::from_millis(500));
        assert_eq!((rates.admitted, rates.refused), (100.0, 0.0));
    }

    #[test]
    fn counters_that_were_reset_are_counted_from_zero() {
        assert_eq!(totals(3, 90, 0).since(totals(100, 80, 1)), totals(3, 10, 0));
    }

    #[test]
    fn no_time_is_no_rate() {
        assert_eq!(totals(3, 1, 0).rates(Duration::ZERO), Rates::default());
    }
}
