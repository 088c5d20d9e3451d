//! Changing a live segment: `limitctl apply` and `limitctl edit`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::{self, Run, directory, limitctl, run, run_command, text};
use serde_json::{Value, json};
use shmlimit::{Limit, Segment};

const DECLARATION: &str = r#"
[segment]
participants = 8

[[set]]
name = "api"
metadata = { region = "us-east-1" }

  [[set.limit]]
  name = "requests"
  kind = "calls"
  capacity = 10
  window = "1d"

  [[set.limit]]
  name = "dollars"
  kind = "rate"
  unit = "0.01"
  capacity = "99.95"
  burst = "9.95"
  window = "1d"

  [[set.limit]]
  name = "in_flight"
  kind = "concurrency"
  capacity = 4
  lease = "30s"

[[set]]
name = "adaptive"
keyed = { max_keys = 100 }

  [[set.limit]]
  name = "work"
  kind = "concurrency"
  capacity = 8
  adaptive = "aimd"
  ceiling = 64
"#;

fn write(directory: &Path, content: &str) -> String {
    let path = directory.join("limits.toml");
    fs::write(&path, content).expect("written");
    text(&path).to_owned()
}

fn create(directory: &Path) -> PathBuf {
    let path = directory.join("limits");
    run(["create", text(&path), &write(directory, DECLARATION)]).ended(0);
    path
}

fn apply(path: &Path, declaration: &str, arguments: &[&str]) -> Run {
    let directory = directory();
    let file = write(directory.path(), declaration);
    run_command(limitctl().arg("apply").args(arguments).arg(path).arg(file))
}

fn set(path: &Path, arguments: &[&str]) -> Run {
    run_command(limitctl().arg("edit").arg(path).args(arguments))
}

/// A declared limit of the segment, by the positions of its set and of the limit in it.
fn declared(path: &Path, set: usize, limit: usize) -> Value {
    let json = run(["inspect", "--json", text(path)]).ended(0).json();
    json["declaration"]["set"][set]["limit"][limit].clone()
}

#[test]
fn what_is_in_force_is_printed_as_a_declaration_that_changes_nothing() {
    let directory = directory();
    let path = create(directory.path());
    set(&path, &["api", "requests", "capacity=20"]).ended(0);
    let sets = directory.path().join("sets.d");
    run(["create", text(&sets), text(&directory.path().join("limits.toml"))]).ended(0);
    for segment in [&path, &sets] {
        let printed = run(["inspect", "--toml", text(segment)]).ended(0).stdout;
        assert_eq!(
            apply(segment, &printed, &[]).ended(0).stdout,
            "nothing to change\n"
        );
        let copy = directory.path().join("copy");
        run(["create", text(&copy), &write(directory.path(), &printed)]).ended(0);
        assert_eq!(run(["inspect", "--toml", text(&copy)]).ended(0).stdout, printed);
        fs::remove_file(copy).expect("removed");
    }
}

#[test]
fn each_change_is_told_with_what_was_before() {
    let directory = directory();
    let path = create(directory.path());
    let changed = DECLARATION
        .replace("capacity = 10\n", "capacity = 20\n")
        .replace("lease = \"30s\"", "shadow = true")
        .replace("region = \"us-east-1\"", "region = \"eu\", tier = \"2\"");
    let expected = [
        r#"set "api" / metadata / region: "us-east-1" to "eu""#,
        r#"set "api" / metadata / tier: "2" (was not declared)"#,
        r#"set "api" / limit "requests" / capacity: 10 to 20"#,
        r#"set "api" / limit "requests" / burst: 10 to 20"#,
        r#"set "api" / limit "in_flight" / lease: no longer declared (was "30s")"#,
        r#"set "api" / limit "in_flight" / shadow: false to true"#,
    ];
    let same = |shown: &str, first: &str| {
        let (heading, steps) = shown.split_once('\n').expect("lines");
        assert_eq!(heading, format!("{first} 6 values"));
        let mut steps: Vec<&str> = steps.lines().map(str::trim).collect();
        let mut expected = expected;
        steps.sort_unstable();
        expected.sort_unstable();
        assert_eq!(steps, expected);
    };
    let before = fs::read(&path).expect("read");
    same(
        &apply(&path, &changed, &["--dry-run"]).ended(0).stdout,
        "would change",
    );
    assert!(fs::read(&path).expect("read") == before, "not a byte was changed");
    let json = apply(&path, &changed, &["--dry-run", "--json"]).ended(0).json();
    assert_eq!(
        (&json["dry_run"], json["changes"].as_array().map(Vec::len)),
        (&json!(true), Some(6))
    );

    same(&apply(&path, &changed, &[]).ended(0).stdout, "changed");
    assert_eq!(declared(&path, 0, 0)["capacity"], 20);
    assert_eq!(declared(&path, 0, 2)["lease"], Value::Null);
    assert_eq!(apply(&path, &changed, &[]).ended(0).stdout, "nothing to change\n");
    let json = apply(&path, DECLARATION, &["--json"]).ended(0).json();
    let steps = json["changes"].as_array().expect("changes");
    let lease =
        json!({"place": "set \"api\" / limit \"in_flight\" / lease", "before": null, "after": "\"30s\""});
    assert!(steps.contains(&lease), "{json}");
}

#[test]
fn a_process_that_is_attached_goes_by_the_change_at_once_and_keeps_what_it_used() {
    let directory = directory();
    let path = create(directory.path());
    let segment = Segment::open(&path).expect("attached");
    let api = segment.set("api").expect("declared");
    let request = api
        .request()
        .with("in_flight", 1)
        .expect("declared")
        .with("requests", 1)
        .expect("declared");
    let admitted = || {
        (0..50)
            .take_while(|_| request.try_acquire().expect("works").is_admitted())
            .count()
    };
    assert_eq!(admitted(), 10);
    set(&path, &["api", "requests", "capacity=20"]).ended(0);
    assert_eq!(admitted(), 0, "a raised limit does not grant the past");
    run(["reset", text(&path), "api", "requests"]).ended(0);
    assert_eq!(admitted(), 20);
}

#[test]
fn what_cannot_change_in_place_is_named_and_nothing_is_changed() {
    let directory = directory();
    let path = create(directory.path());
    let changed = DECLARATION
        .replace(
            "capacity = 10\n",
            "capacity = 20\n  algorithm = \"sliding_window\"\n",
        )
        .replace("max_keys = 100", "max_keys = 200");
    for arguments in [&[][..], &["--dry-run"]] {
        let run = apply(&path, &changed, arguments).ended(4);
        for part in [
            "cannot be changed in place",
            "set \"api\" / limit \"requests\" / algorithm",
            "set \"adaptive\" / keyed / max_keys: declared 200, in the segment 100",
            "create a new segment",
        ] {
            assert!(run.stderr.contains(part), "{part} in {run:?}");
        }
        assert!(run.stdout.is_empty());
    }
    let fewer = DECLARATION
        .split("[[set]]\nname = \"adaptive\"")
        .next()
        .expect("a part");
    let run = apply(&path, fewer, &[]).ended(4);
    assert!(
        run.stderr
            .contains("set \"adaptive\": declared absent, in the segment present"),
        "{run:?}"
    );
    assert_eq!(declared(&path, 0, 0)["capacity"], 10);
}

#[test]
fn sizes_that_a_file_does_not_name_stay_as_they_are() {
    let directory = directory();
    let path = create(directory.path());
    let changed = DECLARATION.replace("participants = 8\n", "path = \"/elsewhere\"\nmode = \"0660\"\n");
    assert_eq!(apply(&path, &changed, &[]).ended(0).stdout, "nothing to change\n");
    let lowered = changed.replace("capacity = 4\n", "capacity = 3\n");
    apply(&path, &lowered, &[]).ended(0);
    assert_eq!(declared(&path, 0, 2)["capacity"], 3);
    let raised = changed.replace("capacity = 4\n", "capacity = 400\n");
    let refused = apply(&path, &raised, &[]).ended(4);
    assert!(refused.stderr.contains("holds: 64 are too few"), "{refused:?}");
    let json = run(["inspect", "--json", text(&path)]).ended(0).json();
    assert_eq!(json["sets"][0]["hold_capacity"], 64);
    let other = DECLARATION.replace("participants = 8", "participants = 9");
    apply(&path, &other, &[]).ended(4);
}

#[test]
fn every_field_that_can_be_set_is() {
    let directory = directory();
    let path = create(directory.path());
    for (position, limit, assignment, field, value) in [
        (0, "requests", "capacity=1_200", "capacity", json!(1_200)),
        (0, "requests", "window=30s", "window", json!("30s")),
        (0, "requests", "burst=7", "burst", json!(7)),
        (0, "requests", "near_limit=90%", "near_limit", json!(90)),
        (0, "requests", "shadow=true", "shadow", json!(true)),
        (0, "requests", "shadow=none", "shadow", json!(false)),
        (1, "dollars", "capacity=120.5", "capacity", json!("120.5")),
        (2, "in_flight", "lease=1m", "lease", json!("1m")),
        (2, "in_flight", "lease=none", "lease", Value::Null),
    ] {
        set(&path, &["api", limit, assignment]).ended(0);
        assert_eq!(declared(&path, 0, position)[field], value, "{assignment}");
    }
    for (assignment, field, value) in [
        ("ceiling=128", "ceiling", json!(128)),
        ("floor=2", "floor", json!(2)),
        ("latency_limit=250ms", "latency_limit", json!("250ms")),
    ] {
        set(&path, &["adaptive", "work", assignment]).ended(0);
        assert_eq!(declared(&path, 1, 0)[field], value, "{assignment}");
    }
}

#[test]
fn the_size_of_batches_can_be_set_where_there_are_any() {
    let directory = directory();
    let path = directory.path().join("limits");
    let declaration = r#"
[[set]]
name = "api"

  [[set.limit]]
  name = "calls"
  kind = "calls"
  capacity = 1000
  window = "1m"
  credit = { batch = 10 }
"#;
    let config = write(directory.path(), declaration);
    run(["create", text(&path), &config]).ended(0);
    let changed = set(&path, &["api", "calls", "batch=25"]).ended(0);
    assert!(changed.stdout.contains("batch: 10 to 25"), "{changed:?}");
    assert_eq!(declared(&path, 0, 0)["credit"]["batch"], 25);
    for (assignment, code, part) in [
        ("batch=0", 78, "batch"),
        ("batch=many", 78, "batch"),
        ("batch=none", 78, "batch"),
    ] {
        let refused = set(&path, &["api", "calls", assignment]).ended(code);
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
    assert_eq!(declared(&path, 0, 0)["credit"]["batch"], 25);
    let automatic = set(&path, &["api", "calls", "batch=auto"]).ended(0);
    assert!(automatic.stdout.contains("auto"), "{automatic:?}");
    assert_eq!(declared(&path, 0, 0)["credit"], "auto");
    set(&path, &["api", "calls", "batch=10"]).ended(0);
    assert_eq!(declared(&path, 0, 0)["credit"]["batch"], 10);
    let other = support::directory();
    let without = create(other.path());
    let refused = set(&without, &["api", "requests", "batch=25"]).ended(64);
    assert!(refused.stderr.contains("declared without credit"), "{refused:?}");
}

#[test]
fn a_leaky_bucket_that_was_declared_by_rate_and_interval_is_shown_and_changed_so() {
    let directory = directory();
    let path = directory.path().join("limits");
    let declaration = r#"
[[set]]
name = "ray"

  [[set.limit]]
  name = "calls"
  kind = "calls"
  algorithm = "leaky_bucket"
  capacity = 2
  rate = 2
  interval = "1s"
"#;
    run(["create", text(&path), &write(directory.path(), declaration)]).ended(0);
    let fields = || {
        let limit = declared(&path, 0, 0);
        ["capacity", "rate", "interval", "window", "burst"].map(|field| limit[field].clone())
    };
    let run_inspect = || run(["inspect", text(&path)]).ended(0).stdout;
    set(&path, &["ray", "calls", "capacity=4"]).ended(0);
    assert_eq!(
        fields(),
        [json!(4), json!(2), json!("1s"), Value::Null, Value::Null],
        "a larger bucket drains at the same rate"
    );
    let shown = run_inspect();
    assert!(
        shown.contains("4, rate 2 per 1s, leaky_bucket, at most 5 in any 1s"),
        "{shown}"
    );
    let run = set(&path, &["ray", "calls", "rate=3", "interval=2s"]).ended(0);
    assert!(run.stdout.starts_with("changed 2 values\n"), "{run:?}");
    assert_eq!(
        fields(),
        [json!(4), json!(3), json!("2s"), Value::Null, Value::Null]
    );
    let refused = set(&path, &["ray", "calls", "burst=3"]).ended(78);
    assert!(
        refused.stderr.contains("`capacity` is the size of the bucket"),
        "{refused:?}"
    );
    let faster = declaration.replace("rate = 2", "rate = 5").replace("1s", "2s");
    let json = apply(&path, &faster, &["--json"]).ended(0).json();
    assert_eq!(
        json["changes"],
        json!([
            {"place": "set \"ray\" / limit \"calls\" / capacity", "before": "4", "after": "2"},
            {"place": "set \"ray\" / limit \"calls\" / rate", "before": "3", "after": "5"},
        ])
    );
}

#[test]
fn several_values_change_together_and_a_burst_follows_the_capacity_that_it_was() {
    let directory = directory();
    let path = create(directory.path());
    let run = set(
        &path,
        &["api", "requests", "capacity=200", "window=30s", "--dry-run"],
    )
    .ended(0);
    assert!(run.stdout.starts_with("would change 3 values\n"), "{run:?}");
    assert_eq!(declared(&path, 0, 0)["capacity"], 10);
    set(&path, &["api", "requests", "capacity=200", "window=30s"]).ended(0);
    let limit = declared(&path, 0, 0);
    assert_eq!(
        (&limit["capacity"], &limit["window"], &limit["burst"]),
        (&json!(200), &json!("30s"), &json!(200))
    );
    set(&path, &["api", "requests", "capacity=300", "burst=5"]).ended(0);
    set(&path, &["api", "requests", "capacity=400"]).ended(0);
    assert_eq!(declared(&path, 0, 0)["burst"], 5, "one of its own stays");
    let run = set(&path, &["api", "requests", "capacity=400"]).ended(0);
    assert_eq!(run.stdout, "nothing to change\n");
    let json = set(&path, &["api", "requests", "capacity=401", "--json"])
        .ended(0)
        .json();
    assert_eq!(
        json["changes"],
        json!([{"place": "set \"api\" / limit \"requests\" / capacity", "before": "400", "after": "401"}])
    );
}

#[test]
fn mistakes_of_a_change_have_the_codes_of_their_kind() {
    let directory = directory();
    let path = create(directory.path());
    for (arguments, code, part) in [
        (&["api", "requests"][..], 64, "FIELD=VALUE"),
        (&["api", "requests", "capacity"], 64, "the value is missing"),
        (
            &["api", "requests", "colour=red"],
            64,
            "`colour` is not a field of a limit that can change in place; these are: capacity",
        ),
        (
            &["api", "requests", "algorithm=gcra"],
            64,
            "`algorithm` is not a field of a limit that can change in place",
        ),
        (&["api", "requests", "window=soon"], 64, "soon"),
        (&["api", "requests", "near_limit=most"], 64, "a whole percentage"),
        (&["api", "requests", "shadow=maybe"], 64, "true or false"),
        (
            &["apis", "requests", "capacity=1"],
            64,
            "there is no set `apis`; the segment has api, adaptive",
        ),
        (
            &["api", "request", "capacity=1"],
            64,
            "set `api` has no limit `request`",
        ),
        (&["api", "requests", "capacity=0"], 78, "requests"),
        (&["api", "requests", "capacity=-1"], 78, "requests"),
        (&["api", "requests", "capacity=1.5"], 78, "requests"),
        (&["api", "requests", "near_limit=101"], 78, "out of range"),
        (&["api", "requests", "lease=1s"], 78, "lease"),
        (&["api", "requests", "window=none"], 78, "window"),
        (&["adaptive", "work", "ceiling=4"], 78, "out of range"),
        (&["api", "requests", "window=calendar:month"], 78, "window"),
        (&["api", "requests", "capacity=unlimited"], 4, "capacity"),
    ] {
        let run = set(&path, arguments).ended(code);
        assert!(run.stderr.contains(part), "{part} in {run:?}");
        assert!(
            run.stderr.starts_with("limitctl: ") && run.stdout.is_empty(),
            "{run:?}"
        );
    }
    assert_eq!(declared(&path, 0, 0)["capacity"], 10);

    apply(&path, "nonsense", &[]).ended(78);
    let missing = directory.path().join("missing");
    run(["apply", text(&path), text(&missing)]).ended(69);
    run(["apply", text(&missing), &write(directory.path(), DECLARATION)]).ended(69);
    set(&missing, &["api", "requests", "capacity=1"]).ended(69);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("changed");
    set(&path, &["api", "requests", "capacity=11"]).ended(77);
    set(&path, &["api", "requests", "capacity=11", "--dry-run"]).ended(0);
    set(&path, &["api", "requests", "capacity=11", "--trust-any-owner"]).ended(0);
    Segment::open(&missing).expect_err("it is not there");
}

#[test]
fn keys_go_by_the_change_as_well() {
    let directory = directory();
    let path = directory.path().join("limits");
    let declaration = r#"
        [[set]]
        name = "api"
        keyed = { max_keys = 5_000 }
        limit = [{ name = "requests", kind = "calls", capacity = 5, window = "1d", algorithm = "fixed_window", align = "first_use" }]
    "#;
    run(["create", text(&path), &write(directory.path(), declaration)]).ended(0);
    let segment = Segment::open(&path).expect("attached");
    let api = segment.set("api").expect("declared");
    for number in 0..100 {
        let request = api.request().for_key(format!("k{number}")).expect("keyed");
        for _ in 0..4 {
            drop(request.try_acquire().expect("works"));
        }
    }
    set(&path, &["api", "requests", "capacity=3"]).ended(0);
    let json = run([
        "keys",
        "--reveal",
        "--json",
        "--limited",
        "--top",
        "0",
        text(&path),
        "api",
    ])
    .ended(0)
    .json();
    assert_eq!(json["matching"], 100, "four of three are used");
    set(&path, &["api", "requests", "capacity=6"]).ended(0);
    let json = run(["show", "--json", text(&path), "api", "k7"]).ended(0).json();
    assert_eq!(json["rows"][0]["limits"][0]["remaining"], 2);
    assert_eq!(json["rows"][0]["limits"][0]["capacity"], 6);
}

#[test]
fn a_change_that_leaves_a_short_log_says_so_and_what_to_do() {
    let directory = directory();
    let path = directory.path().join("limits");
    let declaration = r#"
        [[set]]
        name = "api"
        keyed = { max_keys = 100 }
        limit = [{ name = "requests", kind = "calls", capacity = 2, window = "1m", algorithm = "sliding_window" }]
    "#;
    run(["create", text(&path), &write(directory.path(), declaration)]).ended(0);
    let raised = declaration.replace("capacity = 2", "capacity = 60");
    let note = "its log keeps 2 entries";
    let preview = apply(&path, &raised, &["--dry-run", "--json"]).ended(0).json();
    let preview = preview["changes"][0]["note"].as_str().expect("a note");
    assert!(preview.starts_with(note), "{preview}");
    let said = apply(&path, &raised, &[]).ended(0).stdout;
    assert!(said.contains(note) && said.contains("`entries = 60`"), "{said}");
    let said = set(&path, &["api", "requests", "capacity=90"]).ended(0).stdout;
    assert!(said.contains(note), "{said}");
    let window = set(&path, &["api", "requests", "window=2m"]).ended(0).stdout;
    assert!(!window.contains(note), "{window}");
}

#[test]
fn the_help_of_edit_names_every_field_that_it_takes() {
    let help = run(["edit", "--help"]).ended(0).stdout;
    for (field, _) in Limit::editable_fields() {
        assert!(help.contains(field), "{field} is not in {help}");
    }
}
