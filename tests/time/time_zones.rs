//! Calendar windows by the name of a time zone.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::scene;
use crate::scene::clock::{NANOSECOND, Scene, time_zone, tzif};
use shmlimit::declare::{Checkpoint, Credit, FleetLease, MismatchOutcome, OnMismatch, TimeZone};
use shmlimit::{
    Algorithm, Declaration, Limit, LimitSet, OpenOptions, Outcome, Segment, SetDeclaration, VirtualClock,
    Window,
};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

/// 2026-03-08T08:00:00Z, when Sunday begins in Los Angeles, which has 23 hours.
const MARCH: Duration = Duration::from_secs(1_772_956_800);
/// 2026-11-01T07:00:00Z, when Sunday begins in Los Angeles, which has 25 hours.
const NOVEMBER: Duration = Duration::from_secs(1_793_516_400);

const PACIFIC: &str = "PST8PDT,M3.2.0,M11.1.0";

fn pacific() -> TimeZone {
    time_zone(PACIFIC, Some("2025b"))
}

fn daily(capacity: u64) -> Limit {
    Limit::calls("calls", capacity, Window::Day).algorithm(Algorithm::FixedWindow)
}

fn declare(limit: Limit) -> Declaration {
    scene::declaration().add_set(SetDeclaration::new("api").add_limit(limit))
}

/// Returns `None` if admitted, or else the time until it may be.
fn ask(set: &LimitSet) -> Option<Duration> {
    match set.request().try_acquire().expect("a decision") {
        Outcome::Admitted(_) => None,
        Outcome::Refused(refusal) => Some(refusal.retry_after().expect("a retry time")),
    }
}

#[test]
fn a_day_begins_at_local_midnight_and_has_23_hours_or_25() {
    for limit in [
        daily(1).time_zone(pacific()),
        daily(1)
            .time_zone(pacific())
            .credit(Credit::batch(3).window_coupled(true)),
    ] {
        for (midnight, hours) in [(MARCH, 23), (NOVEMBER, 25)] {
            let set = SetDeclaration::new("api").add_limit(limit.clone());
            let scene = Scene::at(midnight - 30 * MINUTE, set);
            let set = scene.set();
            assert_eq!(ask(&set), None);
            assert_eq!(ask(&set), Some(30 * MINUTE));
            scene.pass(30 * MINUTE - NANOSECOND);
            assert_eq!(ask(&set), Some(NANOSECOND));
            scene.pass(NANOSECOND);
            assert_eq!(ask(&set), None);
            let verdicts = set.request().peek().expect("works");
            assert_eq!(verdicts[0].reset_after, hours * HOUR);
            assert_eq!(ask(&set), Some(hours * HOUR));
            scene.pass(hours * HOUR - NANOSECOND);
            assert!(ask(&set).is_some());
            scene.pass(NANOSECOND);
            assert_eq!(ask(&set), None);
            assert_eq!(ask(&set), Some(24 * HOUR));
        }
    }
}

#[test]
fn months_and_weeks_begin_at_local_midnight() {
    for (window, start, length) in [
        // From Sunday to Sunday; the week of the change has an hour less.
        (Window::Week, MARCH - 24 * HOUR, 24 * HOUR),
        (Window::Month, MARCH - 7 * 24 * HOUR, 31 * 24 * HOUR - HOUR),
    ] {
        let limit = Limit::budget("calls", 1, window).time_zone(pacific());
        let limit = match window {
            Window::Week => limit.week_start(shmlimit::declare::Weekday::Sunday),
            _ => limit,
        };
        let scene = Scene::at(start, SetDeclaration::new("api").add_limit(limit));
        let set = scene.set();
        assert!(set.debit("calls", 1).expect("charged").is_admitted());
        assert_eq!(ask(&set), Some(length), "{window}");
    }
}

#[test]
fn the_bound_is_that_of_the_shortest_day() {
    let bound = |limit: Limit| limit.bound().expect("bounded").to_string();
    assert_eq!(bound(daily(10).time_zone(pacific())), "at most 20 in any 23h");
    assert_eq!(
        bound(daily(10).time_zone(time_zone("PST8", None))),
        "at most 20 in any 1d"
    );
}

#[test]
fn other_processes_need_no_database() {
    let scene = Scene::at(
        MARCH,
        SetDeclaration::new("api").add_limit(daily(1).time_zone(pacific())),
    );
    let other = scene.other();
    assert_eq!(ask(&other.set("api").expect("declared")), None);
    assert_eq!(ask(&scene.set()), Some(23 * HOUR));
    let text = other
        .declaration_in_force()
        .expect("read")
        .to_toml()
        .expect("valid");
    let again = Declaration::from_toml(&text).expect("read back");
    assert_eq!(
        again.differences(&other.declaration_in_force().expect("read")),
        []
    );
    assert!(text.contains("database = \"2025b\""), "{text}");
}

fn open(path: &Path, limit: Limit, way: OnMismatch) -> Segment {
    let options = OpenOptions::new().on_mismatch(way);
    options.open_or_create(path, &declare(limit)).expect("joins")
}

/// The last change that is known, and the version of the database.
fn known(segment: &Segment) -> String {
    let text = segment
        .declaration_in_force()
        .expect("read")
        .to_toml()
        .expect("valid");
    let database = text
        .split("database = \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let changes = text.matches(":-25200").count();
    format!("{} {changes}", database.unwrap_or("unknown"))
}

#[test]
fn processes_with_databases_that_differ_do_not_undo_one_another() {
    let first = |version| time_zone("PST8", version);
    let second = |version| time_zone(PACIFIC, version);
    for way in [OnMismatch::Apply, OnMismatch::Error, OnMismatch::RecreateIfUnused] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("limits");
        let kept = open(&path, daily(9).time_zone(first(Some("2024a"))), way);
        assert_eq!(known(&kept), "2024a 0");
        let newer = open(&path, daily(9).time_zone(second(Some("2025b"))), way);
        assert_eq!(newer.mismatches()[0].outcome(), MismatchOutcome::Renewed);
        let renewed = known(&kept);
        assert!(renewed.starts_with("2025b ") && renewed != "2025b 0", "{renewed}");
        for older in [
            first(Some("2024a")),
            first(Some("2025b")),
            first(None),
            second(None),
            // This one says the same of what is to come, for nearly as long.
            second(Some("2026a")),
        ] {
            let opened = open(&path, daily(9).time_zone(older), way);
            assert_eq!(opened.mismatches().len(), 0);
            assert_eq!(known(&kept), renewed);
        }
    }
}

#[test]
fn a_zone_is_renewed_where_an_operator_has_changed_the_limit_and_its_change_stays() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let with = |capacity, rule, version| daily(capacity).time_zone(time_zone(rule, Some(version)));
    let segment = open(&path, with(9, "PST8", "2024a"), OnMismatch::Error);
    segment
        .apply(&declare(with(5, "PST8", "2024a")))
        .expect("applied");
    open(&path, with(5, PACIFIC, "2025b"), OnMismatch::Error);
    assert!(known(&segment).starts_with("2025b "));
    let back = open(&path, with(9, PACIFIC, "2025b"), OnMismatch::Apply);
    assert_eq!(back.mismatches()[0].outcome(), MismatchOutcome::KeptEdited);
}

#[test]
fn an_offset_and_a_zone_can_change_in_a_live_segment() {
    let scene = Scene::at(MARCH, SetDeclaration::new("api").add_limit(daily(1)));
    let set = scene.set();
    let apply = |limit: Limit| {
        let changes = scene.segment.apply(&declare(limit)).expect("applies");
        changes.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(ask(&set), None);
    assert_eq!(ask(&set), Some(16 * HOUR), "until midnight in UTC");
    let limit = r#"set "api" / limit "calls""#;
    assert_eq!(
        apply(daily(1).utc_offset_minutes(-480)),
        [format!(
            "{limit} / utc_offset: declared \"-08:00\", in the segment \"+00:00\""
        )]
    );
    // What was counted stays counted until the later of the two days ends.
    assert_eq!(ask(&set), Some(24 * HOUR));
    assert_eq!(
        apply(daily(1).time_zone(pacific())),
        [
            format!("{limit} / time_zone: declared \"Test/Pacific\", in the segment absent"),
            format!("{limit} / utc_offset: declared absent, in the segment \"-08:00\""),
        ]
    );
    assert_eq!(apply(daily(1).time_zone(pacific())), [""; 0]);
    scene.pass(47 * HOUR);
    assert_eq!(ask(&set), None);
    assert_eq!(ask(&set), Some(24 * HOUR), "midnight of summer time");
    apply(daily(1).utc_offset_minutes(60));
    scene.pass(48 * HOUR);
    assert_eq!(ask(&set), None);
}

#[test]
fn after_the_last_known_year_the_last_offset_holds_on() {
    let clock = VirtualClock::new(Duration::from_secs(253_402_300_000 / 20));
    let directory = tempfile::tempdir().expect("a directory");
    let segment = OpenOptions::new()
        .virtual_clock(&clock)
        .create(
            directory.path().join("limits"),
            &declare(daily(1).time_zone(pacific())),
        )
        .expect("created");
    let set = segment.set("api").expect("declared");
    assert_eq!(ask(&set), None);
    let until = ask(&set).expect("refused");
    let midnight = clock.now() + until;
    assert_eq!(
        (midnight.as_secs() + 86_400 - 8 * 3_600) % 86_400,
        0,
        "{midnight:?}"
    );
    assert_eq!(midnight.subsec_nanos(), 0);
}

#[test]
fn what_makes_no_sense_with_a_zone_is_an_error_that_says_what_to_do() {
    let shared = daily(9).time_zone(pacific()).fleet(FleetLease::new("calls"));
    let with_fleet = declare(shared).fleet_url("redis://localhost");
    for (declaration, expected) in [
        (with_fleet, "declare `utc_offset` in place of `time_zone`"),
        (
            declare(daily(9).time_zone(pacific()).utc_offset_minutes(60)),
            "a time zone says what the offset is at any time",
        ),
        (
            declare(Limit::calls("calls", 9, MINUTE).time_zone(pacific())),
            "only calendar windows have a time zone",
        ),
        (
            declare(daily(9).time_zone("../../etc/passwd")),
            "is not the name of a time zone",
        ),
        (
            declare(daily(9).time_zone("/etc/localtime")),
            "is not the name of a time zone",
        ),
        (declare(daily(9).time_zone("")), "is not the name of a time zone"),
    ] {
        let error = declaration.validate().expect_err("invalid").to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains(r#"limit "calls""#), "{error}");
    }
    for (rule, version) in [
        ("", None),
        ("PST8PDT,M3.2.0,M11.1.0", Some("not a version at all!")),
    ] {
        TimeZone::from_tzif("A/B", &tzif(rule), version).expect("what is not known is left out");
    }
    for damaged in [&b"TZif"[..], b"", &tzif("PST8PDT,M3"), &tzif(PACIFIC)[..90]] {
        let error = TimeZone::from_tzif("A/B", damaged, None).expect_err("damaged");
        assert!(error.to_string().contains("is not a time zone file"), "{error}");
    }
    for table in [
        r#"{ name = "A/B", until = 2040, offsets = "0 9:3600 8:0" }"#,
        r#"{ name = "A/B", until = 2040, offsets = "86400" }"#,
        r#"{ name = "A/B", until = 2040, offsets = "x" }"#,
        r#"{ name = "A/B", until = 2040, offsets = "0", rule = "" }"#,
        r#"{ name = "../B", until = 2040, offsets = "0" }"#,
        "3",
    ] {
        let text = format!(
            r#"set = [{{ name = "s", limit = [{{ name = "l", kind = "budget", capacity = 1, window = "calendar:day", time_zone = {table} }}] }}]"#
        );
        Declaration::from_toml(&text).expect_err(table);
    }
}

/// Every zone of this system, if it has a database, can be declared, and its days follow one another.
#[test]
fn every_zone_of_the_system_can_be_declared() {
    let root = Path::new("/usr/share/zoneinfo");
    let list = std::fs::read_to_string(root.join("tzdata.zi")).unwrap_or_default();
    // Lines of zones and links: `Z NAME ...`, `L TARGET NAME`.
    let names = list.lines().filter_map(|line| {
        let mut words = line.split(' ');
        match words.next()? {
            "Z" => words.next(),
            "L" => words.nth(1),
            _ => None,
        }
    });
    for name in names.filter(|name| root.join(name).exists()) {
        declare(daily(9).time_zone(name)).validate().expect(name);
    }
}

#[test]
fn a_checkpoint_is_restored_with_its_zone_and_what_its_day_has_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name| directory.path().join(name);
    let (path, kept) = (at("limits"), at("kept"));
    let clock = VirtualClock::new(MARCH - 30 * MINUTE).auto_advance(false);
    let options = OpenOptions::new().virtual_clock(&clock);
    let open = |zone| {
        let declaration = declare(daily(2).time_zone(zone)).checkpoint(Checkpoint::new(&kept));
        options.open_or_create(&path, &declaration).expect("opens")
    };
    let segment = open(pacific());
    assert_eq!(ask(&segment.set("api").expect("declared")), None);
    assert!(segment.checkpoint(&kept).expect("written"));
    drop(segment);
    fs::remove_file(&path).expect("as a reboot does");

    // Opened by a process whose database knows less: the zone that the checkpoint has stays.
    let restored = open(time_zone("PST8", Some("2024a")));
    assert_eq!(restored.snapshot().expect("a copy").cold_starts, 1);
    assert!(known(&restored).starts_with("2025b "), "{}", known(&restored));
    let set = restored.set("api").expect("declared");
    assert_eq!(ask(&set), None);
    assert_eq!(ask(&set), Some(30 * MINUTE), "one was used before");
    clock.advance_to(MARCH);
    assert_eq!((ask(&set), ask(&set), ask(&set)), (None, None, Some(23 * HOUR)));
}
