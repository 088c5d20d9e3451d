//! Joins the rules and the ground: the only taker of locks.

mod acquire;
mod hold;
mod observe;
pub(crate) mod plan;
mod reclaim;
mod recover;
mod reset;
mod segment;
mod settle;
mod view;

pub use acquire::RefusalReason;
pub(crate) use acquire::{AssessedLimit, Costs, Decision, Refused, Taken};
pub(crate) use observe::{ObservedHold, SetObservation, observe};
pub use recover::Repairs;
pub(crate) use reset::ResetScope;
pub(crate) use segment::{SegmentEngine, SetEngine};
pub(crate) use settle::{Released, SettledLimit};
pub(crate) use view::SetView;
