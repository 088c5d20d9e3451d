//! Capacities that single keys have of their own.

use std::num::NonZeroU64;

use super::Key;
use crate::api::request::Request;
use crate::api::set::limit_set::{LimitName, LimitSet};
use crate::engine::OwnCapacities;
use crate::error::{ChangeError, Error, RequestError};

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
    /// and for a dead process, nothing. Then the waiters are served by the new capacity.
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
    /// # let directory = tempfile::tempdir()?;
    /// let declaration = Declaration::new().add_set(
    ///     SetDeclaration::new("api")
    ///         .keyed(Keyed::new(1_000).overrides(true))
    ///         .add_limit(Limit::calls("requests", 1, Duration::from_secs(3600))),
    /// );
    /// let segment = Segment::create(directory.path().join("limits"), &declaration)?;
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
    /// [`RequestError::UnknownLimit`]; [`ChangeError::CannotOverride`] where the set has no overrides, the limit has no
    /// capacity that can be another, that one cannot be declared or is `u64::MAX`, which stands for unlimited, or the
    /// concurrency limits of the key would add up to more than the [holds](crate::SetDeclaration::holds) of a shard and
    /// than declared; [`ChangeError::TableFull`] where the key has no row and can have none;
    /// [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned).
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
    /// [`RequestError::UnknownLimit`]; [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned).
    pub fn clear_override(&self, limit: impl LimitName) -> Result<(), Error> {
        let index = self.subject.set.require(&limit)?;
        self.change_capacity(index, None)
    }

    /// The limits of which the key has capacities of its own, with those, in units and in the order of the declaration.
    ///
    /// # Errors
    ///
    /// [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned).
    pub fn overrides(&self) -> Result<Vec<(String, u64)>, Error> {
        let set = self.subject.set;
        let target = self.subject.target();
        let Some(key) = target.key else {
            return Ok(Vec::new());
        };
        let own = set.shared().engine.own_capacities(target.shard(), key)?;
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
        let own = OwnCapacities::of_one(index, capacity);
        if engine.override_capacities(target.shard(), key, &own)? {
            return Ok(());
        }
        Err(Error::Change(ChangeError::TableFull {
            set: set.name().to_owned(),
        }))
    }
}

impl LimitSet {
    /// A number as a capacity of a key's own, which a limit of the set may have. Whether it can count with that is known
    /// under its lock.
    fn own_capacity(&self, index: usize, capacity: u64) -> Result<NonZeroU64, Error> {
        let set = self.engine_set();
        let refused = |reason: &str| {
            Error::Change(ChangeError::CannotOverride {
                set: self.name().to_owned(),
                limit: set.limit_name(index),
                capacity,
                reason: reason.to_owned(),
            })
        };
        if !set.has_overrides() {
            let reason = "declare the set with keyed = { max_keys = 100_000, overrides = true }";
            return Err(refused(reason));
        }
        // The word for it in a declaration.
        if capacity == u64::MAX {
            return Err(refused("unlimited is no capacity of a key's own; give a number"));
        }
        NonZeroU64::new(capacity).ok_or_else(|| refused("a capacity is at least 1"))
    }
}

impl Request {
    /// As [`set_override`](Self::set_override).
    ///
    /// # Errors
    ///
    /// As [`set_override`](Self::set_override).
    pub fn with_override(
        mut self,
        limit: impl LimitName,
        capacity: impl Into<Option<u64>>,
    ) -> Result<Self, Error> {
        self.set_override(limit, capacity)?;
        Ok(self)
    }

    /// Says which [capacity of its own](Key::override_capacity) of a limit the keys have that the request is made for, in
    /// units; none for that of the declaration or the tier. For callers that know the quota of each key anyhow, as from its
    /// token.
    ///
    /// A key that has another gets this one before it is decided on, in the same critical section, and keeps it, also where
    /// the request is refused. A key that has it already costs a look. Where requests at the same time say different
    /// capacities, each is decided by its own where it is decided at once, and the last one stays; one that waits is
    /// served by that which the key has when its turn comes.
    ///
    /// As the next request says it again, it is no reason to keep the row of a key that has nothing used any more, as a
    /// capacity from [`Key::override_capacity`] is. That keeps its row also where a request has changed it. What only
    /// looks, and does not take, goes by what the key has.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// let declaration = Declaration::new().add_set(
    ///     SetDeclaration::new("api")
    ///         .keyed(Keyed::new(1_000).overrides(true))
    ///         .add_limit(Limit::calls("requests", 1, Duration::from_secs(3600))),
    /// );
    /// let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let api = segment.set("api")?;
    /// let tenant = api.key("tenant-7")?;
    /// let request = api.request().with_override("requests", 500)?;
    /// for _ in 0..500 {
    ///     assert!(tenant.check(&request)?.is_admitted());
    /// }
    /// assert!(!tenant.check(&request)?.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::NotKeyed`]; [`RequestError::UnknownLimit`], unless the set's handle [skips](LimitSet::strict) names
    /// that it does not have; [`ChangeError::CannotOverride`] as [`Key::override_capacity`], where the capacity does not
    /// fit the definition of the set or its holds only when the request is made.
    pub fn set_override(
        &mut self,
        limit: impl LimitName,
        capacity: impl Into<Option<u64>>,
    ) -> Result<(), Error> {
        let set = self.limit_set();
        if !set.is_keyed() {
            return Err(Error::Request(RequestError::NotKeyed {
                set: set.name().to_owned(),
            }));
        }
        let Some(index) = set.resolve(&limit)? else {
            return Ok(());
        };
        let own = capacity.into().map(|capacity| set.own_capacity(index, capacity));
        let own = own.transpose()?;
        self.put_override(index, own);
        Ok(())
    }
}
