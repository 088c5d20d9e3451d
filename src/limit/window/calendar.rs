//! Civil days, weeks and months at a fixed offset from UTC, in the proleptic Gregorian calendar.

use crate::limit::InvalidLimit;
use crate::units::{NANOS_PER_SECOND, saturate};

const SECONDS_PER_DAY: i64 = 86_400;

/// The period that a calendar window spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CalendarUnit {
    Day,
    Week,
    Month,
}

/// How time is divided into civil periods.
///
/// There are no time zones here, only a constant offset, so days that daylight saving makes longer or shorter do not
/// occur. Nor do leap seconds, as on the Unix clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calendar {
    pub(crate) unit: CalendarUnit,
    /// Seconds to add to UTC to get civil time: positive east of Greenwich.
    pub(crate) utc_offset_seconds: i32,
    /// How many days after Monday a week begins: below 7. Used for weeks only.
    pub(crate) week_start: u8,
}

/// A half-open span of time, in nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limit) struct Period {
    pub(in crate::limit) start: u64,
    pub(in crate::limit) end: u64,
}

impl Calendar {
    /// Real offsets lie between -12 and +14 hours; anything less than a day works.
    const MAX_OFFSET_SECONDS: u32 = SECONDS_PER_DAY as u32 - 1;

    /// 1970-01-01 was a Thursday.
    const EPOCH_AFTER_MONDAY: i64 = 3;

    pub(in crate::limit) fn check(&self) -> Result<(), InvalidLimit> {
        if self.utc_offset_seconds.unsigned_abs() > Self::MAX_OFFSET_SECONDS {
            return Err(InvalidLimit::AboveMax {
                what: "distance from UTC in seconds",
                given: u64::from(self.utc_offset_seconds.unsigned_abs()),
                max: u64::from(Self::MAX_OFFSET_SECONDS),
            });
        }
        Ok(())
    }

    /// No period is longer than this many nanoseconds.
    pub(in crate::limit) fn longest_period(&self) -> u64 {
        let days = match self.unit {
            CalendarUnit::Day => 1,
            CalendarUnit::Week => 7,
            CalendarUnit::Month => 31,
        };
        days * SECONDS_PER_DAY.unsigned_abs() * NANOS_PER_SECOND
    }

    /// The period that contains the instant `utc`.
    ///
    /// The period that contains the epoch may have begun before it; it is cut off there, because instants are
    /// unsigned. An end after the last 64-bit instant (in the year 2554) is moved to it.
    pub(in crate::limit) fn period(&self, utc: u64) -> Period {
        // The quotient is below 2^35, so the conversion loses nothing.
        let civil_seconds = (utc / NANOS_PER_SECOND) as i64 + i64::from(self.utc_offset_seconds);
        let first = self.first_day(civil_seconds.div_euclid(SECONDS_PER_DAY));
        Period {
            start: self.instant(first),
            end: self.instant(self.first_day_of_next(first)),
        }
    }

    /// The first day of the period that contains `day`; days are counted from 1970-01-01.
    fn first_day(&self, day: i64) -> i64 {
        match self.unit {
            CalendarUnit::Day => day,
            CalendarUnit::Week => {
                let after_monday = day + Self::EPOCH_AFTER_MONDAY;
                day - (after_monday - i64::from(self.week_start)).rem_euclid(7)
            }
            CalendarUnit::Month => first_day_of_month(day),
        }
    }

    fn first_day_of_next(&self, first: i64) -> i64 {
        match self.unit {
            CalendarUnit::Day => first + 1,
            CalendarUnit::Week => first + 7,
            // 31 days after the first of a month is always in the next month, on its first to fourth day.
            CalendarUnit::Month => first_day_of_month(first + 31),
        }
    }

    /// When civil `day` begins, in nanoseconds since the epoch.
    fn instant(&self, day: i64) -> u64 {
        let seconds = day * SECONDS_PER_DAY - i64::from(self.utc_offset_seconds);
        saturate(u128::from(seconds.max(0).unsigned_abs()) * u128::from(NANOS_PER_SECOND))
    }
}

/// The first day of the month that contains `day`.
///
/// After `civil_from_days` in Howard Hinnant's "chrono-Compatible Low-Level Date Algorithms". Years that begin in
/// March put the leap day last, so the months before month m have (153 m + 2) / 5 days in all.
fn first_day_of_month(day: i64) -> i64 {
    const DAYS_PER_ERA: i64 = 146_097; // 400 years
    const EPOCH_FROM_YEAR_ZERO: i64 = 719_468; // from 0000-03-01 to 1970-01-01
    let day_of_era = (day + EPOCH_FROM_YEAR_ZERO).rem_euclid(DAYS_PER_ERA);
    // Whole years: take out one leap day in 4 years, put one back in 100, and take out the era's last day.
    let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / (DAYS_PER_ERA - 1);
    let year = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    day - (day_of_year - (153 * month + 2) / 5)
}
