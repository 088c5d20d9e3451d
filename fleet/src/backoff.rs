//! How long to wait before a store that did not answer is asked again.

use std::time::Duration;

use fastrand::Rng;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);

/// Waits that double up to a bound, which is at most two seconds. Each is a random time between half of that and all of
/// it, so that the hosts of a fleet do not come back at the same instant.
#[derive(Clone, Debug)]
pub struct Backoff {
    random: Rng,
    failures: u32,
}

impl Backoff {
    /// Creates a backoff. `seed` should differ for each host.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            failures: 0,
        }
    }

    /// How long to wait after one more failure, at most `bound` or two seconds.
    pub fn after_failure(&mut self, bound: Duration) -> Duration {
        let bound = bound.clamp(FIRST, LONGEST);
        let longest = FIRST.saturating_mul(1 << self.failures.min(16)).min(bound);
        self.failures = self.failures.saturating_add(1);
        let half = longest / 2;
        half + self.up_to(half)
    }

    /// Starts over, because the store has answered.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// A random part of `longest`.
    pub fn up_to(&mut self, longest: Duration) -> Duration {
        let nanos = longest.as_nanos() * u128::from(self.random.u64(..)) / (1 << 64);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_two_seconds_and_differ_between_hosts() {
        let waits = |seed| {
            let mut backoff = Backoff::new(seed);
            (0..12)
                .map(|_| backoff.after_failure(LONGEST))
                .collect::<Vec<_>>()
        };
        for (number, wait) in waits(1).into_iter().enumerate() {
            let longest = FIRST.saturating_mul(1 << number).min(LONGEST);
            assert!(
                longest / 2 <= wait && wait <= longest,
                "{wait:?} for failure {number}"
            );
        }
        assert_ne!(waits(1), waits(2));
    }
}
