//! What happens in a segment now: successive looks at it without a lock, as rates per second and short histories.
//! Everything that shows a segment live or exports its metrics uses this.

pub mod activity;
pub mod exposition;
mod hottest;
pub mod sampler;
pub mod schedule;
pub mod usage;
