//! Capacities of single keys.

use std::num::NonZeroU64;

use super::Key;
use crate::api::request::Request;
use crate::api::set::limit_set::{LimitName, LimitSet};
use crate::engine::OwnCapacities;
use crate::error::{ChangeError, Error, RequestError};

impl Key<'_> {
    /// Gives the key its own capacity of a limit, in units. It replaces the declared capacity, until it is replaced
    /// or [cleared](Self::clear_override). The set must be declared with [`Keyed::overrides`](crate::Keyed::overrides),
    /// and so has no [tiers](crate::Tier).
    ///
    /// It changes the capacity as [`Segment::apply`](crate::Segment::apply) does: the window stays, a burst equal to
    /// the whole capacity follows it, a burst of its own stays as it is, and so does the rate of a leaky bucket
    /// declared by rate and interval. A sliding window keeps its number of entries. When another declaration is
    /// applied, the key keeps its capacity and gets the new window and burst.
    ///
    /// The key's usage migrates as with a change of tier: a bucket keeps what is left in it, up to its new burst,
    /// windows keep what they count, and what is held stays held. What was reserved before the change is not
    /// refunded. Then the waiters are served by the new capacity.
    ///
    /// No other key gets the row of a key with its own capacity, except in a set declared to
    /// [evict](crate::declare::WhenFull): `EvictLeastUsed` takes it if no other row will do, `EvictOldest` if it has
    /// gone unused the longest. An evicted key starts over as declared. So make [`max_keys`](crate::Keyed::new) large
    /// enough for all keys with capacities of their own and the others.
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
    ///     assert!(api.request().for_key("tenant-7")?.check()?.is_admitted());
    /// }
    /// assert!(!api.request().for_key("tenant-7")?.check()?.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownLimit`]; [`ChangeError::CannotOverride`] if the set has no overrides, the limit's
    /// capacity cannot be overridden, the capacity cannot be declared or is `u64::MAX` (which stands for unlimited),
    /// or the key's concurrency limits would add up to more than the [holds](crate::SetDeclaration::holds) of a shard
    /// and more than declared; [`ChangeError::TableFull`] if the key has no row and cannot get one;
    /// [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned).
    pub fn override_capacity(&self, limit: impl LimitName, capacity: u64) -> Result<(), Error> {
        let set = self.subject.set;
        let index = set.require(&limit)?;
        let own = set.own_capacity(index, capacity)?;
        self.change_capacity(index, Some(own))
    }

    /// Removes the key's own capacity of a limit, so that the declaration applies again. Does nothing if it has none.
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

    /// The limits for which the key has its own capacity, with that capacity in units, in the order of the
    /// declaration.
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
    /// Checks that a number can be a key's own capacity. Whether the limit can count with it is checked later, under
    /// the lock.
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
        if set.has_tiers() {
            let reason = "its keys belong to tiers: assign the key to one, or declare the set with `overrides` in place of \
                          tiers";
            return Err(refused(reason));
        }
        if !set.has_overrides() {
            let reason = "declare the set with keyed = { max_keys = 100_000, overrides = true }";
            return Err(refused(reason));
        }
        if set.is_overall(index) {
            return Err(refused("all keys share it, and none has a part of its own"));
        }
        // `u64::MAX` stands for unlimited in a declaration.
        if capacity == u64::MAX {
            return Err(refused("a key's own capacity cannot be unlimited; give a number"));
        }
        NonZeroU64::new(capacity).ok_or_else(|| refused("a capacity is at least 1"))
    }
}

impl Request<'_> {
    /// Builder form of [`set_override`](Self::set_override).
    ///
    /// # Errors
    ///
    /// See [`set_override`](Self::set_override).
    pub fn with_override(
        mut self,
        limit: impl LimitName,
        capacity: impl Into<Option<u64>>,
    ) -> Result<Self, Error> {
        self.set_override(limit, capacity)?;
        Ok(self)
    }

    /// Sets which [capacity of their own](Key::override_capacity) the request's keys have for a limit, in units; `None`
    /// for the declared capacity. For callers that know the quota of each key anyway, from its token for instance.
    ///
    /// A key with a different capacity gets this one before the decision, in the same critical section, and keeps it
    /// even if the request is refused. For a key that has it already, this costs one comparison. If concurrent requests
    /// name different capacities, each that is decided at once is decided by its own capacity, and the last one stays;
    /// a request that waits is served by the capacity that the key has when its turn comes.
    ///
    /// Because the next request names it again, the capacity is no reason to keep the row of a key that has nothing
    /// in use, unlike one from [`Key::override_capacity`], which keeps the row even if a request has changed it.
    /// Calls that look without taking use the key's current capacity.
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
    /// let request = api.request().for_key("tenant-7")?.with_override("requests", 500)?;
    /// for _ in 0..500 {
    ///     assert!(request.check()?.is_admitted());
    /// }
    /// assert!(!request.check()?.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::NotKeyed`]; [`RequestError::UnknownLimit`], unless the set's handle [skips](LimitSet::strict)
    /// unknown names; [`ChangeError::CannotOverride`] as for [`Key::override_capacity`], except that a conflict with
    /// the definition of the set or its holds shows only when the request is made.
    pub fn set_override(
        &mut self,
        limit: impl LimitName,
        capacity: impl Into<Option<u64>>,
    ) -> Result<(), Error> {
        let set = self.set();
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
