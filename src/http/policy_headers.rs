//! What clients read of the limits of a set, as those change.

use std::sync::{Arc, Mutex, RwLock};

use super::fields::{Fields, Policies, Promises, Wording, retry_after};
use super::problem::{self, Problem};
use crate::api::declaration::SetDeclaration;
use crate::api::declaration::stored::StoredSet;
use crate::api::refusal::{Refusal, Verdict};
use crate::api::set::limit_set::LimitSet;
use crate::engine::TierIndex;
use crate::error::Error;
use crate::words::words;

/// Which responses say how the limits stand, in the fields `RateLimit` and `RateLimit-Policy`.
///
/// The fields show every client how much the server can take. A refusal carries `Retry-After` and the names
/// of the limits that refused in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advertise {
    /// All responses.
    #[default]
    Always,
    /// Those to refused requests.
    WhenRefused,
    /// None.
    Never,
}

words!(Advertise, "which responses have the fields", {
    Always = "always",
    WhenRefused = "when_refused",
    Never = "never",
});

/// The fields and problems of responses to requests that a set of limits decides: see the [module](super).
///
/// The limits are described once for all responses, and again when they have [changed](crate::Segment::apply).
#[derive(Debug)]
pub struct PolicyHeaders {
    set: LimitSet,
    wording: Wording,
    /// None before the first response.
    policies: RwLock<Option<Arc<Policies>>>,
    /// Those of the set that took the place of this one when its segment was removed.
    successor: Mutex<Option<Arc<PolicyHeaders>>>,
}

impl PolicyHeaders {
    /// Those of a set, by the names of its limits.
    #[must_use]
    pub fn new(set: &LimitSet) -> Self {
        Self::in_words(set, Wording::default())
    }

    /// Puts a prefix before the names of limits wherever clients read them: for services whose sets have limits of the
    /// same name, which clients would take for one.
    #[must_use]
    pub fn with_prefix(self, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        Self::in_words(
            &self.set,
            Wording {
                prefix,
                ..self.wording
            },
        )
    }

    /// Describes a rate limit or budget, measured in a unit of the draft's registry: `requests` or `content-bytes`.
    /// Without it such a limit is left out of both fields: a client would take its units for requests. Limits of other
    /// kinds have units of their own and ignore this, and so does a set that has no limit of the name.
    #[must_use]
    pub fn with_quota_unit(self, limit: impl Into<String>, unit: impl Into<String>) -> Self {
        let mut wording = self.wording;
        wording.units.insert(limit.into(), unit.into());
        Self::in_words(&self.set, wording)
    }

    fn in_words(set: &LimitSet, wording: Wording) -> Self {
        Self {
            set: set.clone(),
            wording,
            policies: RwLock::default(),
            successor: Mutex::default(),
        }
    }

    /// The set whose limits are described.
    pub fn limit_set(&self) -> &LimitSet {
        &self.set
    }

    /// The fields of the response to a request that was admitted, of what each limit said.
    ///
    /// Ask after the decision, by which this process learns of limits that have changed.
    pub fn admission<'a>(&self, verdicts: impl Iterator<Item = Verdict<'a>>, advertise: Advertise) -> Fields {
        match advertise {
            Advertise::Always => self.policies().fields(&self.set, verdicts, true),
            Advertise::WhenRefused | Advertise::Never => Fields::default(),
        }
    }

    /// The answer to a request that was refused: 429 and the policies that it would have violated, or 503 where none
    /// would have been.
    pub fn refusal(&self, refusal: &Refusal, advertise: Advertise) -> Problem {
        let policies = self.policies();
        let mut problem = problem::of_refusal(refusal, |limit| policies.name(&self.set, limit));
        if advertise != Advertise::Never {
            problem.fields = policies.fields(&self.set, refusal.verdicts(), false);
        }
        problem.fields.retry_after = Some(retry_after(refusal));
        problem
    }

    /// The answer to a request that takes more than a limit can ever admit
    /// ([`RequestError::NeverAdmissible`](crate::RequestError::NeverAdmissible)): 429.
    pub fn never_admissible(&self, limit: &str, advertise: Advertise) -> Problem {
        let policies = self.policies();
        let mut problem = problem::quota_exceeded(policies.name(&self.set, limit).into_iter());
        if advertise != Advertise::Never {
            problem.fields = policies.fields(&self.set, std::iter::empty(), false);
        }
        problem
    }

    /// Those of the [successor](LimitSet::successor) of a set whose segment was removed, in the same words: one for all
    /// that share this.
    ///
    /// # Errors
    ///
    /// As [`LimitSet::successor`].
    pub fn successor(&self) -> Option<Result<Arc<Self>, Error>> {
        let set = match self.set.successor()? {
            Ok(set) => set,
            Err(error) => return Some(Err(error)),
        };
        // A forked child may have inherited the lock while a thread of its parent held it: then it is made each time.
        let mut known = self.successor.try_lock().ok();
        if let Some(Some(known)) = known.as_deref()
            && known.set.is_same_set(&set)
        {
            return Some(Ok(Arc::clone(known)));
        }
        let headers = Arc::new(Self::in_words(&set, self.wording.clone()));
        if let Some(known) = &mut known {
            **known = Some(Arc::clone(&headers));
        }
        Some(Ok(headers))
    }

    /// The policies that are in force, as far as this process knows.
    fn policies(&self) -> Arc<Policies> {
        // Only tried: a child may have been forked while another thread of its parent had the lock.
        let known = self.policies.try_read().ok().and_then(|known| known.clone());
        let generation = self.set.engine_set().shown().generation;
        if let Some(known) = known.filter(|known| known.generation() == generation) {
            return known;
        }
        let changed = Arc::new(self.describe());
        if let Ok(mut known) = self.policies.try_write() {
            *known = Some(Arc::clone(&changed));
        }
        changed
    }

    fn describe(&self) -> Policies {
        let rules = self.set.engine_set().shown();
        // Read first: where the limits change meanwhile, they are described once more.
        let generation = rules.generation;
        let declared = set_in_force(&self.set);
        let promises = |(index, name): (u8, &str)| {
            let limits = declared
                .as_ref()
                .and_then(|declared| declared.limits_of_tier(name));
            // A damaged definition is an error of the next request, not of the response to this one.
            let limits = limits.as_deref().unwrap_or(self.set.declared_limits());
            let rules = rules.of_tier(TierIndex(index));
            (
                name.to_owned(),
                Promises::new(limits, &rules.limits, &self.wording),
            )
        };
        Policies::new(generation, (0..).zip(self.set.tiers()).map(promises).collect())
    }
}

/// In the same words; what was described is described anew.
impl Clone for PolicyHeaders {
    fn clone(&self) -> Self {
        Self::in_words(&self.set, self.wording.clone())
    }
}

/// The set as it is declared now.
fn set_in_force(set: &LimitSet) -> Option<SetDeclaration> {
    let definition = set.shared().engine.definition(set.engine_set()).ok()?;
    let stored = StoredSet::from_text(&definition.text).ok()?;
    Some(stored.set().clone())
}
