//! Slow, obviously correct models: they keep every charge ever made, and decide by going through all of them with big
//! integers. Fractions are never divided out, only cross-multiplied.

use std::collections::BTreeMap;

use num_bigint::BigInt;

use crate::limit::Now;

/// What a limit ought to do.
pub(super) trait Model {
    /// The most that may be used.
    fn capacity(&self) -> u64;

    /// The factor by which `used` multiplies units, so that fractions of a unit are whole numbers.
    fn scale(&self) -> u64 {
        1
    }

    /// What past charges have used and still use, times the scale.
    fn used(&self, now: Now) -> BigInt;

    fn admits(&self, now: Now, cost: u64) -> bool {
        self.used(now) + big(cost) * self.scale() <= big(self.capacity()) * self.scale()
    }

    /// Whole units; zero if it is overdrawn.
    fn remaining(&self, now: Now) -> u64 {
        let free = big(self.capacity()) * self.scale() - self.used(now);
        if free < big(0) {
            return 0;
        }
        u64::try_from(free / self.scale()).expect("at most all that there is")
    }

    /// Whether no past charge matters any more.
    fn replenished(&self, now: Now) -> bool {
        self.used(now) == big(0)
    }

    fn charge(&mut self, now: Now, cost: u64);

    /// Gives back up to `units` of what was charged at `charged_at`, and returns by how many the limit rose.
    fn refund(&mut self, _now: Now, _charged_at: Now, _units: u64) -> u64 {
        0
    }

    /// Whether a charge of `cost` stays within the range where nothing saturates.
    fn can_express(&self, now: Now, cost: u64) -> bool {
        self.used(now) + cost <= big(u64::MAX)
    }
}

fn big(value: impl Into<BigInt>) -> BigInt {
    value.into()
}

/// Token bucket, leaky bucket and GCRA: an arrival curve.
///
/// At any instant, each past charge gives an amount owed: what was charged since then, less what time has worked off
/// since then. The largest of these is the backlog, or zero if none is positive.
pub(super) struct ArrivalCurve {
    pub(super) capacity: u64,
    pub(super) window: u64,
    pub(super) burst: u64,
    pub(super) charges: Vec<(u64, BigInt)>,
}

impl ArrivalCurve {
    pub(super) fn new(capacity: u64, window: u64, burst: u64) -> Self {
        Self {
            capacity,
            window,
            burst,
            charges: Vec::new(),
        }
    }

    /// In units times nanoseconds of the window.
    pub(super) fn backlog(&self, now: Now) -> BigInt {
        let mut worst = big(0);
        let mut since = big(0);
        for (time, units) in self.charges.iter().rev() {
            since += units * self.window;
            let worked_off = big(self.capacity) * (now.monotonic - time);
            worst = worst.max(&since - worked_off);
        }
        worst
    }
}

impl Model for ArrivalCurve {
    #[expect(clippy::misnamed_getters, reason = "what may be used at once is the burst")]
    fn capacity(&self) -> u64 {
        self.burst
    }

    fn scale(&self) -> u64 {
        self.window
    }

    fn used(&self, now: Now) -> BigInt {
        self.backlog(now)
    }

    fn charge(&mut self, now: Now, cost: u64) {
        self.charges.push((now.monotonic, big(cost)));
    }

    /// Refunds any of what was charged.
    fn refund(&mut self, now: Now, _charged_at: Now, units: u64) -> u64 {
        let whole = u64::try_from(self.backlog(now) / self.window).unwrap_or(u64::MAX);
        // The backlog never drops below zero, so refunding more than that loses the rest by itself.
        self.charges.push((now.monotonic, -big(units)));
        units.min(whole)
    }

    fn can_express(&self, now: Now, cost: u64) -> bool {
        self.backlog(now) + big(cost) * self.window < big(1) << 126
    }
}

/// The sliding window: every charge counts while it is younger than the window.
pub(super) struct Log {
    pub(super) capacity: u64,
    /// More than 64 bits, so that this can also model a log that keeps things a little longer.
    pub(super) window: u128,
    pub(super) charges: Vec<(u64, u64)>,
}

impl Log {
    pub(super) fn new(capacity: u64, window: u128) -> Self {
        Self {
            capacity,
            window,
            charges: Vec::new(),
        }
    }
}

impl Model for Log {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self, now: Now) -> BigInt {
        let counts = |time: u64| u128::from(now.monotonic) < u128::from(time) + self.window;
        self.charges
            .iter()
            .filter(|(time, _)| counts(*time))
            .map(|(_, cost)| big(*cost))
            .sum()
    }

    fn charge(&mut self, now: Now, cost: u64) {
        self.charges.push((now.monotonic, cost));
    }

    fn refund(&mut self, now: Now, charged_at: Now, units: u64) -> u64 {
        if u128::from(now.monotonic) >= u128::from(charged_at.monotonic) + self.window {
            return 0;
        }
        let mut left = units;
        for (_, cost) in self
            .charges
            .iter_mut()
            .filter(|(time, _)| *time == charged_at.monotonic)
        {
            let taken_off = left.min(*cost);
            *cost -= taken_off;
            left -= taken_off;
        }
        assert_eq!(left, 0, "not charged then");
        units
    }
}

/// The sliding window counter: every sub-window's count by its number, one of them weighted.
pub(super) struct Counters {
    pub(super) capacity: u64,
    pub(super) window: u64,
    pub(super) buckets: u32,
    pub(super) counts: BTreeMap<BigInt, BigInt>,
}

impl Counters {
    pub(super) fn new(capacity: u64, window: u64, buckets: u32) -> Self {
        Self {
            capacity,
            window,
            buckets,
            counts: BTreeMap::new(),
        }
    }

    fn sub_window(&self, now: Now) -> BigInt {
        big(now.monotonic) * self.buckets / self.window
    }

    /// The estimate times the window.
    fn estimate(&self, now: Now) -> BigInt {
        let current = self.sub_window(now);
        let oldest = &current - self.buckets;
        let end_of_current = (&current + 1) * self.window;
        let visible = end_of_current - big(now.monotonic) * self.buckets;
        self.counts
            .iter()
            .map(|(index, count)| {
                if *index > oldest {
                    count * self.window
                } else if *index == oldest {
                    count * &visible
                } else {
                    big(0)
                }
            })
            .sum()
    }
}

impl Model for Counters {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn scale(&self) -> u64 {
        self.window
    }

    fn used(&self, now: Now) -> BigInt {
        self.estimate(now)
    }

    fn charge(&mut self, now: Now, cost: u64) {
        *self.counts.entry(self.sub_window(now)).or_default() += cost;
    }

    fn refund(&mut self, now: Now, charged_at: Now, units: u64) -> u64 {
        let index = self.sub_window(charged_at);
        if index < self.sub_window(now) - self.buckets {
            return 0;
        }
        let rounded_up = |estimate: BigInt| (estimate + self.window - 1) / self.window;
        let before = rounded_up(self.estimate(now));
        *self.counts.get_mut(&index).expect("charged then") -= units;
        u64::try_from(before - rounded_up(self.estimate(now))).expect("at most the units")
    }

    fn can_express(&self, now: Now, cost: u64) -> bool {
        let counted = self
            .counts
            .get(&self.sub_window(now))
            .cloned()
            .unwrap_or_default();
        counted + cost <= big(u64::MAX)
    }
}

/// Fixed windows by a clock that never goes back: the count of each window by its name.
pub(super) struct Windows<N> {
    pub(super) capacity: u64,
    /// Names the window that an instant lies in.
    pub(super) name: N,
    pub(super) counts: BTreeMap<BigInt, BigInt>,
}

impl<N: Fn(Now) -> BigInt> Windows<N> {
    pub(super) fn new(capacity: u64, name: N) -> Self {
        Self {
            capacity,
            name,
            counts: BTreeMap::new(),
        }
    }
}

impl<N: Fn(Now) -> BigInt> Model for Windows<N> {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self, now: Now) -> BigInt {
        self.counts.get(&(self.name)(now)).cloned().unwrap_or_default()
    }

    fn charge(&mut self, now: Now, cost: u64) {
        *self.counts.entry((self.name)(now)).or_default() += cost;
    }

    fn refund(&mut self, now: Now, charged_at: Now, units: u64) -> u64 {
        if (self.name)(now) != (self.name)(charged_at) {
            return 0;
        }
        *self.counts.get_mut(&(self.name)(now)).expect("charged then") -= units;
        units
    }
}

/// Windows that open with the first charge: all there ever were, with their start and what is used in them.
pub(super) struct FirstUse {
    pub(super) capacity: u64,
    pub(super) window: u64,
    pub(super) windows: Vec<(u64, BigInt)>,
}

impl FirstUse {
    pub(super) fn new(capacity: u64, window: u64) -> Self {
        Self {
            capacity,
            window,
            windows: Vec::new(),
        }
    }

    fn is_over(&self, start: u64, now: Now) -> bool {
        big(now.monotonic) >= big(start) + self.window
    }
}

impl Model for FirstUse {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self, now: Now) -> BigInt {
        match self.windows.last() {
            Some((start, used)) if !self.is_over(*start, now) => used.clone(),
            _ => big(0),
        }
    }

    fn charge(&mut self, now: Now, cost: u64) {
        let is_open = self.used(now) > big(0);
        match self.windows.last_mut() {
            Some((_, used)) if is_open => *used += cost,
            _ if cost > 0 => self.windows.push((now.monotonic, big(cost))),
            _ => {}
        }
    }

    fn refund(&mut self, now: Now, charged_at: Now, units: u64) -> u64 {
        let Some((start, _)) = self.windows.last() else {
            return 0;
        };
        if self.is_over(*start, now) || *start > charged_at.monotonic {
            return 0;
        }
        let (_, used) = self.windows.last_mut().expect("there is one");
        *used -= units;
        units
    }
}

/// A budget: admits whenever the model of its window would admit one unit.
pub(super) struct Debited<M>(pub(super) M);

impl<M: Model> Model for Debited<M> {
    fn admits(&self, now: Now, _cost: u64) -> bool {
        self.0.admits(now, 1)
    }

    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn scale(&self) -> u64 {
        self.0.scale()
    }

    fn used(&self, now: Now) -> BigInt {
        self.0.used(now)
    }

    fn charge(&mut self, now: Now, cost: u64) {
        self.0.charge(now, cost);
    }

    fn can_express(&self, now: Now, cost: u64) -> bool {
        self.0.can_express(now, cost)
    }
}
