//! What goes with a [`Request`](crate::Request): how it names limits, how it waits, and what is reported about it.
//!
//! - Every method that names a limit takes a [`LimitName`]: text, or a [`LimitIndex`], which is found once.
//! - An [`AcquireFuture`] waits in the queue.
//! - A [`SetReset`] or a [`KeyReset`] says what [`LimitSet::reset`](crate::LimitSet::reset) replenishes.
//! - [`RequestEvent`]s report refusals and waits, if
//!   [`OpenOptions::on_request_event`](crate::OpenOptions::on_request_event) asks for them.

pub use crate::api::request_events::{RequestEvent, RequestEventKind};
pub use crate::api::reset_builders::{KeyReset, SetReset};
pub use crate::api::set::limit_set::{LimitIndex, LimitName};
pub use crate::api::wait::acquire_future::AcquireFuture;
