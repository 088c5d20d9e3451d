//! Where windows of the wall clock begin and end, computed as in the script.

use crate::terms::Windows;

const DAY: i64 = 86_400_000_000;
const MICROS: i64 = 1_000_000;
/// 1970-01-01 was a Thursday.
const EPOCH_AFTER_MONDAY: i64 = 3;

/// The beginning and end of the window that contains `instant`, all in microseconds since the Unix epoch.
pub(super) fn window_at(window: Windows, instant: i64) -> (i64, i64) {
    let east = |seconds: i32| i64::from(seconds) * MICROS;
    let day = |seconds| (instant + east(seconds)).div_euclid(DAY);
    let days =
        |first: i64, following: i64, seconds| (first * DAY - east(seconds), following * DAY - east(seconds));
    match window {
        Windows::Length(length) => {
            let length = length.cast_signed();
            let start = instant - instant.rem_euclid(length);
            (start, start + length)
        }
        Windows::Day(seconds) => days(day(seconds), day(seconds) + 1, seconds),
        Windows::Week(seconds, start) => {
            let day = day(seconds);
            let first = day - (day + EPOCH_AFTER_MONDAY - i64::from(start)).rem_euclid(7);
            days(first, first + 7, seconds)
        }
        Windows::Month(seconds) => {
            let first = first_of_month(day(seconds));
            days(first, first_of_month(first + 31), seconds)
        }
    }
}

/// Years that begin in March put the leap day last.
fn first_of_month(day: i64) -> i64 {
    let of_era = (day + 719_468).rem_euclid(146_097);
    let leaps = of_era / 1_460 - of_era / 36_524 + of_era / 146_096;
    let year = (of_era - leaps) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    day - (of_year - (153 * month + 2) / 5)
}
