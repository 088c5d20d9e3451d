//! The table of a limit's fields, walked: each field is read, written, shown, compared and changed as its row says.

use super::*;
use crate::declaration::limit::fields::{Change, FIELDS, Field};

const CALLS: &str = "kind = \"calls\", capacity = 10, window = \"60s\"";
const DAILY: &str = "kind = \"budget\", capacity = 10, window = \"calendar:day\"";
const PLACES: &str = "kind = \"concurrency\", capacity = 10";
const ADAPTIVE: &str = "kind = \"concurrency\", capacity = 10, adaptive = \"aimd\"";

/// For each field, a limit without it and two values that it may have there.
const SPECIMENS: [(&str, &str, [&str; 2]); 25] = [
    ("capacity", "kind = \"concurrency\"", ["10", "20"]),
    (
        "rate",
        "kind = \"calls\", capacity = 10, interval = \"1s\", algorithm = \"leaky_bucket\"",
        ["5", "6"],
    ),
    (
        "interval",
        "kind = \"calls\", capacity = 10, rate = 5, algorithm = \"leaky_bucket\"",
        ["\"2s\"", "\"3s\""],
    ),
    (
        "unit",
        "kind = \"rate\", capacity = 10, window = \"60s\"",
        ["\"0.5\"", "\"0.1\""],
    ),
    (
        "window",
        "kind = \"calls\", capacity = 10",
        ["\"60s\"", "\"30s\""],
    ),
    ("algorithm", CALLS, ["\"token_bucket\"", "\"leaky_bucket\""]),
    ("burst", CALLS, ["5", "6"]),
    (
        "align",
        "kind = \"budget\", capacity = 10, window = \"60s\"",
        ["\"first_use\"", "\"utc\""],
    ),
    ("utc_offset", DAILY, ["\"+05:30\"", "\"+01:00\""]),
    (
        "week_start",
        "kind = \"budget\", capacity = 10, window = \"calendar:week\"",
        ["\"sunday\"", "\"friday\""],
    ),
    (
        "buckets",
        "kind = \"calls\", capacity = 10, window = \"60s\", algorithm = \"sliding_window_counter\"",
        ["5", "6"],
    ),
    (
        "entries",
        "kind = \"calls\", capacity = 10, window = \"60s\", algorithm = \"sliding_window\"",
        ["50", "60"],
    ),
    ("refund", CALLS, ["false", "true"]),
    ("lease", PLACES, ["\"30s\"", "\"40s\""]),
    (
        "adaptive",
        "kind = \"concurrency\", capacity = 10, ceiling = 20",
        ["\"gradient\"", "\"vegas\""],
    ),
    (
        "floor",
        "kind = \"concurrency\", capacity = 10, adaptive = \"vegas\", ceiling = 20",
        ["2", "3"],
    ),
    ("ceiling", ADAPTIVE, ["20", "30"]),
    (
        "latency_limit",
        "kind = \"concurrency\", capacity = 10, adaptive = \"aimd\", ceiling = 20",
        ["\"2s\"", "\"3s\""],
    ),
    ("near_limit", CALLS, ["50", "60"]),
    ("shadow", CALLS, ["true", "false"]),
    (
        "prefix",
        CALLS,
        ["{ ipv4 = 24, ipv6 = 48 }", "{ ipv4 = 16, ipv6 = 32 }"],
    ),
    ("credit", CALLS, ["{ batch = 2 }", "{ batch = 3 }"]),
    ("fleet", CALLS, ["{ key = \"one\" }", "{ key = \"another\" }"]),
    ("time_zone", DAILY, ["\"Europe/Berlin\"", "\"America/New_York\""]),
    ("scope", PLACES, ["\"all_keys\"", "\"key\""]),
];

/// The declaration of a limit with this value of the field.
fn declared(field: &Field, without: &str, value: &str) -> Declaration {
    let keyed = match field.name {
        "prefix" | "scope" => "keyed = 100\n",
        _ => "",
    };
    let fleet = match field.name {
        "fleet" => "[fleet]\nurl = \"redis://127.0.0.1\"\n",
        _ => "",
    };
    let text = format!(
        "{fleet}[[set]]\nname = \"a\"\n{keyed}limit = [{{ name = \"l\", {without}, {} = {value} }}]\n",
        field.name
    );
    Declaration::from_toml(&text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

/// Calls a function for each field, with declarations that differ in it alone.
fn for_each_field(check: impl Fn(&Field, [&Declaration; 2])) {
    for field in FIELDS {
        let specimen = SPECIMENS.iter().find(|(name, ..)| *name == field.name);
        let (_, without, values) = specimen.unwrap_or_else(|| panic!("no specimen of `{}`", field.name));
        let [one, another] = values.map(|value| declared(field, without, value));
        check(field, [&one, &another]);
    }
}

#[test]
fn each_field_is_read_written_and_shown() {
    for_each_field(|field, [declaration, _]| {
        let written = declaration.to_toml().expect("valid");
        assert!(
            written.contains(&format!("{} = ", field.name)) || written.contains(&format!(".{}]", field.name)),
            "{written}"
        );
        let read = Declaration::from_toml(&written).expect("its own text");
        assert!(read.differences(declaration).is_empty(), "{written}");
        let shown = format!("{:?}", declaration.sets[0].limits[0]);
        assert!(shown.contains(&format!("{}: ", field.name)), "{shown}");
    });
}

#[test]
fn each_field_differs_under_its_name_and_can_be_edited_as_its_row_says() {
    for_each_field(|field, [one, another]| {
        let differences = another.differences(one);
        let path = format!("set \"a\" / limit \"l\" / {}", field.name);
        let difference = differences.iter().find(|it| it.path().starts_with(&path));
        let difference = difference.unwrap_or_else(|| panic!("{path}: {differences:?}"));
        let is_edited = Limit::editable_fields().any(|(name, _)| difference.path().ends_with(name));
        assert_eq!(difference.assignment().is_some(), is_edited, "{difference:?}");
    });
}

#[test]
fn each_field_changes_in_a_live_segment_as_its_row_says() {
    for_each_field(|field, [one, another]| {
        let applied = another.applied_to(&one.canonical());
        match field.change {
            Change::Fixed => {
                let refused = applied.expect_err("it needs another segment");
                assert!(
                    refused.iter().any(|it| it.path().contains(field.name)),
                    "{refused:?}"
                );
            }
            // The state can represent both values of each specimen.
            Change::Live | Change::ByState => {
                let applied = applied.unwrap_or_else(|refused| panic!("{}: {refused:?}", field.name));
                assert!(
                    another.differences_to_apply(&applied).is_empty(),
                    "{}",
                    field.name
                );
            }
        }
    });
}
