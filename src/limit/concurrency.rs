//! Concurrency: units that are held and given back. Time plays no part in it.

use super::{Assessment, CapacityTerms, InvalidLimit, Mark, Now, RuleOperations, State, StateMut};

/// At most `capacity` units held at once.
///
/// State, one word: the units in use. It may exceed the capacity after a live change of the declaration; everything
/// is then refused until enough has come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Concurrency {
    capacity: u64,
}

impl Concurrency {
    const IN_USE: usize = 0;

    pub(crate) fn new(capacity: u64) -> Result<Self, InvalidLimit> {
        InvalidLimit::unless_positive(capacity, "capacity")?;
        Ok(Self { capacity })
    }
}

impl RuleOperations for Concurrency {
    fn state_words(&self) -> usize {
        1
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    fn assess(&self, state: &(impl State + ?Sized), _now: Now, cost: u64) -> Assessment {
        match state.load(Self::IN_USE).checked_add(cost) {
            Some(held) if held <= self.capacity => Assessment::Admissible,
            _ => Assessment::Refused { retry_after: None },
        }
    }

    #[inline]
    fn charge(&self, state: &mut (impl StateMut + ?Sized), _now: Now, cost: u64) {
        if cost > 0 {
            state.store(Self::IN_USE, state.load(Self::IN_USE).saturating_add(cost));
        }
    }

    /// Reads the state once.
    #[inline(always)]
    fn take(&self, state: &mut (impl StateMut + ?Sized), _now: Now, cost: u64) -> Result<Mark, Assessment> {
        let in_use = state.load(Self::IN_USE);
        match in_use.checked_add(cost) {
            Some(held) if held <= self.capacity => {
                if cost > 0 {
                    state.store(Self::IN_USE, held);
                }
                Ok(Mark {
                    first: held,
                    second: 0,
                })
            }
            _ => Err(Assessment::Refused { retry_after: None }),
        }
    }

    #[inline]
    fn mark(&self, state: &(impl State + ?Sized), _now: Now) -> Mark {
        Mark {
            first: state.load(Self::IN_USE),
            second: 0,
        }
    }

    #[inline]
    fn is_replenished(&self, state: &(impl State + ?Sized), _now: Now) -> bool {
        state.load(Self::IN_USE) == 0
    }

    /// What is held stays held.
    fn reset(&self, _state: &mut (impl StateMut + ?Sized)) {}

    fn with_capacity(&self, capacity: u64, _terms: CapacityTerms) -> Result<Self, InvalidLimit> {
        Self::new(capacity)
    }

    #[inline(always)]
    fn give_back(&self, state: &mut (impl StateMut + ?Sized), amount: u64) {
        if amount > 0 {
            state.store(Self::IN_USE, state.load(Self::IN_USE).saturating_sub(amount));
        }
    }

    /// Nothing is used up, only held.
    fn share(&self, _mark: Mark) -> u64 {
        0
    }
}
