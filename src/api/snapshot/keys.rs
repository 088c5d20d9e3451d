//! Snapshots of single keys.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::time::Duration;

use serde::Serialize;

use super::amounts::{capacity, format_units};
use super::key_in_order::KeyInOrder;
use super::key_label::KeyLabel;
use super::{SegmentReader, SnapshotSource, as_seconds};
use crate::api::key::identify::identify;
use crate::choices::Kind;
use crate::engine::{LimitRules, ObservedKey, RowLooker, RuledShard, SetEngine, Shard};
use crate::error::{Error, RequestError};
use crate::limit::{KeyLeaseState, RuleOperations};

/// A key of a keyed set and the state of its limits. Consistent unless `torn` is set.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct KeySnapshot {
    /// Which key this is.
    pub key: KeyLabel,
    /// Whether it kept changing while it was read, so that the values may be from different moments.
    pub torn: bool,
    /// Its [tier](crate::Tier), if that is not `default`.
    pub tier: Option<String>,
    /// Whether it was [assigned](crate::Key::assign) to the tier, which keeps its row.
    pub tier_assigned: bool,
    /// Requests admitted since the key got its row, or since the last reset of the counters. Saturates at 2^32 - 1.
    pub admitted: u32,
    /// Requests refused, counted like `admitted`.
    pub refused: u32,
    /// How long ago the last decision about it was made.
    #[serde(serialize_with = "as_seconds")]
    pub unused_for: Duration,
    /// How much longer it is [throttled](crate::Permit::throttled); zero if it is not.
    #[serde(serialize_with = "as_seconds")]
    pub throttled_for: Duration,
    /// Whether all its limits are as if never used. If nothing is held and nothing waits either, the next key that
    /// needs a row gets this one.
    pub replenished: bool,
    /// Permits that hold something of its limits, including grants not yet collected, but not those of dead processes.
    pub held: u64,
    /// Permits of dead processes that hold something of its limits, and those whose leases have all run out. The next
    /// request that needs what they hold takes it back.
    pub of_dead: u64,
    /// Requests in its queue.
    pub queued: u64,
    /// Its standing among the keys that wait for [limits of all keys](crate::Limit::scope), if the first request in its
    /// queue waits for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_order: Option<KeyInOrder>,
    /// Whether it lies in the second of the two buckets that it may be in.
    pub second_bucket: bool,
    /// The limits that it has for itself, in the order of the declaration: those of [all keys](crate::Limit::scope) are
    /// in the snapshot of the set. If limits count [networks](crate::Limit::prefix), only those that count this one, or
    /// all of them if it is not known which do.
    pub limits: Vec<KeyLimitSnapshot>,
}

/// The state of a limit for one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeyLimitSnapshot {
    /// The limit's name.
    pub name: String,
    /// How it is taken.
    pub kind: Kind,
    /// The size of a unit as it was [declared](crate::Limit::unit), such as `0.01`; `1` for whole amounts.
    pub unit: String,
    /// The most units that can be left: the burst, the places, or what a window has; `None` if unlimited.
    pub capacity: Option<u64>,
    /// The key's [own capacity](crate::Key::override_capacity) in units; `None` if that of its tier is in force.
    pub override_capacity: Option<u64>,
    /// For an [adaptive](crate::Limit::adaptive) limit, its current capacity.
    pub found_capacity: Option<u64>,
    /// Units that could be taken now.
    pub remaining: u64,
    /// Units held by dead processes, or for longer than their lease. They count as free, because a request that needs
    /// them gets them.
    pub of_dead: u64,
    /// How long until it is completely replenished.
    #[serde(serialize_with = "as_seconds")]
    pub reset_after: Duration,
    /// What this host has leased for the key, if [hosts share](crate::Limit::fleet) the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<KeyLeaseSnapshot>,
}

/// What a host has leased of a limit for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeyLeaseSnapshot {
    /// Units that are leased and not spent; zero if the lease is over.
    pub left: u64,
    /// How much longer they may be spent; zero if nothing is leased.
    #[serde(serialize_with = "as_seconds")]
    pub valid_for: Duration,
    /// How long the store has said it will have no unit for the key; zero if it has not said so, or that time is over.
    /// Until then nothing is admitted [unleased](crate::declare::FleetLease::unleased).
    #[serde(serialize_with = "as_seconds")]
    pub free_in: Duration,
    /// Units spent that the store does not know of yet.
    pub unreported: u64,
    /// Whether the store has been asked and has not answered yet.
    pub asking: bool,
}

impl KeyLeaseSnapshot {
    fn of(state: KeyLeaseState) -> Self {
        Self {
            left: state.left,
            valid_for: Duration::from_nanos(state.valid_for),
            free_in: Duration::from_nanos(state.free_in),
            unreported: state.unreported,
            asking: state.is_asking,
        }
    }
}

impl KeyLimitSnapshot {
    /// A number of units as a decimal number in the terms of the declaration: `12.5` for 1,250 units of `0.01`.
    pub fn format_units(&self, units: u64) -> String {
        format_units(&self.unit, units)
    }
}

impl KeySnapshot {
    /// A snapshot of `set` before any key was read.
    fn of_nothing(set: &SetEngine) -> Self {
        let limit = |limit: &LimitRules| KeyLimitSnapshot {
            name: set.limit_name(limit.index),
            kind: limit.kind,
            unit: set.limit_unit(limit.index),
            capacity: capacity(limit),
            override_capacity: None,
            found_capacity: None,
            remaining: 0,
            of_dead: 0,
            reset_after: Duration::ZERO,
            lease: None,
        };
        Self {
            key: KeyLabel::default(),
            torn: false,
            tier: None,
            tier_assigned: false,
            admitted: 0,
            refused: 0,
            unused_for: Duration::ZERO,
            throttled_for: Duration::ZERO,
            replenished: false,
            held: 0,
            of_dead: 0,
            queued: 0,
            in_order: None,
            second_bucket: false,
            limits: set.shown().limits.iter().map(limit).collect(),
        }
    }

    fn new(set: &SetEngine, shard: RuledShard<'_>, seen: &mut ObservedKey) -> Self {
        let mut snapshot = Self::of_nothing(set);
        let limits = snapshot.limits.clone();
        snapshot.fill(shard, seen, &limits);
        snapshot
    }

    /// Overwrites this with what was read of a key. `limits` are all limits of the set.
    fn fill(&mut self, shard: RuledShard<'_>, seen: &mut ObservedKey, limits: &[KeyLimitSnapshot]) {
        let is_its = |index: usize| seen.limits & (1 << index) != 0;
        if self.limits.len() != limits.len() || seen.limits != shard.set.all_limits() {
            self.limits = limits
                .iter()
                .enumerate()
                .filter(|(index, _)| is_its(*index))
                .map(|(_, limit)| limit.clone())
                .collect();
        }
        self.key = KeyLabel::new(seen.fingerprint, seen.name.take());
        self.torn = seen.torn;
        let rules = shard.rules.of_tier(seen.tier.tier);
        self.tier = shard.rules.tier_name(seen.tier.tier).map(str::to_owned);
        self.tier_assigned = self.tier.is_some() && seen.tier.is_assigned;
        self.admitted = seen.counts.admitted;
        self.refused = seen.counts.refused;
        self.unused_for = Duration::from_nanos(seen.unused_for);
        self.throttled_for = Duration::from_nanos(seen.throttled_for);
        self.replenished = seen.is_replenished;
        self.held = seen.pins;
        self.of_dead = seen.pins_of_dead;
        self.queued = seen.queued;
        self.in_order = seen.in_order.map(KeyInOrder::of);
        self.second_bucket = seen.is_in_second_bucket;
        let seen_of_limits = seen.marks.iter().zip(&seen.own_capacities);
        let standings = rules.limits.iter().zip(seen_of_limits);
        let standings = standings.filter(|(limit, _)| is_its(limit.index));
        for (snapshot, (limit, (mark, own_capacity))) in self.limits.iter_mut().zip(standings) {
            let limit = limit.by_capacity(*own_capacity);
            let standing = limit.rule.standing(*mark);
            snapshot.override_capacity = own_capacity.map(NonZeroU64::get);
            snapshot.capacity = capacity(&limit);
            snapshot.found_capacity = limit.rule.found_capacity(*mark);
            snapshot.remaining = standing.remaining;
            snapshot.of_dead = seen.of_dead.get(limit.index).copied().unwrap_or(0);
            snapshot.reset_after = Duration::from_nanos(standing.reset_after);
            let lease = seen.leases.get(limit.index).copied().flatten();
            snapshot.lease = lease.map(KeyLeaseSnapshot::of);
        }
    }
}

impl SegmentReader {
    /// Calls `visit` for each key of a set that has a row, in no particular order. Uses no more memory for many keys
    /// than for one. Keys that come or go in the meantime may or may not be shown.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::snapshot::SegmentReader;
    /// use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// let declaration = Declaration::new().add_set(
    ///     SetDeclaration::new("api")
    ///         .keyed(Keyed::new(100_000))
    ///         .add_limit(Limit::calls("requests", 100, Duration::from_secs(60))),
    /// );
    /// let segment = Segment::create(&path, &declaration)?;
    /// let api = segment.set("api")?;
    /// drop(api.request().for_key("tenant-7")?.try_acquire()?);
    ///
    /// let mut busiest = None;
    /// SegmentReader::open(&path)?.key_snapshots("api", |key| {
    ///     if busiest.as_ref().is_none_or(|(admitted, _)| key.admitted > *admitted) {
    ///         busiest = Some((key.admitted, key.key.text().map(str::to_owned)));
    ///     }
    /// })?;
    /// assert_eq!(busiest, Some((1, Some("tenant-7".to_owned()))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSet`], [`RequestError::NotKeyed`].
    pub fn key_snapshots(&self, set: &str, visit: impl FnMut(&KeySnapshot)) -> Result<(), Error> {
        self.file_with(set)?.look(|source| source.visit_keys(set, visit))
    }

    /// One key of a set; `None` if it has no row, which is as if it had never been used.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSet`], [`RequestError::NotKeyed`], [`RequestError::InvalidKey`],
    /// [`RequestError::AddressRequired`].
    pub fn key_snapshot(&self, set: &str, key: impl AsRef<[u8]>) -> Result<Option<KeySnapshot>, Error> {
        self.file_with(set)?
            .look(|source| source.find_key(set, key.as_ref()))
    }

    /// The networks that contain an address, the largest first, each with the limits that count it: see
    /// [`LimitSet::address`](crate::LimitSet::address). Networks without a row are left out.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSet`], [`RequestError::NoPrefixes`].
    pub fn address_snapshots(&self, set: &str, address: IpAddr) -> Result<Vec<KeySnapshot>, Error> {
        self.file_with(set)?
            .look(|source| source.find_networks(set, address))
    }
}

impl<'a> SnapshotSource<'a> {
    pub(crate) fn visit_keys(&self, set: &str, mut visit: impl FnMut(&KeySnapshot)) -> Result<(), Error> {
        let set = self.find_set(set)?;
        if !set.is_keyed() {
            return Err(Error::Request(RequestError::NotKeyed {
                set: set.name.to_string(),
            }));
        }
        self.definitions.keep_up(set);
        let mut snapshot = KeySnapshot::of_nothing(set);
        let limits = snapshot.limits.clone();
        for shard in set.shards().map(Shard::by_its_definition) {
            let mut looker = self.looker(shard);
            for row in 0..shard.memory.row_count() {
                if looker.look_at(row) {
                    snapshot.fill(shard, &mut looker.seen, &limits);
                    visit(&snapshot);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn find_key(&self, set: &str, key: &[u8]) -> Result<Option<KeySnapshot>, Error> {
        let set = self.find_set(set)?;
        let key = identify(set, key)?;
        self.definitions.keep_up(set);
        let shard = set.shard_of(Some(&key)).by_its_definition();
        let mut looker = self.looker(shard);
        Ok(looker
            .look_for(&key)
            .then(|| KeySnapshot::new(set, shard, &mut looker.seen)))
    }

    pub(crate) fn find_networks(&self, set: &str, address: IpAddr) -> Result<Vec<KeySnapshot>, Error> {
        let set = self.find_set(set)?;
        self.definitions.keep_up(set);
        let mut networks = set.networks_of(address);
        if networks.is_empty() {
            return Err(Error::Request(RequestError::NoPrefixes {
                set: set.name.to_string(),
            }));
        }
        // Limits with different prefix lengths may count the same network.
        networks.dedup();
        let shard = set.shard_of_networks(&networks).by_its_definition();
        let mut looker = self.looker(shard);
        let mut found = Vec::new();
        for network in &networks {
            if looker.look_for_network(network) {
                found.push(KeySnapshot::new(set, shard, &mut looker.seen));
            }
        }
        Ok(found)
    }

    fn find_set(&self, name: &str) -> Result<&'a SetEngine, Error> {
        let found = self.sets.iter().find(|set| set.name == name);
        found.map(|set| &**set).ok_or_else(|| {
            Error::Request(RequestError::UnknownSet {
                name: name.to_owned(),
                known: self.sets.iter().map(|set| set.name.clone()).collect(),
            })
        })
    }

    fn looker<'p>(&self, shard: RuledShard<'p>) -> RowLooker<'p> {
        RowLooker::new(shard, self.now, |owner| self.owners.is_alive(owner))
    }
}
