//! The declared options of a segment besides its sets: clock, locks, checkpoints and fleet.

pub(crate) mod checkpoint;
pub(crate) mod clock_source;
pub(crate) mod fleet;
