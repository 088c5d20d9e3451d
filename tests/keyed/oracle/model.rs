//! What the model knows about a limit and a key, in plain numbers.

use std::time::Duration;

use proptest::prelude::*;
use shmlimit::declare::Align;
use shmlimit::{Algorithm, Limit};

use super::START;

/// A limit, and what one key has used of it.
#[derive(Clone, Debug)]
pub enum Used {
    /// GCRA, token bucket, leaky bucket: units times the window, worked off at `capacity` per nanosecond.
    Backlog {
        capacity: u64,
        window: u64,
        burst: u64,
        level: u128,
        at: u64,
    },
    Window {
        capacity: u64,
        window: u64,
        by_utc: bool,
        is_budget: bool,
        used: u64,
        start: u64,
    },
    Log {
        capacity: u64,
        window: u64,
        entries: Vec<(u64, u64)>,
    },
    Concurrency {
        capacity: u64,
        held: u64,
    },
}

impl Used {
    /// Works off what time has replenished until now.
    pub fn come_to(&mut self, now: u64) {
        match self {
            Self::Backlog {
                capacity, level, at, ..
            } => {
                *level = level.saturating_sub(u128::from(*capacity) * u128::from(now - *at));
                *at = now;
            }
            Self::Window {
                window, used, start, ..
            } if now >= *start + *window => *used = 0,
            Self::Log { window, entries, .. } => entries.retain(|(at, _)| now < at + *window),
            Self::Window { .. } | Self::Concurrency { .. } => {}
        }
    }

    pub fn is_impossible(&self, cost: u64) -> bool {
        match self {
            Self::Backlog { burst, .. } => cost > *burst,
            Self::Window { is_budget: true, .. } => false,
            Self::Window { capacity, .. }
            | Self::Log { capacity, .. }
            | Self::Concurrency { capacity, .. } => cost > *capacity,
        }
    }

    pub fn admits(&self, cost: u64) -> bool {
        match self {
            Self::Backlog {
                window, burst, level, ..
            } => level + u128::from(cost) * u128::from(*window) <= u128::from(*burst) * u128::from(*window),
            Self::Window {
                is_budget: true,
                used,
                capacity,
                ..
            } => used < capacity,
            Self::Window { used, capacity, .. } => used + cost <= *capacity,
            Self::Log {
                entries, capacity, ..
            } => sum(entries) + cost <= *capacity,
            Self::Concurrency { capacity, held } => held + cost <= *capacity,
        }
    }

    pub fn charge(&mut self, now: u64, cost: u64) {
        match self {
            Self::Backlog { window, level, .. } => *level += u128::from(cost) * u128::from(*window),
            Self::Window {
                window,
                by_utc,
                used,
                start,
                ..
            } => {
                if *used == 0 {
                    *start = if *by_utc { now - now % *window } else { now };
                }
                *used += cost;
            }
            Self::Log { entries, .. } if cost > 0 => entries.push((now, cost)),
            Self::Log { .. } => {}
            Self::Concurrency { held, .. } => *held += cost,
        }
    }

    /// Refunds what is unused and still counts of a charge of `cost` that left the backlog at `after`.
    pub fn refund(&mut self, unused: u64, cost: u64, after: u128, (decided_at, now): (u64, u64)) {
        match self {
            Self::Backlog {
                capacity,
                window,
                level,
                ..
            } => {
                let left = after.saturating_sub(u128::from(*capacity) * u128::from(now - decided_at));
                let left = left.min(u128::from(cost) * u128::from(*window));
                *level -= left.min(*level).min(u128::from(unused) * u128::from(*window));
            }
            Self::Window {
                is_budget: false,
                used,
                start,
                ..
            } if *start <= decided_at => *used -= unused.min(*used),
            Self::Log { entries, .. } => {
                let mut left = unused;
                for (_, units) in entries.iter_mut().filter(|(at, _)| *at == decided_at) {
                    let taken_off = left.min(*units);
                    *units -= taken_off;
                    left -= taken_off;
                }
                entries.retain(|(_, units)| *units > 0);
            }
            Self::Window { .. } | Self::Concurrency { .. } => {}
        }
    }

    pub fn backlog(&self) -> u128 {
        match self {
            Self::Backlog { level, .. } => *level,
            _ => 0,
        }
    }

    pub fn remaining(&self) -> u64 {
        match self {
            Self::Backlog {
                window, burst, level, ..
            } => {
                let free = (u128::from(*burst) * u128::from(*window)).saturating_sub(*level);
                u64::try_from(free / u128::from(*window)).expect("at most the burst")
            }
            Self::Window { used, capacity, .. } => capacity.saturating_sub(*used),
            Self::Log {
                entries, capacity, ..
            } => capacity.saturating_sub(sum(entries)),
            Self::Concurrency { capacity, held } => capacity - held,
        }
    }

    pub fn carries_something(&self) -> bool {
        match self {
            Self::Backlog { level, .. } => *level > 0,
            Self::Window { used, .. } => *used > 0,
            Self::Log { entries, .. } => !entries.is_empty(),
            Self::Concurrency { held, .. } => *held > 0,
        }
    }

    /// How much of the capacity is used, in parts of 2^32, rounded up; and in how many nanoseconds none of it will be.
    pub fn usage(&self, now: u64) -> (u128, u64) {
        let share = |used: u128, whole: u128| (used << 32).div_ceil(whole);
        match self {
            Self::Backlog {
                capacity,
                window,
                burst,
                level,
                ..
            } => (
                share(*level, u128::from(*burst) * u128::from(*window)),
                nanos(level.div_ceil(u128::from(*capacity))),
            ),
            Self::Window { used: 0, .. } | Self::Concurrency { .. } => (0, 0),
            Self::Window {
                capacity,
                window,
                used,
                start,
                ..
            } => (
                share(u128::from(*used), u128::from(*capacity)),
                start + window - now,
            ),
            Self::Log {
                capacity,
                window,
                entries,
            } => (
                share(u128::from(sum(entries)), u128::from(*capacity)),
                entries.last().map_or(0, |(at, _)| at + window - now),
            ),
        }
    }

    /// In how many nanoseconds a unit that is refused now will be admitted; `None` if time does not help.
    pub fn admits_one_in(&self, now: u64) -> Option<u64> {
        match self {
            Self::Backlog {
                capacity,
                window,
                burst,
                level,
                ..
            } => {
                let max = u128::from(burst - 1) * u128::from(*window);
                Some(nanos((level - max).div_ceil(u128::from(*capacity))))
            }
            Self::Window { window, start, .. } => Some(start + window - now),
            Self::Log {
                capacity,
                window,
                entries,
            } => {
                let fits = |index: &usize| sum(&entries[index + 1..]) < *capacity;
                let last_to_go = (0..entries.len()).find(fits)?;
                Some(entries[last_to_go].0 + window - now)
            }
            Self::Concurrency { .. } => None,
        }
    }

    /// Resets the limit. What is held stays held.
    pub fn reset(&mut self) {
        match self {
            Self::Backlog { level, .. } => *level = 0,
            Self::Window { used, .. } => *used = 0,
            Self::Log { entries, .. } => entries.clear(),
            Self::Concurrency { .. } => {}
        }
    }
}

pub fn nanos(nanos: u128) -> u64 {
    u64::try_from(nanos).expect("a time in range")
}

pub fn sum(entries: &[(u64, u64)]) -> u64 {
    entries.iter().map(|(_, cost)| cost).sum()
}

/// What a key has used, and when it was last decided on.
#[derive(Clone, Debug)]
pub struct KeyModel {
    pub limits: Vec<Used>,
    pub used_at: u64,
    /// Permits that hold something, even if only of what all keys share.
    pub holds: u64,
    /// What was reserved before this instant is void.
    pub void_before: u64,
}

impl KeyModel {
    pub fn carries_something(&self) -> bool {
        self.is_held() || self.limits.iter().any(Used::carries_something)
    }

    /// What a key loses with its row, by which the cheapest loss is chosen: the largest part that it has used of a
    /// limit, when it will be replenished, and when it was last used.
    pub fn usage(&self, now: u64) -> (u128, u64, u64) {
        let usages = self.limits.iter().map(|limit| limit.usage(now));
        let (shares, waits): (Vec<_>, Vec<_>) = usages.unzip();
        let max = shares.into_iter().max().expect("a limit");
        (max, waits.into_iter().max().expect("a limit"), self.used_at)
    }

    pub fn is_limited(&self) -> bool {
        !self.limits.iter().all(|limit| limit.admits(1))
    }

    /// In how many nanoseconds a limited key will no longer be limited.
    pub fn limited_for(&self, now: u64) -> Option<u64> {
        let refusing = self.limits.iter().filter(|limit| !limit.admits(1));
        let waits: Option<Vec<u64>> = refusing.map(|limit| limit.admits_one_in(now)).collect();
        waits?.into_iter().max()
    }

    pub fn is_held(&self) -> bool {
        self.holds > 0
    }
}

/// One limit, declared and as a model.
pub fn limit(
    index: usize,
    algorithm: Option<Algorithm>,
    capacity: u64,
    window: u64,
    variant: bool,
) -> (Limit, Used) {
    let name = format!("limit-{index}");
    let length = Duration::from_nanos(window);
    let Some(algorithm) = algorithm else {
        return if variant {
            let limit = Limit::budget(name, capacity, length).align(Align::FirstUse);
            let used = Used::Window {
                capacity,
                window,
                by_utc: false,
                is_budget: true,
                used: 0,
                start: 0,
            };
            (limit, used)
        } else {
            (
                Limit::concurrency(name, capacity),
                Used::Concurrency { capacity, held: 0 },
            )
        };
    };
    let limit = Limit::rate(name, capacity, length).algorithm(algorithm);
    match algorithm {
        Algorithm::FixedWindow => {
            let align = if variant { Align::Utc } else { Align::FirstUse };
            let used = Used::Window {
                capacity,
                window,
                by_utc: variant,
                is_budget: false,
                used: 0,
                start: 0,
            };
            (limit.align(align), used)
        }
        Algorithm::SlidingWindow => (
            limit.entries(256),
            Used::Log {
                capacity,
                window,
                entries: Vec::new(),
            },
        ),
        _ => {
            let burst = if variant { capacity.div_ceil(2) } else { capacity };
            (
                limit.burst(burst),
                Used::Backlog {
                    capacity,
                    window,
                    burst,
                    level: 0,
                    at: START,
                },
            )
        }
    }
}

pub fn any_limit(index: usize) -> impl Strategy<Value = (Limit, Used)> {
    let algorithms = prop::sample::select(vec![
        Some(Algorithm::Gcra),
        Some(Algorithm::TokenBucket),
        Some(Algorithm::LeakyBucket),
        Some(Algorithm::FixedWindow),
        Some(Algorithm::SlidingWindow),
        None,
    ]);
    // Short enough to pass often, or long enough for the table to fill up.
    let windows = prop_oneof![1 => 1_000_000..40_000_000_u64, 3 => 400_000_000..20_000_000_000_u64];
    (algorithms, 1..20_u64, windows, any::<bool>()).prop_map(move |(algorithm, capacity, window, variant)| {
        limit(index, algorithm, capacity, window, variant)
    })
}

pub fn any_limits() -> impl Strategy<Value = Vec<(Limit, Used)>> {
    prop_oneof![
        any_limit(0).prop_map(|limit| vec![limit]),
        (any_limit(0), any_limit(1)).prop_map(|(one, other)| vec![one, other]),
        (any_limit(0), any_limit(1), any_limit(2)).prop_map(|(one, other, third)| vec![one, other, third]),
    ]
}
