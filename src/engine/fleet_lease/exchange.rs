//! Asking the store for leases, and applying its answers.

use std::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip::SipHasher13;

use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{SetEngine, Shard};
use crate::engine::terms::decision::Details;
use crate::error::Error;
use crate::limit::{Answer, Ask, LeaseOutcome, LeaseWord, Now, Problem};
use crate::shm::layout::records::Header;
use crate::shm::layout::row::{Row, RowReference};
use crate::shm::lock::journal::Transaction;
use crate::shm::wake::futex;

/// The most rows to look at, or to change, while the lock is held.
pub(super) const ROWS_A_LOCK: u64 = 64;

/// The position of a limit that hosts share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeasePlace {
    /// The position of the set in the segment.
    pub(crate) set: usize,
    /// The position of the limit in the set.
    pub(crate) limit: usize,
    /// The shard and the row of the key, if each key has the limit for itself.
    pub(crate) shard: u32,
    pub(crate) row: RowReference,
}

/// A request to send to the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedLease {
    pub(crate) place: LeasePlace,
    /// What identifies the key to all hosts, if each key has the limit for itself.
    pub(crate) of_key: Option<u128>,
    /// The generation of the definition that the limit is from.
    pub(crate) generation: u64,
    /// When it was handed out, on the segment clock.
    pub(crate) attempt_at: u64,
    pub(crate) ask: Ask,
}

impl SetEngine {
    /// The fencing number of an admission: that of its first limit that is held and shared by hosts.
    pub(crate) fn fleet_fencing_number(&self, decision: &Details) -> Option<u64> {
        if !self.has_lease_room {
            return None;
        }
        let rules = self
            .rules
            .find(|rules| decision.definition.is_of(rules.generation))?;
        decision
            .iter()
            .find_map(|(index, decided)| rules.limits.get(index)?.fencing_number(decided.mark))
    }
}

/// The number by which the store knows the host of a segment. It belongs to this file, and changes with each cold
/// start, so also with each boot. A copy of the file has another number, wherever it is, because it is another file.
///
/// The files of a directory have one half in common. The other half tells a file from an earlier one of the same name,
/// whose sequence numbers it does not continue.
pub(crate) fn host_number(header: &Header) -> u64 {
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let [first, second] = [0, 1].map(|half: usize| load(&header.hash_key[half]));
    let words = [
        load(&header.device),
        load(&header.inode),
        load(&header.cold_starts),
        // Changes each time a segment is created from a checkpoint.
        load(&header.created_utc),
    ];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let of_file = SipHasher13::new_with_keys(first, second).hash(&bytes);
    match directory_number(header) {
        0 => of_file,
        of_directory => of_directory | u64::from(of_file as u32),
    }
}

/// The half that the numbers of all files of a directory have in common; zero for a file by itself.
pub(crate) fn directory_number(header: &Header) -> u64 {
    header.directory_number.load(Ordering::Relaxed) & !u64::from(u32::MAX)
}

impl SegmentEngine {
    fn lease_sets(&self) -> impl Iterator<Item = (usize, &SetEngine)> {
        let sets = self.sets().iter().map(|set| &**set);
        sets.enumerate().filter(|(_, set)| set.has_lease_room)
    }

    /// Whether hosts share any limit.
    pub(crate) fn has_leases(&self) -> bool {
        self.lease_sets().any(|(_, set)| {
            self.definitions().keep_up(set);
            set.shown().limits.iter().any(LimitRules::is_leased)
        })
    }

    /// The number by which the store knows this host.
    pub(crate) fn host_number(&self) -> u64 {
        host_number(self.header())
    }

    /// The half of that number that all files of a directory have in common; zero for a file by itself.
    pub(crate) fn directory_number(&self) -> u64 {
        directory_number(self.header())
    }

    /// Every request that is due. Each is recorded in the segment before it is returned. Sets that cannot be locked now
    /// are asked about later; the first error is returned only if nothing else is.
    pub(crate) fn ask_leases(&self) -> Result<Vec<AskedLease>, Box<Error>> {
        let mut asked = Vec::new();
        let mut failure = None;
        for (position, set) in self.lease_sets() {
            if let Err(error) = self.ask_leases_of(position, set, &mut asked) {
                failure.get_or_insert(error);
            }
        }
        match failure {
            Some(error) if asked.is_empty() => Err(error),
            _ => Ok(asked),
        }
    }

    fn ask_leases_of(
        &self,
        position: usize,
        set: &SetEngine,
        asked: &mut Vec<AskedLease>,
    ) -> Result<(), Box<Error>> {
        if self.lease_due_in_set(set).is_none_or(|due| due > 0) {
            return Ok(());
        }
        if set.is_keyed() {
            return set
                .shards()
                .try_for_each(|shard| self.ask_for_keys(position, shard, asked));
        }
        // Nothing is allocated under the lock.
        asked.reserve(set.limits.len());
        let locked = self.lock_leased(set.shard(0), 0)?;
        let (shard, now) = (locked.shard, locked.now);
        let row = shard.only_row();
        for limit in &shard.limits {
            let mut transaction = shard.memory.journal().begin();
            let Some(ask) = limit.ask_lease(row, &mut transaction, now) else {
                // It may have noted that a lease expired, and that stands.
                shard.commit(&mut transaction)?;
                continue;
            };
            shard.commit(&mut transaction)?;
            asked.push(AskedLease {
                place: LeasePlace {
                    set: position,
                    limit: limit.index,
                    shard: 0,
                    row: row.reference(),
                },
                of_key: None,
                generation: shard.rules.generation,
                attempt_at: now.monotonic,
                ask,
            });
        }
        Ok(())
    }

    /// How many nanoseconds until the next request is due, as far as can be seen without a lock.
    pub(crate) fn lease_due_in(&self) -> Option<u64> {
        self.lease_sets()
            .filter_map(|(_, set)| {
                self.definitions().keep_up(set);
                self.lease_due_in_set(set)
            })
            .min()
    }

    fn lease_due_in_set(&self, set: &SetEngine) -> Option<u64> {
        if set.is_keyed() {
            let due = set
                .shards()
                .filter_map(|shard| shard.by_its_definition().keys_due_at())
                .min()?;
            return Some(due.saturating_sub(self.now(set.shard(0)).monotonic));
        }
        let shard = set.shard(0).by_its_definition();
        let now = shard.instant(self.now(set.shard(0)));
        let row = shard.memory.only_row();
        let due = shard
            .limits
            .iter()
            .filter_map(|limit| limit.lease_due_at(row, now));
        due.min().map(|due| due.saturating_sub(now.monotonic))
    }

    /// Applies an answer of the store, and serves those who were waiting for it.
    pub(crate) fn install_lease(&self, asked: &AskedLease, answer: Answer) -> Result<(), Box<Error>> {
        self.change_lease(asked.place, |limit, row, transaction, now| {
            let installed = limit.install_lease(row, transaction, now, asked.attempt_at, answer);
            installed.map(|_| LeaseOutcome::Answered(answer))
        })
    }

    /// Notes that an attempt failed, and serves those who are admitted because of that.
    pub(crate) fn fail_lease(
        &self,
        asked: &AskedLease,
        problem: Problem,
        retry_in: u64,
    ) -> Result<(), Box<Error>> {
        self.change_lease(asked.place, |limit, row, transaction, now| {
            let retry_at = now.monotonic.saturating_add(retry_in);
            let is_current = limit.fail_lease(row, transaction, now, asked.ask.sequence, problem, retry_at);
            is_current.then_some(LeaseOutcome::Failed(problem, retry_at))
        })
    }

    /// Makes every limit give back what is leased, or stop giving it back.
    pub(crate) fn set_draining(&self, draining: bool) -> Result<(), Box<Error>> {
        for (_, set) in self.lease_sets() {
            for shard in set.shards() {
                self.drain_shard(shard, draining)?;
            }
        }
        self.wake_duty();
        Ok(())
    }

    fn drain_shard(&self, shard: Shard<'_>, draining: bool) -> Result<(), Box<Error>> {
        self.reclaim_places(shard, LockWait::Timeout)?;
        let mut locked = self.lock(shard, LockFor::Decide, LockWait::Timeout)?;
        // Keys follow the record of the shard when they are made or looked at, so it comes first.
        locked.drain_row(locked.shard.memory.lease_row(), draining)?;
        locked.shard.list_all_rows();
        let _ = locked.serve_every_queue();
        drop(locked);
        let rows = if shard.set.is_keyed() {
            shard.memory.row_count()
        } else {
            0
        };
        let mut next = 0;
        while next < rows {
            let mut locked = self.lock(shard, LockFor::Decide, LockWait::Timeout)?;
            let end = rows.min(next + ROWS_A_LOCK);
            for index in next..end {
                locked.drain_row(locked.shard.row(index), draining)?;
            }
            let _ = locked.serve_every_queue();
            next = end;
        }
        Ok(())
    }

    fn change_lease(
        &self,
        place: LeasePlace,
        change: impl FnOnce(&LimitRules, Row<'_>, &mut Transaction<'_>, Now) -> Option<LeaseOutcome>,
    ) -> Result<(), Box<Error>> {
        let Some(set) = self.sets().get(place.set) else {
            return Ok(());
        };
        let mut locked = self.lock_leased(set.shard(place.shard), place.row.index)?;
        let (shard, now) = (locked.shard, locked.now);
        let row = if set.is_keyed() {
            shard.row(place.row.index)
        } else {
            shard.only_row()
        };
        let Some(limit) = shard.limits.get(place.limit) else {
            return Ok(());
        };
        if row.reference() != place.row {
            return Ok(());
        }
        let of_shard = shard.memory.lease_row();
        let was_out = limit.is_known_out(of_shard);
        let mut transaction = shard.memory.journal().begin();
        let outcome = change(limit, row, &mut transaction, now);
        if let Some(outcome) = outcome.filter(|_| row.is_keyed()) {
            limit.note_outcome(of_shard, &mut transaction, now, outcome);
        }
        shard.commit(&mut transaction)?;
        let has_turned = row.is_keyed() && limit.is_known_out(of_shard) != was_out;
        // The change stands, whatever is wrong with the queue; the next operation reports that.
        let _ = if row.is_keyed() {
            locked.serve_next(row.index)
        } else {
            locked.serve_every_queue()
        };
        drop(locked);
        // First of all: telling others may fail, and this process may die before it does.
        if let Some(words) = self.duty_words() {
            futex::bump(words.word(LeaseWord::Answered));
            futex::wake_all(words.word(LeaseWord::Answered));
        }
        if has_turned {
            self.tell_other_shards(set, place)?;
        }
        Ok(())
    }

    /// Tells the other shards of a set that the store has gone out, or is back, because new keys begin with what their
    /// shard knows of that. A shard that is not told finds out when it next asks: as soon as a key wants something, and
    /// at the latest at its next retry.
    fn tell_other_shards(&self, set: &SetEngine, place: LeasePlace) -> Result<(), Box<Error>> {
        let mut failure = Ok(());
        for shard in set.shards().filter(|shard| shard.index() != place.shard) {
            // A shard that cannot be locked now does not keep the news from the others.
            failure = failure.and(self.tell_shard(shard, set.shard(place.shard), place.limit));
        }
        failure
    }

    fn tell_shard(&self, shard: Shard<'_>, from: Shard<'_>, limit: usize) -> Result<(), Box<Error>> {
        let locked = self.lock(shard, LockFor::Decide, LockWait::Timeout)?;
        let shard = locked.shard;
        if let Some(limit) = shard.limits.get(limit) {
            let mut transaction = shard.memory.journal().begin();
            limit.copy_outage(
                shard.memory.lease_row(),
                &mut transaction,
                from.memory.lease_row(),
            );
            shard.commit(&mut transaction)?;
        }
        Ok(())
    }
}

impl LockedShard<'_> {
    fn drain_row(&self, row: Row<'_>, draining: bool) -> Result<(), Box<Error>> {
        for limit in &self.shard.limits {
            let mut transaction = self.shard.memory.journal().begin();
            limit.set_draining(row, &mut transaction, draining);
            self.shard.commit(&mut transaction)?;
        }
        Ok(())
    }
}
