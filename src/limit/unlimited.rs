//! No limit at all: a capacity declared as unlimited.

use super::{
    Assessment, CapacityTerms, InvalidLimit, Mark, NearThreshold, Now, RuleOperations, State, StateMut,
};

/// Always admits. No state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unlimited;

impl RuleOperations for Unlimited {
    fn state_words(&self) -> usize {
        0
    }

    fn capacity(&self) -> u64 {
        u64::MAX
    }

    #[inline]
    fn assess(&self, _state: &(impl State + ?Sized), _now: Now, _cost: u64) -> Assessment {
        Assessment::Admissible
    }

    #[inline]
    fn charge(&self, _state: &mut (impl StateMut + ?Sized), _now: Now, _cost: u64) {}

    #[inline]
    fn mark(&self, _state: &(impl State + ?Sized), _now: Now) -> Mark {
        Mark::default()
    }

    #[inline]
    fn is_replenished(&self, _state: &(impl State + ?Sized), _now: Now) -> bool {
        true
    }

    fn reset(&self, _state: &mut (impl StateMut + ?Sized)) {}

    fn with_capacity(&self, _capacity: u64, _terms: CapacityTerms) -> Result<Self, InvalidLimit> {
        Ok(*self)
    }

    fn reaches_ahead(&self) -> bool {
        true
    }

    fn near_threshold(&self, _percent: u8) -> NearThreshold {
        NearThreshold::NEVER
    }
}
