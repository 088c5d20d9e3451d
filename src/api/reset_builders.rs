//! Back to the beginning: replenishing limits and zeroing counters, of a set, of a key or of an address.

use super::key::Key;
use super::key::address::Address;
use super::set::limit_set::{LimitName, LimitSet};
use crate::engine::ResetScope;
use crate::error::{Error, RequestError};

/// A reset of a set, to be [run](Self::run). See [`LimitSet::reset`].
#[derive(Debug)]
#[must_use = "nothing is reset before it is run"]
pub struct SetReset<'a> {
    set: &'a LimitSet,
    limits: Limits,
    counters: bool,
}

/// A reset of a key, or of the networks of an address, to be [run](Self::run). See [`Key::reset`] and
/// [`Address::reset`].
#[derive(Debug)]
#[must_use = "nothing is reset before it is run"]
pub struct KeyReset<'a> {
    whose: Whose<'a>,
    limits: Limits,
}

#[derive(Debug)]
enum Whose<'a> {
    Key(&'a Key<'a>),
    Address(&'a Address<'a>),
}

impl<'a> Whose<'a> {
    fn set(&self) -> &'a LimitSet {
        match self {
            Self::Key(key) => key.subject.set,
            Self::Address(address) => address.set,
        }
    }
}

/// The limits to replenish, as a bit mask: all of them until some are named.
#[derive(Debug)]
struct Limits(Result<u32, Error>);

impl Limits {
    fn all_of(set: &LimitSet) -> Self {
        Self(Ok(set.engine_set().all_limits()))
    }

    /// Those that each key has for itself.
    fn of_each_key(set: &LimitSet) -> Self {
        let set = set.engine_set();
        Self(Ok(set.all_limits() & !u32::from(set.overall.0)))
    }

    /// An error if a named limit is one of all keys together.
    fn named_of_each_key<N: LimitName>(set: &LimitSet, limits: impl IntoIterator<Item = N>) -> Self {
        let engine = set.engine_set();
        let named = Self::named(set, limits).0;
        Self(named.and_then(|mask| {
            let mut overall = (0..engine.limits.len()).filter(|index| engine.is_overall(*index));
            match overall.find(|index| mask & (1 << index) != 0) {
                None => Ok(mask),
                Some(limit) => Err(Error::Request(RequestError::NotOfOneKey {
                    set: set.name().to_owned(),
                    limit: engine.limit_name(limit),
                })),
            }
        }))
    }

    fn named<N: LimitName>(set: &LimitSet, limits: impl IntoIterator<Item = N>) -> Self {
        let mut limits = limits.into_iter();
        Self(limits.try_fold(0, |mask, limit| Ok(mask | 1 << set.require(&limit)?)))
    }
}

impl LimitSet {
    /// Replenishes limits. What is held stays held. A reset of all limits also repairs a poisoned set.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let minute = Duration::from_secs(60);
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("chat")
    /// #     .add_limit(Limit::calls("requests", 1, minute)).add_limit(Limit::rate("tokens", 1_000, minute)));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let chat = segment.set("chat")?;
    /// chat.reset().limits(["tokens"]).run()?;
    /// chat.reset().counters().run()?; // all limits, and what was counted
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset(&self) -> SetReset<'_> {
        SetReset {
            set: self,
            limits: Limits::all_of(self),
            counters: false,
        }
    }
}

impl SetReset<'_> {
    /// Replenishes only these limits. If there are none, nothing but the counters is reset.
    pub fn limits<N: LimitName>(mut self, limits: impl IntoIterator<Item = N>) -> Self {
        self.limits = Limits::named(self.set, limits);
        self
    }

    /// Sets the counters of the set and of all its limits to zero as well.
    pub fn counters(mut self) -> Self {
        self.counters = true;
        self
    }

    /// Carries out the reset. If the process dies midway, the next process that uses the set finishes it.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownLimit`], [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::LockLost`](crate::SegmentError::LockLost),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned) unless all limits are reset.
    pub fn run(self) -> Result<(), Error> {
        let scope = ResetScope {
            limits: self.limits.0?,
            counters: self.counters,
        };
        for shard in self.set.engine_set().shards() {
            self.set.shared().engine.reset(shard, scope)?;
        }
        Ok(())
    }
}

impl Key<'_> {
    /// Replenishes limits of this key: see [`LimitSet::reset`]. What it holds stays held, and what it took from the
    /// limits of [all keys](crate::Limit::scope) stays taken.
    pub fn reset(&self) -> KeyReset<'_> {
        KeyReset {
            whose: Whose::Key(self),
            limits: Limits::of_each_key(self.subject.set),
        }
    }
}

impl Address<'_> {
    /// Replenishes limits of all networks that contain the address, one network after the other: see
    /// [`LimitSet::reset`].
    pub fn reset(&self) -> KeyReset<'_> {
        KeyReset {
            whose: Whose::Address(self),
            limits: Limits::all_of(self.set),
        }
    }
}

impl KeyReset<'_> {
    /// Replenishes only these limits.
    pub fn limits<N: LimitName>(mut self, limits: impl IntoIterator<Item = N>) -> Self {
        self.limits = Limits::named_of_each_key(self.whose.set(), limits);
        self
    }

    /// Carries out the reset. Returns whether the key, or any of the networks, has a row: if not, nothing of it is in
    /// use.
    ///
    /// # Errors
    ///
    /// [`RequestError::NotOfOneKey`], and see [`SetReset::run`].
    pub fn run(self) -> Result<bool, Error> {
        let set = self.whose.set();
        let engine = &set.shared().engine;
        let limits = self.limits.0?;
        Ok(match self.whose {
            Whose::Key(key) => {
                let target = key.subject.target();
                match target.key {
                    Some(key) => engine.reset_key(target.shard(), key, limits)?,
                    None => false,
                }
            }
            Whose::Address(address) => engine.reset_networks(set.engine_set(), &address.networks, limits)?,
        })
    }
}
