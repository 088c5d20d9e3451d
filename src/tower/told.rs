//! How clients are told of the limits of a set, as those change.

use std::sync::{Arc, Mutex, RwLock};

use super::fields::{Policies, Promises};
use crate::config::SetDeclaration;
use crate::config::stored::StoredSet;
use crate::engine::TierIndex;
use crate::error::Error;
use crate::limit_set::LimitSet;

/// What is told of a set. Described once for all responses, and again when its limits have changed.
#[derive(Debug)]
pub(super) struct Told {
    manner: Manner,
    policies: RwLock<Arc<Policies>>,
    /// Of the set that took the place of this one when its segment was removed.
    successor: Mutex<Option<(LimitSet, Arc<Told>)>>,
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
            successor: Mutex::default(),
        }
    }

    /// The successor of the removed segment's set, and how clients are told of it, in the same words; described once for
    /// all that share this.
    pub(super) fn of_successor(&self, removed: &LimitSet) -> Option<Result<(LimitSet, Arc<Self>), Error>> {
        let set = match removed.successor()? {
            Ok(set) => set,
            Err(error) => return Some(Err(error)),
        };
        // A forked child may have inherited the lock while a thread of its parent held it: then it is described each time.
        let mut known = self.successor.try_lock().ok();
        if let Some(Some((known, told))) = known.as_deref()
            && known.is_same_set(&set)
        {
            return Some(Ok((set, Arc::clone(told))));
        }
        let mut units = vec![None; set.limits().count()];
        for (name, unit) in removed.limits().zip(&self.manner.units) {
            if let Some(index) = set.limit_index(name)
                && let Some(place) = units.get_mut(index.0)
            {
                place.clone_from(unit);
            }
        }
        let prefix = self.manner.prefix.clone();
        let told = Arc::new(Self::in_the(Manner { prefix, units }, &set));
        if let Some(known) = &mut known {
            **known = Some((set.clone(), Arc::clone(&told)));
        }
        Some(Ok((set, told)))
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
        // Only tried: a child may have been forked while another thread of its parent had the lock.
        let known = self.policies.try_read().ok().map(|known| Arc::clone(&known));
        let generation = set.engine_set().shown().generation;
        if let Some(known) = known.filter(|known| known.generation() == generation) {
            return known;
        }
        let changed = Arc::new(describe(set, &self.manner));
        if let Ok(mut known) = self.policies.try_write() {
            *known = Arc::clone(&changed);
        }
        changed
    }
}

impl Clone for Told {
    fn clone(&self) -> Self {
        let known = self.policies.try_read().ok().map(|known| Arc::clone(&known));
        // Of a generation that is never in force, so that they are described anew when they are asked for.
        let policies = known.unwrap_or_else(|| Arc::new(Policies::new(u64::MAX, Vec::new())));
        Self {
            manner: self.manner.clone(),
            policies: RwLock::new(policies),
            successor: Mutex::default(),
        }
    }
}

fn describe(set: &LimitSet, manner: &Manner) -> Policies {
    let rules = set.engine_set().shown();
    // Asked first: where the limits change meanwhile, they are described once more.
    let generation = rules.generation;
    let declared = set_in_force(set);
    let promises = |(index, name): (u8, &str)| {
        let limits = declared
            .as_ref()
            .and_then(|declared| declared.limits_of_tier(name));
        // A damaged definition is an error of the next request, and not of what is told of this one.
        let limits = limits.as_deref().unwrap_or(set.declared_limits());
        let rules = rules.of_tier(TierIndex(index));
        (name.to_owned(), Promises::new(limits, &rules.limits, manner))
    };
    Policies::new(generation, (0..).zip(set.tiers()).map(promises).collect())
}

/// The set as it is declared now.
fn set_in_force(set: &LimitSet) -> Option<SetDeclaration> {
    let definition = set.shared().engine.definition(set.engine_set()).ok()?;
    let stored = StoredSet::from_text(&definition.text).ok()?;
    Some(stored.set().clone())
}
