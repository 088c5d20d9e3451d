//! Clocks.

pub(crate) mod anchored_clock;
pub(crate) mod clock;
pub(crate) mod processor_counter;
pub(crate) mod segment_clock;
pub(crate) mod virtual_clock;
pub(crate) mod virtual_waits;
