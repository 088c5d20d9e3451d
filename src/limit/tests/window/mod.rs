//! The rules that count in windows.

mod calendar_tests;
mod fixed_window_tests;
mod sliding_window_counter_tests;
mod sliding_window_tests;
mod time_zone_tests;
mod window_bound_tests;
