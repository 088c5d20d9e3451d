//! Clocks.

pub(crate) mod clock;
pub(crate) mod virtual_clock;
