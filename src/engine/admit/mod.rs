//! Deciding whether a request is admitted.

pub(super) mod acquire;
pub(super) mod ahead;
pub(super) mod attempt;
pub(super) mod await_lease;
pub(super) mod charge;
pub(super) mod check;
pub(super) mod network;
pub(super) mod plain;
pub(super) mod refuse;
pub(super) mod reserve;
pub(super) mod throttle;
