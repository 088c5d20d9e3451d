//! A copy of everything in a segment, taken without a lock.

mod amounts;
mod counts;
mod diagnosis;
mod fleet_state;
mod joined;
mod key_in_order;
mod key_label;
mod keys;
mod lock_snapshot;
mod reader;
mod seconds;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;

use super::fleet::{FleetSnapshot, LeaseSnapshot};
use crate::choices::{Kind, LockKind, Scope};
use crate::declaration::Declaration;
use crate::engine::{
    DeadHolds, Definitions, LimitRules, ObservedHold, ObservedTicket, RowCopy, RuledShard, SetEngine, Shard,
    ShardAt, ShardObservation, observe_shard,
};
use crate::error::{Error, OpenError, ProcessId};
use crate::limit::{Mark, Now, RuleOperations};
use crate::shm::file::region::Region;
use crate::shm::file::segment_file::damaged;
use crate::shm::layout::records::{FORMAT, Header, WAIT_BUCKETS, is_poison};
use crate::shm::process::participant::{ParticipantId, ParticipantTable};
use crate::shm::process::shard_locks::LockState;
use crate::shm::time::clock::{boot_nanos, utc_nanos};
use crate::sorting::map_of;
use amounts::{capacity, format_units};
use fleet_state::fleet_state;

use counts::load;
pub use counts::{LimitCounts, SetCounts};
pub use diagnosis::{Diagnosis, SegmentPlace, ShardDiagnosis};
pub use key_in_order::KeyInOrder;
pub use key_label::{KeyFingerprint, KeyLabel};
pub use keys::{KeyLeaseSnapshot, KeyLimitSnapshot, KeySnapshot};
pub use lock_snapshot::LockSnapshot;
pub(in crate::api) use reader::FileReader;
pub use reader::SegmentReader;
pub(in crate::api) use seconds::{as_seconds, as_seconds_if_any};

/// A copy of a segment. Each shard of a set is consistent, unless the set is marked as torn.
///
/// If the segment is a [directory](crate::Segment#a-file-for-each-set), this covers all its files together: the size
/// and the cold starts are sums, a process that is attached to several files is one participant, slots are renumbered,
/// and the capacity is the smallest.
///
/// When serialised, all times are numbers of seconds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SegmentSnapshot {
    /// The path of the file, or of the directory.
    pub path: PathBuf,
    /// The size of the file in bytes, or of all files of the directory.
    pub size: u64,
    /// The version number of the file format.
    pub format: u64,
    /// When this copy was begun, in nanoseconds since the host's boot.
    #[cfg(feature = "metrics")]
    #[serde(skip)]
    pub(in crate::api) begun: u64,
    /// When the segment was created, as the time since the Unix epoch; of several files, the first.
    #[serde(serialize_with = "as_seconds")]
    pub created_utc: Duration,
    /// Whether the segment was retired: see [`Segment::retire`](crate::Segment::retire).
    pub retired: bool,
    /// Whether the file belongs to this boot, these namespaces and this inode. If not, the next process to open it
    /// starts it cold: see the [crate's documentation](crate).
    pub same_place: bool,
    /// How many times it was started cold.
    pub cold_starts: u64,
    /// The kind of its locks.
    pub lock_kind: LockKind,
    /// The maximum number of attached processes.
    pub participant_capacity: u64,
    /// The attached processes, and those that died attached.
    pub participants: Vec<ParticipantSnapshot>,
    /// The segment's fleet, if it was declared with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetSnapshot>,
    /// The sets, in the order of the declaration.
    pub sets: Vec<SetSnapshot>,
}

/// A process, attached or dead.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ParticipantSnapshot {
    /// Its slot in the table.
    pub slot: u64,
    /// Tells this process from earlier ones in the same slot.
    pub generation: u64,
    /// Its process id.
    pub pid: u64,
    /// The PID namespace of `pid`, if it is not the caller's: see [`ProcessId`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<u64>,
    /// Its name when it attached. Not sanitised.
    pub name: String,
    /// When it attached, as the time since the Unix epoch.
    #[serde(serialize_with = "as_seconds")]
    pub joined_utc: Duration,
    /// Whether it is alive.
    pub alive: bool,
}

/// A copy of a set.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SetSnapshot {
    /// The set's name.
    pub name: String,
    /// When its file was created.
    #[cfg(feature = "metrics")]
    #[serde(skip)]
    pub(in crate::api) created: Duration,
    /// The set's declared metadata.
    pub metadata: BTreeMap<String, String>,
    /// What its file knows about the fleet, if the segment is a [directory](crate::Segment#a-file-for-each-set).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetSnapshot>,
    /// The version of the declaration in force, if it has one.
    pub version: Option<u64>,
    /// Whether an operator has changed it: see [`Segment::apply`](crate::Segment::apply).
    pub edited: bool,
    /// Whether the set kept changing while it was copied, so that the parts may not belong together.
    pub torn: bool,
    /// The state of the lock when the copy began.
    pub lock: LockSnapshot,
    /// How many words have been changed by an operation in progress, or by one whose process died; `None` during a
    /// reset or a rebuild.
    pub words_in_flight: Option<usize>,
    /// Whether a recovery could not repair the set.
    pub poisoned: bool,
    /// How much longer the set is [throttled](crate::Permit::throttled); zero if it is not, or is keyed and has no limits
    /// of [all keys](crate::Limit::scope).
    #[serde(serialize_with = "as_seconds")]
    pub throttled_for: Duration,
    /// The counters.
    pub counts: SetCounts,
    /// Permits that hold something, not counting those of dead processes.
    pub active: u64,
    /// Permits of dead processes, and those whose leases have all run out: the next request that needs what they hold
    /// takes it.
    pub of_dead: u64,
    /// How many permits can hold something at once.
    pub hold_capacity: u64,
    /// The limits, in the order of the declaration.
    pub limits: Vec<LimitSnapshot>,
    /// The holds in use.
    pub holds: Vec<HoldSnapshot>,
    /// How long admitted requests had waited: element *i* counts waits shorter than 2^*i* microseconds that no
    /// earlier element counts; the last of the 32 counts all longer ones.
    pub wait_times: Vec<u64>,
    /// The sum of all waits of admitted requests. Divided by [`SetCounts::waited`], it is the mean.
    #[serde(serialize_with = "as_seconds")]
    pub wait_time: Duration,
    /// How many requests can wait in the queue.
    pub waiter_capacity: u64,
    /// The tickets in use, in order of arrival.
    pub tickets: Vec<TicketSnapshot>,
    /// The table of keys, if the set is keyed. The counters then cover all keys together, and each limit that keys have
    /// for themselves is shown in the state of an unused key.
    pub keys: Option<KeysSnapshot>,
}

/// How full the table of a keyed set is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeysSnapshot {
    /// Rows that belong to a key, whether or not it has anything in use.
    pub in_use: u64,
    /// All rows.
    pub rows: u64,
    /// Rows that went to another key while the former one had nothing in use and so lost nothing.
    pub evicted_unused: u64,
    /// Rows that went to another key although the former one had something in use, which is forgotten.
    pub evicted_in_use: u64,
    /// Rows in use in the fullest bucket, out of 32. A key is looked up in at most two buckets.
    pub fullest_bucket: u64,
}

/// A copy of a limit.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LimitSnapshot {
    /// The limit's name.
    pub name: String,
    /// How it is taken.
    pub kind: Kind,
    /// The size of a unit as it was [declared](crate::Limit::unit), such as `0.01`; `1` for whole amounts.
    pub unit: String,
    /// The most units that can be left: the burst, the places, or what a window has; `None` if unlimited.
    pub capacity: Option<u64>,
    /// Whether each key has it for itself, or all keys have it together.
    #[serde(skip_serializing_if = "is_of_each_key")]
    pub scope: Scope,
    /// For an [adaptive](crate::Limit::adaptive) limit, its current capacity.
    pub found_capacity: Option<u64>,
    /// Units that could be taken now.
    pub remaining: u64,
    /// Units held by dead processes, or for longer than their lease. They count as free, because a request that needs
    /// them gets them. In a keyed set, the concurrency held in this way, for all keys together.
    pub of_dead: u64,
    /// How long until it is completely replenished.
    #[serde(serialize_with = "as_seconds")]
    pub reset_after: Duration,
    /// Its lease, if [hosts share](crate::Limit::fleet) it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseSnapshot>,
    /// The counters.
    pub counts: LimitCounts,
}

impl LimitSnapshot {
    /// A number of units as a decimal number in the terms of the declaration: `12.5` for 1,250 units of `0.01`.
    pub fn format_units(&self, units: u64) -> String {
        format_units(&self.unit, units)
    }
}

/// What a permit holds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HoldSnapshot {
    /// Its position in the table.
    pub index: u64,
    /// The number of the permit, counting those of the set that hold something.
    pub serial: u64,
    /// The slot of the process that holds it.
    pub owner_slot: Option<u64>,
    /// The process id of the holder, if it still has the slot.
    pub owner_pid: Option<u64>,
    /// The PID namespace of `owner_pid`, if it is not the caller's: see [`ProcessId`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_namespace: Option<u64>,
    /// Whether the holder is alive. What a dead process holds goes to the next process that needs it.
    pub owner_alive: bool,
    /// The key whose limits are held, if the set is keyed.
    pub key: Option<KeyLabel>,
    /// How long it has been held.
    #[serde(serialize_with = "as_seconds")]
    pub held_for: Duration,
    /// How long ago the first of its [leases](crate::Limit::lease) ran out; `None` if none has. What the lease
    /// covered goes to the next request that needs it.
    #[serde(serialize_with = "as_seconds_if_any", skip_serializing_if = "Option::is_none")]
    pub lease_over_for: Option<Duration>,
    /// Whether it was given back while another process held the lock. The next process that takes the lock frees it.
    pub returned: bool,
    /// The [label](crate::Request::label) of its request, if the set [keeps labels](crate::SetDeclaration::labels).
    /// Not sanitised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Units held, by limit.
    pub amounts: BTreeMap<String, u64>,
}

/// A place in the queue.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct TicketSnapshot {
    /// Numbers the waiters in order of arrival.
    pub number: u64,
    /// The slot of the process that waits; `None` if the ticket was given up.
    pub owner_slot: Option<u64>,
    /// The process id of the waiter, if it still has the slot.
    pub owner_pid: Option<u64>,
    /// The PID namespace of `owner_pid`, if it is not the caller's: see [`ProcessId`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_namespace: Option<u64>,
    /// Whether the waiting process is alive. The place of a dead one goes to the next.
    pub owner_alive: bool,
    /// Whether it was granted and has not collected the grant yet.
    pub granted: bool,
    /// Whether it is out of the queue because its process did not collect a grant, of this request or another. It
    /// returns to its place as soon as its process looks again.
    pub passed_over: bool,
    /// The key in whose queue it is, if the set is keyed.
    pub key: Option<KeyLabel>,
    /// How this key stands among those that wait for [limits of all keys](crate::Limit::scope), if it waits for some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_order: Option<KeyInOrder>,
    /// How long it has been waiting.
    #[serde(serialize_with = "as_seconds")]
    pub waiting_for: Duration,
    /// Units requested, by limit.
    pub costs: BTreeMap<String, u64>,
}

/// Whether a limit has the default scope, which is not written out.
fn is_of_each_key(scope: &Scope) -> bool {
    *scope == Scope::Key
}

/// The clocks of a segment that this process does not participate in.
fn kernel_time(header: &Header) -> Now {
    Now {
        monotonic: boot_nanos().wrapping_add(header.clock_offset.load(Ordering::Relaxed)),
        utc: utc_nanos(),
    }
}

/// Which owners are alive. Each is checked only once.
pub(crate) struct Owners<'a> {
    is_alive: &'a dyn Fn(ParticipantId) -> bool,
    known: RefCell<HashMap<u64, bool>>,
}

impl<'a> Owners<'a> {
    pub(crate) fn new(is_alive: &'a dyn Fn(ParticipantId) -> bool) -> Self {
        Self {
            is_alive,
            known: RefCell::default(),
        }
    }

    /// Whether the owner named by a word is alive. False for a word that names no participant.
    fn is_alive(&self, owner: u64) -> bool {
        let ask = || ParticipantId::from_word(owner).is_some_and(self.is_alive);
        *self.known.borrow_mut().entry(owner).or_insert_with(ask)
    }
}

/// The source of snapshots of a segment and of its keys.
pub(crate) struct SnapshotSource<'a> {
    pub(crate) path: &'a Path,
    pub(crate) region: &'a Region,
    pub(crate) sets: &'a [Arc<SetEngine>],
    pub(crate) definitions: Definitions<'a>,
    pub(crate) declaration: &'a Declaration,
    pub(crate) table: &'a ParticipantTable,
    pub(crate) owners: Owners<'a>,
    /// One instant for everything, so that ages can be compared.
    pub(crate) now: Now,
    pub(crate) same_place: bool,
}

impl SnapshotSource<'_> {
    pub(crate) fn take(&self) -> Result<SegmentSnapshot, Error> {
        self.take_with(|_, _| {})
    }

    /// Takes a snapshot, and calls `examine` for each shard as soon as it is copied, with the state that its lock was
    /// in before.
    fn take_with(&self, mut examine: impl FnMut(Shard<'_>, LockState)) -> Result<SegmentSnapshot, Error> {
        let header: &Header = self.region.record(0).map_err(|place| damaged(self.path, place))?;
        #[cfg(feature = "metrics")]
        let begun = boot_nanos();
        let sets = self
            .sets
            .iter()
            .map(|set| self.set(set, &mut examine))
            .collect::<Result<_, _>>()?;
        let participants = self
            .table
            .taken()
            .into_iter()
            .map(|record| ParticipantSnapshot {
                slot: record.id.slot,
                generation: record.id.generation,
                pid: record.identity.pid,
                pid_namespace: self.table.shown(record.identity).namespace,
                alive: self.owners.is_alive(record.id.to_word()),
                name: record.name,
                joined_utc: Duration::from_nanos(record.joined_utc),
            })
            .collect();
        Ok(SegmentSnapshot {
            path: self.path.to_owned(),
            size: self.region.size(),
            format: FORMAT,
            #[cfg(feature = "metrics")]
            begun,
            created_utc: self.created()?,
            retired: load(&header.retired) != 0,
            same_place: self.same_place,
            cold_starts: load(&header.cold_starts),
            lock_kind: self.declaration.segment().lock(),
            participant_capacity: u64::from(self.declaration.segment().participants()),
            participants,
            fleet: fleet_state(
                self.declaration,
                self.sets,
                header,
                self.table,
                self.now,
                |owner| self.owners.is_alive(owner),
            ),
            sets,
        })
    }

    fn created(&self) -> Result<Duration, Error> {
        let header: &Header = self.region.record(0).map_err(|place| damaged(self.path, place))?;
        Ok(Duration::from_nanos(load(&header.created_utc)))
    }

    fn set(
        &self,
        set: &SetEngine,
        examine: &mut impl FnMut(Shard<'_>, LockState),
    ) -> Result<SetSnapshot, Error> {
        let failed = |source| {
            Error::Open(OpenError::Io {
                action: "copy",
                path: self.path.to_owned(),
                source,
            })
        };
        self.definitions.keep_up(set);
        let mut snapshot = SetSnapshot::of_nothing(set);
        #[cfg(feature = "metrics")]
        {
            snapshot.created = self.created()?;
        }
        for shard in set.shards() {
            let is_alive = |id: ParticipantId| self.owners.is_alive(id.to_word());
            let lock = self.table.lock_state(&shard.memory.control().lock, is_alive);
            // The first held lock stands for all, so that a stuck one shows.
            if !snapshot.lock.is_held() {
                snapshot.lock = LockSnapshot::of(lock);
            }
            let observation = observe_shard(self.region, shard).map_err(failed)?;
            self.add(&mut snapshot, &observation);
            examine(shard, lock);
        }
        Ok(snapshot)
    }

    /// Adds the contents of one shard.
    fn add(&self, snapshot: &mut SetSnapshot, observation: &ShardObservation<'_>) {
        let at = observation.at(self.now);
        let ShardAt { shard, now } = at;
        let control = shard.memory.control();
        snapshot.torn |= observation.torn;
        snapshot.words_in_flight = snapshot
            .words_in_flight
            .zip(observation.words_in_flight())
            .map(|(sum, words)| sum + words);
        snapshot.poisoned |= is_poison(load(&control.poisoned));
        snapshot.counts.add(control);
        let dead = DeadHolds::find(at, |owner| self.owners.is_alive(owner));
        let copy = RowCopy::new(shard, &dead);
        let is_keyed = shard.memory.is_keyed();
        if !is_keyed || shard.set.has_overall() {
            snapshot.throttled_for = Duration::from_nanos(shard.throttled_for(shard.only_row(), now));
        }
        let left_out = if is_keyed {
            dead.of_all_rows(at, &copy)
        } else {
            dead.leave_out(at, shard.only_row(), &copy)
        };
        snapshot.active += load(&control.active).saturating_sub(left_out.holds);
        snapshot.of_dead += left_out.holds;
        snapshot.hold_capacity += shard.memory.hold_capacity();
        snapshot.waiter_capacity += shard.memory.ticket_capacity();
        for (limit, snapshot) in shard.limits.iter().zip(&mut snapshot.limits) {
            snapshot.counts.add(shard.counters(limit.index));
            snapshot.of_dead = snapshot
                .of_dead
                .saturating_add(left_out.of_dead.get(limit.index).copied().unwrap_or(0));
            if !is_keyed || limit.is_overall() {
                let mark = limit.mark(left_out.row, now);
                let standing = limit.rule.standing(mark);
                snapshot.found_capacity = limit.rule.found_capacity(mark);
                snapshot.remaining = standing.remaining;
                snapshot.reset_after = Duration::from_nanos(standing.reset_after);
            }
            let key = shard.rules.plan.limits.get(limit.index);
            let key = key.and_then(|plan| plan.fleet_key.as_deref());
            if let Some((key, state)) = key.zip(shard.lease_state(limit, left_out.row, now)) {
                let of_shard = LeaseSnapshot::of(key, &state);
                snapshot.lease = Some(match snapshot.lease.take() {
                    Some(of_others) => of_others.and(of_shard),
                    None => of_shard,
                });
            }
        }
        let holds = observation.holds();
        snapshot
            .holds
            .extend(holds.into_iter().map(|hold| self.hold(shard, hold, now)));
        for (sum, bucket) in snapshot.wait_times.iter_mut().zip(&control.wait_times) {
            *sum = sum.saturating_add(load(bucket));
        }
        let wait_time = Duration::from_nanos(load(&control.wait_time));
        snapshot.wait_time = snapshot.wait_time.saturating_add(wait_time);
        let tickets = observation.tickets();
        snapshot
            .tickets
            .extend(tickets.into_iter().map(|ticket| self.ticket(shard, ticket, now)));
        if let Some(table) = &mut snapshot.keys {
            table.in_use += load(&control.keys);
            table.rows += shard.memory.row_count();
            table.evicted_unused += load(&control.evicted_unused);
            table.evicted_in_use += load(&control.evicted_in_use);
            table.fullest_bucket = table.fullest_bucket.max(shard.fullest_bucket());
        }
    }

    fn owner(&self, word: u64) -> (Option<ParticipantId>, Option<ProcessId>) {
        let owner = ParticipantId::from_word(word);
        (owner, owner.and_then(|owner| self.table.process_of(owner)))
    }

    fn ticket(&self, shard: RuledShard<'_>, ticket: ObservedTicket, now: Now) -> TicketSnapshot {
        let (owner, process) = self.owner(ticket.owner);
        TicketSnapshot {
            number: ticket.number,
            owner_slot: owner.map(|id| id.slot),
            owner_pid: process.map(|process| process.pid),
            owner_namespace: process.and_then(|process| process.namespace),
            owner_alive: self.owners.is_alive(ticket.owner),
            granted: ticket.is_granted,
            passed_over: ticket.is_passed_over,
            key: KeyLabel::of_row(shard, ticket.row),
            in_order: ticket.in_order.map(KeyInOrder::of),
            waiting_for: Duration::from_nanos(now.monotonic.saturating_sub(ticket.enqueued_at)),
            costs: by_name(shard, ticket.costs),
        }
    }

    fn hold(&self, shard: RuledShard<'_>, hold: ObservedHold, now: Now) -> HoldSnapshot {
        let (owner, process) = self.owner(hold.owner);
        HoldSnapshot {
            index: hold.index,
            serial: hold.serial,
            owner_slot: owner.map(|id| id.slot),
            owner_pid: process.map(|process| process.pid),
            owner_namespace: process.and_then(|process| process.namespace),
            owner_alive: self.owners.is_alive(hold.owner),
            key: KeyLabel::of_row(shard, hold.row),
            held_for: Duration::from_nanos(now.monotonic.saturating_sub(hold.taken_at)),
            lease_over_for: hold
                .expires_at
                .and_then(|expiry| now.monotonic.checked_sub(expiry))
                .map(Duration::from_nanos),
            returned: hold.is_returned,
            label: hold.label,
            amounts: by_name(shard, hold.amounts),
        }
    }
}

/// Amounts of limits, by their names.
fn by_name(shard: RuledShard<'_>, amounts: Vec<(usize, u64)>) -> BTreeMap<String, u64> {
    let amounts = amounts.into_iter();
    map_of(amounts.map(|(limit, amount)| (shard.set.limit_name(limit), amount)))
}

impl SetSnapshot {
    /// Requests of live processes that wait in the queue.
    pub fn queued(&self) -> u64 {
        let waiting = self
            .tickets
            .iter()
            .filter(|ticket| ticket.owner_alive && !ticket.granted);
        waiting.count() as u64
    }

    /// Permits of live processes that hold something of a limit.
    pub fn active_permits(&self, limit: &str) -> u64 {
        let of_limit = self.live_holds().filter(|hold| hold.amounts.contains_key(limit));
        of_limit.count() as u64
    }

    /// Holds of live processes that have not been given back.
    pub fn live_holds(&self) -> impl Iterator<Item = &HoldSnapshot> {
        self.holds
            .iter()
            .filter(|hold| hold.owner_alive && !hold.returned)
    }

    /// A snapshot of `set` before any shard was read.
    fn of_nothing(set: &SetEngine) -> Self {
        let limit = |limit: &LimitRules| LimitSnapshot {
            name: set.limit_name(limit.index),
            kind: limit.kind,
            unit: set.limit_unit(limit.index),
            capacity: capacity(limit),
            scope: limit.scope,
            found_capacity: limit.rule.found_capacity(Mark::default()),
            remaining: limit.rule.standing(Mark::default()).remaining,
            of_dead: 0,
            reset_after: Duration::ZERO,
            lease: None,
            counts: LimitCounts::default(),
        };
        Self {
            name: set.name.to_string(),
            #[cfg(feature = "metrics")]
            created: Duration::ZERO,
            metadata: (*set.shown().plan.metadata).clone(),
            fleet: None,
            version: set.shown().plan.version,
            edited: set.shown().plan.is_edited,
            torn: false,
            lock: LockSnapshot::FREE,
            words_in_flight: Some(0),
            poisoned: false,
            throttled_for: Duration::ZERO,
            counts: SetCounts::default(),
            active: 0,
            of_dead: 0,
            hold_capacity: 0,
            limits: set.shown().limits.iter().map(limit).collect(),
            holds: Vec::new(),
            wait_times: vec![0; WAIT_BUCKETS],
            wait_time: Duration::ZERO,
            waiter_capacity: 0,
            tickets: Vec::new(),
            keys: set.is_keyed().then(KeysSnapshot::default),
        }
    }
}
