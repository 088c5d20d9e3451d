//! Which tier of its set a key is in.

use super::Key;
use crate::api::declaration::set::tier::DEFAULT_TIER;
use crate::api::request::Request;
use crate::api::set::limit_set::LimitSet;
use crate::engine::TierIndex;
use crate::error::{ChangeError, Error, RequestError};

impl LimitSet {
    /// The names of the tiers that keys can be in, `default` first; that alone where the set declares
    /// [none](crate::SetDeclaration::add_tier).
    pub fn tiers(&self) -> impl Iterator<Item = &str> {
        let tiers = &self.engine_set().shown().plan.tiers;
        std::iter::once(DEFAULT_TIER).chain(tiers.iter().map(|tier| tier.name.as_str()))
    }

    /// As [`Key::assign`], of one key.
    ///
    /// # Errors
    ///
    /// As [`Key::assign`], and as [`key`](Self::key).
    pub fn assign(&self, key: impl AsRef<[u8]>, tier: impl AsRef<str>) -> Result<(), Error> {
        self.key(key)?.assign(tier)
    }

    /// The tier of that name.
    fn tier_index(&self, name: &str) -> Result<TierIndex, Error> {
        if name == DEFAULT_TIER {
            return Ok(TierIndex::default());
        }
        let set = self.engine_set();
        let known = || set.shown().find_tier(name);
        known()
            .or_else(|| {
                // It may have been added since this process heard of a change.
                self.shared().engine.definitions().keep_up(set);
                known()
            })
            .ok_or_else(|| {
                Error::Request(RequestError::UnknownTier {
                    set: self.name().to_owned(),
                    tier: name.to_owned(),
                    known: self.tiers().map(str::to_owned).collect(),
                })
            })
    }

    pub(crate) fn tier_name(&self, tier: TierIndex) -> &str {
        self.engine_set().shown().tier_name(tier).unwrap_or(DEFAULT_TIER)
    }
}

impl Key<'_> {
    /// Puts the key into a [tier](crate::Tier) of its set, in which it stays until it is assigned to another or a
    /// [request](Request::with_tier) names one. `default` is the tier of the limits as they are declared.
    ///
    /// What the key has used migrates as with [`Segment::apply`](crate::Segment::apply): a bucket keeps what is left in
    /// it, at most its new burst, windows keep what they count, and what is held stays held. What was reserved before is
    /// refunded as much as time has not replenished since, of reservations that saw one change of tier; of those that saw
    /// more, nothing. Then the waiters are served by the new limits.
    ///
    /// An assigned tier is kept like usage: as long as it is not `default`, the row of the key goes to no other key,
    /// unless the set is declared to [evict](crate::WhenFull); then the key begins again in `default`. So declare
    /// [`max_keys`](crate::Keyed::new) for as many keys as are assigned, and the others.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration, Tier};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// let declaration = Declaration::new().add_set(
    ///     SetDeclaration::new("api")
    ///         .keyed(Keyed::new(1_000))
    ///         .add_limit(Limit::calls("requests", 1, Duration::from_secs(3600)))
    ///         .add_tier(Tier::new("gold").capacity("requests", 2)),
    /// );
    /// let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let api = segment.set("api")?;
    /// let tenant = api.key("tenant-7")?;
    /// tenant.assign("gold")?;
    /// assert_eq!(tenant.tier()?, "gold");
    /// for _ in 0..2 {
    ///     assert!(tenant.check(&api.request())?.is_admitted());
    /// }
    /// assert!(!tenant.check(&api.request())?.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownTier`]; [`ChangeError::TableFull`] where the key has no row and can have none;
    /// [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned).
    pub fn assign(&self, tier: impl AsRef<str>) -> Result<(), Error> {
        let set = self.subject.set;
        let tier = set.tier_index(tier.as_ref())?;
        let target = self.subject.target();
        let has_row = match target.key {
            Some(key) => set.shared().engine.assign(target.shard(), key, tier)?,
            None => true,
        };
        if has_row {
            return Ok(());
        }
        Err(Error::Change(ChangeError::TableFull {
            set: set.name().to_owned(),
        }))
    }

    /// The tier that the key is in: `default` where it has no row.
    ///
    /// # Errors
    ///
    /// [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned).
    pub fn tier(&self) -> Result<String, Error> {
        let set = self.subject.set;
        let tier = set.shared().engine.tier_of(self.subject.target())?;
        Ok(set.tier_name(tier).to_owned())
    }
}

impl Request {
    /// As [`set_tier`](Self::set_tier).
    ///
    /// # Errors
    ///
    /// As [`set_tier`](Self::set_tier).
    pub fn with_tier(mut self, tier: impl AsRef<str>) -> Result<Self, Error> {
        self.set_tier(tier)?;
        Ok(self)
    }

    /// Names the [tier](crate::Tier) of the keys that the request is made for: each is put into it before it is decided
    /// on, and stays in it, also where the request is refused. For callers that know the tier of each key anyhow, as from
    /// its token.
    ///
    /// As the next request names the tier again, it is no reason to keep the row of a key that has nothing used any more,
    /// as that of an [assigned](Key::assign) key is. What only looks, and does not take, goes by the tier that the key is
    /// in.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownTier`].
    pub fn set_tier(&mut self, tier: impl AsRef<str>) -> Result<(), Error> {
        let tier = self.limit_set().tier_index(tier.as_ref())?;
        self.put_tier(tier);
        Ok(())
    }
}
