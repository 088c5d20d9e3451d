//! Joins the rules and the shared-memory layer: the only taker of locks.

mod admit;
mod credit;
pub(crate) mod definition;
mod observe;
mod queue;
mod recover;
mod settle;
mod shard;

pub(crate) use admit::acquire::Target;
pub(crate) use admit::check::Outlook;
pub use admit::decision::RefusalReason;
pub(crate) use admit::decision::{Costs, Decided, Decision, Details, NEVER, Stage};
pub(crate) use admit::network::Networks;
pub(crate) use admit::reserve::Reserved;
pub(crate) use credit::credit_batch::{BatchAnswer, BatchWish, TakenBatch};
pub(crate) use definition::apply_definition::Applied;
pub(crate) use definition::definitions::Definitions;
pub(crate) use definition::limit_rules::LimitRules;
pub(crate) use definition::overrides::OwnCapacities;
pub(crate) use definition::row_tier::TierIndex;
pub(crate) use observe::load::Load;
pub use observe::observe_row::TableUsage;
pub(crate) use observe::observe_row::{KeptName, ObservedKey, RowLooker};
pub(crate) use observe::observe_shard::{ObservedHold, ObservedTicket, ShardObservation, observe_shard};
pub(crate) use queue::deaths::{DeathNotice, Deaths, SHORT_WAIT, UNWATCHED_SLICE, WATCHED_SLICE};
pub(crate) use queue::waiting::{
    Acquired, KeepWaiting, PollResult, WaitBy, WaitStart, Waiting, deadline_after,
};
pub(crate) use recover::dead_holds::{DeadHolds, RowCopy};
pub use recover::repairs::Repairs;
pub(crate) use settle::lease::Renewed;
pub(crate) use settle::reset::ResetScope;
pub(crate) use settle::settlement::{Released, SettledLimit, SettledLimits};
pub(crate) use shard::hold::HoldReference;
pub(crate) use shard::key_identity::KeyIdentity;
pub(crate) use shard::locked_shard::LockWait;
pub(crate) use shard::segment_engine::{EngineOptions, SegmentEngine, place_sets};
pub(crate) use shard::set_engine::{RuledShard, SetEngine, Shard, ShardAt};
