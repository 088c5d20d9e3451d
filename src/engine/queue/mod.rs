//! The queue of waiters: waiting, granting, waking.

pub(super) mod deadline;
pub(super) mod deaths;
mod enqueue;
pub(super) mod grant;
pub(super) mod lapse;
pub(super) mod next_look;
pub(super) mod notify;
pub(super) mod order;
pub(super) mod own_ticket;
pub(super) mod waiting;
