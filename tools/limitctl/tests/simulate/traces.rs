//! Simulations of every algorithm, compared with traces worked out by hand, at its boundaries to the millisecond.

use crate::support::{Run, replay_declaration};
use serde_json::{Value, json};

/// 2026-01-01T00:00:00Z: 20,454 days after the epoch.
const NEW_YEAR: u64 = 1_767_225_600_000;

/// 2200-01-01T00:00:00Z: 230 years after 1970, with 56 leap days (1972 to 2196 without 2100), or 84,006 days.
const YEAR_2200: u64 = 84_006 * 86_400_000;

/// Replays events against a declaration of one set `s` with these limits.
fn replay(limits: &str, events: &[Value]) -> Run {
    replay_declaration(&format!("[[set]]\nname = \"s\"\nlimit = [{limits}]\n"), events)
}

/// The verdicts on events, which must all be valid.
fn verdicts(limits: &str, events: &[Value]) -> Vec<Value> {
    let run = replay(limits, events).ended(0);
    assert!(run.stderr.is_empty(), "{run:?}");
    run.json_lines()
}

/// The expected verdict of a set's only limit, `l`.
#[derive(Clone, Copy, Debug)]
struct Expected {
    admitted: bool,
    remaining: u64,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
}

/// Admitted, with this much left, and completely replenished after this many milliseconds.
fn admits(remaining: u64, reset_after_ms: u64) -> Expected {
    Expected {
        admitted: true,
        remaining,
        retry_after_ms: Some(0),
        reset_after_ms,
    }
}

/// Refused, with a retry after this many milliseconds.
fn refuses(retry_after_ms: u64, remaining: u64, reset_after_ms: u64) -> Expected {
    Expected {
        admitted: false,
        remaining,
        retry_after_ms: Some(retry_after_ms),
        reset_after_ms,
    }
}

/// Refused, and time alone does not help.
fn refuses_for_good(remaining: u64, reset_after_ms: u64) -> Expected {
    Expected {
        retry_after_ms: None,
        ..refuses(0, remaining, reset_after_ms)
    }
}

/// Replays requests with costs against one limit `l`, and compares each complete verdict.
#[track_caller]
fn check(limit: &str, origin: u64, trace: &[(u64, u64, Expected)]) {
    let events: Vec<Value> = trace
        .iter()
        .map(|(after, cost, _)| json!({"at_ms": origin + after, "set": "s", "cost": {"l": cost}}))
        .collect();
    let verdicts = verdicts(&format!("{{ name = \"l\", {limit} }}"), &events);
    assert_eq!(verdicts.len(), trace.len());
    for ((after, cost, expected), verdict) in trace.iter().zip(verdicts) {
        let whole = json!({
            "at_ms": origin + after,
            "set": "s",
            "key": null,
            "admitted": expected.admitted,
            "binding": if expected.admitted { Value::Null } else { json!("l") },
            "limits": {"l": {
                "remaining": expected.remaining,
                "retry_after_ms": expected.retry_after_ms,
                "reset_after_ms": expected.reset_after_ms,
            }},
        });
        assert_eq!(verdict, whole, "cost {cost} after {after} ms");
    }
}

#[test]
fn verdicts_are_written_exactly_as_documented() {
    // Three a second: one is worth 333 1/3 ms, rounded up to 334.
    let limits = r#"{ name = "requests", kind = "calls", capacity = 3, window = "1s" }"#;
    let run = replay(limits, &[json!({"at_ms": 7, "set": "s"})]).ended(0);
    assert_eq!(
        run.stdout,
        concat!(
            r#"{"at_ms":7,"set":"s","key":null,"admitted":true,"binding":null,"#,
            r#""limits":{"requests":{"remaining":2,"retry_after_ms":0,"reset_after_ms":334}}}"#,
            "\n"
        )
    );
}

#[test]
fn gcra_of_three_a_second_rounds_thirds_of_milliseconds_up() {
    // One is worth 1000/3 ms. After n units taken from 1000 on, the backlog ends at 1000 + n * 1000/3; one more fits
    // while the rest of the backlog is at most 1000 - 1000/3 = 666 2/3.
    check(
        r#"kind = "calls", capacity = 3, window = "1s", algorithm = "gcra""#,
        0,
        &[
            (1_000, 1, admits(2, 334)),
            (1_000, 1, admits(1, 667)),
            (1_000, 1, admits(0, 1_000)),
            (1_000, 1, refuses(334, 0, 1_000)),
            // The backlog is 667: 1/3 ms too much.
            (1_333, 1, refuses(1, 0, 667)),
            // 666 + 333 1/3 = 999 1/3.
            (1_334, 1, admits(0, 1_000)),
            // It ends at 2333 1/3; 666 1/3 + 333 1/3 = 999 2/3. The fraction was kept: 333 ms later, not 334.
            (1_667, 1, admits(0, 1_000)),
            // It ends at 2666 2/3; 667 2/3 is exactly 1 ms too much.
            (1_999, 1, refuses(1, 0, 668)),
            (2_000, 1, admits(0, 1_000)),
        ],
    );
}

#[test]
fn gcra_of_ten_in_seven_seconds_is_exact_in_the_year_2200() {
    // One is worth 700 ms, all ten 7000.
    check(
        r#"kind = "calls", capacity = 10, window = "7s""#,
        YEAR_2200,
        &[
            (0, 10, admits(0, 7_000)),
            (0, 1, refuses(700, 0, 7_000)),
            (699, 1, refuses(1, 0, 6_301)),
            (700, 1, admits(0, 7_000)),
            // Three fit on a backlog of 7000 - 2100 = 4900. It is 7000 - 2099 = 4901, and 2099 ms are worth two.
            (2_799, 3, refuses(1, 2, 4_901)),
            (2_800, 3, admits(0, 7_000)),
        ],
    );
}

#[test]
fn gcra_admits_its_burst_at_once_and_never_more() {
    // One is worth 500 ms; the burst of 5 is worth 2500.
    check(
        r#"kind = "rate", capacity = 2, window = "1s", burst = 5"#,
        NEW_YEAR,
        &[
            (0, 4, admits(1, 2_000)),
            // Two fit on a backlog of 1500.
            (0, 2, refuses(500, 1, 2_000)),
            (0, 6, refuses_for_good(1, 2_000)),
            // 2500 - 1501 = 999 ms are worth one.
            (499, 2, refuses(1, 1, 1_501)),
            (500, 2, admits(0, 2_500)),
        ],
    );
}

#[test]
fn the_latest_instant_is_an_instant_like_others() {
    check(
        r#"kind = "calls", capacity = 3, window = "1s""#,
        9_223_372_036_854,
        &[
            (0, 2, admits(1, 667)),
            (0, 1, admits(0, 1_000)),
            (0, 1, refuses(334, 0, 1_000)),
        ],
    );
}

#[test]
fn a_token_bucket_refills_continuously() {
    // One token comes every 700 ms.
    check(
        r#"kind = "rate", capacity = 10, window = "7s", algorithm = "token_bucket""#,
        YEAR_2200,
        &[
            (0, 7, admits(3, 4_900)),
            // One is missing.
            (0, 4, refuses(700, 3, 4_900)),
            (699, 4, refuses(1, 3, 4_201)),
            (700, 4, admits(0, 7_000)),
            // Zero asks without taking. 1399 ms brought one token, 1400 two.
            (2_099, 0, admits(1, 5_601)),
            (2_100, 0, admits(2, 5_600)),
            (2_100, 2, admits(0, 7_000)),
            // Full after exactly 7 s, and never more than full.
            (9_099, 10, refuses(1, 9, 1)),
            (9_100, 10, admits(0, 7_000)),
            (60_000, 0, admits(10, 0)),
        ],
    );
}

#[test]
fn a_leaky_bucket_drains_at_its_rate_however_often_it_is_asked() {
    // A bucket of 6 that drains 4 a second: one leaves every 250 ms, all six in 1500.
    check(
        r#"kind = "rate", capacity = 6, rate = 4, interval = "1s", algorithm = "leaky_bucket""#,
        NEW_YEAR,
        &[
            (0, 5, admits(1, 1_250)),
            // One must leave for two to fit.
            (0, 2, refuses(250, 1, 1_250)),
            (100, 2, refuses(150, 1, 1_150)),
            (200, 2, refuses(50, 1, 1_050)),
            // 1500 - 1001 = 499 ms have room for one.
            (249, 2, refuses(1, 1, 1_001)),
            (250, 2, admits(0, 1_500)),
            (1_749, 6, refuses(1, 5, 1)),
            (1_750, 6, admits(0, 1_500)),
            (1_750, 7, refuses_for_good(0, 1_500)),
        ],
    );
}

#[test]
fn a_fixed_window_turns_at_multiples_of_its_length_since_the_epoch() {
    // The days before the year 2200 are a multiple of ten seconds.
    check(
        r#"kind = "calls", capacity = 5, window = "10s", algorithm = "fixed_window""#,
        YEAR_2200,
        &[
            (9_998, 3, admits(2, 2)),
            (9_998, 3, refuses(2, 2, 2)),
            (9_999, 3, refuses(1, 2, 1)),
            // Twice the capacity may pass across the boundary, as documented.
            (9_999, 2, admits(0, 1)),
            (10_000, 3, admits(2, 10_000)),
            (10_000, 2, admits(0, 10_000)),
            (19_999, 1, refuses(1, 0, 1)),
            (20_000, 1, admits(4, 10_000)),
        ],
    );
}

#[test]
fn a_fixed_window_by_first_use_starts_with_it() {
    let limit =
        r#"kind = "calls", capacity = 2, window = "1s", algorithm = "fixed_window", align = "first_use""#;
    let trace = [
        (0, 1, admits(1, 1_000)),
        (800, 1, admits(0, 200)),
        (999, 1, refuses(1, 0, 1)),
        (1_000, 1, admits(1, 1_000)),
        // Nothing was in use when the second window ended, so the third starts at 2500.
        (2_500, 2, admits(0, 1_000)),
        (3_499, 1, refuses(1, 0, 1)),
        (3_500, 1, admits(1, 1_000)),
    ];
    // At the epoch itself, off the whole second, and late.
    for origin in [0, 1_700, YEAR_2200 + 1] {
        check(limit, origin, &trace);
    }
}

#[test]
fn a_calendar_month_turns_at_midnight_of_its_offset() {
    // March 2026 begins at 00:00 in +05:30, which is 18:30 on February 28th in UTC: 58 days less 5.5 hours after the
    // new year and a day. It has 31 days.
    let march = NEW_YEAR + 59 * 86_400_000 - (5 * 60 + 30) * 60_000;
    check(
        r#"kind = "rate", capacity = 100, window = "calendar:month", utc_offset = "+05:30", algorithm = "fixed_window""#,
        march - 1,
        &[
            (0, 60, admits(40, 1)),
            (0, 41, refuses(1, 40, 1)),
            (1, 41, admits(59, 31 * 86_400_000)),
        ],
    );
    // 2100 is not a leap year: March begins 59 days after the new year, which is 130 years with 32 leap days after the
    // epoch.
    let march = (130 * 365 + 32 + 59) * 86_400_000;
    check(
        r#"kind = "rate", capacity = 100, window = "calendar:month", algorithm = "fixed_window""#,
        march - 1,
        &[
            (0, 100, admits(0, 1)),
            (0, 1, refuses(1, 0, 1)),
            (1, 1, admits(99, 31 * 86_400_000)),
        ],
    );
}

#[test]
fn calendar_days_and_weeks_turn_where_the_calendar_says() {
    // The first day of 2026 is a Thursday, so the first Sunday is three days later.
    let sunday = NEW_YEAR + 3 * 86_400_000;
    check(
        r#"kind = "calls", capacity = 1, window = "calendar:week", week_start = "sunday", algorithm = "fixed_window""#,
        sunday - 1,
        &[
            (0, 1, admits(0, 1)),
            (0, 1, refuses(1, 0, 1)),
            (1, 1, admits(0, 7 * 86_400_000)),
        ],
    );
    check(
        r#"kind = "calls", capacity = 1, window = "calendar:day", utc_offset = "-08:00", algorithm = "fixed_window""#,
        NEW_YEAR,
        // Eight hours of the old year are left.
        &[
            (0, 1, admits(0, 8 * 3_600_000)),
            (8 * 3_600_000, 1, admits(0, 86_400_000)),
        ],
    );
}

#[test]
fn a_day_of_a_time_zone_is_as_long_as_its_clocks_say() {
    // In Los Angeles, where summer time begins on the second Sunday of March: that day has 23 hours.
    let sunday = 1_772_956_800_000;
    let zone = r#"{ name = "America/Los_Angeles", until = 2046, offsets = "-28800 1772964000:-25200 1793523600:-28800" }"#;
    check(
        &format!(
            r#"kind = "calls", capacity = 1, window = "calendar:day", time_zone = {zone}, algorithm = "fixed_window""#
        ),
        sunday - 1,
        &[
            (0, 1, admits(0, 1)),
            (1, 1, admits(0, 23 * 3_600_000)),
            (2, 1, refuses(23 * 3_600_000 - 1, 0, 23 * 3_600_000 - 1)),
            (23 * 3_600_000 + 1, 1, admits(0, 24 * 3_600_000)),
        ],
    );
}

#[test]
fn a_sliding_window_forgets_each_taking_when_it_is_a_window_old() {
    check(
        r#"kind = "calls", capacity = 5, window = "10s", algorithm = "sliding_window""#,
        YEAR_2200,
        &[
            (1_000, 2, admits(3, 10_000)),
            (4_000, 3, admits(0, 10_000)),
            // Two fit when the first two are forgotten, at 11000; all are at 14000.
            (10_999, 2, refuses(1, 0, 3_001)),
            (11_000, 2, admits(0, 10_000)),
            // Three fit when those of 4000 are forgotten, four when those of 11000 are as well.
            (11_000, 3, refuses(3_000, 0, 10_000)),
            (11_000, 4, refuses(10_000, 0, 10_000)),
            (13_999, 3, refuses(1, 0, 7_001)),
            (14_000, 3, admits(0, 10_000)),
        ],
    );
}

#[test]
fn a_sliding_window_counter_weighs_its_oldest_part() {
    // Ten cells of a second. A count of second 20 counts in full until the end of second 29, and in second 30 in
    // proportion to the rest of that second.
    check(
        r#"kind = "calls", capacity = 10, window = "10s", algorithm = "sliding_window_counter""#,
        YEAR_2200,
        &[
            (20_000, 10, admits(0, 11_000)),
            // Four fit when 6 of the 10 still count, 0.4 s into second 30.
            (29_999, 4, refuses(401, 0, 1_001)),
            // 6.01 still count, rounded up to 7.
            (30_399, 4, refuses(1, 3, 601)),
            // Now they are counted in second 30, which no longer counts at 41.
            (30_400, 4, admits(0, 10_600)),
        ],
    );
    // The well-known two counters: the previous second's count is weighted by the rest of this second.
    check(
        r#"kind = "calls", capacity = 4, window = "1s", algorithm = "sliding_window_counter", buckets = 1"#,
        NEW_YEAR,
        &[
            (0, 4, admits(0, 2_000)),
            // 4 * 0.751 = 3.004, rounded up to 4; a quarter into the second it is 3, and one more fits.
            (1_249, 1, refuses(1, 0, 751)),
            (1_250, 1, admits(0, 1_750)),
        ],
    );
}

#[test]
fn a_budget_counts_the_debit_that_crosses_the_line_in_full() {
    // Windows end with minutes: the days before the year 2200 are whole minutes.
    check(
        r#"kind = "budget", capacity = 100, window = "60s""#,
        YEAR_2200,
        &[
            (0, 60, admits(40, 60_000)),
            (1, 90, admits(0, 59_999)),
            (1, 1, refuses(59_999, 0, 59_999)),
            (59_999, 0, refuses(1, 0, 1)),
            // Asking without a debit does not open the new window.
            (60_000, 0, admits(100, 0)),
            (60_001, 99, admits(1, 59_999)),
            (60_002, 1_000, admits(0, 59_998)),
        ],
    );
}

#[test]
fn a_budget_is_debited_at_settle_as_well() {
    let events = [
        json!({"at_ms": YEAR_2200, "set": "s", "id": "stream"}),
        json!({"at_ms": YEAR_2200 + 1, "settle": "stream", "usage": {"l": 70}}),
        json!({"at_ms": YEAR_2200 + 1, "release": "stream"}),
        json!({"at_ms": YEAR_2200 + 2, "set": "s", "cost": {"l": 30}}),
        json!({"at_ms": YEAR_2200 + 2, "set": "s"}),
    ];
    let verdicts = verdicts(
        r#"{ name = "l", kind = "budget", capacity = 100, window = "60s" }"#,
        &events,
    );
    let remaining: Vec<&Value> = verdicts
        .iter()
        .map(|verdict| &verdict["limits"]["l"]["remaining"])
        .collect();
    assert_eq!(remaining, [100, 0, 0]);
    assert_eq!(verdicts[2]["admitted"], false);
    assert_eq!(verdicts[2]["limits"]["l"]["retry_after_ms"], 59_998);
}

/// Admission, remaining units and retry time of the limit `l`.
fn essence(verdict: &Value) -> (bool, u64, Option<u64>) {
    let limit = &verdict["limits"]["l"];
    (
        verdict["admitted"].as_bool().expect("a truth"),
        limit["remaining"].as_u64().expect("a number"),
        limit["retry_after_ms"].as_u64(),
    )
}

#[test]
fn concurrency_is_held_by_ids_and_given_back_at_once_without() {
    let take = |cost: u64| json!({"at_ms": 5, "set": "s", "cost": {"l": cost}});
    let hold = |id: &str, cost: u64| json!({"at_ms": 5, "set": "s", "cost": {"l": cost}, "id": id});
    let events = [
        hold("a", 2),
        take(2),
        take(1),
        take(1),
        hold("b", 1),
        take(1),
        take(4),
        json!({"at_ms": 5, "release": "a"}),
        take(2),
        // The id is free again.
        hold("a", 1),
        take(1),
        take(2),
    ];
    let verdicts = verdicts(r#"{ name = "l", kind = "concurrency", capacity = 3 }"#, &events);
    let expected = [
        (true, 1, Some(0)),
        (false, 1, None),
        (true, 0, Some(0)),
        (true, 0, Some(0)),
        (true, 0, Some(0)),
        (false, 0, None),
        // Above the capacity it could never be admitted.
        (false, 0, None),
        (true, 0, Some(0)),
        (true, 1, Some(0)),
        (true, 0, Some(0)),
        (false, 1, None),
    ];
    assert_eq!(verdicts.iter().map(essence).collect::<Vec<_>>(), expected);
    assert!(
        verdicts
            .iter()
            .all(|verdict| verdict["limits"]["l"]["reset_after_ms"] == 0)
    );
}

#[test]
fn a_lease_runs_out_to_the_millisecond() {
    let events = [
        json!({"at_ms": NEW_YEAR, "set": "s", "cost": {"l": 3}, "id": 1}),
        json!({"at_ms": NEW_YEAR + 29_999, "set": "s"}),
        json!({"at_ms": NEW_YEAR + 30_000, "set": "s"}),
        // Released too late, which has no effect.
        json!({"at_ms": NEW_YEAR + 30_001, "release": 1}),
        json!({"at_ms": NEW_YEAR + 30_001, "set": "s"}),
    ];
    let verdicts = verdicts(
        r#"{ name = "l", kind = "concurrency", capacity = 3, lease = "30s" }"#,
        &events,
    );
    let expected = [
        (true, 0, Some(0)),
        (false, 0, None),
        (true, 2, Some(0)),
        (true, 2, Some(0)),
    ];
    assert_eq!(verdicts.iter().map(essence).collect::<Vec<_>>(), expected);
}

#[test]
fn settling_gives_back_what_was_not_used_and_charges_what_was() {
    // One unit is worth a second.
    let limits =
        r#"{ name = "l", kind = "rate", capacity = 10, window = "10s", algorithm = "token_bucket" }"#;
    let events = [
        json!({"at_ms": 1_000, "set": "s", "cost": {"l": 8}, "id": 1}),
        // This takes 5 off a backlog of 7 s.
        json!({"at_ms": 2_000, "settle": 1, "usage": {"l": 3}}),
        json!({"at_ms": 2_000, "set": "s", "cost": {"l": 8}, "id": 2}),
        // Four more than reserved make a backlog of 14 s.
        json!({"at_ms": 2_000, "settle": 2, "usage": {"l": 12}}),
        json!({"at_ms": 2_000, "set": "s", "cost": {"l": 1}}),
        json!({"at_ms": 6_999, "set": "s", "cost": {"l": 1}}),
        json!({"at_ms": 7_000, "set": "s", "cost": {"l": 1}}),
    ];
    let expected = [
        (true, 2, Some(0)),
        (true, 0, Some(0)),
        (false, 0, Some(5_000)),
        (false, 0, Some(1)),
        (true, 0, Some(0)),
    ];
    assert_eq!(
        verdicts(limits, &events).iter().map(essence).collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn a_set_takes_all_of_its_limits_or_none() {
    let limits = r#"
        { name = "requests", kind = "calls", capacity = 2, window = "1s" },
        { name = "tokens", kind = "rate", capacity = "1.00", unit = "0.01", window = "10s" },
        { name = "anything", kind = "calls", capacity = "unlimited", window = "1s" }
    "#;
    let events = [
        json!({"at_ms": 1_000, "set": "s", "cost": {"tokens": 70}}),
        json!({"at_ms": 1_000, "set": "s", "cost": {"tokens": 70}}),
        json!({"at_ms": 1_000, "set": "s", "cost": {"tokens": 30}}),
        json!({"at_ms": 1_000, "set": "s", "cost": {"tokens": 1}}),
    ];
    let verdicts = verdicts(limits, &events);
    // A unit of tokens is a hundredth, and worth 100 ms; a request is worth 500 ms.
    let expected = [
        (true, json!(null), [1, 0, 500], [30, 0, 7_000]),
        (false, json!("tokens"), [1, 0, 500], [30, 4_000, 7_000]),
        (true, json!(null), [0, 0, 1_000], [0, 0, 10_000]),
        // Both refuse; the one with the longer wait is binding.
        (false, json!("requests"), [0, 500, 1_000], [0, 100, 10_000]),
    ];
    for ((admitted, binding, requests, tokens), verdict) in expected.into_iter().zip(verdicts) {
        assert_eq!(verdict["admitted"], admitted, "{verdict}");
        assert_eq!(verdict["binding"], binding, "{verdict}");
        for (limit, figures) in [
            ("requests", requests),
            ("tokens", tokens),
            ("anything", [u64::MAX, 0, 0]),
        ] {
            let found = ["remaining", "retry_after_ms", "reset_after_ms"]
                .map(|field| &verdict["limits"][limit][field]);
            assert_eq!(found, figures, "{limit} in {verdict}");
        }
    }
}
