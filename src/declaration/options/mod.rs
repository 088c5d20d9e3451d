//! The declared options of a segment, apart from its sets.

pub(crate) mod checkpoint;
pub(crate) mod clock_source;
pub(in crate::declaration) mod file_mode;
pub(crate) mod fleet;
pub(crate) mod segment_options;
