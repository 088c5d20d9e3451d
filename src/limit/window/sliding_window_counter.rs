//! The sliding window counter: one count for each of a few sub-windows, cheap at any capacity.

use crate::limit::{
    Assessment, CapacityTerms, Charge, InvalidLimit, Mark, Now, RuleOperations, State, StateMut,
};
use crate::units::{Rounding, divide, saturate};

/// About `capacity` units in any window, judged by `buckets` sub-windows in full and the one before them in part.
///
/// The oldest sub-window counts in proportion to how much of it the window still covers, rounded up, as if its units
/// had come evenly. Capacity, window and buckets are `c`, `w` and `n` below. Leaving overdrafts aside:
///
/// - any span no longer than `w - w/n` holds at most `c`;
/// - any window of `w` holds less than `2c`; what it holds above `c` is at most the count of the one sub-window that
///   straddles its start, times the fraction of that sub-window that had passed out of view;
/// - nothing is refused that would fit if every unit counted for `w + w/n`.
///
/// So a refusal may ask for a wait of up to one sub-window more than the window. Units are forgotten together with
/// the sub-window that counted them, and how much of it was still to come when they were charged depends on where the
/// instant falls between the multiples of `w/n`. No wait, and no `reset_after`, is longer than `w + w/n`, rounded up
/// to a nanosecond.
///
/// Time is scaled by `n` here, so that a sub-window is exactly `w` long whether or not `n` divides the window.
/// Sub-windows are numbered by the monotonic instant, which does as well as the Unix epoch: a segment's clock starts
/// at the wall clock's time and runs on without its steps.
///
/// State: a ring of `n + 1` buckets of two words each: the number of the bucket's sub-window, counted from 1, and the
/// count. A bucket with a number other than the one sought counts as empty, so nothing ever has to be swept, and
/// zeros are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlidingWindowCounter {
    capacity: u64,
    window: u64,
    buckets: u64,
}

/// Where an instant falls: the sub-window, and how far into it in scaled nanoseconds, less than the window.
struct Position {
    sub_window: u64,
    into: u64,
}

impl SlidingWindowCounter {
    const MAX_BUCKETS: u32 = 60;

    /// `window` is in nanoseconds and at least `buckets`, so that sub-windows last at least a nanosecond.
    pub(crate) fn new(capacity: u64, window: u64, buckets: u32) -> Result<Self, InvalidLimit> {
        InvalidLimit::unless_positive(capacity, "capacity")?;
        InvalidLimit::unless_positive(window, "window")?;
        InvalidLimit::unless_positive(buckets, "number of buckets")?;
        let max = u64::from(Self::MAX_BUCKETS).min(window);
        let buckets = u64::from(buckets);
        if buckets > max {
            return Err(InvalidLimit::AboveMax {
                what: "number of buckets",
                given: buckets,
                max,
            });
        }
        Ok(Self {
            capacity,
            window,
            buckets,
        })
    }

    fn position(&self, now: Now) -> Position {
        let scaled = u128::from(now.monotonic) * u128::from(self.buckets);
        // The window has at least as many nanoseconds as there are buckets, so the quotient is at most the instant.
        let sub_window = saturate(divide(scaled, self.window, Rounding::Down));
        let start = u128::from(sub_window) * u128::from(self.window);
        Position {
            sub_window,
            into: saturate(scaled - start),
        }
    }

    /// Nanoseconds, rounded up and positive, until `into` scaled nanoseconds of a sub-window have passed.
    fn until(&self, sub_window: u64, into: u64, now: Now) -> u64 {
        let scaled = u128::from(sub_window) * u128::from(self.window) + u128::from(into);
        let instant = divide(scaled, self.buckets, Rounding::Up);
        saturate(instant.saturating_sub(u128::from(now.monotonic))).max(1)
    }

    /// The least scaled distance into a sub-window at which what still counts of its oldest bucket fits into `room`;
    /// the window's length, where the next sub-window begins, if it never does.
    fn first_fitting(&self, oldest: u64, room: u128) -> u64 {
        if u128::from(oldest) <= room {
            return 0;
        }
        // The counted part is at most `room` while oldest * (window - into) <= room * window. Here room < oldest, so
        // the quotient is below the window.
        let visible = divide(room * u128::from(self.window), oldest, Rounding::Down);
        self.window - saturate(visible)
    }

    /// How much of the oldest bucket counts, rounded up.
    fn weighted(&self, oldest: u64, into: u64) -> u128 {
        let visible = self.window - into;
        divide(
            u128::from(oldest) * u128::from(visible),
            self.window,
            Rounding::Up,
        )
    }

    /// The sum of the `buckets` sub-windows that end with `sub_window`.
    fn full(&self, state: &(impl State + ?Sized), sub_window: u64) -> u128 {
        (0..self.buckets)
            .filter_map(|back| sub_window.checked_sub(back))
            .map(|index| u128::from(self.count(state, index)))
            .sum()
    }

    /// The count of the sub-window before those.
    fn oldest(&self, state: &(impl State + ?Sized), sub_window: u64) -> u64 {
        sub_window
            .checked_sub(self.buckets)
            .map_or(0, |index| self.count(state, index))
    }

    fn count(&self, state: &(impl State + ?Sized), sub_window: u64) -> u64 {
        let bucket = self.bucket(sub_window);
        if state.load(bucket) == sub_window.saturating_add(1) {
            state.load(bucket + 1)
        } else {
            0
        }
    }

    fn bucket(&self, sub_window: u64) -> usize {
        2 * (sub_window % (self.buckets + 1)) as usize
    }
}

impl RuleOperations for SlidingWindowCounter {
    fn state_words(&self) -> usize {
        2 * (self.buckets as usize + 1)
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    fn assess(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Assessment {
        // The largest estimate on top of which the cost still fits.
        let Some(admitting) = self.capacity.checked_sub(cost) else {
            return Assessment::Refused { retry_after: None };
        };
        let Position { sub_window, into } = self.position(now);
        let mut full = self.full(state, sub_window);
        let oldest = self.oldest(state, sub_window);
        if full + self.weighted(oldest, into) <= u128::from(admitting) {
            return Assessment::Admissible;
        }
        // The estimate never rises while nobody charges, so the first sub-window with an admitting instant gives the
        // least wait. In the last one tried, every sub-window that is full now has left or is the oldest.
        for ahead in 0..=self.buckets {
            let at = sub_window.saturating_add(ahead);
            if ahead > 0 {
                // The oldest of the full ones is now the one that counts in part.
                full = full.saturating_sub(u128::from(self.oldest(state, at)));
            }
            let Some(room) = u128::from(admitting).checked_sub(full) else {
                continue;
            };
            let into = self.first_fitting(self.oldest(state, at), room);
            return Assessment::Refused {
                retry_after: Some(self.until(at, into, now)),
            };
        }
        Assessment::Refused { retry_after: None }
    }

    /// Stores two words. The count saturates.
    #[inline]
    fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) {
        if cost == 0 {
            return;
        }
        let sub_window = self.position(now).sub_window;
        let counted = self.count(state, sub_window);
        let bucket = self.bucket(sub_window);
        state.store(bucket, sub_window.saturating_add(1));
        state.store(bucket + 1, counted.saturating_add(cost));
    }

    #[inline]
    fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark {
        let Position { sub_window, into } = self.position(now);
        let estimate = self.full(state, sub_window) + self.weighted(self.oldest(state, sub_window), into);
        if estimate == 0 {
            return Mark::default();
        }
        // The last bucket that holds anything counts until the end of the sub-window in which it is the oldest.
        let newest = (0..=self.buckets)
            .map(|back| sub_window.saturating_sub(back))
            .find(|&candidate| self.count(state, candidate) > 0)
            .unwrap_or(sub_window);
        let gone = newest.saturating_add(self.buckets + 1);
        Mark {
            first: saturate(estimate),
            second: self.until(gone, 0, now),
        }
    }

    /// Whether the last sub-window that counted anything is out of view: from that instant on the estimate stays
    /// zero.
    #[inline]
    fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        let newest = (0..=self.buckets as usize)
            .filter(|bucket| state.load(2 * bucket + 1) > 0)
            .map(|bucket| state.load(2 * bucket))
            .max()
            .unwrap_or(0);
        // Numbers are counted from 1, so this is the start of the first sub-window that no longer sees the newest.
        let gone = (u128::from(newest) + u128::from(self.buckets)).saturating_mul(u128::from(self.window));
        newest == 0 || gone <= u128::from(now.monotonic) * u128::from(self.buckets)
    }

    /// Taken from the sub-window that counted the charge, while any of it is in view. Of the oldest sub-window, only
    /// the fraction that counts comes back.
    fn refund(&self, state: &mut (impl StateMut + ?Sized), now: Now, unused: u64, charge: &Charge) -> u64 {
        let Position { sub_window, into } = self.position(now);
        let charged_in = self
            .position(Now {
                monotonic: charge.instant,
                ..now
            })
            .sub_window;
        let back = sub_window.checked_sub(charged_in);
        let Some(back) = back.filter(|back| *back <= self.buckets) else {
            return 0;
        };
        let counted = self.count(state, charged_in);
        let units = unused.min(charge.cost).min(counted);
        if units == 0 {
            return 0;
        }
        let rest = counted - units;
        state.store(self.bucket(charged_in) + 1, rest);
        if back < self.buckets {
            return units;
        }
        let rise = self
            .weighted(counted, into)
            .saturating_sub(self.weighted(rest, into));
        saturate(rise)
    }

    fn reset(&self, state: &mut (impl StateMut + ?Sized)) {
        for bucket in 0..=self.buckets as usize {
            if state.load(2 * bucket) != 0 {
                state.store(2 * bucket, 0);
            }
        }
    }

    fn with_capacity(&self, capacity: u64, _terms: CapacityTerms) -> Result<Self, InvalidLimit> {
        Ok(Self { capacity, ..*self })
    }

    /// The rings must be of the same size, and the window must not shrink: no ring holds a count for longer than its
    /// own window.
    fn can_migrate(&self, old: &Self) -> bool {
        self.buckets == old.buckets && self.window >= old.window
    }

    /// When the window grows, the sub-windows move: everything that counts now then counts as if it had come in the
    /// present sub-window. It counts in full for at least the new window less a sub-window, and at all for more than
    /// the new window.
    ///
    /// At most 62 stores, for 60 buckets.
    fn migrate(&self, old: &Self, state: &mut (impl StateMut + ?Sized), now: Now) {
        if self.window == old.window {
            return;
        }
        let counted = old.mark(state, now).first;
        let sub_window = self.position(now).sub_window;
        let present = self.bucket(sub_window);
        for bucket in (0..=self.buckets as usize).map(|bucket| 2 * bucket) {
            let is_in_use = state.load(bucket) != 0;
            if is_in_use && (bucket != present || counted == 0) {
                state.store(bucket, 0);
            }
        }
        if counted > 0 {
            state.store(present, sub_window.saturating_add(1));
            state.store(present + 1, counted);
        }
    }
}
