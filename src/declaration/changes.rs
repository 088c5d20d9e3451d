//! How much of another declaration a segment can take over while it is in use.

use super::limit::window::Window;
use super::limit::{Algorithm, Limit};
use super::set::SetDeclaration;
use super::{Declaration, Keyed};
use crate::error::Difference;

impl Declaration {
    /// The canonical result of applying this declaration to `stored`, the one that a segment holds. Both have been
    /// validated; the result is valid too, and its limits need exactly as much memory as those in the segment.
    ///
    /// What changes: capacities, windows of the same alignment, offsets and time zones of calendar windows, bursts, the
    /// algorithm among those with the same rule, leases, the bounds of adaptive capacities, near limits, refunds, the
    /// size of batches, shadow, how hosts share a limit, how long grants are kept, metadata, and what happens to keys
    /// without room. What is not declared, and by default depends on something that can change, stays as it is. Path,
    /// mode and version play no part.
    ///
    /// # Errors
    ///
    /// Every difference that needs another segment. Nothing can be applied then.
    pub(crate) fn applied_to(&self, stored: &Self) -> Result<Self, Vec<Difference>> {
        let stored = stored.canonical();
        let asked = self.with_sizes_of(&stored);
        let sets = stored.sets.iter().map(|set| {
            let change = asked.sets.iter().find(|change| change.name == set.name);
            change.map_or_else(|| set.clone(), |change| set.changed_to(change))
        });
        let declaration = Self {
            segment: stored.segment.clone(),
            // A segment that was created without a fleet has no room for leases.
            fleet: stored.fleet.as_ref().and(asked.fleet.clone()),
            sets: sets.collect(),
        };
        // Anything that could not be taken over still differs. Do not compare canonical forms here: that would fill
        // in the defaults of the segment where this declaration has none.
        let refused = asked.differences_as_written(&declaration);
        if refused.is_empty() {
            Ok(declaration)
        } else {
            Err(refused)
        }
    }

    /// Each difference from `stored`, whether it can be applied or not. Sizes that are not declared do not count.
    pub(crate) fn differences_to_apply(&self, stored: &Self) -> Vec<Difference> {
        let stored = stored.canonical();
        self.with_sizes_of(&stored).differences_as_written(&stored)
    }

    /// The canonical form, but with the sizes of `stored` where this declares none: a changed capacity must not
    /// change a size that was derived from it. Time zones keep the offsets that `stored` has, unless those of this
    /// declaration are newer.
    fn with_sizes_of(&self, stored: &Self) -> Self {
        let mut asked = self.canonical();
        if self.segment.participants.is_none() {
            asked.segment.participants = stored.segment.participants;
        }
        if self.segment.clock.is_none() {
            asked.segment.clock = stored.segment.clock;
        }
        if self.segment.lock.is_none() {
            asked.segment.lock = stored.segment.lock;
        }
        if self.fleet.is_none() {
            // The room for leases stays, whether anything is leased or not.
            asked.fleet = stored.fleet.clone();
        }
        for (asked, declared) in asked.sets.iter_mut().zip(&self.sets) {
            let Some(stored) = stored.sets.iter().find(|set| set.name == declared.name) else {
                continue;
            };
            if declared.holds.is_none() {
                asked.holds = stored.holds;
            }
            for (asked, declared) in asked.limits.iter_mut().zip(&declared.limits) {
                let stored = stored.limits.iter().find(|limit| limit.name == declared.name);
                if let (Some(zone), Some(in_force)) =
                    (&asked.time_zone, stored.and_then(|it| it.time_zone.as_ref()))
                    && !zone.renews(in_force)
                {
                    asked.time_zone = Some(in_force.clone());
                }
                if let (Some(Algorithm::SlidingWindow), None, Some(stored)) =
                    (asked.algorithm, declared.entries, stored)
                {
                    asked.entries = stored.entries.or(asked.entries);
                }
            }
        }
        asked
    }
}

impl SetDeclaration {
    /// This set with everything in `change` that can change. Both are canonical.
    fn changed_to(&self, change: &Self) -> Self {
        let limits = self.limits.iter().map(|limit| {
            let change = change.limits.iter().find(|change| change.name == limit.name);
            let Some(change) = change else {
                return limit.clone();
            };
            let mut changed = limit.changed_to(change);
            if self.keyed.is_some() && limit.fleet.is_some() != change.fleet.is_some() {
                // Each row has room for a lease, or none has.
                changed.fleet = limit.fleet.clone();
            }
            changed
        });
        Self {
            keyed: match (&self.keyed, &change.keyed) {
                (Some(keyed), Some(change)) => Some(Keyed {
                    when_full: change.when_full,
                    ..keyed.clone()
                }),
                (keyed, _) => keyed.clone(),
            },
            collect_within: change.collect_within,
            metadata: change.metadata.clone(),
            limits: limits.collect(),
            tiers: self.tiers_changed_to(change),
            ..self.clone()
        }
    }
}

impl Limit {
    /// This limit with everything in `change` that can change. Both are canonical.
    fn changed_to(&self, change: &Self) -> Self {
        // An unlimited limit keeps no state, so a limit cannot become unlimited, nor the reverse.
        let countable = self.capacity.is_unlimited() == change.capacity.is_unlimited();
        let capacity = if countable { change } else { self };
        // The state of a calendar window says which period it counts, that of other windows a length of time.
        let calendar = |limit: &Self| limit.window.is_some_and(Window::is_calendar);
        let window = if calendar(self) || calendar(change) {
            self
        } else {
            change
        };
        let clock = if calendar(self) && calendar(change) {
            change
        } else {
            self
        };
        // Algorithms with the same rule have the same form of state.
        let by_backlog = |limit: &Self| limit.algorithm.is_some_and(Algorithm::keeps_backlog);
        let algorithm = if by_backlog(self) && by_backlog(change) {
            change
        } else {
            self
        };
        Self {
            algorithm: algorithm.algorithm,
            capacity: capacity.capacity.clone(),
            window: window.window,
            utc_offset: clock.utc_offset,
            time_zone: clock.time_zone.clone(),
            // A batch is recorded in a hold, so a limit without holds cannot be given credit.
            credit: self
                .credit
                .as_ref()
                .and(change.credit.clone())
                .or(self.credit.clone()),
            ..self.with_live_fields_of(change)
        }
    }
}
