//! Capacities that single keys have of their own.

use std::num::NonZeroU64;

use crate::engine::{LimitRules, Overridden};
use crate::error::Error;
use crate::key::Key;
use crate::limit_set::{LimitName, LimitSet};

impl Key<'_> {
    /// Gives the key a capacity of its own of a limit, in units, in place of that of the declaration and of any
    /// [tier](crate::Tier) that the key is in or comes into, until it is given another or [none](Self::clear_override).
    /// The set must be declared with [`Keyed::overrides`](crate::Keyed::overrides).
    ///
    /// It is a capacity as [`Segment::apply`](crate::Segment::apply) changes one: the window stays, a burst that is the
    /// whole capacity stays that, a burst of its own stays as it is, and so does the rate of a leaky bucket that is
    /// declared by rate and interval. A sliding window keeps its number of entries. When another declaration is applied,
    /// the key keeps its capacity, and has the new window and burst.
    ///
    /// What the key has used migrates as with a change of tier: a bucket keeps what is left in it, at most its new burst,
    /// windows keep what they count, and what is held stays held. What was reserved before is refunded as much as time has
    /// not replenished since, by a permit that saw one change of the key's tier and capacities; by one that saw more,
    /// and for a dead process, nothing. Then those who wait are served by the new capacity.
    ///
    /// The row of a key that has such a capacity goes to no other key, unless the set is declared to
    /// [evict](crate::WhenFull): with `EvictLeastUsed` when no other row would do, with `EvictOldest` when it was used the
    /// longest ago. Then the key begins again as declared. So declare [`max_keys`](crate::Keyed::new) for as
    /// many keys as have capacities of their own, and the others.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let declaration = Declaration::new().set(
    ///     SetDeclaration::new("api")
    ///         .keyed(Keyed::new(1_000).overrides(true))
    ///         .limit(Limit::calls("requests", 1, Duration::from_secs(3600))),
    /// );
    /// let segment = Segment::create(folder.path().join("limits"), &declaration)?;
    /// let api = segment.set("api")?;
    /// let tenant = api.key("tenant-7")?;
    /// tenant.override_capacity("requests", 2)?;
    /// assert_eq!(tenant.overrides()?, [("requests".to_owned(), 2)]);
    /// for _ in 0..2 {
    ///     assert!(tenant.check(&api.request())?.is_admitted());
    /// }
    /// assert!(!tenant.check(&api.request())?.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::UnknownLimit`]; [`Error::CannotOverride`] where the set has no overrides, the limit has no capacity that
    /// can be another, that one cannot be declared or is `u64::MAX`, which stands for unlimited, or the concurrency limits of the key would add up to more than the
    /// [holds](crate::SetDeclaration::holds) of a shard and than declared; [`Error::TableFull`] where the key has no row and can have none;
    /// [`Error::Removed`], [`Error::LockStuck`], [`Error::Poisoned`].
    pub fn override_capacity(&self, limit: impl LimitName, capacity: u64) -> Result<(), Error> {
        let set = self.subject.set;
        let index = set.require(&limit)?;
        let own = set.own_capacity(index, capacity)?;
        self.change_capacity(index, Some(own))
    }

    /// Takes the key's capacity of its own of a limit away: what the declaration or its tier says is in force again. Does
    /// nothing where it has none.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownLimit`]; [`Error::Removed`], [`Error::LockStuck`], [`Error::Poisoned`].
    pub fn clear_override(&self, limit: impl LimitName) -> Result<(), Error> {
        let index = self.subject.set.require(&limit)?;
        self.change_capacity(index, None)
    }

    /// The limits of which the key has capacities of its own, with those, in units and in the order of the declaration.
    ///
    /// # Errors
    ///
    /// [`Error::Removed`], [`Error::LockStuck`], [`Error::Poisoned`].
    pub fn overrides(&self) -> Result<Vec<(String, u64)>, Error> {
        let set = self.subject.set;
        let target = self.subject.target();
        let Some(key) = target.key else {
            return Ok(Vec::new());
        };
        let own = set.shared().engine.own_capacities(target.part(), key)?;
        let named =
            |(index, capacity): (usize, NonZeroU64)| (set.engine_set().limit_name(index), capacity.get());
        Ok(own.into_iter().map(named).collect())
    }

    fn change_capacity(&self, index: usize, capacity: Option<NonZeroU64>) -> Result<(), Error> {
        let set = self.subject.set;
        let target = self.subject.target();
        let Some(key) = target.key else {
            return Ok(());
        };
        let engine = &set.shared().engine;
        match engine.override_capacity(target.part(), key, index, capacity)? {
            Overridden::Done => Ok(()),
            Overridden::NoRow => Err(Error::TableFull {
                set: set.name().to_owned(),
            }),
            Overridden::TooFewHolds { holds, concurrency } => {
                let reason = format!(
                    "the key could hold {concurrency} at once, and {holds} holds are too few for that; declare \
                     `holds` for as many, which takes a new segment"
                );
                Err(set.cannot_override(index, capacity.map_or(0, NonZeroU64::get), reason))
            }
        }
    }
}

impl LimitSet {
    /// A capacity that a key can have of its own in whatever tier, or why not.
    fn own_capacity(&self, index: usize, capacity: u64) -> Result<NonZeroU64, Error> {
        let set = self.engine_set();
        // Another definition may have come into force since this process heard of one.
        self.shared().engine.definitions().keep_up(set);
        let refused = |reason: String| self.cannot_override(index, capacity, reason);
        let Some(own) = NonZeroU64::new(capacity) else {
            return Err(refused("a capacity is at least 1".to_owned()));
        };
        // The word for it in a declaration.
        if capacity == u64::MAX {
            return Err(refused(
                "unlimited is no capacity of a key's own; give a number".to_owned(),
            ));
        }
        for limit in set.shown().in_every_tier(index) {
            match LimitRules::with_capacity(limit, capacity) {
                Ok(Some(_)) => {}
                Ok(None) if set.has_overrides() => {
                    let reason = "it is unlimited, or finds its capacity by itself";
                    return Err(refused(reason.to_owned()));
                }
                Ok(None) => {
                    let reason = "declare the set with keyed = { max_keys = 100_000, overrides = true }";
                    return Err(refused(reason.to_owned()));
                }
                Err(invalid) => return Err(refused(invalid.to_string())),
            }
        }
        Ok(own)
    }
    #[cold]
    fn cannot_override(&self, index: usize, capacity: u64, reason: String) -> Error {
        Error::CannotOverride {
            set: self.name().to_owned(),
            limit: self.engine_set().limit_name(index),
            capacity,
            reason,
        }
    }
}
