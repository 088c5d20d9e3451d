//! The budget: for costs that are known only afterwards.

use super::{Assessment, FixedWindow, InvalidLimit, Mark, NearThreshold, Now, Standing, State, StateMut};

/// Admits anything while some of the window's capacity is left, and takes nothing up front.
///
/// What was spent is charged afterwards, in full: the charge that crosses the line counts like any other, and later
/// requests are refused until the window turns. State: that of the fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    window: FixedWindow,
}

impl Budget {
    pub(crate) fn new(window: FixedWindow) -> Result<Self, InvalidLimit> {
        Ok(Self { window })
    }

    /// The same window with another capacity, which is positive.
    pub(super) fn with_capacity(self, capacity: u64) -> Self {
        Self {
            window: self.window.with_capacity(capacity),
        }
    }

    pub(crate) fn state_words(&self) -> usize {
        self.window.state_words()
    }

    pub(crate) fn reads_utc(&self) -> bool {
        self.window.reads_utc()
    }

    #[inline]
    pub(crate) fn assess(&self, state: &(impl State + ?Sized), now: Now) -> Assessment {
        // A unit must be left, whatever the cost turns out to be.
        self.window.assess(state, now, 1)
    }

    #[inline]
    pub(crate) fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) {
        self.window.charge(state, now, cost);
    }

    #[inline]
    pub(super) fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        self.window.is_replenished(state, now)
    }

    pub(super) fn share(&self, mark: Mark) -> u64 {
        self.window.share(mark)
    }

    pub(super) fn near_threshold(&self, percent: u8) -> NearThreshold {
        self.window.near_threshold(percent)
    }

    pub(super) fn can_carry_over(&self, old: &Self) -> bool {
        self.window.can_carry_over(&old.window)
    }

    pub(super) fn carry_over(&self, old: &Self, state: &mut (impl StateMut + ?Sized), now: Now) {
        self.window.carry_over(&old.window, state, now);
    }

    pub(crate) fn reset(&self, state: &mut (impl StateMut + ?Sized)) {
        self.window.reset(state);
    }

    #[inline]
    pub(crate) fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark {
        self.window.mark(state, now)
    }

    pub(crate) fn standing(&self, mark: Mark) -> Standing {
        self.window.standing(mark)
    }
}
