//! Civil days, weeks and months at an offset from UTC that may change, in the proleptic Gregorian calendar.

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

/// What local clocks show. All offsets are less than a day. As on the Unix clock, there are no leap seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalTime {
    /// Seconds to add to UTC to get civil time, positive east of Greenwich, before the first transition.
    pub(crate) utc_offset_seconds: i32,
    /// In the order of their instants. The last offset stays in force.
    pub(crate) transitions: &'static [Transition],
}

/// A change of the offset from UTC, such as those of summer time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transition {
    /// In seconds since the Unix epoch.
    pub(crate) at: i64,
    /// In seconds, from then on.
    pub(crate) offset: i32,
}

impl LocalTime {
    /// Clocks that are never changed.
    pub(crate) const fn at_offset(utc_offset_seconds: i32) -> Self {
        Self {
            utc_offset_seconds,
            transitions: &[],
        }
    }

    /// What clocks show at the instant `utc`.
    fn shown(&self, utc: i64) -> i64 {
        let passed = self.transitions.partition_point(|it| it.at <= utc);
        utc + i64::from(self.offset_after(passed))
    }

    /// The first instant at which clocks show `civil` or later. They may skip it or show it twice.
    fn first_showing(&self, civil: i64) -> i64 {
        // When these happened, clocks cannot have shown it yet, whatever the offset was: each is less than a day.
        let passed = self
            .transitions
            .partition_point(|it| it.at <= civil - SECONDS_PER_DAY);
        let mut since = i64::MIN;
        let mut offset = self.offset_after(passed);
        for next in &self.transitions[passed..] {
            let reached = since.max(civil - i64::from(offset));
            if reached < next.at {
                return reached;
            }
            (since, offset) = (next.at, next.offset);
        }
        since.max(civil - i64::from(offset))
    }

    /// The offset once that many transitions have passed.
    fn offset_after(&self, passed: usize) -> i32 {
        let last = passed.checked_sub(1).and_then(|last| self.transitions.get(last));
        last.map_or(self.utc_offset_seconds, |it| it.offset)
    }

    fn offsets(&self) -> impl Iterator<Item = i32> {
        let later = self.transitions.iter().map(|it| it.offset);
        std::iter::once(self.utc_offset_seconds).chain(later)
    }
}

/// How time is divided into civil periods.
///
/// A day begins when clocks first show its midnight or, if they skip it, something later. So the day on which summer
/// time begins has 23 hours, and the one on which it ends 25. If clocks are set back across midnight, they show the end
/// of a day once more; that time belongs to the new day: each instant is in one day, and no day comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calendar {
    pub(crate) unit: CalendarUnit,
    pub(crate) local: LocalTime,
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
        let furthest = self.local.offsets().map(i32::unsigned_abs).max().unwrap_or(0);
        if furthest > Self::MAX_OFFSET_SECONDS {
            return Err(InvalidLimit::AboveMax {
                what: "distance from UTC in seconds",
                given: u64::from(furthest),
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
        let (least, most) = self
            .local
            .offsets()
            .fold((i32::MAX, i32::MIN), |(least, most), it| {
                (least.min(it), most.max(it))
            });
        (days * SECONDS_PER_DAY.unsigned_abs() + u64::from(most.abs_diff(least))) * NANOS_PER_SECOND
    }

    /// No period is shorter than this many nanoseconds, except for one that is cut off.
    pub(crate) fn shortest_period(&self) -> u64 {
        let days = match self.unit {
            CalendarUnit::Day => 1,
            CalendarUnit::Week => 7,
            CalendarUnit::Month => 28,
        };
        let regular = days * SECONDS_PER_DAY.unsigned_abs() * NANOS_PER_SECOND;
        // Only those in which the offset changes have other lengths.
        let instants = self.local.transitions.iter().flat_map(|it| [it.at - 1, it.at]);
        let periods = instants.map(|at| self.period(at.max(0).unsigned_abs() * NANOS_PER_SECOND));
        periods.map(|it| it.end - it.start).fold(regular, u64::min)
    }

    /// The period that contains the instant `utc`.
    ///
    /// The period that contains the epoch may have begun before it; it is cut off there, because instants are
    /// unsigned. An end after the last 64-bit instant (in the year 2554) is moved to it.
    pub(in crate::limit) fn period(&self, utc: u64) -> Period {
        // The quotient is below 2^35, so the conversion loses nothing.
        let first = self.first_day(self.day((utc / NANOS_PER_SECOND) as i64));
        Period {
            start: self.instant(first),
            end: self.instant(self.first_day_of_next(first)),
        }
    }

    /// The day that contains the second `utc`; days are counted from 1970-01-01.
    fn day(&self, utc: i64) -> i64 {
        let mut day = self.local.shown(utc).div_euclid(SECONDS_PER_DAY);
        // Clocks that were set back may show a day that is over.
        while !self.local.transitions.is_empty() && self.begins(day + 1) <= utc {
            day += 1;
        }
        day
    }

    /// The second at which civil `day` begins.
    fn begins(&self, day: i64) -> i64 {
        self.local.first_showing(day * SECONDS_PER_DAY)
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
        saturate(u128::from(self.begins(day).max(0).unsigned_abs()) * u128::from(NANOS_PER_SECOND))
    }
}

/// The first day of the month that contains `day`.
///
/// After `civil_from_days` in Howard Hinnant's "chrono-Compatible Low-Level Date Algorithms". Years that begin in
/// March put the leap day last, so the months before month m have (153 m + 2) / 5 days together.
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
