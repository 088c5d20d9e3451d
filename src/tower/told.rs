//! How clients are told of the limits of a set, as those change.

use std::sync::{Arc, PoisonError, RwLock};

use super::fields::Policies;
use crate::config::Limit;
use crate::config::stored::StoredSet;
use crate::limit_set::LimitSet;

/// What is told of a set. Described once for all responses, and again when its limits have changed.
#[derive(Debug)]
pub(super) struct Told {
    manner: Manner,
    policies: RwLock<Arc<Policies>>,
}

/// In which words.
#[derive(Clone, Debug, Default)]
pub(super) struct Manner {
    pub(super) prefix: String,
    /// The quota units of rate limits and budgets, by position. One that has none is not told.
    pub(super) units: Vec<Option<String>>,
}

impl Told {
    pub(super) fn of(set: &LimitSet) -> Self {
        Self::in_the(Manner::default(), set)
    }

    fn in_the(manner: Manner, set: &LimitSet) -> Self {
        Self {
            policies: RwLock::new(Arc::new(describe(set, &manner))),
            manner,
        }
    }

    pub(super) fn set_prefix(&mut self, set: &LimitSet, prefix: String) {
        self.manner.prefix = prefix;
        *self = Self::in_the(self.manner.clone(), set);
    }

    pub(super) fn set_unit(&mut self, set: &LimitSet, index: usize, unit: String) {
        let units = &mut self.manner.units;
        if units.len() <= index {
            units.resize(index + 1, None);
        }
        if let Some(place) = units.get_mut(index) {
            *place = Some(unit);
        }
        *self = Self::in_the(self.manner.clone(), set);
    }

    /// The policies that are in force, as far as this process has heard.
    pub(super) fn policies(&self, set: &LimitSet) -> Arc<Policies> {
        // Nobody panics with the lock in hand, and if somebody did, what it guards would be whole.
        let known = self
            .policies
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if known.generation() == set.engine_set().shown().generation {
            return known;
        }
        let changed = Arc::new(describe(set, &self.manner));
        let mut known = self.policies.write().unwrap_or_else(PoisonError::into_inner);
        *known = Arc::clone(&changed);
        changed
    }
}

impl Clone for Told {
    fn clone(&self) -> Self {
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        Self {
            manner: self.manner.clone(),
            policies: RwLock::new(Arc::clone(&policies)),
        }
    }
}

fn describe(set: &LimitSet, manner: &Manner) -> Policies {
    let rules = set.engine_set().shown();
    // Asked first: where the limits change meanwhile, they are described once more.
    let generation = rules.generation;
    match limits_in_force(set) {
        Some(limits) => Policies::new(generation, &limits, &rules.limits, manner),
        // A damaged definition is an error of the next request, and not of what is told of this one.
        None => Policies::new(generation, set.declared_limits(), &rules.limits, manner),
    }
}

/// The limits as they are declared now.
fn limits_in_force(set: &LimitSet) -> Option<Vec<Limit>> {
    let definition = set.shared().engine.definition(set.engine_set()).ok()?;
    let stored = StoredSet::from_text(&definition.text).ok()?;
    Some(stored.set().limits().to_vec())
}
