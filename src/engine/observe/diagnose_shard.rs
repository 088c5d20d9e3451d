//! What can be wrong with a shard, seen without its lock: whether it makes progress, whether its counts agree, and who
//! waits although nothing is missing.

use std::sync::atomic::Ordering;

use crate::choices::ShardPoison;
use crate::engine::recover::repairs::{Extent, POISONED_BY_JOURNAL};
use crate::engine::shard::set_engine::{RuledShard, Shard, ShardAt};
use crate::limit::{Assessment, Now};
use crate::queue::{Phase, TicketState};
use crate::shm::layout::places::TicketPlace;
use crate::shm::layout::records::is_poison;
use crate::shm::lock::journal::JournalState;

/// How often to look before giving up because the shard keeps changing.
const ATTEMPTS: usize = 100;

/// What is known of a shard besides what it holds.
#[derive(Clone, Debug)]
pub(crate) struct ShardFindings {
    /// Moves on with each change, and with each instant at which the lock was taken. If two readings find the same
    /// value, no operation has ended in between.
    pub(crate) changes: u64,
    pub(crate) is_half_done: bool,
    /// Nanoseconds since something was decided.
    pub(crate) decided_before: u64,
    pub(crate) poison: Option<ShardPoison>,
    /// Whether the counts agree with the holds and tickets; `None` if the shard kept changing, or an operation is half
    /// done.
    pub(crate) adds_up: Option<bool>,
    /// Whether something may have been given back without the lock that nobody has finished yet.
    pub(crate) is_marked: bool,
    /// The numbers of tickets that are first in their queues although the limits would admit them now.
    pub(crate) admissible_heads: Vec<u64>,
}

/// Looks for what is wrong with a shard. Neither locks nor writes.
pub(crate) fn diagnose_shard(shard: Shard<'_>, now: Now) -> ShardFindings {
    let control = shard.memory.control();
    let ruled = shard.by_its_definition();
    let at = ShardAt {
        shard: ruled,
        now: ruled.instant(now),
    };
    let last_seen = control.last_seen.load(Ordering::Relaxed);
    ShardFindings {
        // Neither goes back, so the sum stands still only if both do. A refusal moves only the second.
        changes: control.journal.load(Ordering::Relaxed).wrapping_add(last_seen),
        is_half_done: shard.memory.journal().state() != JournalState::Idle,
        decided_before: now.monotonic.saturating_sub(last_seen),
        poison: match control.poisoned.load(Ordering::Relaxed) {
            word if !is_poison(word) => None,
            POISONED_BY_JOURNAL => Some(ShardPoison::Journal),
            _ => Some(ShardPoison::Counts),
        },
        adds_up: ruled.read_consistently(ATTEMPTS, || ruled.is_consistent(Extent::Whole)),
        is_marked: shard.has_marks(),
        admissible_heads: ruled
            .read_consistently(ATTEMPTS, || at.admissible_heads())
            .unwrap_or_default(),
    }
}

impl ShardAt<'_> {
    /// The numbers of tickets that are first in their queues although the limits would admit them.
    fn admissible_heads(&self) -> Vec<u64> {
        let memory = self.shard.memory;
        (0..memory.touched_tickets())
            .filter(|index| self.shard.queue_headed_by(*index).is_some())
            .filter_map(|index| memory.ticket(index))
            .filter(|ticket| self.is_admissible(*ticket))
            .map(|ticket| TicketState::from_word(ticket.state().load(Ordering::Relaxed)))
            .filter(|state| state.phase == Phase::Waiting)
            .map(|state| state.serial)
            .collect()
    }

    /// Whether nothing that a ticket asks for is missing.
    fn is_admissible(&self, ticket: TicketPlace<'_>) -> bool {
        let Self { shard, now } = *self;
        let row = shard.row(ticket.row().index);
        let costs = shard.costs_of(ticket);
        let rules: RuledShard<'_> = shard.of(row);
        !ticket.is_expired(now.monotonic)
            && !rules.wants_for_a_hold(&costs)
            && shard.throttled_for(row, now) == 0
            && costs.iter().all(|(index, cost)| {
                rules.limits.get(index).is_some_and(|limit| {
                    limit.shadow || limit.of(row).verdict(row, now, cost) == Assessment::Admissible
                })
            })
    }
}
