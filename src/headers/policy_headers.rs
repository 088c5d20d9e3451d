//! What clients are told about the limits of a set, kept current as the limits change.

use std::sync::{Arc, Mutex, RwLock};

use super::fields::{Fields, Policies, Promises, Wording, retry_after};
use super::problem::{self, Problem};
use crate::api::refusal::{Refusal, Verdict};
use crate::api::set::limit_set::LimitSet;
use crate::declaration::SetDeclaration;
use crate::declaration::stored::StoredSet;
use crate::engine::TierIndex;
use crate::error::Error;
use crate::words::words;

/// Which responses show the limits, in the fields `RateLimit` and `RateLimit-Policy`.
///
/// The fields show every client how much the server can take. A refusal always carries `Retry-After` and the names of
/// the limits that refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advertise {
    /// All responses.
    #[default]
    Always,
    /// Responses to refused requests.
    WhenRefused,
    /// No responses.
    Never,
}

words!(Advertise, "which responses have the fields", {
    Always = "always",
    WhenRefused = "when_refused",
    Never = "never",
});

/// Builds the fields and problems of responses to requests that a set of limits decides. See the [module](super).
///
/// The limits are described once for all responses, and again after they have [changed](crate::Segment::apply).
#[derive(Debug)]
pub struct PolicyHeaders {
    set: LimitSet,
    wording: Wording,
    /// `None` before the first response.
    policies: RwLock<Option<Arc<Policies>>>,
    /// The headers of the set that took this one's place when its segment was removed.
    successor: Mutex<Option<Arc<PolicyHeaders>>>,
}

impl PolicyHeaders {
    /// Headers for `set`, with the names of its limits.
    #[must_use]
    pub fn new(set: &LimitSet) -> Self {
        Self::in_words(set, Wording::default())
    }

    /// Adds a prefix to the names of limits wherever clients read them: for services with several sets whose limits
    /// have the same name, which clients would mistake for one.
    #[must_use]
    pub fn policy_prefix(self, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        Self::in_words(
            &self.set,
            Wording {
                prefix,
                ..self.wording
            },
        )
    }

    /// Describes a rate limit or budget in a unit of the draft's registry: `requests` or `content-bytes`. Without it,
    /// such a limit is left out of both fields, because a client would take its units for requests. Limits of other
    /// kinds have their own units and ignore this, as does a set without a limit of that name.
    #[must_use]
    pub fn quota_unit(self, limit: impl Into<String>, unit: impl Into<String>) -> Self {
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
    pub fn set(&self) -> &LimitSet {
        &self.set
    }

    /// The fields of the response to an admitted request, from its verdicts.
    ///
    /// Call it after the decision, which is when this process learns of changed limits.
    pub fn admission<'a>(&self, verdicts: impl Iterator<Item = Verdict<'a>>, advertise: Advertise) -> Fields {
        match advertise {
            Advertise::Always => self.policies().fields(&self.set, verdicts, true),
            Advertise::WhenRefused | Advertise::Never => Fields::default(),
        }
    }

    /// The answer to a refused request: 429 and the policies that it would have violated, or 503 if it would have
    /// violated none, as far as is known.
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

    /// The headers of the [successor](LimitSet::successor) of a set whose segment was removed, with the same names
    /// and units. All users of `self` get the same one.
    ///
    /// # Errors
    ///
    /// See [`LimitSet::successor`].
    pub fn successor(&self) -> Option<Result<Arc<Self>, Error>> {
        let set = match self.set.successor()? {
            Ok(set) => set,
            Err(error) => return Some(Err(error)),
        };
        // A forked child may have inherited the lock while a thread of its parent held it. It then builds the headers
        // each time.
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

    /// The policies in force, as far as this process knows.
    fn policies(&self) -> Arc<Policies> {
        // Never blocks: a child may have been forked while another thread of its parent held the lock.
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
        // Read first: if the limits change in the meantime, they are described once more.
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

/// Keeps the names and units; the limits are described afresh.
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
