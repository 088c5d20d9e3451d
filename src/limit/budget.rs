//! The budget: for costs that are only known afterwards.

use super::{
    Assessment, CapacityTerms, FixedWindow, InvalidLimit, Mark, Now, RuleOperations, State, StateMut,
};

/// Admits anything while some of the window's capacity is left, and takes nothing up front.
///
/// What was spent is charged afterwards, in full. The charge that crosses the line counts like any other; later
/// requests are refused until the window turns. The state is that of the fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    window: FixedWindow,
}

impl Budget {
    pub(crate) fn new(window: FixedWindow) -> Result<Self, InvalidLimit> {
        Ok(Self { window })
    }
}

impl RuleOperations for Budget {
    fn state_words(&self) -> usize {
        self.window.state_words()
    }

    fn capacity(&self) -> u64 {
        self.window.capacity()
    }

    #[inline]
    fn assess(&self, state: &(impl State + ?Sized), now: Now, _cost: u64) -> Assessment {
        // One unit must be left, whatever the cost turns out to be.
        self.window.assess(state, now, 1)
    }

    #[inline]
    fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) {
        self.window.charge(state, now, cost);
    }

    #[inline]
    fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark {
        self.window.mark(state, now)
    }

    #[inline]
    fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        self.window.is_replenished(state, now)
    }

    fn reset(&self, state: &mut (impl StateMut + ?Sized)) {
        self.window.reset(state);
    }

    fn with_capacity(&self, capacity: u64, terms: CapacityTerms) -> Result<Self, InvalidLimit> {
        Self::new(self.window.with_capacity(capacity, terms)?)
    }

    /// A debit may exceed what is left by any amount.
    #[inline]
    fn burst(&self) -> u64 {
        u64::MAX
    }

    fn reads_utc(&self) -> bool {
        self.window.reads_utc()
    }

    fn can_migrate(&self, old: &Self) -> bool {
        self.window.can_migrate(&old.window)
    }

    fn migrate(&self, old: &Self, state: &mut (impl StateMut + ?Sized), now: Now) {
        self.window.migrate(&old.window, state, now);
    }
}
