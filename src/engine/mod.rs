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
pub(crate) use acquire::{Answer, Costs, Decided, Decisions, LimitMask, NEVER};
pub(crate) use hold::HoldReference;
pub(crate) use observe::{ObservedHold, observe};
pub use recover::Repairs;
pub(crate) use reset::ResetScope;
pub(crate) use segment::{SegmentEngine, SetEngine};
pub(crate) use settle::{Released, Reservation, SettledLimit, SettledLimits};
