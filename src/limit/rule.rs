//! Any rule, behind the one interface the engine uses.

use super::{
    Adaptive, Assessment, Backlog, Budget, CapacityTerms, Charge, Concurrency, FixedWindow, InvalidLimit,
    Leased, Mark, NearThreshold, Now, RuleOperations, Sample, SlidingWindow, SlidingWindowCounter, Standing,
    State, StateMut, Unlimited,
};

use super::lease::{LeaseTerms, Units};
use crate::units::UnitPrice;

/// Lists the rules once. Generates [`Rule`], which is any of them, and `dispatch!`, which calls a method of whichever
/// rule it is, or works on two rules of the same kind. The first token is the `$` that `dispatch!` needs for its own
/// parameters.
macro_rules! any_of {
    ($sign:tt $($kind:ident),+ $(,)?) => {
        /// A declared limit: its algorithm and parameters, but not its state.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Rule {
            $($kind($kind),)+
        }

        $(
            impl From<$kind> for Rule {
                fn from(rule: $kind) -> Self {
                    Self::$kind(rule)
                }
            }
        )+

        macro_rules! dispatch {
            ($sign rule:expr, $sign inner:ident => $sign answer:expr) => {
                match $sign rule {
                    $(Rule::$kind($sign inner) => $sign answer,)+
                }
            };
            (
                $sign first:expr, $sign second:expr,
                ($sign one:ident, $sign other:ident) => $sign answer:expr,
                _ => $sign otherwise:expr
            ) => {
                match ($sign first, $sign second) {
                    $((Rule::$kind($sign one), Rule::$kind($sign other)) => $sign answer,)+
                    _ => $sign otherwise,
                }
            };
        }
    };
}

any_of! {
    $ Backlog,
    FixedWindow,
    SlidingWindow,
    SlidingWindowCounter,
    Budget,
    Concurrency,
    Adaptive,
    Unlimited,
    Leased,
}

impl Rule {
    #[inline(never)]
    fn take_other(
        &self,
        state: &mut (impl StateMut + ?Sized),
        now: Now,
        cost: u64,
    ) -> Result<Mark, Assessment> {
        dispatch!(self, rule => rule.take(state, now.within_proven_range(), cost))
    }

    #[inline(never)]
    fn give_back_other(&self, state: &mut (impl StateMut + ?Sized), amount: u64) {
        dispatch!(self, rule => rule.give_back(state, amount));
    }

    /// What the rule's units are to hosts that share it, and what one unit is worth in time if they come back evenly.
    fn units(&self, refunds: bool) -> (Units, Option<UnitPrice>) {
        match self {
            Self::Concurrency(_) => (Units::Held, None),
            Self::Budget(_) => (Units::Debited, None),
            Self::Backlog(backlog) if refunds => (Units::Refunded, Some(backlog.price())),
            Self::Backlog(backlog) => (Units::Spent, Some(backlog.price())),
            _ => (Units::Counted, None),
        }
    }

    /// The same rule shared between hosts. `refunds` says whether unused units come back, if the rule can give them back.
    pub(crate) fn leased(&self, terms: LeaseTerms, refunds: bool) -> Result<Leased, InvalidLimit> {
        let (units, price) = self.units(refunds);
        Leased::of(self, units, price, terms)
    }

    /// Whether a limit can become shared, or stop being shared; `None` if that does not change.
    fn can_migrate_lease(&self, old: &Self) -> Option<bool> {
        match (self, old) {
            (Self::Leased(_), Self::Leased(_)) => None,
            (Self::Leased(rule), local) | (local, Self::Leased(rule)) => {
                Some(rule.is_leased_from(local.units(true).0, local.state_words()))
            }
            _ => None,
        }
    }

    #[inline(never)]
    fn is_other_near(&self, mark: Mark, threshold: NearThreshold) -> bool {
        dispatch!(self, rule => rule.is_near(mark, threshold))
    }
}

impl RuleOperations for Rule {
    #[inline]
    fn state_words(&self) -> usize {
        dispatch!(self, rule => rule.state_words())
    }

    #[inline]
    fn capacity(&self) -> u64 {
        dispatch!(self, rule => rule.capacity())
    }

    #[inline]
    fn assess(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Assessment {
        dispatch!(self, rule => rule.assess(state, now.within_proven_range(), cost))
    }

    #[inline]
    fn assess_and_mark(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> (Assessment, Mark) {
        dispatch!(self, rule => rule.assess_and_mark(state, now.within_proven_range(), cost))
    }

    #[inline]
    fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) {
        dispatch!(self, rule => rule.charge(state, now.within_proven_range(), cost));
    }

    #[inline]
    fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark {
        dispatch!(self, rule => rule.mark(state, now.within_proven_range()))
    }

    #[inline]
    fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        dispatch!(self, rule => rule.is_replenished(state, now.within_proven_range()))
    }

    fn reset(&self, state: &mut (impl StateMut + ?Sized)) {
        dispatch!(self, rule => rule.reset(state));
    }

    fn with_capacity(&self, capacity: u64, terms: CapacityTerms) -> Result<Self, InvalidLimit> {
        InvalidLimit::unless_positive(capacity, "capacity")?;
        dispatch!(self, rule => rule.with_capacity(capacity, terms).map(Self::from))
    }

    #[inline]
    fn burst(&self) -> u64 {
        dispatch!(self, rule => rule.burst())
    }

    #[inline]
    fn reads_utc(&self) -> bool {
        dispatch!(self, rule => rule.reads_utc())
    }

    fn reaches_ahead(&self) -> bool {
        dispatch!(self, rule => rule.reaches_ahead())
    }

    fn charge_ahead(&self, state: &mut (impl StateMut + ?Sized), now: Now, delay: u64, cost: u64) {
        dispatch!(self, rule => rule.charge_ahead(state, now.within_proven_range(), delay, cost));
    }

    #[inline(always)]
    fn take(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) -> Result<Mark, Assessment> {
        // The default algorithm and concurrency are inlined here; inlining every rule would be too much code.
        match self {
            Self::Backlog(rule) => rule.take(state, now.within_proven_range(), cost),
            Self::Concurrency(rule) => rule.take(state, now, cost),
            _ => self.take_other(state, now, cost),
        }
    }

    fn earliest(&self, state: &(impl State + ?Sized), now: Now, amount: u64) -> u64 {
        dispatch!(self, rule => rule.earliest(state, now.within_proven_range(), amount))
    }

    fn refund(&self, state: &mut (impl StateMut + ?Sized), now: Now, unused: u64, charge: &Charge) -> u64 {
        let charge = charge.within_proven_range();
        dispatch!(self, rule => rule.refund(state, now.within_proven_range(), unused, &charge))
    }

    #[inline(always)]
    fn give_back(&self, state: &mut (impl StateMut + ?Sized), amount: u64) {
        match self {
            Self::Concurrency(rule) => rule.give_back(state, amount),
            _ => self.give_back_other(state, amount),
        }
    }

    #[inline]
    fn observe(&self, state: &mut (impl StateMut + ?Sized), now: Now, sample: Sample) {
        dispatch!(self, rule => rule.observe(state, now.within_proven_range(), sample));
    }

    fn standing(&self, mark: Mark) -> Standing {
        dispatch!(self, rule => rule.standing(mark))
    }

    fn found_capacity(&self, mark: Mark) -> Option<u64> {
        dispatch!(self, rule => rule.found_capacity(mark))
    }

    fn near_threshold(&self, percent: u8) -> NearThreshold {
        dispatch!(self, rule => rule.near_threshold(percent))
    }

    #[inline(always)]
    fn is_near(&self, mark: Mark, threshold: NearThreshold) -> bool {
        // Inlined for the same two rules as in `take`.
        match self {
            Self::Backlog(rule) => rule.is_near(mark, threshold),
            Self::Concurrency(rule) => rule.is_near(mark, threshold),
            _ => self.is_other_near(mark, threshold),
        }
    }

    fn share(&self, mark: Mark) -> u64 {
        dispatch!(self, rule => rule.share(mark))
    }

    fn can_migrate(&self, old: &Self) -> bool {
        if let Some(fits) = self.can_migrate_lease(old) {
            return fits;
        }
        dispatch!(self, old, (rule, old) => rule.can_migrate(old), _ => false)
    }

    fn migrate(&self, old: &Self, state: &mut (impl StateMut + ?Sized), now: Now) {
        if self == old {
            return;
        }
        match (self, old) {
            (Self::Leased(rule), Self::Leased(old)) => {
                return rule.migrate(old, state, now.within_proven_range());
            }
            (Self::Leased(rule), old) => return rule.migrate_from(old, state, now),
            (rule, Self::Leased(old)) => return old.migrate_to(rule, state, now),
            _ => {}
        }
        dispatch!(
            self, old,
            (rule, old) => rule.migrate(old, state, now.within_proven_range()),
            _ => {}
        );
    }
}
