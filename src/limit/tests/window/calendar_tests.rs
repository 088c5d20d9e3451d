//! Calendar windows against a calendar that counts days one by one.

use std::sync::LazyLock;

use proptest::prelude::*;

use crate::limit::tests::{Limit, refused_for};
use crate::limit::window::calendar::Period;
use crate::limit::{Calendar, CalendarUnit, FixedWindow, InvalidLimit, LocalTime, Now, Rule};

const SECOND: i128 = 1_000_000_000;
const DAY: i128 = 86_400 * SECOND;

const MONDAY: u8 = 0;
const THURSDAY: u8 = 3;
const FRIDAY: u8 = 4;
const SUNDAY: u8 = 6;

#[derive(Clone, Copy, Debug)]
struct Date {
    year: u32,
    month: u32,
    day: u32,
    /// 0 is Monday.
    weekday: usize,
}

impl Date {
    fn next(self) -> Self {
        let leap =
            (self.year.is_multiple_of(4) && !self.year.is_multiple_of(100)) || self.year.is_multiple_of(400);
        let length = match self.month {
            2 if leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let weekday = (self.weekday + 1) % 7;
        if self.day < length {
            Self {
                day: self.day + 1,
                weekday,
                ..self
            }
        } else if self.month < 12 {
            Self {
                month: self.month + 1,
                day: 1,
                weekday,
                ..self
            }
        } else {
            Self {
                year: self.year + 1,
                month: 1,
                day: 1,
                weekday,
            }
        }
    }
}

/// Every day from 1969-12-01, a Monday, until after the last 64-bit instant.
static DAYS: LazyLock<Vec<Date>> = LazyLock::new(|| {
    let first = Date {
        year: 1969,
        month: 12,
        day: 1,
        weekday: 0,
    };
    std::iter::successors(Some(first), |date| Some(date.next()))
        .take_while(|date| date.year < 2_556)
        .collect()
});

/// 1970-01-01 in `DAYS`.
const EPOCH: i128 = 31;

/// The period that contains `utc`, found by walking from day to day.
fn walked(calendar: Calendar, utc: u64) -> (u64, u64) {
    let offset = i128::from(calendar.local.utc_offset_seconds) * SECOND;
    let day = (i128::from(utc) + offset).div_euclid(DAY) + EPOCH;
    let begins = |day: i128| {
        let date = DAYS[day as usize];
        match calendar.unit {
            CalendarUnit::Day => true,
            CalendarUnit::Week => date.weekday == usize::from(calendar.week_start),
            CalendarUnit::Month => date.day == 1,
        }
    };
    let first = (0..=day)
        .rev()
        .find(|day| begins(*day))
        .expect("the walk starts early enough");
    let next = (day + 1..)
        .find(|day| begins(*day))
        .expect("the walk ends late enough");
    let instant = |day: i128| ((day - EPOCH) * DAY - offset).clamp(0, i128::from(u64::MAX)) as u64;
    (instant(first), instant(next))
}

fn calendar() -> impl Strategy<Value = Calendar> {
    let unit = prop::sample::select(vec![CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month]);
    let offset = prop_oneof![
        Just(0),
        -86_399..=86_399_i32,
        (-12..=14_i32).prop_map(|hours| hours * 3_600)
    ];
    (unit, offset, MONDAY..=SUNDAY).prop_map(|(unit, offset, week_start)| Calendar {
        unit,
        local: LocalTime::at_offset(offset),
        week_start,
    })
}

fn utc() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..=u64::MAX,
        // Around midnights, where all boundaries lie.
        4 => (0..213_000_u64, -1..=1_i64)
            .prop_map(|(day, off)| (day * DAY as u64).saturating_add_signed(off)),
        1 => 0..200 * DAY as u64,
    ]
}

proptest! {
    #[test]
    fn periods_are_those_of_a_calendar_walked_day_by_day(calendar in calendar(), utc in utc()) {
        let Period { start, end } = calendar.period(utc);
        prop_assert_eq!((start, end), walked(calendar, utc));
        prop_assert!(start <= utc && (utc < end || end == u64::MAX));
    }

    #[test]
    fn a_full_window_is_refused_exactly_until_its_period_ends(
        calendar in calendar(), utc in 0..1_u64 << 63, monotonic in 0..1_u64 << 60,
    ) {
        let rule = Rule::FixedWindow(FixedWindow::calendar(1, calendar).expect("valid"));
        let mut limit = Limit::new(rule);
        let now = Now { monotonic, utc };
        limit.charge(now, 1);
        let wait = walked(calendar, utc).1 - utc;
        prop_assert_eq!(limit.assess(now, 1), refused_for(wait));
        if utc + wait <= 1 << 63 {
            let due = Now { monotonic: monotonic + wait, utc: utc + wait };
            prop_assert!(limit.admits(due, 1));
            let before = Now { monotonic: due.monotonic - 1, utc: due.utc - 1 };
            prop_assert!(!limit.admits(before, 1));
        }
    }

    #[test]
    fn setting_the_clock_back_grants_nothing_and_is_over_within_two_periods(
        calendar in calendar(), utc in 0..1_u64 << 63, back in 0..1_u64 << 63, passed in 0..40 * DAY as u64,
    ) {
        let mut limit = Limit::new(Rule::FixedWindow(FixedWindow::calendar(1, calendar).expect("valid")));
        limit.charge(Now { monotonic: 7, utc }, 1);
        let later = Now { monotonic: 7 + passed, utc: utc + passed };
        let stepped = Now { utc: later.utc.saturating_sub(back), ..later };
        prop_assert!(limit.remaining(stepped) <= limit.remaining(later));
        if let crate::limit::Assessment::Refused { retry_after } = limit.assess(stepped, 1) {
            let wait = retry_after.expect("a retry time");
            prop_assert!(wait <= 62 * DAY as u64);
            let due = Now { monotonic: stepped.monotonic + wait, utc: stepped.utc + wait };
            if due.utc <= 1 << 63 {
                prop_assert!(limit.admits(due, 1));
            }
        }
    }
}

/// Nanoseconds since the epoch, from seconds as `date -u +%s` prints them.
fn seconds(seconds: u64) -> u64 {
    seconds * SECOND as u64
}

fn monthly(utc_offset_seconds: i32) -> Calendar {
    Calendar {
        unit: CalendarUnit::Month,
        local: LocalTime::at_offset(utc_offset_seconds),
        week_start: MONDAY,
    }
}

fn weekly(week_start: u8) -> Calendar {
    Calendar {
        unit: CalendarUnit::Week,
        local: LocalTime::at_offset(0),
        week_start,
    }
}

#[test]
fn february_has_its_leap_day_in_2000_and_2024_but_not_in_2100() {
    // 2000-02-29T12:00:00Z, and 2000-02-01 and 2000-03-01.
    let expected = Period {
        start: seconds(949_363_200),
        end: seconds(951_868_800),
    };
    assert_eq!(monthly(0).period(seconds(951_825_600)), expected);
    // 2024-02-29T23:59:59Z.
    let expected = Period {
        start: seconds(1_706_745_600),
        end: seconds(1_709_251_200),
    };
    assert_eq!(monthly(0).period(seconds(1_709_251_199)), expected);
    // 2100-02-28T23:59:59Z is the last second of its month.
    let expected = Period {
        start: seconds(4_105_123_200),
        end: seconds(4_107_542_400),
    };
    assert_eq!(monthly(0).period(seconds(4_107_542_399)), expected);
}

#[test]
fn every_day_of_five_centuries_lies_in_its_month() {
    let mut first = None;
    // Under Miri a century takes minutes.
    let until = if cfg!(miri) { 2_005 } else { 2_554 };
    for (day, date) in (0_u64..)
        .zip(&DAYS[EPOCH as usize..])
        .take_while(|(_, date)| date.year < until)
    {
        if date.day == 1 {
            first = Some(day);
        }
        let Period { start, end } = monthly(0).period(day * DAY as u64);
        assert_eq!(Some(start / DAY as u64), first, "{date:?}");
        assert!(end > day * DAY as u64, "{date:?}");
    }
}

#[test]
fn a_month_ends_by_the_clocks_of_its_offset() {
    // 2023-12-31T23:30:00Z is already January 2024 in UTC+1, and January begins at 23:00 UTC.
    let period = monthly(3_600).period(seconds(1_704_065_400));
    assert_eq!(
        period,
        Period {
            start: seconds(1_704_063_600),
            end: seconds(1_706_742_000)
        }
    );
    // In UTC-5 it is still December 2023.
    let period = monthly(-5 * 3_600).period(seconds(1_704_065_400));
    assert_eq!(
        period,
        Period {
            start: seconds(1_701_406_800),
            end: seconds(1_704_085_200)
        }
    );
}

#[test]
fn a_week_starts_on_the_declared_day() {
    // 2024-02-29T00:00:00Z is a Thursday.
    let thursday = seconds(1_709_164_800);
    let day = DAY as u64;
    for (start, days_before) in [(MONDAY, 3), (THURSDAY, 0), (FRIDAY, 6), (SUNDAY, 4)] {
        let begin = thursday - days_before * day;
        assert_eq!(
            weekly(start).period(thursday),
            Period {
                start: begin,
                end: begin + 7 * day
            }
        );
    }
}

#[test]
fn the_period_of_the_epoch_is_cut_off_at_the_epoch() {
    assert_eq!(
        weekly(MONDAY).period(0),
        Period {
            start: 0,
            end: 4 * DAY as u64
        }
    );
    assert_eq!(
        monthly(0).period(0),
        Period {
            start: 0,
            end: 31 * DAY as u64
        }
    );
}

#[test]
fn an_offset_of_a_day_is_an_error() {
    for offset in [86_400, -86_400, i32::MIN, i32::MAX] {
        let error = FixedWindow::calendar(1, monthly(offset)).expect_err("too far");
        assert!(matches!(error, InvalidLimit::AboveMax { max: 86_399, .. }));
    }
}
