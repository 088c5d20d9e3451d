//! Takes back places that are held but no longer leased, because other hosts may be given them.
//!
//! Which places these are follows from what the segment says at an instant and from nothing else, so every process
//! finds the same ones, whether or not anyone is on duty: those of the youngest holds, until no more is held than is
//! leased. In a keyed set, places are leased for each key, so a row is looked at together with its own holds.

use std::sync::atomic::Ordering;

use crate::engine::recover::reclaim::BATCH;
use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::hold::Ending;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, Shard};
use crate::error::Error;
use crate::limit::Now;
use crate::shm::layout::places::{HoldPlace, HoldReference};
use crate::shm::layout::row::Row;
use crate::sorting::sort_by;

/// How often to look without the lock while the shard keeps changing.
pub(in crate::engine) const LOOKS: usize = 100;

/// The age of a hold: when it was taken, and its index. The youngest is the greatest.
type Age = (u64, u64);

/// A hold, and the limits whose places in it are not leased, as a bit mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct UnleasedHold {
    pub(in crate::engine) index: u64,
    pub(in crate::engine) limits: u32,
}

impl<'a> RuledShard<'a> {
    /// Whether more of any limit of a row is held than leased.
    pub(in crate::engine) fn has_unleased_places(&self, row: Row<'_>, now: Now) -> bool {
        self.set.has_lease_room && self.limits_above_lease(row, now).next().is_some()
    }

    /// Each limit of a row with more held than leased, with the position of its amount in a hold and the excess.
    fn limits_above_lease(
        &self,
        row: Row<'_>,
        now: Now,
    ) -> impl Iterator<Item = (&'a LimitRules, usize, u64)> {
        let limits = self.rules.held_limits().enumerate();
        limits
            .map(move |(position, limit)| (limit, position, limit.places_above_lease(row, now)))
            .filter(|(_, _, above)| *above > 0)
    }

    /// Whether hosts share any limit of which places are held.
    fn leases_places(&self) -> bool {
        self.set.has_lease_room && self.rules.held_limits().any(LimitRules::is_leased)
    }

    /// The rows of which more is held than leased.
    fn rows_above_lease(&self, now: Now) -> Vec<u64> {
        let is_above = |row: &u64| self.has_unleased_places(self.row(*row), now);
        if !self.leases_places() {
            return Vec::new();
        }
        if !self.memory.is_keyed() {
            return Some(0).filter(is_above).into_iter().collect();
        }
        let of_holds = self.holds_by_age().map(|(_, hold)| hold.row().index);
        let mut rows: Vec<u64> = of_holds.filter(is_above).collect();
        sort_by(&mut rows, |one, other| one < other);
        rows.dedup();
        rows
    }

    /// Whether some hold has places of a row of which more is held than leased.
    pub(in crate::engine) fn can_take_places_back(&self, row: Row<'_>, now: Now) -> bool {
        self.set.has_lease_room
            && self.limits_above_lease(row, now).any(|(_, position, _)| {
                self.holds_of(row.index)
                    .any(|(_, hold)| amount(hold, position) > 0)
            })
    }

    /// The holds in use, with their ages.
    fn holds_by_age(&self) -> impl Iterator<Item = (Age, HoldPlace<'a>)> {
        let memory = self.memory;
        (0..memory.touched_holds())
            .filter_map(|index| Some((index, memory.hold(index)?)))
            .filter(|(_, hold)| hold.is_taken())
            .map(|(index, hold)| ((hold.taken_at().load(Ordering::Relaxed), index), hold))
    }

    /// The holds in use of one row, with their ages.
    fn holds_of(&self, row: u64) -> impl Iterator<Item = (Age, HoldPlace<'a>)> {
        self.holds_by_age()
            .filter(move |(_, hold)| hold.row().index == row)
    }

    /// Whether places of the hold at `index` are not leased. Does not allocate.
    pub(in crate::engine) fn is_unleased(&self, index: u64, now: Now) -> bool {
        let Some(own) = self.memory.hold(index).filter(|hold| hold.is_taken()) else {
            return false;
        };
        let own_age = (own.taken_at().load(Ordering::Relaxed), index);
        let row = self.row(own.row().index);
        self.limits_above_lease(row, now).any(|(_, position, above)| {
            let younger = self.holds_of(row.index).filter(|(age, _)| *age > own_age);
            let of_younger: u64 = younger.map(|(_, hold)| amount(hold, position)).sum();
            amount(own, position) > 0 && of_younger < above
        })
    }

    /// The holds whose places are not leased, once everything for which `is_given_back` holds is given back.
    pub(in crate::engine) fn unleased_holds(
        &self,
        now: Now,
        is_given_back: impl Fn(HoldPlace<'_>) -> bool,
    ) -> Vec<UnleasedHold> {
        let rows = self.rows_above_lease(now).into_iter();
        rows.flat_map(|row| self.unleased_holds_of(row, now, &is_given_back))
            .collect()
    }

    /// The same for the holds of one row.
    fn unleased_holds_of(
        &self,
        row: u64,
        now: Now,
        is_given_back: impl Fn(HoldPlace<'_>) -> bool,
    ) -> Vec<UnleasedHold> {
        let (given_back, mut holds): (Vec<_>, Vec<_>) =
            self.holds_of(row).partition(|(_, hold)| is_given_back(*hold));
        sort_by(&mut holds, |(one, _), (other, _)| one > other);
        let above = self.limits_above_lease(self.row(row), now);
        let mut above: Vec<(&LimitRules, usize, u64)> = above.collect();
        for (_, position, above) in &mut above {
            let of_gone: u64 = given_back.iter().map(|(_, hold)| amount(*hold, *position)).sum();
            *above = above.saturating_sub(of_gone);
        }
        let unleased = holds.into_iter().map(|((_, index), hold)| {
            let mut limits = 0;
            for (limit, position, above) in &mut above {
                let amount = amount(hold, *position);
                if *above > 0 && amount > 0 {
                    *above = above.saturating_sub(amount);
                    limits |= 1 << limit.index;
                }
            }
            UnleasedHold { index, limits }
        });
        unleased.filter(|hold| hold.limits != 0).collect()
    }
}

fn amount(hold: HoldPlace<'_>, position: usize) -> u64 {
    let word = hold.amounts().get(position);
    word.map_or(0, |word| word.load(Ordering::Relaxed))
}

impl SegmentEngine {
    /// Whether any places of the hold in a permit's place are no longer leased to this host. Looks without the lock,
    /// and trusts what it sees only if nothing changed in the meantime: in the middle of a renewal, nothing would seem
    /// to be leased.
    pub(in crate::engine) fn is_unleased(&self, shard: Shard<'_>, hold: HoldReference) -> bool {
        if !shard.set.has_lease_room {
            return false;
        }
        let now = shard.instant(self.now(shard));
        let by_rules = shard.by_its_definition();
        match by_rules.read_consistently(LOOKS, || by_rules.is_unleased(hold.index, now)) {
            Some(is_unleased) => is_unleased,
            // If the lock cannot be had either, the permit counts as whole.
            None => self
                .lock(shard, LockFor::Timeless, LockWait::Briefly)
                .is_ok_and(|locked| locked.shard.is_unleased(hold.index, locked.shard.instant(now))),
        }
    }

    /// Takes back what is held beyond the lease of each concurrency limit that hosts share, from the youngest holds of
    /// each row first. Returns how many holds it took something from.
    pub(in crate::engine) fn reclaim_places(
        &self,
        shard: Shard<'_>,
        wait: LockWait,
    ) -> Result<u64, Box<Error>> {
        let seen = shard.by_its_definition();
        let mut done = 0;
        for row in seen.rows_above_lease(seen.instant(self.now(shard))) {
            done += self.reclaim_places_of(shard, row, wait)?;
        }
        Ok(done)
    }

    /// The same for one row.
    fn reclaim_places_of(&self, shard: Shard<'_>, row: u64, wait: LockWait) -> Result<u64, Box<Error>> {
        // Found without the lock, and checked again under it.
        let mut holds: Vec<Age> = shard
            .by_its_definition()
            .holds_of(row)
            .map(|(age, _)| age)
            .collect();
        sort_by(&mut holds, |one, other| one > other);
        let mut done = 0;
        for batch in holds.chunks(BATCH) {
            let mut locked = self.lock(shard, LockFor::GiveBack, wait)?;
            for age in batch {
                done += u64::from(locked.take_places_back(*age, row)?);
            }
            locked.serve_every_queue()?;
            if !locked
                .shard
                .has_unleased_places(locked.shard.row(row), locked.now)
            {
                break;
            }
        }
        Ok(done)
    }

    /// Takes the lock of a shard at a moment when no more of one row is held than leased. Whoever changes a lease of
    /// the row starts with this, so that what was given to other hosts is not held here again.
    pub(in crate::engine) fn lock_leased<'a>(
        &'a self,
        shard: Shard<'a>,
        row: u64,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        loop {
            let locked = self.lock(shard, LockFor::Decide, LockWait::Timeout)?;
            if !locked
                .shard
                .has_unleased_places(locked.shard.row(row), locked.now)
            {
                return Ok(locked);
            }
            drop(locked);
            if self.reclaim_places_of(shard, row, LockWait::Timeout)? == 0 {
                // What is in use is in no hold: the counts are damaged, and whoever finds that repairs them.
                return self.lock(shard, LockFor::Decide, LockWait::Timeout);
            }
        }
    }
}

impl LockedShard<'_> {
    /// Takes back what a hold has of limits with more held than leased, if it is still the same hold. Its permit
    /// finds out that it was reclaimed. Returns whether there was anything to take.
    fn take_places_back(&self, (taken_at, index): Age, row: u64) -> Result<bool, Box<Error>> {
        let shard = self.shard;
        if !shard.has_unleased_places(shard.row(row), self.now) || self.finish_if_marked(index)? {
            return Ok(false);
        }
        let hold = shard.memory.hold(index).filter(|hold| hold.is_taken());
        let is_same = |hold: &HoldPlace<'_>| {
            hold.taken_at().load(Ordering::Relaxed) == taken_at && hold.row().index == row
        };
        let Some(hold) = hold.filter(is_same) else {
            return Ok(false);
        };
        let row = shard.row(row);
        let mut transaction = shard.memory.journal().begin();
        let mut expired = hold.expired().load(Ordering::Relaxed);
        let before = expired;
        for (limit, position, _) in shard.limits_above_lease(row, self.now) {
            let Some(word) = hold.amounts().get(position) else {
                continue;
            };
            let amount = word.load(Ordering::Relaxed);
            if amount == 0 {
                continue;
            }
            limit.give_back(row, &mut transaction, amount);
            transaction.store(word, 0);
            expired |= 1 << limit.index;
            transaction.count(&shard.counters(limit.index).reclaimed, amount);
            transaction.count(&shard.memory.control().expired, 1);
        }
        if expired == before {
            return Ok(false);
        }
        transaction.store(hold.expired(), expired);
        let is_empty = hold
            .amounts()
            .iter()
            .all(|amount| amount.load(Ordering::Relaxed) == 0);
        if is_empty {
            self.free_hold(&mut transaction, index, Ending::Undone);
        }
        shard.commit(&mut transaction)?;
        Ok(true)
    }
}
