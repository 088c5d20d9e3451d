//! Calendar windows by clocks that are changed, against clocks that are read every quarter of an hour.

use proptest::prelude::*;

use crate::limit::window::calendar::Period;
use crate::limit::{Calendar, CalendarUnit, LocalTime, Transition};

const SECOND: u64 = 1_000_000_000;
const QUARTER: i64 = 900;
const HOUR: i64 = 3_600;
const DAY: i64 = 86_400;

/// Where the oracle begins: 2024-02-26, a Monday before a leap day, at 00:00 UTC.
const FROM: i64 = 1_708_905_600;
const DAYS: i64 = 80;

fn local(utc_offset_seconds: i32, transitions: &[(i64, i32)]) -> LocalTime {
    let transitions: Vec<Transition> = transitions
        .iter()
        .map(|(at, offset)| Transition {
            at: *at,
            offset: *offset,
        })
        .collect();
    LocalTime {
        utc_offset_seconds,
        transitions: Box::leak(transitions.into()),
    }
}

fn calendar(unit: CalendarUnit, local: LocalTime) -> Calendar {
    Calendar {
        unit,
        local,
        week_start: 0,
    }
}

fn seconds(period: Period) -> (i64, i64) {
    ((period.start / SECOND) as i64, (period.end / SECOND) as i64)
}

fn period(calendar: &Calendar, at: i64) -> (i64, i64) {
    seconds(calendar.period(at as u64 * SECOND))
}

/// For each quarter of an hour, the start of the period that contains the latest day that clocks have shown by then.
fn periods_by_looking(calendar: &Calendar, from: i64, until: i64) -> Vec<(i64, i64)> {
    let offset = |at: i64| {
        let passed = calendar.local.transitions.iter().rfind(|it| it.at <= at);
        i64::from(passed.map_or(calendar.local.utc_offset_seconds, |it| it.offset))
    };
    let in_utc = Calendar {
        local: LocalTime::at_offset(0),
        ..*calendar
    };
    let mut latest = i64::MIN;
    let looks = (from - 4 * DAY..until).step_by(QUARTER as usize);
    looks
        .map(|at| {
            latest = latest.max((at + offset(at)).div_euclid(DAY));
            // The period of a day by clocks that are never changed says which days belong together.
            (at, period(&in_utc, latest * DAY).0)
        })
        .collect()
}

fn units() -> impl Strategy<Value = CalendarUnit> {
    prop_oneof![
        Just(CalendarUnit::Day),
        Just(CalendarUnit::Week),
        Just(CalendarUnit::Month)
    ]
}

fn offsets() -> impl Strategy<Value = i32> {
    (-95_i32..=95).prop_map(|quarters| quarters * QUARTER as i32)
}

proptest! {
    #[test]
    fn a_period_is_what_clocks_show_that_are_looked_at_all_the_time(
        unit in units(),
        week_start in 0_u8..7,
        first in offsets(),
        changes in prop::collection::btree_map(0..DAYS * 96, offsets(), 0..6),
    ) {
        let changes: Vec<(i64, i32)> =
            changes.into_iter().map(|(quarter, offset)| (FROM + quarter * QUARTER, offset)).collect();
        let calendar = Calendar { week_start, ..calendar(unit, local(first, &changes)) };
        let looks = periods_by_looking(&calendar, FROM, FROM + (DAYS + 4) * DAY);
        // The readings do not cover a period that begins before the first of them or ends after the last.
        for run in looks.chunk_by(|one, other| one.1 == other.1).skip(1) {
            let begin = run[0].0;
            for (at, _) in run {
                let (start, end) = period(&calendar, *at);
                prop_assert_eq!(start, begin, "at {}", at);
                prop_assert!(*at < end);
                prop_assert_eq!(period(&calendar, end).0, end, "the next one begins where it ends");
                prop_assert!(end - start <= (calendar.longest_period() / SECOND) as i64);
                prop_assert!(end - start >= (calendar.shortest_period() / SECOND) as i64);
            }
        }
    }
}

/// Los Angeles in 2026.
fn los_angeles() -> LocalTime {
    local(-28_800, &[(1_772_964_000, -25_200), (1_793_523_600, -28_800)])
}

#[test]
fn a_day_of_the_change_has_23_hours_or_25() {
    let days = calendar(CalendarUnit::Day, los_angeles());
    let length = |at| {
        let (start, end) = period(&days, at);
        (end - start) / HOUR
    };
    assert_eq!([-DAY, 0, DAY].map(|by| length(1_772_964_000 + by)), [24, 23, 24]);
    assert_eq!([-DAY, 0, DAY].map(|by| length(1_793_523_600 + by)), [24, 25, 24]);
    assert_eq!(days.shortest_period(), 23 * HOUR as u64 * SECOND);
    let months = calendar(CalendarUnit::Month, los_angeles());
    // March begins at midnight of winter time, and April at midnight of summer time.
    assert_eq!(
        period(&months, 1_772_964_000),
        (1_772_352_000, 1_772_352_000 + 31 * DAY - HOUR)
    );
    assert_eq!(months.shortest_period(), 28 * DAY as u64 * SECOND);
}

#[test]
fn a_day_whose_midnight_is_left_out_begins_when_clocks_are_set_forward() {
    // At 2 h east, clocks go from midnight of the second day to one o'clock.
    let midnight = FROM + DAY - 2 * HOUR;
    let days = calendar(CalendarUnit::Day, local(7_200, &[(midnight, 10_800)]));
    assert_eq!(period(&days, midnight), (midnight, midnight + 23 * HOUR));
    assert_eq!(period(&days, midnight - 1), (midnight - DAY, midnight));
}

#[test]
fn a_day_whose_midnight_comes_twice_begins_once() {
    // At half past midnight clocks are set back by an hour.
    let midnight = FROM + DAY;
    let days = calendar(CalendarUnit::Day, local(0, &[(midnight + HOUR / 2, -3_600)]));
    for at in [
        midnight,
        midnight + HOUR / 2,
        midnight + HOUR,
        midnight + 24 * HOUR,
    ] {
        assert_eq!(period(&days, at), (midnight, midnight + 25 * HOUR), "{at}");
    }
    assert_eq!(period(&days, midnight - 1), (midnight - DAY, midnight));
}

#[test]
fn a_day_that_is_left_out_has_no_instant() {
    // As in Samoa, which went from one side of the date line to the other.
    let change = FROM + DAY + 10 * HOUR;
    let days = calendar(CalendarUnit::Day, local(-36_000, &[(change, 50_400)]));
    assert_eq!(period(&days, change - 1), (change - DAY, change));
    assert_eq!(period(&days, change), (change, change + DAY));
}
