//! Rules that count in windows: fixed, calendar and sliding.

pub(super) mod calendar;
pub(super) mod fixed_window;
pub(super) mod sliding_window;
pub(super) mod sliding_window_counter;
pub(crate) mod window_bound;
