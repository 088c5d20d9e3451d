//! A copy of everything a segment holds, taken without a lock.

mod counts;
mod diagnosis;
mod fleet_state;
mod key_label;
mod keys;
mod seconds;
mod set_memory;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;

use super::declaration::stored::StoredDeclaration;
use super::declaration::{Declaration, Kind, LockKind};
use super::fleet::{FleetSnapshot, LeaseSnapshot};
use super::segment::definitions::compiled_definitions::{compile_definitions, compile_one};
use crate::engine::{
    DeadHolds, Definitions, LimitRules, ObservedHold, ObservedTicket, RowCopy, RuledShard, SetEngine, Shard,
    ShardAt, ShardObservation, observe_shard, place_sets,
};
use crate::error::{Error, OpenError, ProcessId};
use crate::limit::{Mark, Now, RuleOperations};
use crate::shm::file::attach::{Observed, observe};
use crate::shm::file::region::Region;
use crate::shm::file::segment_file::{damaged, is_segment};
use crate::shm::layout::records::{FORMAT, Header, SET_UNCHECKED, SET_UNRECOVERED, WAIT_BUCKETS};
use crate::shm::process::participant::{ParticipantId, ParticipantTable};
use crate::shm::process::shard_locks::LockState;
use crate::shm::time::clock::{boot_nanos, utc_nanos};
use fleet_state::fleet_state;

use counts::load;
pub use counts::{LimitCounts, SetCounts};
pub use diagnosis::{Diagnosis, SegmentPlace, ShardDiagnosis, ShardPoison};
pub use key_label::{KeyFingerprint, KeyLabel};
pub(crate) use keys::KeySource;
pub use keys::{KeyLimitSnapshot, KeySnapshot};
pub(in crate::api) use seconds::{as_seconds, as_seconds_if_any};
pub use set_memory::SetMemory;

/// A segment, copied. Each set's shard is consistent in itself unless it says that it is torn.
///
/// Serialised, every time in it is a number of seconds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SegmentSnapshot {
    /// The file.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// The number of the file's format.
    pub format: u64,
    /// When it was created, as the time since the Unix epoch.
    #[serde(serialize_with = "as_seconds")]
    pub created_utc: Duration,
    /// Whether the segment was retired: see [`Segment::retire`](crate::Segment::retire).
    pub retired: bool,
    /// Whether the file belongs to this boot, these namespaces and this inode. If not, the process that opens it next
    /// starts it cold: see the [crate's documentation](crate).
    pub same_place: bool,
    /// How often it was started cold.
    pub cold_starts: u64,
    /// What its locks are.
    pub lock_kind: LockKind,
    /// How many processes may be attached.
    pub participant_capacity: u64,
    /// The processes attached, and those that died attached.
    pub participants: Vec<ParticipantSnapshot>,
    /// The fleet that the segment is part of, where it was declared with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetSnapshot>,
    /// Each set in the order of the declaration.
    pub sets: Vec<SetSnapshot>,
}

/// A process, attached or dead.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ParticipantSnapshot {
    /// Its place in the table.
    pub slot: u64,
    /// Which life of the slot.
    pub generation: u64,
    /// Its process id.
    pub pid: u64,
    /// The PID namespace that `pid` is of, where the segment's processes may be of several: see [`ProcessId`].
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

/// A set, copied.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SetSnapshot {
    /// The set's name.
    pub name: String,
    /// The declared set that it is a copy of, where it was made [on demand](crate::Declaration::sets_on_demand).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<String>,
    /// What it was declared with.
    pub metadata: BTreeMap<String, String>,
    /// The version of the declaration that is in force, where that has one.
    pub version: Option<u64>,
    /// Whether an operator has changed it: see [`Segment::apply`](crate::Segment::apply).
    pub edited: bool,
    /// The set kept changing while it was copied: the parts may not belong together.
    pub torn: bool,
    /// What the lock said when the copy was begun.
    pub lock: LockSnapshot,
    /// Words that an operation in progress, or one whose process died, has changed; none during a reset or a rebuild.
    pub words_in_flight: Option<usize>,
    /// A recovery could not repair the set.
    pub poisoned: bool,
    /// For how long the set is [throttled](crate::Permit::throttled) yet; zero where it is not, or is keyed.
    #[serde(serialize_with = "as_seconds")]
    pub throttled_for: Duration,
    /// What was counted.
    pub counts: SetCounts,
    /// Permits out that hold something, without those of dead processes.
    pub active: u64,
    /// Permits that dead processes hold, or of which every lease has run out. The next request that needs what they hold
    /// takes it back.
    pub of_dead: u64,
    /// How many may be out.
    pub hold_capacity: u64,
    /// Each limit in the order of the declaration.
    pub limits: Vec<LimitSnapshot>,
    /// Each hold in use.
    pub holds: Vec<HoldSnapshot>,
    /// How long admitted requests had waited: number *i* counts those that had waited for less than 2^*i* microseconds
    /// and are not counted before; the last of 32 counts all that are longer.
    pub wait_times: Vec<u64>,
    /// How long admitted requests had waited, all together: divided by [`SetCounts::waited`], the mean.
    #[serde(serialize_with = "as_seconds")]
    pub wait_time: Duration,
    /// How many requests may wait in the queue.
    pub waiter_capacity: u64,
    /// Each ticket in use, in the order in which they came.
    pub tickets: Vec<TicketSnapshot>,
    /// The table of keys, where the set is keyed. The counts are then of all keys together, and each limit stands as it
    /// does for a key that has used nothing.
    pub keys: Option<KeysSnapshot>,
}

/// How full the table of a keyed set is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeysSnapshot {
    /// Rows that are some key's, whether or not it has anything used.
    pub in_use: u64,
    /// Rows there are.
    pub rows: u64,
    /// Rows that were given to another key when the former one had nothing used any more: it lost nothing.
    pub evicted_unused: u64,
    /// Rows that were given to another key when the former one had something used, which is forgotten.
    pub evicted_in_use: u64,
    /// Rows in use in the fullest bucket, of 32: a key is looked for in two buckets at most.
    pub fullest_bucket: u64,
}

/// A lock, as its word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LockSnapshot {
    /// The process that holds it, where it is held and the process can be named.
    pub holder_pid: Option<u32>,
    /// The PID namespace that `holder_pid` is of, where the segment's processes may be of several: see [`ProcessId`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_namespace: Option<u64>,
    /// The thread that holds it, where the lock is a [robust mutex](crate::LockKind::RobustMutex).
    pub holder_thread: Option<u32>,
    /// Its holder died, and no process has taken it since.
    pub owner_died: bool,
}

impl LockSnapshot {
    const FREE: Self = Self {
        holder_pid: None,
        holder_namespace: None,
        holder_thread: None,
        owner_died: false,
    };

    fn of(state: LockState) -> Self {
        let process = state.holder.and_then(|holder| holder.process);
        Self {
            holder_pid: process.and_then(|process| process.pid.try_into().ok()),
            holder_namespace: process.and_then(|process| process.namespace),
            holder_thread: state.holder.and_then(|holder| holder.thread),
            owner_died: state.owner_died,
        }
    }

    /// Whether a process holds it that did not die with it.
    pub fn is_held(&self) -> bool {
        self.holder_pid.is_some() || self.holder_thread.is_some()
    }
}

/// A limit, copied.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LimitSnapshot {
    /// The limit's name.
    pub name: String,
    /// How it is taken.
    pub kind: Kind,
    /// The most that can be taken at once; none where it is unlimited.
    pub burst: Option<u64>,
    /// Of an [adaptive](crate::Limit::adaptive) limit, the capacity that it has found for now.
    pub found_capacity: Option<u64>,
    /// Units that could be taken now.
    pub remaining: u64,
    /// Units that dead processes hold, or that are held for longer than their lease. They count as free already, because
    /// a request that needs them is given them. Where the set is keyed, what is held of concurrency for all keys together.
    pub of_dead: u64,
    /// How long it takes until it is completely replenished.
    #[serde(serialize_with = "as_seconds")]
    pub reset_after: Duration,
    /// What is leased of it, where [hosts share](crate::Limit::fleet) it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseSnapshot>,
    /// What was counted.
    pub counts: LimitCounts,
}

/// What a permit holds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HoldSnapshot {
    /// Its place in the table.
    pub index: u64,
    /// Numbers the permits of the set that hold something.
    pub serial: u64,
    /// The slot of the process that holds it.
    pub owner_slot: Option<u64>,
    /// Its process id, where the slot still is its own.
    pub owner_pid: Option<u64>,
    /// The PID namespace that `owner_pid` is of, where the segment's processes may be of several: see [`ProcessId`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_namespace: Option<u64>,
    /// Whether that process is alive; what a dead one holds is given back to the process that needs it.
    pub owner_alive: bool,
    /// The key whose limits are held, where the set is keyed.
    pub key: Option<KeyLabel>,
    /// How long it has been held.
    #[serde(serialize_with = "as_seconds")]
    pub held_for: Duration,
    /// For how long the first of its [leases](crate::Limit::lease) has been over; none where none is. What it covered is given
    /// to the next request that needs it.
    #[serde(serialize_with = "as_seconds_if_any", skip_serializing_if = "Option::is_none")]
    pub lease_over_for: Option<Duration>,
    /// Whether it was given back while another process kept the lock: it is free as soon as any process has the lock.
    pub returned: bool,
    /// What its request was [labelled](crate::Request::label) with, where the set [keeps labels](crate::SetDeclaration::labels).
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
    /// Numbers the waiters in the order of their arrival.
    pub number: u64,
    /// The slot of the process that waits; none where the ticket was given up.
    pub owner_slot: Option<u64>,
    /// Its process id, where the slot still is its own.
    pub owner_pid: Option<u64>,
    /// The PID namespace that `owner_pid` is of, where the segment's processes may be of several: see [`ProcessId`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_namespace: Option<u64>,
    /// Whether that process is alive; the place of a dead one goes to the next.
    pub owner_alive: bool,
    /// It has what it asked for and has not come for it yet.
    pub granted: bool,
    /// Its process did not collect what it, or another request of that process, was granted: it is out of the queue, and
    /// goes back to its place as soon as it looks.
    pub passed_over: bool,
    /// The key in whose queue it is, where the set is keyed.
    pub key: Option<KeyLabel>,
    /// How long it has been waiting.
    #[serde(serialize_with = "as_seconds")]
    pub waiting_for: Duration,
    /// Units asked for, by limit.
    pub costs: BTreeMap<String, u64>,
}

/// A segment opened for looking only: it is mapped read-only, nothing is locked, and this process does not become a participant.
#[derive(Debug)]
pub struct SegmentReader {
    path: PathBuf,
    observed: Observed,
    stored: StoredDeclaration,
    declaration: Declaration,
    sets: Vec<Arc<SetEngine>>,
}

impl SegmentReader {
    /// Opens a segment for looking only. Needs no more than permission to read the file.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`](crate::OpenOptions::open).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        // Looking cannot be made to do harm by the process that owns the file.
        let observed = observe(path, true)?;
        let (stored, plans) = compile_definitions(&observed.verified, path)?;
        let verified = &observed.verified;
        let sets = place_sets(&verified.region, verified.geometry.sets.clone(), plans)
            .map_err(|place| damaged(path, place))?;
        let mut reader = Self {
            path: path.to_owned(),
            observed,
            declaration: stored.to_declaration(),
            stored,
            sets: Vec::new(),
        };
        reader.sets = sets
            .into_iter()
            .map(|set| Arc::new(reader.definitions().with_previous(set)))
            .collect();
        Ok(reader)
    }

    /// Whether a file is a segment, going by how it begins: whole or damaged, of this format or another. Does not open it as one.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotFound`], [`OpenError::Denied`], and what else the system says.
    pub fn is_segment(path: impl AsRef<Path>) -> Result<bool, Error> {
        is_segment(path.as_ref())
    }

    fn definitions(&self) -> Definitions<'_> {
        Definitions {
            path: &self.path,
            region: &self.observed.verified.region,
            compile: compile_one,
        }
    }

    fn is_alive(&self, table: &ParticipantTable, id: ParticipantId) -> bool {
        self.observed.is_alive(table, id)
    }

    /// The file, as it was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was in force when this was opened, set by set.
    pub(crate) fn stored(&self) -> &StoredDeclaration {
        &self.stored
    }

    /// The bytes that there are for the definition of each set.
    pub(crate) fn definition_rooms(&self) -> impl Iterator<Item = u64> {
        self.sets.iter().map(|set| set.geometry.shape.definition_room)
    }

    /// What was in force when this was opened. Path and mode are not part of it.
    pub fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    /// Copies everything.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`] where there is no memory for the copy.
    pub fn snapshot(&self) -> Result<SegmentSnapshot, Error> {
        let table = self.observed.verified.participants();
        let header: &Header = self
            .observed
            .verified
            .region
            .record(0)
            .map_err(|place| damaged(&self.path, place))?;
        SnapshotSource {
            path: &self.path,
            region: &self.observed.verified.region,
            sets: &self.sets,
            definitions: self.definitions(),
            declaration: &self.declaration,
            table: &table,
            owners: Owners::new(&|id| self.is_alive(&table, id)),
            now: kernel_time(header),
            same_place: self.observed.same_place,
        }
        .take()
    }
}

/// The clocks of a segment of which this process is no participant.
fn kernel_time(header: &Header) -> Now {
    Now {
        monotonic: boot_nanos().wrapping_add(header.clock_offset.load(Ordering::Relaxed)),
        utc: utc_nanos(),
    }
}

/// Which owners live. Each is asked for once.
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

    /// Whether the owner that a word names lives. A word that names no participant names no process that does.
    fn is_alive(&self, owner: u64) -> bool {
        let ask = || ParticipantId::from_word(owner).is_some_and(self.is_alive);
        *self.known.borrow_mut().entry(owner).or_insert_with(ask)
    }
}

/// Where a snapshot comes from.
pub(crate) struct SnapshotSource<'a> {
    pub(crate) path: &'a Path,
    pub(crate) region: &'a Region,
    pub(crate) sets: &'a [Arc<SetEngine>],
    pub(crate) definitions: Definitions<'a>,
    pub(crate) declaration: &'a Declaration,
    pub(crate) table: &'a ParticipantTable,
    pub(crate) owners: Owners<'a>,
    pub(crate) now: Now,
    pub(crate) same_place: bool,
}

impl SnapshotSource<'_> {
    pub(crate) fn take(&self) -> Result<SegmentSnapshot, Error> {
        let header: &Header = self.region.record(0).map_err(|place| damaged(self.path, place))?;
        let named = self.definitions.named(self.sets);
        let sets = named.map(|(_, set)| self.set(set)).collect::<Result<_, _>>()?;
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
            created_utc: Duration::from_nanos(load(&header.created_utc)),
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

    fn set(&self, set: &SetEngine) -> Result<SetSnapshot, Error> {
        let failed = |source| {
            Error::Open(OpenError::Io {
                action: "copy",
                path: self.path.to_owned(),
                source,
            })
        };
        self.definitions.keep_up(set);
        let mut snapshot = SetSnapshot::of_nothing(set);
        for shard in set.shards() {
            // The first that is held stands for all: who looks for a stuck lock finds it.
            if !snapshot.lock.is_held() {
                snapshot.lock = self.lock_of(shard);
            }
            let observation = observe_shard(self.region, shard).map_err(failed)?;
            self.add(&mut snapshot, &observation);
        }
        Ok(snapshot)
    }

    fn lock_of(&self, shard: Shard<'_>) -> LockSnapshot {
        let is_alive = |id: ParticipantId| self.owners.is_alive(id.to_word());
        LockSnapshot::of(self.table.lock_state(&shard.memory.control().lock, is_alive))
    }

    /// Adds what one part of a set holds.
    fn add(&self, snapshot: &mut SetSnapshot, observation: &ShardObservation<'_>) {
        let at = observation.at(self.now);
        let ShardAt { shard, now } = at;
        let control = shard.memory.control();
        snapshot.torn |= observation.torn;
        snapshot.words_in_flight = snapshot
            .words_in_flight
            .zip(observation.words_in_flight())
            .map(|(sum, words)| sum + words);
        snapshot.poisoned |= !matches!(load(&control.poisoned), 0 | SET_UNCHECKED | SET_UNRECOVERED);
        snapshot.counts.add(control);
        let dead = DeadHolds::find(at, |owner| self.owners.is_alive(owner));
        let mut copy = RowCopy::new(shard, &dead);
        let is_keyed = shard.memory.is_keyed();
        let left_out = if is_keyed {
            dead.of_all_rows(at, &copy)
        } else {
            snapshot.throttled_for = Duration::from_nanos(shard.throttled_for(shard.only_row(), now));
            dead.leave_out(at, shard.only_row(), &mut copy)
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
            if !is_keyed {
                let mark = limit.mark(left_out.row, now);
                let standing = limit.rule.standing(mark);
                snapshot.found_capacity = limit.rule.found_capacity(mark);
                snapshot.remaining = standing.remaining;
                snapshot.reset_after = Duration::from_nanos(standing.reset_after);
                let key = shard.rules.plan.limits.get(limit.index);
                let key = key.and_then(|plan| plan.fleet_key.as_deref());
                snapshot.lease = key
                    .zip(limit.lease_state(left_out.row, now))
                    .map(|(key, state)| LeaseSnapshot::of(key, &state));
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
            waiting_for: Duration::from_nanos(now.monotonic.saturating_sub(ticket.enqueued_at)),
            costs: ticket
                .costs
                .into_iter()
                .map(|(limit, cost)| (shard.set.limit_name(limit), cost))
                .collect(),
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
            amounts: hold
                .amounts
                .into_iter()
                .map(|(limit, amount)| (shard.set.limit_name(limit), amount))
                .collect(),
        }
    }
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

    /// What live processes hold and have not given back.
    pub fn live_holds(&self) -> impl Iterator<Item = &HoldSnapshot> {
        self.holds
            .iter()
            .filter(|hold| hold.owner_alive && !hold.returned)
    }

    /// Of a set of which no shard has been looked at yet.
    fn of_nothing(set: &SetEngine) -> Self {
        let limit = |limit: &LimitRules| LimitSnapshot {
            name: set.limit_name(limit.index),
            kind: limit.kind.into(),
            burst: Some(limit.burst).filter(|max| *max != u64::MAX),
            found_capacity: limit.rule.found_capacity(Mark::default()),
            remaining: limit.rule.standing(Mark::default()).remaining,
            of_dead: 0,
            reset_after: Duration::ZERO,
            lease: None,
            counts: LimitCounts::default(),
        };
        Self {
            name: set.name.to_string(),
            copy_of: set.name.is_on_demand().then(|| set.name.declared().to_owned()),
            metadata: (*set.shown().plan.metadata).clone(),
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
