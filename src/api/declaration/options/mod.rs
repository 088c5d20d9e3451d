//! What is declared of a segment besides its sets: its clock, its locks, its checkpoints and its fleet.

pub(crate) mod checkpoint;
pub(crate) mod clock_source;
pub(crate) mod fleet;
pub(crate) mod lock_kind;
