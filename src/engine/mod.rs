//! Joins the rules and the ground: the only taker of locks.

mod acquire;
mod hold;
mod limit_engine;
mod memory;
mod observe;
pub(crate) mod plan;
mod reclaim;
mod recover;
mod reset;
mod segment;
mod settle;

pub use acquire::RefusalReason;
pub(crate) use acquire::{Costs, Decided, Decision, LimitMask, NEVER, Stage};
pub(crate) use observe::{ObservedHold, observe};
pub use recover::Repairs;
pub(crate) use reset::ResetScope;
pub(crate) use segment::{SegmentEngine, SetEngine};
pub(crate) use settle::{Released, SettledLimit, SettledLimits};
