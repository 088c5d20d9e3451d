//! The rule that a time zone follows after its last listed change, as POSIX writes it in `TZ`.

const SECONDS_PER_HOUR: i32 = 3_600;
const SECONDS_PER_DAY: i64 = 86_400;

/// Standard time, and summer time if the zone has any. Offsets are in seconds east of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PosixRule {
    pub(super) standard: i32,
    summer: Option<Summer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Summer {
    offset: i32,
    begins: Change,
    ends: Change,
}

/// A day of each year, and the seconds from its midnight, by the clock that is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    day: Day,
    seconds: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Day {
    /// From 1 to 365, as in a year without a leap day: February 29 is never counted.
    CommonYear(i64),
    /// From 0 to 365.
    AnyYear(i64),
    /// The week from 1, where 5 is the last one, and the weekday from Sunday, which is 0.
    Weekday { month: i64, week: i64, weekday: i64 },
}

impl PosixRule {
    /// Reads a rule such as `PST8PDT,M3.2.0,M11.1.0` or `<-03>3`; `None` if the text is not a rule.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut rest = Rest(text);
        rest.abbreviation()?;
        // POSIX counts offsets to the west.
        let standard = -rest.offset(24)?;
        if rest.0.is_empty() {
            return Some(Self {
                standard,
                summer: None,
            });
        }
        rest.abbreviation()?;
        let offset = match rest.0.starts_with(',') {
            true => standard + SECONDS_PER_HOUR,
            false => -rest.offset(24)?,
        };
        let summer = Summer {
            offset,
            begins: rest.change()?,
            ends: rest.change()?,
        };
        rest.0.is_empty().then_some(Self {
            standard,
            summer: Some(summer),
        })
    }

    /// The instants in a year at which the offset changes, and the offset from then on, in seconds.
    pub(super) fn changes_of(&self, year: i64) -> impl Iterator<Item = (i64, i32)> {
        let changes = self.summer.map(|summer| {
            let mut changes = [
                (summer.begins.instant(year, self.standard), summer.offset),
                (summer.ends.instant(year, summer.offset), self.standard),
            ];
            changes.sort_unstable();
            changes
        });
        changes.into_iter().flatten()
    }
}

impl Change {
    fn instant(&self, year: i64, offset: i32) -> i64 {
        self.day.of(year) * SECONDS_PER_DAY + i64::from(self.seconds) - i64::from(offset)
    }
}

impl Day {
    /// The day in that year, counted from 1970-01-01.
    fn of(self, year: i64) -> i64 {
        match self {
            Self::CommonYear(day) => {
                let is_after_leap_day = day >= 60 && is_leap(year);
                first_of(year, 1) + day - 1 + i64::from(is_after_leap_day)
            }
            Self::AnyYear(day) => first_of(year, 1) + day,
            Self::Weekday { month, week, weekday } => {
                let first = first_of(year, month);
                // 1970-01-01 was a Thursday.
                let until_weekday = (weekday - (first + 4)).rem_euclid(7);
                let day = first + until_weekday + 7 * (week - 1);
                let next_month = match month {
                    12 => first_of(year + 1, 1),
                    _ => first_of(year, month + 1),
                };
                if day < next_month { day } else { day - 7 }
            }
        }
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// The first day of a month, counted from 1970-01-01.
fn first_of(year: i64, month: i64) -> i64 {
    // Years that begin in March have the leap day at their end.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    365 * year + leap_days + (153 * month + 2) / 5 - 719_468
}

/// When a year begins in UTC, in seconds since 1970.
pub(super) fn start_of_year(year: i64) -> i64 {
    first_of(year, 1) * SECONDS_PER_DAY
}

/// The year of an instant in UTC.
pub(super) fn year_of(seconds: i64) -> i64 {
    let day = seconds.div_euclid(SECONDS_PER_DAY);
    // 400 years have 146,097 days: the estimate is right, or one too many or too few.
    let estimate = 1970 + day * 400 / 146_097;
    (estimate - 1..=estimate + 1)
        .rev()
        .find(|year| first_of(*year, 1) <= day)
        .unwrap_or(estimate)
}

/// The part of a text that is still to be read.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    /// Skips the leading characters for which `belongs` is true, and returns them.
    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &str {
        let end = self.0.find(|char| !belongs(char)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(end);
        self.0 = rest;
        taken
    }

    fn skip(&mut self, char: char) -> Option<()> {
        self.0 = self.0.strip_prefix(char)?;
        Some(())
    }

    /// Skips the name of standard or summer time, such as `PST` or `<-03>`.
    fn abbreviation(&mut self) -> Option<()> {
        let is_quoted = self.skip('<').is_some();
        let is_in_name = |char: char| {
            char.is_ascii_alphabetic() || (is_quoted && (char.is_ascii_digit() || "+-".contains(char)))
        };
        let length = self.take_while(is_in_name).len();
        if is_quoted {
            self.skip('>')?;
        }
        (length >= 3).then_some(())
    }

    fn number(&mut self, max: i32) -> Option<i32> {
        let number = self.take_while(|char| char.is_ascii_digit()).parse().ok()?;
        (number <= max).then_some(number)
    }

    /// Seconds, written as `[+-]hours[:minutes[:seconds]]`.
    fn offset(&mut self, max_hours: i32) -> Option<i32> {
        let sign = if self.skip('-').is_some() { -1 } else { 1 };
        if sign == 1 {
            let _ = self.skip('+');
        }
        let mut seconds = self.number(max_hours)? * SECONDS_PER_HOUR;
        for unit in [60, 1] {
            if self.skip(':').is_none() {
                break;
            }
            seconds += self.number(59)? * unit;
        }
        Some(sign * seconds)
    }

    /// A comma, the day, and the time if it is not two o'clock.
    fn change(&mut self) -> Option<Change> {
        self.skip(',')?;
        let day = if self.skip('M').is_some() {
            let month = self.number(12)?;
            self.skip('.')?;
            let week = self.number(5)?;
            self.skip('.')?;
            let weekday = self.number(6)?;
            if month < 1 || week < 1 {
                return None;
            }
            Day::Weekday {
                month: month.into(),
                week: week.into(),
                weekday: weekday.into(),
            }
        } else if self.skip('J').is_some() {
            Day::CommonYear(self.number(365)?.max(1).into())
        } else {
            Day::AnyYear(self.number(365)?.into())
        };
        let seconds = match self.skip('/') {
            // Up to a week before or after, as RFC 9636 has it.
            Some(()) => self.offset(167)?,
            None => 2 * SECONDS_PER_HOUR,
        };
        Some(Change { day, seconds })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn changes(rule: &str, year: i64) -> Vec<(i64, i32)> {
        PosixRule::parse(rule).expect(rule).changes_of(year).collect()
    }

    #[test]
    fn summer_time_begins_and_ends_where_the_rule_says() {
        // As `date --date=2026-03-08T10:00Z +%s` prints it.
        assert_eq!(
            changes("PST8PDT,M3.2.0,M11.1.0", 2026),
            [(1_772_964_000, -25_200), (1_793_523_600, -28_800)]
        );
        assert_eq!(
            changes("CET-1CEST,M3.5.0,M10.5.0/3", 2026),
            [(1_774_746_000, 7_200), (1_792_890_000, 3_600)]
        );
        // Ireland has its standard time in summer.
        assert_eq!(
            changes("IST-1GMT0,M10.5.0,M3.5.0/1", 2026),
            [(1_774_746_000, 3_600), (1_792_890_000, 0)]
        );
        // South of the equator a year begins in summer.
        assert_eq!(
            changes("<+1030>-10:30<+11>-11,M10.1.0,M4.1.0", 2026),
            [(1_775_314_800, 37_800), (1_791_041_400, 39_600)]
        );
        assert_eq!(
            changes("<-02>2<-01>,M3.5.0/-1,M10.5.0/0", 2026),
            [(1_774_746_000, -3_600), (1_792_890_000, -7_200)]
        );
        assert_eq!(changes("<+0545>-5:45", 2026), []);
    }

    #[test]
    fn days_of_the_year_are_counted_with_or_without_leap_days() {
        let days = |rule, year| {
            changes(rule, year)
                .into_iter()
                .map(|(at, _)| (at - start_of_year(year)) / SECONDS_PER_DAY)
                .collect::<Vec<_>>()
        };
        assert_eq!(days("AAA0BBB0,J60/0,J365/0", 2027), [59, 364]);
        assert_eq!(days("AAA0BBB0,J60/0,J365/0", 2028), [60, 365]);
        assert_eq!(days("AAA0BBB0,59/0,364/0", 2028), [59, 364]);
    }

    #[test]
    fn what_is_no_rule_is_none() {
        for text in [
            "",
            "8",
            "PST",
            "P8",
            "<-03",
            "PST8PDT",
            "PST8PDT,M3.2.0",
            "PST8PDT,M13.2.0,M11.1.0",
            "PST8PDT,M3.0.0,M11.1.0",
            "PST8PDT,M3.2.7,M11.1.0",
            "PST25",
            "PST8:60",
            "PST8PDT,M3.2.0,M11.1.0,",
            "<é>3",
        ] {
            assert_eq!(PosixRule::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_instant_is_in_its_year(seconds in -60_000_000_000_i64..60_000_000_000) {
            let year = year_of(seconds);
            prop_assert!((start_of_year(year)..start_of_year(year + 1)).contains(&seconds));
        }

        #[test]
        fn no_text_panics(text in "\\PC*", year in 1900..3000_i64) {
            if let Some(rule) = PosixRule::parse(&text) {
                let _ = rule.changes_of(year).count();
            }
        }
    }
}
