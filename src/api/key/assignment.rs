//! Which tier of its set a key is in.

use super::Key;
use crate::api::request::Request;
use crate::api::set::limit_set::LimitSet;
use crate::declaration::set::tier::DEFAULT_TIER;
use crate::engine::TierIndex;
use crate::error::{ChangeError, Error, RequestError};

impl LimitSet {
    /// The names of the tiers that keys can be in, `default` first. Only `default` if the set declares
    /// [none](crate::SetDeclaration::add_tier).
    pub fn tiers(&self) -> impl Iterator<Item = &str> {
        let tiers = &self.engine_set().shown().plan.tiers;
        std::iter::once(DEFAULT_TIER).chain(tiers.iter().map(|tier| tier.name.as_str()))
    }

    /// The index of the tier called `name`.
    fn tier_index(&self, name: &str) -> Result<TierIndex, Error> {
        if name == DEFAULT_TIER {
            return Ok(TierIndex::default());
        }
        let set = self.engine_set();
        let known = || set.shown().find_tier(name);
        known()
            .or_else(|| {
                // It may have been added since this process last looked for changes.
                self.shared().engine.definitions().keep_up(set);
                known()
            })
            .ok_or_else(|| {
                Error::Request(RequestError::UnknownTier {
                    set: self.name().to_owned(),
                    tier: name.to_owned(),
                    known: self.tiers().map(str::to_owned).collect(),
                    has_overrides: set.has_overrides(),
                })
            })
    }

    pub(crate) fn tier_name(&self, tier: TierIndex) -> &str {
        self.engine_set().shown().tier_name(tier).unwrap_or(DEFAULT_TIER)
    }
}

impl Key<'_> {
    /// Puts the key into a [tier](crate::Tier) of its set. It stays there until it is assigned to another tier or a
    /// [request](Request::with_tier) names one. `default` is the tier of the limits as declared.
    ///
    /// The key's usage migrates as with [`Segment::apply`](crate::Segment::apply): a bucket keeps what is left in it,
    /// up to its new burst, windows keep what they count, and what is held stays held. What was reserved before the
    /// change is not refunded. Then the waiters are served by the new limits.
    ///
    /// An assigned tier is kept like usage: unless the tier is `default`, no other key gets the key's row, except in
    /// a set declared to [evict](crate::declare::WhenFull), where an evicted key starts over in `default`. So make
    /// [`max_keys`](crate::Keyed::new) large enough for all assigned keys and the others.
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
    ///     assert!(api.request().for_key("tenant-7")?.check()?.is_admitted());
    /// }
    /// assert!(!api.request().for_key("tenant-7")?.check()?.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownTier`]; [`ChangeError::TableFull`] if the key has no row and cannot get one;
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

    /// The tier that the key is in: `default` if it has no row.
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

impl Request<'_> {
    /// Builder form of [`set_tier`](Self::set_tier).
    ///
    /// # Errors
    ///
    /// See [`set_tier`](Self::set_tier).
    pub fn with_tier(mut self, tier: impl AsRef<str>) -> Result<Self, Error> {
        self.set_tier(tier)?;
        Ok(self)
    }

    /// Names the [tier](crate::Tier) of the keys that the request is made for. Each key is put into it before the
    /// decision and stays in it, even if the request is refused. For callers that know the tier of each key anyway,
    /// from its token for instance.
    ///
    /// Because the next request names the tier again, the tier is no reason to keep the row of a key that has nothing
    /// in use, unlike that of an [assigned](Key::assign) key. Calls that look without taking use the tier that the
    /// key is in.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownTier`].
    pub fn set_tier(&mut self, tier: impl AsRef<str>) -> Result<(), Error> {
        let tier = self.set().tier_index(tier.as_ref())?;
        self.put_tier(tier);
        Ok(())
    }
}
