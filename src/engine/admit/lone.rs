//! The lane of a single word: a request for one limit that is a plain backlog, as most are.
//!
//! The [charge loop](super::charge) would decide the same. The lane stays beside it because it is what most programs
//! do all day, and takes about half the instructions. It nearly always changes one word, with one store that either
//! happens or not: there is nothing to journal and nothing to undo. It needs only the bare lock, is inlined into its
//! callers, and passes copies to what is not inlined, so that everything stays in registers.

use std::sync::atomic::Ordering;

use super::attempt::{Answer, Attempt};
use super::decided::Decided;
use super::decision::{Costs, Decision};
use super::resolution::Cause;
use crate::engine::definition::backlog_limit::BacklogLimit;
use crate::engine::shard::key_identity::KeyIdentity;
use crate::engine::shard::key_table::KeyCounts;
use crate::engine::shard::set_engine::ShardAt;
use crate::limit::Assessment;
use crate::shm::layout::records::MAX_LIMITS;
use crate::shm::layout::row::Row;
use crate::shm::lock::journal::{LoneChange, count};

/// What became of the cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Admitted,
    Refused,
    /// The loop has to decide.
    Undecided,
}

impl ShardAt<'_> {
    /// Decides a request that has the lane to itself, for the process that is `owner`. `None`, with nothing changed, if
    /// the loop has to decide it. At the [first](Attempt::First) attempt the decision must be pending.
    #[inline(always)]
    pub(in crate::engine) fn decide_lone(
        self,
        owner: u64,
        key: Option<&KeyIdentity>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Option<Answer> {
        let Self { shard, now } = self;
        let index = costs.limits.only()?;
        let limit = shard.rules.backlogs.get(index)?;
        let row = match key {
            None => shard.only_row(),
            Some(key) => shard.find_row_of(key.fingerprint)?,
        };
        if !shard.has_no_waiters(row) || shard.throttled_for(row, now) != 0 {
            return None;
        }
        let is_pending = attempt == Attempt::First;
        decision.begin(
            shard.index(),
            shard.definition(),
            now.monotonic,
            owner,
            is_pending,
        );
        match shard.at(now).take_backlog(limit, index, row, costs, decision) {
            Taken::Admitted => Some(Answer::Admitted),
            Taken::Refused => shard.at(now).refuse_backlog(index, row, costs, decision, attempt),
            Taken::Undecided => None,
        }
    }

    #[inline(always)]
    fn take_backlog(
        self,
        limit: &BacklogLimit,
        index: usize,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
    ) -> Taken {
        let cost = costs.amounts[index % MAX_LIMITS];
        let Some(words) = limit.words(row.states()) else {
            return Taken::Refused;
        };
        let Some(mark) = limit.mark_if_admitted(words, self.now, cost) else {
            return Taken::Refused;
        };
        let memory = self.shard.memory;
        let change = (cost > 0).then(|| LoneChange::begin(&memory.control().journal));
        // Counted before it is done, so that a death in between counts one too many and none too few.
        self.count_charge(index, cost, limit.is_near(mark), 1);
        self.count_admitted(row.into(), 1);
        if let Some(change) = change {
            let [first, second] = limit.state_at(self.now, mark);
            if words[1].load(Ordering::Relaxed) == second {
                change.change(&words[0], first);
            } else if memory.change_both(words, first, second).is_err() {
                return Taken::Undecided;
            }
        }
        let mut notes = decision.notes();
        notes.note(Decided::charged(mark, cost));
        notes.note_key(row, row.reference());
        Taken::Admitted
    }

    /// Refuses: no holder's death would help. `None` if the cost never fits, which is for the loop to say.
    #[inline(never)]
    fn refuse_backlog(
        self,
        index: usize,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Option<Answer> {
        let cost = costs.amounts[index % MAX_LIMITS];
        let limit = self.shard.backlogs.get(index)?;
        let (assessment, mark) = limit.assess(row.states(), self.now, cost)?;
        if assessment == (Assessment::Refused { retry_after: None }) {
            return None;
        }
        decision.notes().note(Decided::assessed(mark, assessment));
        if matches!(attempt, Attempt::BeforeWaiting | Attempt::Waiting) {
            return Some(Answer::MustWait);
        }
        decision.refuse(Cause::Limits);
        count(&self.shard.memory.control().refused_rate, 1);
        if let Some(counters) = self.shard.memory.find_counters(index) {
            count(&counters.refused, 1);
        }
        self.count_on_rows(row.into(), KeyCounts::REFUSED);
        Some(Answer::Refused)
    }
}
