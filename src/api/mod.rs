//! The public API.

pub(crate) mod clock_check;
pub mod fleet;
pub(crate) mod key;
pub(crate) mod metric;
pub(crate) mod permit;
pub(crate) mod pool;
#[cfg(feature = "metrics")]
mod recorded_metrics;
pub(crate) mod refusal;
pub(crate) mod request;
pub(crate) mod request_events;
pub(crate) mod reset_builders;
pub(crate) mod segment;
pub(crate) mod segment_memory;
pub(crate) mod set;
pub(crate) mod snapshot;
pub(crate) mod wait;
