//! The rows of a shard's keys: finding one, making one, and deciding which may be given to another key.

use std::sync::atomic::Ordering;

use crate::choices::WhenFull;
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::order_words::OrderWords;
use crate::engine::shard::set_engine::{RuledShard, Shard, ShardAt};
use crate::engine::terms::decided::NEVER;
use crate::engine::terms::decision::Costs;
use crate::engine::terms::definition_bits::TierIndex;
use crate::engine::terms::key_identity::KeyIdentity;
use crate::engine::terms::own_capacities::RefusedCapacity;
use crate::error::Error;
use crate::limit::{Assessment, Now, RuleOperations};
use crate::order;
use crate::shm::layout::row::{Row, Rows};
use crate::shm::layout::row_references::RowReferences;
use crate::shm::layout::shard_memory::ShardMemory;
use crate::shm::lock::journal::Transaction;
use crate::shm::lock::store::Store;
use crate::table::{self, Claim, Fingerprint, NewRow, Table, TableMut, Usage};
use crate::units::{BUCKET_ROWS, BUCKET_TAG_WORDS};

/// The table of a shard's keys, and how to change it. `()` can only read.
#[derive(Clone, Copy)]
pub(crate) struct TableWords<'a, S = ()> {
    memory: &'a ShardMemory,
    store: S,
}

impl<'a> TableWords<'a> {
    #[inline]
    pub(crate) fn reading(memory: &'a ShardMemory) -> Self {
        Self { memory, store: () }
    }
}

impl<'a, S: Store> TableWords<'a, S> {
    pub(crate) fn changing(memory: &'a ShardMemory, store: S) -> Self {
        Self { memory, store }
    }
}

impl<'a, Rules> Shard<'a, Rules> {
    /// The only row of a set without keys.
    #[inline]
    pub(crate) fn only_row(&self) -> Row<'a> {
        self.memory.only_row()
    }

    /// The row at `index`; beyond the table, that of a key without one.
    #[inline]
    pub(crate) fn row(&self, index: u64) -> Row<'a> {
        self.memory.row(index).unwrap_or_else(|| self.absent_row())
    }

    /// The row of a key that has none.
    #[inline]
    pub(crate) fn absent_row(&self) -> Row<'a> {
        self.memory.absent_row()
    }

    /// The row of a key, if it has one. Without a key, the only row.
    #[inline]
    pub(crate) fn find_row(&self, key: Option<&KeyIdentity>) -> Option<Row<'a>> {
        match key {
            None => Some(self.only_row()),
            Some(key) => self.find_row_of(key.fingerprint),
        }
    }

    /// The row of the key with this fingerprint, if it has one.
    #[inline]
    pub(in crate::engine) fn find_row_of(&self, fingerprint: Fingerprint) -> Option<Row<'a>> {
        self.memory
            .row(table::find(&TableWords::reading(self.memory), fingerprint)?)
    }
}

impl RuledShard<'_> {
    /// Whether a row carries no information, and nobody holds or waits for anything in it. A tier or a capacity that
    /// a request named does not count as information, because the next request names it again; one that was assigned
    /// otherwise does.
    pub(crate) fn is_free(&self, row: Row<'_>, now: Now) -> bool {
        let is_untied = row
            .row_references()
            .is_none_or(|row_references| row_references.load(Ordering::Relaxed) == 0);
        let is_kept = self.set.differs_by_key() && self.is_kept(row);
        is_untied && !is_kept && self.is_replenished(row, now) && self.row_throttled_for(row, now) == 0
    }

    /// Whether the key of a row was assigned to a tier, or given its own capacity, other than by requests.
    fn is_kept(&self, row: Row<'_>) -> bool {
        let tier = row.tier();
        (self.set.has_tiers() && tier.is_assigned)
            || (!tier.capacities_by_request && self.has_own_capacities(row))
    }

    /// Whether the key of a row is limited by other rules than those of `default`.
    fn differs_from_default(&self, row: Row<'_>) -> bool {
        (self.set.has_tiers() && row.tier().tier != TierIndex::default()) || self.has_own_capacities(row)
    }

    /// Whether every limit that the key of a row has for itself stands as if it had never been used.
    pub(crate) fn is_replenished(&self, row: Row<'_>, now: Now) -> bool {
        let mut limits = self.rules.of_row(row).limits_of_keys();
        limits.all(|limit| limit.of(row).is_replenished(row, now))
    }

    /// Whether something of the key is leased, or not yet reported to the store. Without its row, it would be lost.
    fn has_lease(&self, row: Row<'_>, now: Now) -> bool {
        self.set.has_lease_room
            && self
                .limits
                .iter()
                .any(|limit| limit.is_leased() && !limit.is_replenished(row, now))
    }

    fn when_full(&self) -> WhenFull {
        self.plan.keyed.map_or(WhenFull::Refuse, |keyed| keyed.when_full)
    }

    /// What the key of a row that is not free can claim when another key needs the row.
    fn claim(&self, row: Row<'_>, now: Now) -> Claim {
        let (Some(row_references), Some(used_at)) = (row.row_references(), row.used_at()) else {
            return Claim::Pinned;
        };
        if row_references.load(Ordering::Relaxed) != 0 || self.has_lease(row, now) {
            return Claim::Pinned;
        }
        let used_at = used_at.load(Ordering::Relaxed);
        match self.when_full() {
            WhenFull::Refuse => Claim::Pinned,
            WhenFull::EvictLeastUsed => self.claim_by_usage(row, used_at, now),
            WhenFull::EvictOldest => Claim::Used(Usage {
                share: 0,
                replenished_in: 0,
                used_at,
            }),
        }
    }

    fn claim_by_usage(&self, row: Row<'_>, used_at: u64, now: Now) -> Claim {
        let mut limited_for = self.row_throttled_for(row, now);
        // A key that was given something of its own would lose more than usage, and time does not bring that back.
        let is_kept = self.set.differs_by_key() && self.is_kept(row);
        let mut usage = Usage {
            share: if is_kept { u64::MAX } else { 0 },
            replenished_in: 0,
            used_at,
        };
        for limit in self.rules.of_row(row).limits_of_keys() {
            let limit = limit.of(row);
            if let Assessment::Refused { retry_after } = limit.verdict(row, now, 1) {
                limited_for = limited_for.max(retry_after.unwrap_or(NEVER));
            }
            let mark = limit.mark(row, now);
            usage.share = usage.share.max(limit.rule.share(mark));
            usage.replenished_in = usage.replenished_in.max(limit.rule.standing(mark).reset_after);
        }
        match limited_for {
            0 => Claim::Used(usage),
            NEVER => Claim::Limited { ends_in: None },
            ends_in => Claim::Limited {
                ends_in: Some(ends_in),
            },
        }
    }
}

/// Why there is no row to decide on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum NoRow {
    /// The key has no row and gets none.
    Full {
        /// Nanoseconds, positive, until there is room if nothing else happens; `None` if time alone does not help.
        room_in: Option<u64>,
    },
    /// The key cannot have the capacity of its own that the request names.
    Refused(RefusedCapacity),
}

impl<'a> LockedShard<'a> {
    /// The row of a key: see [`row_for_key`](Self::row_for_key). Without a key, the only row.
    pub(in crate::engine) fn row_for(
        &mut self,
        key: Option<&KeyIdentity>,
        costs: &Costs,
    ) -> Result<Result<Row<'a>, NoRow>, Box<Error>> {
        match key {
            None => Ok(Ok(self.shard.only_row())),
            Some(key) => self.row_for_key(key, costs),
        }
    }

    /// The row of a key, in the tier and with the capacities that the request names. Makes one if the key has none and
    /// one can be made. A request that can never be met takes no row from another key.
    #[inline(always)]
    pub(in crate::engine) fn row_for_key(
        &mut self,
        key: &KeyIdentity,
        costs: &Costs,
    ) -> Result<Result<Row<'a>, NoRow>, Box<Error>> {
        let row = match self.shard.find_row_of(key.fingerprint) {
            Some(row) => {
                if let Some(change) = costs.row_change()
                    && !self.shard.is_limited_so(row, change)
                    && let Err(refused) = self.change_row(row, change)?
                {
                    return Ok(Err(NoRow::Refused(refused)));
                }
                row
            }
            None if self
                .shard
                .of_request(self.shard.absent_row(), costs)
                .impossible_cost(self.shard.absent_row(), costs)
                .is_none() =>
            {
                let change = costs.row_change();
                if let Some(refused) =
                    change.and_then(|change| self.shard.refused_capacity(self.shard.absent_row(), change))
                {
                    return Ok(Err(NoRow::Refused(refused)));
                }
                match self.add_row(key, &[])? {
                    Ok(row) => {
                        if let Some(change) = change {
                            self.begin_with(row, change)?;
                        }
                        row
                    }
                    Err(no_row) => return Ok(Err(no_row)),
                }
            }
            None => return Ok(Err(NoRow::Full { room_in: None })),
        };
        Ok(Ok(row))
    }

    /// Makes a row for a key that has none. Never uses one of the rows in `taken`.
    #[inline(never)]
    pub(in crate::engine) fn add_row(
        &self,
        key: &KeyIdentity,
        taken: &[Row<'a>],
    ) -> Result<Result<Row<'a>, NoRow>, Box<Error>> {
        let shard = self.shard;
        let is_taken = |index| taken.iter().any(|row| row.index == index);
        let claim = |index| {
            if is_taken(index) {
                Claim::Pinned
            } else {
                shard.claim(shard.row(index), self.now)
            }
        };
        let place = table::find_new_row(
            &TableWords::reading(shard.memory),
            key.fingerprint,
            |index| !is_taken(index) && shard.is_free(shard.row(index), self.now),
            (shard.when_full() != WhenFull::Refuse).then_some(claim),
        );
        let control = shard.memory.control();
        let index = match place {
            NewRow::None { room_in } => return Ok(Err(NoRow::Full { room_in })),
            // State that was left under other rules means something else under those of `default`.
            NewRow::Reused(index) if shard.differs_from_default(shard.row(index)) => {
                self.replenish_row(index);
                index
            }
            NewRow::Unused(index) | NewRow::Reused(index) => index,
            NewRow::Evicted(index) => {
                // If the process dies after this, the former key keeps its row, replenished.
                self.replenish_row(index);
                index
            }
        };
        let row = shard.row(index);
        if shard.set.has_lease_room {
            // One by one, because together they may be more words than a journal holds. If the process dies in between,
            // the former key keeps its row, and begins again as well.
            for limit in &shard.limits {
                let mut transaction = shard.memory.journal().begin();
                limit.begin_key(row, &mut transaction, shard.memory.lease_row());
                shard.commit(&mut transaction)?;
            }
        }
        let mut transaction = shard.memory.journal().begin();
        match place {
            NewRow::Unused(_) => transaction.add(&control.keys, 1),
            NewRow::Reused(_) => transaction.count(&control.evicted_unused, 1),
            NewRow::Evicted(_) => transaction.count(&control.evicted_in_use, 1),
            NewRow::None { .. } => {}
        }
        table::insert(
            &mut TableWords::changing(shard.memory, &mut transaction),
            index,
            key.fingerprint,
        );
        for (word, value) in [
            (row.used_at(), self.now.monotonic),
            (row.counts(), 0),
            (row.row_references(), 0),
        ] {
            if let Some(word) = word {
                transaction.store(word, value);
            }
        }
        if let Some((word, next)) = row.next_generation() {
            transaction.store(word, next);
        }
        for (word, value) in shard.memory.name(index).iter().zip(key.name().words) {
            transaction.store(word, value);
        }
        // Limits without anything to forget need nothing: the row is replenished, so they are as good as unused.
        for limit in &shard.limits {
            limit.forget(row, &mut transaction);
        }
        // Before the commit, so that the key never has the lead of the row's former key. If the rest is undone, the
        // former key loses its lead.
        if let Some(of_row) = shard.memory.row_order(index) {
            order::begin(&mut OrderWords::of(shard.memory), index);
            of_row.mean_held.store(0, Ordering::Relaxed);
        }
        shard.commit(&mut transaction)?;
        Ok(Ok(row))
    }
}

impl ShardAt<'_> {
    /// Notes that the key of a row was decided on now. A throttled key counts as used when the throttling ends. Not
    /// journalled: even if the operation is undone, the key was asked for.
    #[inline(always)]
    fn note_use(&self, row: Row<'_>) {
        if let Some(used_at) = row.used_at()
            && self.shard.row_throttled_for(row, self.now) == 0
        {
            used_at.store(self.now.monotonic, Ordering::Relaxed);
        }
    }

    /// Counts a decision on a key. Not journalled, like [`Transaction::count`].
    #[inline(always)]
    pub(in crate::engine) fn count_on_rows(&self, rows: Rows<'_>, decided: KeyCounts) {
        if !rows.first().is_keyed() {
            return;
        }
        for row in rows.iter() {
            if let Some(counts) = row.counts() {
                self.note_use(row);
                let before = KeyCounts::from_word(counts.load(Ordering::Relaxed));
                counts.store(before.plus(decided).to_word(), Ordering::Relaxed);
            }
        }
    }
}

impl Row<'_> {
    /// Notes that a hold, or a granted ticket, refers to the row.
    #[inline]
    pub(in crate::engine) fn pin(self, transaction: &mut Transaction<'_>) {
        if let Some(word) = self.row_references() {
            let row_references = RowReferences(word.load(Ordering::Relaxed));
            let pins = row_references.pins().saturating_add(1);
            transaction.store(word, row_references.with_pins(pins).0);
        }
    }

    /// Notes that a hold, or a granted ticket, no longer refers to the row.
    #[inline]
    pub(in crate::engine) fn unpin(self, transaction: &mut Transaction<'_>) {
        if let Some(word) = self.row_references() {
            let row_references = RowReferences(word.load(Ordering::Relaxed));
            let pins = row_references.pins().saturating_sub(1);
            transaction.store(word, row_references.with_pins(pins).0);
        }
    }
}

/// The word `counts` of a key's row: requests admitted in the low half, refused in the high half. Each half saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyCounts {
    pub(crate) admitted: u32,
    pub(crate) refused: u32,
}

impl KeyCounts {
    #[inline]
    pub(crate) fn from_word(word: u64) -> Self {
        Self {
            admitted: word as u32,
            refused: (word >> 32) as u32,
        }
    }

    #[inline]
    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.admitted) | (u64::from(self.refused) << 32)
    }

    /// One refused request.
    pub(in crate::engine) const REFUSED: Self = Self {
        admitted: 0,
        refused: 1,
    };

    /// `requests` admitted requests.
    #[inline(always)]
    pub(in crate::engine) fn admitted(requests: u64) -> Self {
        Self {
            admitted: u32::try_from(requests).unwrap_or(u32::MAX),
            refused: 0,
        }
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Self {
            admitted: self.admitted.saturating_add(other.admitted),
            refused: self.refused.saturating_add(other.refused),
        }
    }
}

impl<S> Table for TableWords<'_, S> {
    #[inline]
    fn buckets(&self) -> u64 {
        self.memory.row_count() / BUCKET_ROWS
    }

    #[inline]
    fn tag_word(&self, bucket: u64, word: u64) -> u64 {
        self.memory
            .tag_word(bucket, word)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    #[inline]
    fn tag_words(&self, bucket: u64) -> [u64; BUCKET_TAG_WORDS as usize] {
        let tags = self.memory.tags_of(bucket);
        tags.map_or([0; BUCKET_TAG_WORDS as usize], |tags| {
            tags.each_ref().map(|word| word.load(Ordering::Relaxed))
        })
    }

    #[inline]
    fn fingerprint(&self, row: u64) -> Fingerprint {
        self.memory.row(row).map_or(Fingerprint::NONE, Row::key)
    }
}

impl<S: Store> TableMut for TableWords<'_, S> {
    fn store_tag_word(&mut self, bucket: u64, word: u64, value: u64) {
        if let Some(word) = self.memory.tag_word(bucket, word) {
            self.store.store(word, value);
        }
    }

    fn store_fingerprint(&mut self, row: u64, fingerprint: Fingerprint) {
        let words = self.memory.row(row).and_then(Row::fingerprint);
        let values = [fingerprint.low, fingerprint.high];
        for (word, value) in words.into_iter().flatten().zip(values) {
            self.store.store(word, value);
        }
    }
}
