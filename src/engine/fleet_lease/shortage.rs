//! Notes that too little is leased, and wakes the process that asks for more.

use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::terms::decision::Costs;
use crate::engine::terms::own_capacities::LimitMask;
use crate::limit::{Assessment, LeaseWord};
use crate::shm::layout::row::Row;
use crate::shm::wake::futex;

impl LockedShard<'_> {
    /// Notes how much was asked for, for each limit that refuses its cost for want of a lease.
    #[cold]
    pub(in crate::engine) fn note_unmet(&self, row: Row<'_>, costs: &Costs) {
        for (index, cost) in costs.iter() {
            let Some(limit) = self.shard.limits.get(index) else {
                continue;
            };
            let (assessment, mark) = limit.verdict_and_mark(row, self.now, cost);
            let is_refused = assessment != Assessment::Admissible;
            if is_refused && limit.shortage_of(mark).is_some() && limit.note_unmet(row, self.now, cost) {
                self.alert_duty(row, true);
            }
        }
    }

    /// Notes, for each limit that is `near` its capacity because its lease is nearly spent, that more should be asked
    /// for.
    #[inline(always)]
    pub(in crate::engine) fn note_low_leases(&self, near: LimitMask, row: Row<'_>) {
        if near != LimitMask::default() && self.shard.set.has_lease_room {
            self.note_low(near, row);
        }
    }

    #[cold]
    fn note_low(&self, near: LimitMask, row: Row<'_>) {
        for index in near.iter() {
            let limit = self.shard.limits.get(index).filter(|limit| limit.is_leased());
            if let Some(limit) = limit
                && limit.note_low(row)
            {
                // A key without a lease merely has something to report.
                self.alert_duty(row, limit.has_lease(row, self.now));
            }
        }
    }

    /// Has the process on duty look at the row of a key that was charged or refunded other than by an admission: if the
    /// row is on no list, nobody else would report that.
    pub(in crate::engine) fn note_report(&self, row: Row<'_>) {
        if !row.is_keyed() || !self.shard.set.has_lease_room {
            return;
        }
        if self.shard.limits.iter().any(|limit| limit.is_unreported(row)) {
            self.alert_duty(row, false);
        }
    }

    /// Has the process on duty give back a place that was released, if other hosts wait for it.
    pub(in crate::engine) fn note_release(&self, row: Row<'_>) {
        let mut held_limits = self.shard.rules.held_limits();
        if held_limits.any(|limit| limit.has_place_to_return(row, self.now)) {
            self.alert_duty(row, true);
        }
    }

    /// Has the process on duty look at the row: at once if it is `urgent`, otherwise together with others.
    fn alert_duty(&self, row: Row<'_>, urgent: bool) {
        let is_news = !row.is_keyed() || self.shard.want_for(row, self.now, urgent);
        if is_news {
            self.wakes_duty.set(true);
        }
    }
}

impl SegmentEngine {
    /// Wakes the process on duty to look. If there is none, or it is dead, whoever takes duty looks first of all. This
    /// is a system call, so it is not made under a lock.
    #[cold]
    pub(in crate::engine) fn wake_duty(&self) {
        if let Some(words) = self.duty_words() {
            futex::bump(words.word(LeaseWord::DutyFutex));
            futex::wake(words.word(LeaseWord::DutyFutex));
        }
    }
}
