//! Asking the store for what the [listed](crate::engine::shard::listed_keys) keys of a shard want.

use std::sync::atomic::Ordering;

use crate::engine::fleet_lease::exchange::{AskedLease, LeasePlace, ROWS_A_LOCK};
use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::Shard;
use crate::error::Error;
use crate::limit::LeaseOutcome;
use crate::shm::layout::row::Row;
use crate::shm::layout::row_list::RowList;

/// The most requests of one exchange with the store.
const REQUESTS: usize = 4096;

impl SegmentEngine {
    /// The requests that are due for keys of a shard.
    pub(super) fn ask_for_keys(
        &self,
        position: usize,
        shard: Shard<'_>,
        asked: &mut Vec<AskedLease>,
    ) -> Result<(), Box<Error>> {
        let by_definition = shard.by_its_definition();
        let now = by_definition.instant(self.now(shard)).monotonic;
        if by_definition.keys_due_at().is_none_or(|due| due > now) {
            return Ok(());
        }
        // The kept rows come first: a row that is asked for moves to their list.
        for list in [RowList::Kept, RowList::Wanting] {
            if by_definition.list_due_at(list).is_none_or(|due| due > now) {
                continue;
            }
            // What is no longer leased may be other hosts' by now, and a renewal would give it back to its holders.
            self.reclaim_places(shard, LockWait::Timeout)?;
            let broke_off_at = shard.set.looked_up_to(shard.index(), list);
            let begun_at = broke_off_at.map_or(0, |row| row.swap(0, Ordering::Relaxed));
            let (mut next, mut has_turned, mut takes_all) = (begun_at, begun_at == 0, None);
            loop {
                if asked.len() >= REQUESTS {
                    // The rest stays listed, and the look after this exchange begins there.
                    if let Some(row) = broke_off_at {
                        row.store(next, Ordering::Relaxed);
                    }
                    if let Some(takes_all) = takes_all {
                        by_definition.looks().break_off(list, takes_all, now);
                    }
                    return Ok(());
                }
                // Nothing is allocated under the lock.
                asked.reserve(ROWS_A_LOCK as usize * shard.set.limits.len());
                let locked = self.lock(shard, LockFor::Decide, LockWait::Timeout)?;
                let takes_all =
                    *takes_all.get_or_insert_with(|| locked.shard.looks().begin(list, locked.now));
                next = match locked.ask_for_listed(position, (list, takes_all), next, asked)? {
                    Some(next) if has_turned && (1..=next).contains(&begun_at) => break,
                    Some(next) => next,
                    None if has_turned => break,
                    None => {
                        has_turned = true;
                        0
                    }
                };
            }
        }
        Ok(())
    }
}

impl LockedShard<'_> {
    /// Looks at some rows of a list from `from` on: at all of them, or only at urgent ones. Returns where to continue.
    fn ask_for_listed(
        &self,
        position: usize,
        (list, takes_all): (RowList, bool),
        mut from: u64,
        asked: &mut Vec<AskedLease>,
    ) -> Result<Option<u64>, Box<Error>> {
        let rows = self.shard.memory.row_list(list);
        for _ in 0..ROWS_A_LOCK {
            let Some(index) = rows.next(from) else {
                return Ok(None);
            };
            from = index + 1;
            if takes_all || self.is_in_hurry(self.shard.row(index)) {
                self.ask_for_row(position, index, asked)?;
            } else {
                self.shard.looks().leave(self.now);
            }
        }
        Ok(Some(from))
    }

    fn is_in_hurry(&self, row: Row<'_>) -> bool {
        let mut limits = self.shard.limits.iter();
        limits.any(|limit| limit.is_key_in_hurry(row, self.now))
    }

    fn ask_for_row(
        &self,
        position: usize,
        index: u64,
        asked: &mut Vec<AskedLease>,
    ) -> Result<(), Box<Error>> {
        let (shard, now) = (self.shard, self.now);
        let memory = shard.memory;
        let row = shard.row(index);
        if shard.can_take_places_back(row, now) {
            // These places were leased until a moment ago. The next look takes them back first.
            shard.looks().leave(now);
            return Ok(());
        }
        let of_shard = memory.lease_row();
        let mut is_kept = false;
        let is_used = !row.is_absent() && !row.is_unused();
        for limit in shard.limits.iter().filter(|limit| is_used && limit.is_leased()) {
            let mut transaction = memory.journal().begin();
            limit.follow_draining(row, &mut transaction, of_shard);
            let ask = if limit.follow_outage(row, &mut transaction, of_shard, now) {
                None
            } else {
                limit.ask_lease(row, &mut transaction, now)
            };
            if ask.is_some() {
                limit.note_outcome(of_shard, &mut transaction, now, LeaseOutcome::Asked);
            }
            shard.commit(&mut transaction)?;
            is_kept |= self.keeps_listed(limit, row)?;
            asked.extend(ask.map(|ask| AskedLease {
                place: LeasePlace {
                    set: position,
                    limit: limit.index,
                    shard: shard.index(),
                    row: row.reference(),
                },
                of_key: Some(row.key().in_fleet(&shard.set.mixer)),
                generation: shard.rules.generation,
                attempt_at: now.monotonic,
                ask,
            }));
        }
        memory.row_list(RowList::Wanting).remove(index);
        if is_kept {
            memory.row_list(RowList::Kept).insert(index);
        } else {
            memory.row_list(RowList::Kept).remove(index);
        }
        Ok(())
    }

    /// Whether the limit of a key will have something to report or to ask for. If not, notes that the row is not
    /// listed.
    fn keeps_listed(&self, limit: &LimitRules, row: Row<'_>) -> Result<bool, Box<Error>> {
        if limit.lease_due_at(row, self.now).is_some() {
            return Ok(true);
        }
        let mut transaction = self.shard.memory.journal().begin();
        limit.leave_list(row, &mut transaction);
        self.shard.commit(&mut transaction)?;
        Ok(false)
    }
}
