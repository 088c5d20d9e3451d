//! What happens in a segment now: successive lock-free looks at it, as rates per second and short histories. All that
//! shows a segment live or exports its figures looks by this.

pub mod activity;
pub mod exposition;
mod hottest;
pub mod sampler;
pub mod schedule;
pub mod standing;
