//! Concurrency: units that are held and given back. Time plays no part in it.

use super::{Assessment, InvalidLimit, Mark, NearThreshold, Standing, State, StateMut};

/// At most `capacity` units held at once.
///
/// State, one word: the units in use. It may exceed the capacity after a live change of the declaration; then
/// everything is refused until enough came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Concurrency {
    capacity: u64,
}

impl Concurrency {
    const IN_USE: usize = 0;

    pub(crate) const STATE_WORDS: usize = 1;

    pub(crate) fn new(capacity: u64) -> Result<Self, InvalidLimit> {
        if capacity == 0 {
            return Err(InvalidLimit::Zero("capacity"));
        }
        Ok(Self { capacity })
    }

    pub(crate) fn most_at_once(&self) -> u64 {
        self.capacity
    }

    #[inline]
    pub(crate) fn assess(&self, state: &(impl State + ?Sized), cost: u64) -> Assessment {
        match state.load(Self::IN_USE).checked_add(cost) {
            Some(held) if held <= self.capacity => Assessment::Admissible,
            _ => Assessment::Refused { retry_after: None },
        }
    }

    #[inline]
    pub(crate) fn charge(&self, state: &mut (impl StateMut + ?Sized), cost: u64) {
        if cost > 0 {
            state.store(Self::IN_USE, state.load(Self::IN_USE).saturating_add(cost));
        }
    }

    #[inline]
    pub(crate) fn give_back(&self, state: &mut (impl StateMut + ?Sized), amount: u64) {
        if amount > 0 {
            state.store(Self::IN_USE, state.load(Self::IN_USE).saturating_sub(amount));
        }
    }

    #[inline]
    pub(super) fn is_replenished(&self, state: &(impl State + ?Sized)) -> bool {
        state.load(Self::IN_USE) == 0
    }

    pub(super) fn near_threshold(&self, percent: u8) -> NearThreshold {
        NearThreshold::share_of(u128::from(self.capacity), percent)
    }

    #[inline]
    pub(crate) fn mark(&self, state: &(impl State + ?Sized)) -> Mark {
        Mark {
            first: state.load(Self::IN_USE),
            second: 0,
        }
    }

    pub(crate) fn standing(&self, mark: Mark) -> Standing {
        Standing {
            remaining: self.capacity.saturating_sub(mark.first),
            reset_after: 0,
        }
    }
}
