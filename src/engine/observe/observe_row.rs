//! Looks at keys without a lock and without a copy of the shard: row by row, each consistent in itself or marked as torn.
//!
//! A busy shard changes while it is copied, but a row is read in far less time than passes between two operations. Its
//! values are computed first; then the journal tells whether anything changed meanwhile. Until then they may be garbage,
//! which the rules tolerate.

use std::hint::spin_loop;
use std::num::NonZeroU64;
use std::sync::atomic::{Ordering, fence};

use crate::engine::admit::network::Network;
use crate::engine::change::row_tier::RowTier;
use crate::engine::recover::dead_holds::{DeadHolds, OfDead, RowCopy};
use crate::engine::shard::key_table::{KeyCounts, TableWords};
use crate::engine::shard::locked_shard::{LockFor, LockWait};
use crate::engine::shard::order_words::OrderWords;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, SetEngine, ShardAt};
use crate::engine::shard::target::Target;
use crate::engine::terms::key_identity::{KeyIdentity, KeyName};
use crate::engine::terms::own_capacities::LimitMask;
use crate::engine::terms::plan::PrefixLengths;
use crate::error::Error;
use crate::limit::{KeyLeaseState, Mark, Now};
use crate::order;
use crate::shm::layout::records::MAX_LIMITS;
use crate::shm::layout::row::Row;
use crate::shm::layout::row_references::RowReferences;
use crate::table::{Fingerprint, Table};
use crate::units::BUCKET_ROWS;

/// How often to look before settling for values that may be torn.
const ATTEMPTS: usize = 100;

/// The first bytes of a key, and its length.
pub(crate) type KeptName = (Vec<u8>, u64);

/// A row that has a key, as its words say.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedKey {
    /// Whether the row changed during every attempt: the values may be from different moments.
    pub(crate) torn: bool,
    pub(crate) fingerprint: Fingerprint,
    /// Present if names are kept.
    pub(crate) name: Option<KeptName>,
    pub(crate) counts: KeyCounts,
    /// Nanoseconds from its last decision to the instant at which it is looked at.
    pub(crate) unused_for: u64,
    /// For how many nanoseconds it is throttled.
    pub(crate) throttled_for: u64,
    /// Its tier, and how it was given its tier or capacities.
    pub(crate) tier: RowTier,
    pub(crate) is_replenished: bool,
    /// Holds of live processes, and tickets that were granted or passed over and not yet collected.
    pub(crate) pins: u64,
    pub(crate) pins_of_dead: u64,
    pub(crate) queued: u64,
    /// How it stands in the order among keys, if it is in it.
    pub(crate) in_order: Option<order::Standing>,
    /// Whether it is found only in the second of its two buckets.
    pub(crate) is_in_second_bucket: bool,
    /// The limits that the row has, as a bit mask: all but those that all keys have together or, if limits count
    /// networks, those that count this one.
    pub(crate) limits: u32,
    /// How each limit stands without what dead processes hold of concurrency, in the set's order.
    pub(crate) marks: Vec<Mark>,
    /// What the key has leased of each limit that hosts share.
    pub(crate) leases: Vec<Option<KeyLeaseState>>,
    /// The key's own capacity for each limit.
    pub(crate) own_capacities: Vec<Option<NonZeroU64>>,
    /// How much dead processes hold of each limit.
    pub(crate) of_dead: OfDead,
}

/// How full the table of a keyed set is: see [`LimitSet::table_usage`](crate::LimitSet::table_usage).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableUsage {
    /// All rows of the table.
    pub rows: u64,
    /// Rows that are not free: their keys use, hold or wait for something, are throttled, or were given a tier or a
    /// capacity by name.
    pub used: u64,
    /// Rows that were given to another key once the former key no longer used anything.
    pub evicted_unused: u64,
    /// Rows that were given to another key while the former key still used something, which is forgotten.
    pub evicted_in_use: u64,
}

impl SegmentEngine {
    /// How full the table of a keyed set is now. Takes no lock, so it may miss some of what changes meanwhile.
    pub(crate) fn table_usage(&self, set: &SetEngine) -> TableUsage {
        let mut usage = TableUsage::default();
        for shard in set.shards() {
            let shard = shard.by_its_definition();
            let now = shard.instant(self.now(shard.unruled()));
            let control = shard.memory.control();
            let is_used = |row: &Row<'_>| !row.is_unused() && !shard.is_free(*row, now);
            usage.rows += shard.memory.row_count();
            usage.used += shard.memory.all_rows().filter(is_used).count() as u64;
            usage.evicted_unused += control.evicted_unused.load(Ordering::Relaxed);
            usage.evicted_in_use += control.evicted_in_use.load(Ordering::Relaxed);
        }
        usage
    }
}

/// Looks at the rows of a shard, one after the other.
pub(crate) struct RowLooker<'a> {
    shard: RuledShard<'a>,
    now: Now,
    dead: DeadHolds,
    copy: RowCopy,
    /// One if the last row kept changing: an operation that its process left half done never ends by itself.
    attempts: usize,
    pub(crate) seen: ObservedKey,
}

impl<'a> RowLooker<'a> {
    /// Prepares to look at rows as they are at one instant. Calls `is_alive` once for each owner.
    pub(crate) fn new(shard: RuledShard<'a>, now: Now, is_alive: impl Fn(u64) -> bool) -> Self {
        let dead = DeadHolds::find(
            ShardAt {
                shard,
                now: shard.instant(now),
            },
            is_alive,
        );
        Self {
            shard,
            now,
            copy: RowCopy::new(shard, &dead),
            dead,
            attempts: ATTEMPTS,
            seen: ObservedKey::default(),
        }
    }

    /// Looks at the row at `index`. Returns whether it has a key.
    pub(crate) fn look_at(&mut self, index: u64) -> bool {
        let shard = self.shard;
        self.look(|| shard.memory.row(index))
    }

    /// Looks for the row of a key. Returns whether there is one.
    pub(crate) fn look_for(&mut self, key: &KeyIdentity) -> bool {
        let shard = self.shard;
        self.look(|| shard.find_row(Some(key)))
    }

    /// Looks for the row of a network. Returns whether there is one.
    pub(crate) fn look_for_network(&mut self, network: &Network) -> bool {
        let shard = self.shard;
        let is_there = self.look(|| shard.find_row_of(network.fingerprint()));
        self.seen.limits = shard.limits_of_networks(|lengths| network.is_counted_by(lengths));
        is_there
    }

    fn look(&mut self, find: impl Fn() -> Option<Row<'a>>) -> bool {
        let (shard, attempts) = (self.shard, self.attempts);
        if let Some(is_a_keys) = shard.read_consistently(attempts, || self.read(find())) {
            self.attempts = ATTEMPTS;
            self.seen.torn = false;
            return is_a_keys;
        }
        self.attempts = 1;
        self.seen.torn = true;
        fence(Ordering::Acquire);
        self.read(find())
    }

    fn read(&mut self, row: Option<Row<'_>>) -> bool {
        let words = row.and_then(|row| Some((row, row.used_at()?, row.counts()?, row.row_references()?)));
        let Some((row, used_at, counts, row_references)) = words else {
            return false;
        };
        let fingerprint = row.key();
        if fingerprint == Fingerprint::NONE {
            return false;
        }
        let shard = self.shard;
        let at = ShardAt {
            shard,
            now: shard.instant(self.now),
        };
        let left_out = self.dead.leave_out(at, row, &self.copy);
        let row = left_out.row;
        let row_references = RowReferences(row_references.load(Ordering::Relaxed));
        let seen = &mut self.seen;
        seen.fingerprint = fingerprint;
        seen.name = shard.key_name(row.index);
        seen.limits = shard.limits_of_key(seen.name.as_ref());
        seen.counts = KeyCounts::from_word(counts.load(Ordering::Relaxed));
        seen.unused_for = self.now.monotonic.saturating_sub(used_at.load(Ordering::Relaxed));
        seen.throttled_for = shard.row_throttled_for(row, at.now);
        seen.is_replenished = shard.is_replenished(row, at.now);
        seen.pins_of_dead = left_out.holds;
        seen.pins = row_references.pins().saturating_sub(seen.pins_of_dead);
        seen.of_dead = left_out.of_dead;
        seen.queued = shard.length_of_queue(row_references.head());
        seen.in_order = order::standing(&OrderWords::of(shard.memory), row.index);
        let [first, _] = fingerprint.buckets(TableWords::reading(shard.memory).buckets().max(1));
        seen.is_in_second_bucket = row.index / BUCKET_ROWS != first;
        seen.marks.clear();
        seen.leases.clear();
        seen.own_capacities.clear();
        for limit in &shard.of(row).limits {
            seen.marks.push(limit.of(row).mark(row, at.now));
            seen.leases.push(limit.key_lease_state(row, at.now));
            seen.own_capacities.push(limit.own_capacity(row));
        }
        seen.tier = row.tier();
        true
    }
}

impl SegmentEngine {
    /// Shows the row of a key to `read`. If dead processes hold something of `limits`, shows it again as it would be
    /// without that. Returns how much they hold. Changes nothing.
    ///
    /// Finds out outside of the lock which owners are alive, once for each.
    pub(in crate::engine) fn look_at_row(
        &self,
        target: Target<'_>,
        limits: LimitMask,
        mut read: impl FnMut(ShardAt<'_>, Row<'_>),
    ) -> Result<OfDead, Box<Error>> {
        let lock = || self.lock(target.shard(), LockFor::Look, LockWait::Timeout);
        let locked = lock()?;
        let (shard, now) = (locked.shard, locked.now);
        let row = target.row_in(shard);
        read(ShardAt { shard, now }, row);
        if u32::from(limits.0) & shard.set.held_mask == 0 || !shard.is_held(row) {
            return Ok([0; MAX_LIMITS]);
        }
        drop(locked);
        let dead = DeadHolds::find(ShardAt { shard, now }, |owner| self.is_owner_alive(owner));
        if dead.is_empty() {
            return Ok([0; MAX_LIMITS]);
        }
        let copy = RowCopy::new(shard, &dead);
        let mut read_without = |at: ShardAt<'_>| {
            let left_out = dead.leave_out(at, target.row_in(at.shard), &copy);
            read(at, left_out.row);
            left_out.of_dead
        };
        let seen = shard.read_consistently(ATTEMPTS, || {
            let now = shard.instant(now);
            read_without(ShardAt { shard, now })
        });
        match seen {
            Some(of_dead) if shard.is_of_its_definition() => Ok(of_dead),
            _ => Ok(read_without(lock()?.at)),
        }
    }
}

impl RuledShard<'_> {
    /// What `read` makes of the shard while nothing changes in it; `None` if something did each time.
    pub(in crate::engine) fn read_consistently<T>(
        &self,
        attempts: usize,
        mut read: impl FnMut() -> T,
    ) -> Option<T> {
        let journal = self.memory.journal();
        for _ in 0..attempts {
            let Some(sequence) = journal.sequence_if_idle() else {
                spin_loop();
                continue;
            };
            let made = read();
            if journal.unchanged_since(sequence) {
                return Some(made);
            }
        }
        None
    }

    /// Whether anything is held of a row. In a set without keys, or with limits that all keys share, whether anything is
    /// held at all.
    pub(in crate::engine) fn is_held(&self, row: Row<'_>) -> bool {
        match row.row_references() {
            _ if self.set.has_overall() => self.memory.control().active.load(Ordering::Relaxed) > 0,
            Some(row_references) => RowReferences(row_references.load(Ordering::Relaxed)).pins() > 0,
            None => !self.memory.is_keyed() && self.memory.control().active.load(Ordering::Relaxed) > 0,
        }
    }

    /// Whether the shard is still on the definition that it is read by.
    fn is_of_its_definition(&self) -> bool {
        self.memory.control().generation.load(Ordering::Relaxed) == self.rules.generation
    }
}

impl RuledShard<'_> {
    /// The limits that the row of a key has, as a bit mask, without those that all keys have together. If they count
    /// networks, the key's name says which ones. If the name is not kept, or not kept whole, it may be any of them.
    fn limits_of_key(&self, name: Option<&KeptName>) -> u32 {
        let network = name
            .filter(|(kept, length)| !self.set.levels.is_empty() && kept.len() as u64 == *length)
            .and_then(|(kept, _)| std::str::from_utf8(kept).ok()?.rsplit_once('/'));
        let Some((address, length)) = network else {
            return self.set.all_limits() & !u32::from(self.set.overall.0);
        };
        let is_ipv4 = !address.contains(':');
        self.limits_of_networks(|lengths| {
            let counted = if is_ipv4 { lengths.ipv4 } else { lengths.ipv6 };
            length.parse() == Ok(counted)
        })
    }

    /// The limits that count networks of prefix lengths for which `is_such` holds, as a bit mask.
    fn limits_of_networks(&self, is_such: impl Fn(PrefixLengths) -> bool) -> u32 {
        self.limits
            .iter()
            .filter(|limit| {
                self.set
                    .levels
                    .get(limit.level)
                    .is_some_and(|lengths| is_such(*lengths))
            })
            .fold(0, |mask, limit| mask | 1 << limit.index)
    }

    /// What is kept of the name of a row's key: its first bytes, and its length.
    pub(crate) fn key_name(&self, row: u64) -> Option<KeptName> {
        let words: Vec<u64> = self
            .memory
            .name(row)
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
            .collect();
        // A row without a name was made to charge a permit that has lost its row: only the fingerprint of its key was
        // known.
        KeyName::read(&words).filter(|(_, length)| *length > 0)
    }

    /// The key of a row; `None` if it has none.
    pub(crate) fn key_of(&self, row: u64) -> Option<(Fingerprint, Option<KeptName>)> {
        let fingerprint = self.memory.row(row)?.key();
        (fingerprint != Fingerprint::NONE).then(|| (fingerprint, self.key_name(row)))
    }

    /// How many tickets there are from `head`, the index of a ticket plus one, to the end of its queue.
    fn length_of_queue(&self, head: u64) -> u64 {
        let mut length = 0;
        let mut next = head;
        while length < self.memory.ticket_capacity() {
            let Some(ticket) = next.checked_sub(1).and_then(|index| self.memory.ticket(index)) else {
                break;
            };
            length += 1;
            next = ticket.next().load(Ordering::Relaxed);
        }
        length
    }

    /// Rows in use in the fullest bucket of the shard's table, as its tags say.
    pub(crate) fn fullest_bucket(&self) -> u64 {
        let table = TableWords::reading(self.memory);
        if !self.memory.is_keyed() {
            return 0;
        }
        (0..table.buckets())
            .map(|bucket| crate::table::rows_in_use(&table, bucket))
            .max()
            .unwrap_or(0)
    }
}
