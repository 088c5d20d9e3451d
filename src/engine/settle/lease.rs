//! Leases: renewing them, which takes no lock, and giving back what was held for longer than its lease.

use std::sync::atomic::{Ordering, fence};

use crate::choices::Kind;
use crate::engine::shard::hold::Ending;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, Shard};
use crate::error::Error;
use crate::shm::layout::places::{HoldPlace, HoldReference};
use crate::shm::layout::records::MAX_LIMITS;
use crate::shm::probes;

/// Whether a hold was renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Renewed,
    /// A lease had expired, or the hold is another's. Nothing was changed.
    WasReclaimed,
}

/// The shortest lease of anything in a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShortestLease {
    /// In nanoseconds.
    Of(u64),
    /// Nothing in it has a lease.
    Endless,
    /// The hold no longer belongs to its owner.
    Released,
}

impl SegmentEngine {
    /// The shortest lease of anything in a hold, by the definition in force, even if that is newer than the hold.
    pub(crate) fn shortest_lease(&self, shard: Shard<'_>, hold: HoldReference, owner: u64) -> ShortestLease {
        self.definitions().keep_up(shard.set);
        let Some(place) = shard.place_of(hold, owner) else {
            return ShortestLease::Released;
        };
        match shard.by(shard.set.shown()).lease_of_hold(place) {
            Some(lease) => ShortestLease::Of(lease),
            None => ShortestLease::Endless,
        }
    }

    /// Restarts the leases of a hold now. Takes no lock, unless the hold is being changed at this moment or the shard
    /// is not sound; then it waits for the lock as long as `wait` says.
    pub(crate) fn heartbeat(
        &self,
        shard: Shard<'_>,
        hold: HoldReference,
        owner: u64,
        wait: LockWait,
    ) -> Result<Renewed, Box<Error>> {
        // Read before checking whose hold it is: if the place goes to another hold after that check, this instant is
        // earlier than the beginning of that hold, and changes nothing.
        let now = self.now_without_lock(shard);
        // What other hosts may have been given by now is not renewed.
        if self.is_unleased(shard, hold) {
            return Ok(Renewed::WasReclaimed);
        }
        let is_sound = shard.memory.control().poisoned.load(Ordering::Relaxed) == 0;
        if let Some(place) = shard.memory.hold(hold.index)
            && is_sound
            && shard.still_holds(hold, owner)
        {
            place.renewed_at().fetch_max(now, Ordering::SeqCst);
            // Keeps this change before the load below, as the process that ends leases keeps its change before its
            // load: one of the two sees the other. `src/weak_memory/renewal_order.rs` explores this and must change
            // with it.
            fence(Ordering::SeqCst);
            if shard.still_holds(hold, owner) {
                return Ok(Renewed::Renewed);
            }
        }
        let is_lost = || shard.read_if_idle(|| !shard.still_holds(hold, owner)) == Some(true);
        if is_sound && is_lost() {
            return Ok(Renewed::WasReclaimed);
        }
        self.heartbeat_under_lock(shard, hold, owner, wait)
    }

    #[cold]
    fn heartbeat_under_lock(
        &self,
        shard: Shard<'_>,
        hold: HoldReference,
        owner: u64,
        wait: LockWait,
    ) -> Result<Renewed, Box<Error>> {
        let locked = self.lock(shard, LockFor::GiveBack, wait)?;
        let shard = locked.shard;
        let Some(place) = shard
            .memory
            .hold(hold.index)
            .filter(|_| locked.owns(hold, owner) && !locked.has_lost_a_lease(hold))
        else {
            return Ok(Renewed::WasReclaimed);
        };
        place
            .renewed_at()
            .fetch_max(locked.now.monotonic, Ordering::Relaxed);
        Ok(Renewed::Renewed)
    }

    /// Whether a hold no longer belongs to its owner, was held for longer than its lease, or is no longer leased to
    /// this host. Takes no lock.
    pub(crate) fn is_lost(&self, shard: Shard<'_>, hold: HoldReference, owner: u64) -> bool {
        // In this order: what has expired may already be another's hold, and then this one is lost as well.
        self.has_expired(shard, hold) || self.is_unleased(shard, hold) || !shard.still_holds(hold, owner)
    }

    /// Whether a lease of the hold in a permit's place has expired. By now, that hold may be another's. Takes no lock.
    #[inline]
    pub(in crate::engine) fn has_expired(&self, shard: Shard<'_>, hold: HoldReference) -> bool {
        let shard_by_rules = shard.by_its_definition();
        shard_by_rules.has_leases && shard_by_rules.has_expired(hold.index, self.now_without_lock(shard))
    }

    /// Gives back what was held for longer than its lease. Returns how many holds were affected.
    pub(in crate::engine) fn expire(&self, shard: Shard<'_>, wait: LockWait) -> Result<u64, Box<Error>> {
        let now = self.segment_nanos();
        let holds = shard.memory.touched_holds();
        self.in_batches(
            shard,
            holds,
            wait,
            |index| shard.by_its_definition().has_expired(index, now),
            |locked, index| locked.expire_hold(index),
            &mut |_| {},
        )
    }

    /// When the next lease in the shard expires, on the boot-time clock; `u64::MAX` if there is none.
    pub(in crate::engine) fn earliest_expiry(&self, shard: RuledShard<'_>) -> u64 {
        self.boot_instant(shard.first_expiry())
    }
}

impl Shard<'_> {
    /// The place of a hold, if it still belongs to its owner. Takes no lock.
    pub(in crate::engine) fn place_of(&self, hold: HoldReference, owner: u64) -> Option<HoldPlace<'_>> {
        self.memory.hold(hold.index).filter(|place| {
            let is_owned = place.owner().load(Ordering::Relaxed) == owner;
            // In this order, and in the opposite one where a hold is taken: the next hold here has another serial.
            fence(Ordering::Acquire);
            is_owned && place.serial().load(Ordering::Relaxed) == hold.serial.get()
        })
    }

    /// Whether a hold still belongs to its owner and no part of it has expired. Takes no lock.
    pub(crate) fn still_holds(&self, hold: HoldReference, owner: u64) -> bool {
        self.place_of(hold, owner)
            .is_some_and(|place| place.expired().load(Ordering::Relaxed) == 0)
    }

    /// What `read` returns, if nothing changed in the meantime and nothing is half changed.
    fn read_if_idle<T>(&self, read: impl FnOnce() -> T) -> Option<T> {
        let journal = self.memory.journal();
        let sequence = journal.sequence_if_idle()?;
        let answer = read();
        journal.unchanged_since(sequence).then_some(answer)
    }
}

impl RuledShard<'_> {
    /// Whether a lease of the hold at `index` has expired.
    fn has_expired(&self, index: u64, now: u64) -> bool {
        self.expiry_of(index).is_some_and(|expiry| expiry <= now)
    }

    /// When the next lease in the shard expires, on the segment clock; `u64::MAX` if there is none.
    pub(in crate::engine) fn first_expiry(&self) -> u64 {
        (0..self.memory.touched_holds())
            .filter_map(|index| self.expiry_of(index))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// When the first lease of the hold at `index` expires, on the segment clock.
    fn expiry_of(&self, index: u64) -> Option<u64> {
        self.expiry_of_hold(self.memory.hold(index).filter(|hold| hold.is_taken())?)
    }

    /// When the first lease of a hold expires, on the segment clock.
    pub(in crate::engine) fn expiry_of_hold(&self, hold: HoldPlace<'_>) -> Option<u64> {
        let counts_from = self.leases_count_from(hold);
        Some(counts_from.saturating_add(self.lease_of_hold(hold)?))
    }

    /// The shortest lease of anything in a hold.
    fn lease_of_hold(&self, hold: HoldPlace<'_>) -> Option<u64> {
        self.held_limits()
            .zip(hold.amounts())
            .filter(|(_, amount)| amount.load(Ordering::Relaxed) > 0)
            .filter_map(|(limit, _)| limit.lease)
            .min()
    }

    /// When the leases of a hold started to run, on the segment clock. For a hold from before a change of the limits,
    /// they run from that change on: it may have had none before.
    pub(in crate::engine) fn leases_count_from(&self, hold: HoldPlace<'_>) -> u64 {
        let applied_at = self.memory.control().applied_at.load(Ordering::Relaxed);
        hold.renewed_at().load(Ordering::Relaxed).max(applied_at)
    }
}

impl LockedShard<'_> {
    /// Gives back the amounts of a hold whose leases have expired, and frees it if nothing is left.
    fn expire_hold(&self, index: u64) -> Result<(), Box<Error>> {
        if self.finish_if_marked(index)? {
            return Ok(());
        }
        let Some(hold) = self.shard.memory.hold(index) else {
            return Ok(());
        };
        let control = self.shard.memory.control();
        let row = self.shard.row(hold.row().index);
        let owner = hold.owner().load(Ordering::Relaxed);
        let counts_from = self.shard.leases_count_from(hold);
        let mut transaction = self.shard.memory.journal().begin();
        let mut expired = hold.expired().load(Ordering::Relaxed);
        let mut is_empty = true;
        let mut given_back = [0; MAX_LIMITS];
        for ((word, limit), number) in hold
            .amounts()
            .iter()
            .zip(self.shard.held_limits())
            .zip(&self.shard.held_indexes)
        {
            let amount = word.load(Ordering::Relaxed);
            if amount > 0 && limit.has_expired(counts_from, self.now) && limit.kind == Kind::Concurrency {
                limit.give_back(row, &mut transaction, amount);
                transaction.store(word, 0);
                given_back[limit.index % MAX_LIMITS] = amount;
                expired |= 1 << number;
            } else {
                is_empty &= amount == 0;
            }
        }
        transaction.store(hold.expired(), expired);
        if is_empty {
            self.free_hold(&mut transaction, index, Ending::Undone);
        }
        // The counterpart of the fence in a renewal: if the renewal came first, what was done here is undone, and the
        // hold stays renewed.
        fence(Ordering::SeqCst);
        if self.shard.leases_count_from(hold) != counts_from {
            drop(transaction);
            return Ok(());
        }
        let given_back = || (0..).zip(given_back).filter(|(_, amount)| *amount > 0);
        for (index, amount) in given_back() {
            transaction.count(&self.shard.counters(index).reclaimed, amount);
            transaction.count(&control.expired, 1);
        }
        self.shard.commit(&mut transaction)?;
        self.correct_given_back(index, given_back());
        let set = self.shard.set;
        for (index, amount) in given_back() {
            probes::lease_expired::fire(|| {
                let limit = set.limits.get(index).map_or("", |limit| &limit.name);
                let pid = self.engine.pid_of(owner);
                (self.engine.path(), &set.name, limit, pid, amount)
            });
        }
        Ok(())
    }
}
