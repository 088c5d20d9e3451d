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

pub(crate) use acquire::{Costs, Decision, Refused, Taken, TakenLimit};
pub(crate) use hold::HoldReference;
pub(crate) use observe::{ObservedHold, SetObservation, observe};
pub(crate) use recover::Repairs;
pub(crate) use reset::ResetScope;
pub(crate) use segment::{SegmentEngine, SetEngine};
pub(crate) use settle::{Released, SettledLimit};
