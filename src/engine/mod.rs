//! Joins the rules and the shared-memory layer: the only taker of locks.

mod admit;
mod credit;
pub(crate) mod definition;
mod lease;
mod observe;
mod queue;
mod recover;
mod settle;
mod shard;

pub(crate) use crate::shm::layout::places::HoldReference;
pub(crate) use admit::acquire::Target;
pub(crate) use admit::check::Outlook;
pub(crate) use admit::decided::{Decided, NEVER};
pub use admit::decision::RefusalReason;
pub(crate) use admit::decision::{Costs, Decision, Details};
pub(crate) use admit::network::Networks;
pub(crate) use admit::reserve::Reserved;
pub(crate) use admit::resolution::Phase;
pub(crate) use credit::drawn::Spent;
pub(crate) use definition::change::apply_definition::Applied;
pub(crate) use definition::change::definitions::Definitions;
pub(crate) use definition::definition_bits::TierIndex;
pub(crate) use definition::limit_rules::LimitRules;
pub(crate) use definition::own_capacities::OwnCapacities;
pub(crate) use lease::duty::{EXCHANGE, TakenDuty, duty_of};
pub(crate) use lease::exchange::{AskedLease, host_number};
pub(crate) use observe::diagnose_shard::{ShardFindings, diagnose_shard};
pub(crate) use observe::load::Load;
pub use observe::observe_row::TableUsage;
pub(crate) use observe::observe_row::{KeptName, ObservedKey, RowLooker};
pub(crate) use observe::observe_shard::{ObservedHold, ObservedTicket, ShardObservation, observe_shard};
pub(crate) use queue::deadline::Deadline;
pub(crate) use queue::deaths::{DeathNotice, Deaths, SHORT_WAIT, UNWATCHED_SLICE, WATCHED_SLICE};
pub(crate) use queue::own_ticket::Waiting;
pub(crate) use queue::waiting::{Acquired, KeepWaiting, PollResult, WaitAs, WaitBy, WaitStart};
pub(crate) use recover::dead_holds::{DeadHolds, RowCopy};
pub use recover::recovery_report::Repairs;
pub(crate) use settle::lease::{Renewed, ShortestLease};
pub(crate) use settle::reset::ResetScope;
pub(crate) use settle::settlement::{Released, SettledLimit, SettledLimits};
pub(crate) use shard::key_identity::KeyIdentity;
#[cfg(test)]
pub(crate) use shard::locked_shard::LockFor;
pub(crate) use shard::locked_shard::LockWait;
pub(crate) use shard::segment_engine::{EngineOptions, SegmentEngine, place_sets};
pub(crate) use shard::set_engine::{RuledShard, SetEngine, Shard, ShardAt};
