//! Joins the rules and the ground: the only taker of locks.

mod acquire;
mod bell;
mod credit;
mod grant;
mod hold;
mod limit_engine;
mod line;
mod load;
mod memory;
mod observe;
pub(crate) mod plan;
mod reclaim;
mod recover;
mod reserve;
mod reset;
mod segment;
mod settle;
mod waiting;

pub use acquire::RefusalReason;
pub(crate) use acquire::{Costs, Decided, Decision, LimitMask, NEVER, Stage};
pub(crate) use credit::{BatchAnswer, BatchWish, TakenBatch};
pub(crate) use hold::HoldReference;
pub(crate) use load::Load;
pub(crate) use observe::{ObservedHold, ObservedTicket, observe};
pub use recover::Repairs;
pub(crate) use reserve::Reserved;
pub(crate) use reset::ResetScope;
pub(crate) use segment::{SegmentEngine, SetEngine};
pub(crate) use settle::{Released, Renewed, SettledLimit, SettledLimits};
pub(crate) use waiting::{Begun, Looked, Patience, WaitBy, Waiting, deadline_after};
