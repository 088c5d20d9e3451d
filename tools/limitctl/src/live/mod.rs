//! What happens in a segment now: successive lock-free looks at it, as rates per second and short histories. Everything
//! that shows a segment live or exports its metrics uses this.

pub mod activity;
pub mod exposition;
mod hottest;
pub mod sampler;
pub mod schedule;
pub mod usage;
