//! What a simulation reports, how it ends, and that it leaves nothing behind.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use crate::support::{Run, TIMEOUT, directory, finish, limitctl, run, run_command, text};
use serde_json::{Value, json};

const NOW: &str = r#"
[[set]]
name = "api"

limit = [
  { name = "requests", kind = "calls", capacity = 2, window = "1s" },
  { name = "in_flight", kind = "concurrency", capacity = 2 },
]

[[set]]
name = "chat"
limit = [{ name = "tokens", kind = "rate", capacity = 10, window = "10s" }]
"#;

/// Writes the declaration, and another one in which `from` is replaced by `to`.
fn write_both(directory: &Path, name: &str, from: &str, to: &str) -> (PathBuf, PathBuf) {
    let now = write(directory, "now.toml", NOW);
    (now, write(directory, name, NOW.replace(from, to)))
}

fn write(directory: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, content).expect("written");
    path
}

fn ndjson(events: &[Value]) -> String {
    events.iter().map(|event| format!("{event}\n")).collect()
}

/// Replays a text against [`NOW`] with more arguments.
fn simulate(trace: &str, arguments: &[&str]) -> Run {
    let directory = directory();
    let declaration = write(directory.path(), "now.toml", NOW);
    let trace = write(directory.path(), "trace.ndjson", trace);
    run_command(
        limitctl()
            .args(["simulate", text(&declaration), "--trace", text(&trace)])
            .args(arguments),
    )
}

#[test]
fn a_line_that_makes_no_sense_ends_the_replay_and_says_where_and_what_to_do() {
    let first = json!({"at_ms": 10, "set": "api", "id": 1}).to_string();
    for (line, parts) in [
        (
            "{\"at_ms\": 10, \"set\": ",
            &["not JSON", "one object a line"][..],
        ),
        (
            r#"{"at_ms": "10", "set": "api"}"#,
            &["expected u64", "write, for example,"],
        ),
        (
            r#"{"at_ms": 10, "sett": "api"}"#,
            &["unknown field `sett`", "write, for example,"],
        ),
        (
            r#"{"at_ms": 9, "set": "api"}"#,
            &["time runs backwards, from at_ms 10 to 9", "sort the trace"],
        ),
        (
            r#"{"at_ms": 10, "set": "apis"}"#,
            &["no set `apis`", "has api, chat", "declare it"],
        ),
        (
            r#"{"at_ms": 10, "set": "api", "cost": {"tokens": 1}}"#,
            &[
                "set `api` has no limit `tokens`",
                "requests, in_flight",
                "declare it",
            ],
        ),
        (
            r#"{"at_ms": 10, "set": "chat"}"#,
            &["`tokens`", "the request must name a cost"],
        ),
        (
            r#"{"at_ms": 10, "set": "api", "key": "k"}"#,
            &["set `api` is not keyed", "remove `key`"],
        ),
        (
            r#"{"at_ms": 10, "set": "api", "id": "1"}"#,
            &["id `1` is in use", "an id of its own"],
        ),
        (
            r#"{"at_ms": 10, "release": 2}"#,
            &["has the id `2`", "add \"id\""],
        ),
        (
            r#"{"at_ms": 10, "settle": 2, "usage": {}}"#,
            &["has the id `2`", "add \"id\""],
        ),
        (r#"{"at_ms": 10, "settle": 1}"#, &["add `usage`"]),
        (
            r#"{"at_ms": 10, "settle": 1, "usage": {"tokens": 1}}"#,
            &["set `api` has no limit `tokens`"],
        ),
    ] {
        let run = simulate(&format!("{first}\n\n{line}\n"), &[]).ended(65);
        for part in parts.iter().chain(&["trace.ndjson, line 3: "]) {
            assert!(run.stderr.contains(part), "{part} in {run:?}");
        }
        // The verdicts before the mistake stand.
        assert_eq!(run.json_lines().len(), 1, "{run:?}");
    }
}

#[test]
fn an_id_is_settled_once_and_is_unknown_after_its_release() {
    let take = json!({"at_ms": 1, "set": "chat", "cost": {"tokens": 5}, "id": "x"});
    let settle = json!({"at_ms": 1, "settle": "x", "usage": {"tokens": 3}});
    let release = json!({"at_ms": 1, "release": "x"});
    let ended = |events: &[&Value], code: i32| {
        let events: Vec<Value> = events.iter().map(|event| (*event).clone()).collect();
        simulate(&ndjson(&events), &[]).ended(code)
    };
    ended(&[&take, &settle, &release, &take, &release], 0);
    let twice = ended(&[&take, &settle, &settle], 65);
    assert!(
        twice.stderr.contains("line 3") && twice.stderr.contains("settled already"),
        "{twice:?}"
    );
    let after = ended(&[&take, &release, &settle], 65);
    assert!(
        after.stderr.contains("line 3") && after.stderr.contains("was released"),
        "{after:?}"
    );
}

#[test]
fn what_was_refused_has_nothing_to_settle_or_to_release() {
    let events = [
        json!({"at_ms": 1, "set": "chat", "cost": {"tokens": 10}}),
        json!({"at_ms": 1, "set": "chat", "cost": {"tokens": 10}, "id": 7}),
        json!({"at_ms": 1, "settle": 7, "usage": {"tokens": 3}}),
        json!({"at_ms": 1, "release": 7}),
        json!({"at_ms": 10_001, "set": "chat", "cost": {"tokens": 10}}),
    ];
    let run = simulate(&ndjson(&events), &[]).ended(0);
    let admitted: Vec<Value> = run
        .json_lines()
        .iter()
        .map(|line| line["admitted"].clone())
        .collect();
    assert_eq!(admitted, [true, false, true]);
}

#[test]
fn what_cannot_be_read_or_declared_has_the_codes_of_other_verbs() {
    let directory = directory();
    let (now, wrong) = write_both(directory.path(), "wrong.toml", "capacity = 10", "capacity = 0");
    let trace = write(directory.path(), "trace", "");
    let (now, wrong, trace) = (text(&now), text(&wrong), text(&trace));
    run(["simulate", now, "--trace", trace]).ended(0);
    let run_ = run(["simulate", now, "--against", wrong, "--trace", trace]).ended(78);
    assert!(run_.stderr.contains("wrong.toml: set \"chat\""), "{run_:?}");
    run(["simulate", now, "--trace", "/nonexistent/trace"]).ended(69);
    run(["simulate", "/nonexistent/now.toml", "--trace", trace]).ended(69);
    run(["simulate", now]).ended(64);
    run(["simulate", now, "--trace", trace, "--max-flips", "1"]).ended(64);
    run(["simulate", now, "--trace", trace, "--json"]).ended(64);
}

/// Five requests in each of two seconds, against two a second; one asks for more than there ever is.
fn busy() -> Vec<Value> {
    let mut events = Vec::new();
    for second in [1_000, 3_000] {
        for number in 0..5 {
            events.push(json!({"at_ms": second + number, "set": "api"}));
        }
    }
    events.push(json!({"at_ms": 3_010, "set": "chat", "cost": {"tokens": 11}}));
    events.push(json!({"at_ms": 3_010, "set": "chat", "cost": {"tokens": 6}, "id": 1}));
    events.push(json!({"at_ms": 3_020, "settle": 1, "usage": {"tokens": 9}}));
    events
}

#[test]
fn text_and_json_of_a_summary_agree_with_the_verdicts() {
    let trace = ndjson(&busy());
    let json = simulate(&trace, &["--summary", "--json"]).ended(0).json();
    assert_eq!((&json["from_ms"], &json["to_ms"]), (&json!(1_000), &json!(3_010)));
    assert_eq!((&json["requests"], &json["admitted"]), (&json!(12), &json!(5)));
    assert_eq!(json["refused"], json!({"never_admissible": 1, "rate": 6}));
    let verdicts = simulate(&trace, &[]).ended(0).json_lines();
    assert_eq!(verdicts.len(), 12);
    let admitted = verdicts
        .iter()
        .filter(|verdict| verdict["admitted"] == true)
        .count();
    assert_eq!(admitted, 5);

    let api = &json["sets"][0];
    assert_eq!(
        (&api["set"], &api["requests"], &api["admitted"]),
        (&json!("api"), &json!(10), &json!(4))
    );
    assert_eq!(api["max_requests_in_a_second"], 5);
    assert_eq!(api["max_admitted_in_a_second"], 2);
    let requests = &api["limits"][0];
    assert_eq!(
        (
            &requests["used"],
            &requests["max_in_a_second"],
            &requests["refused"]
        ),
        (&json!(4), &json!(2), &json!(6))
    );
    assert_eq!(requests["max_held_at_once"], Value::Null);
    assert_eq!(api["limits"][1]["max_held_at_once"], 1);
    // Six taken, and three more by a settlement in the same second.
    let tokens = &json["sets"][1]["limits"][0];
    assert_eq!(
        (&tokens["used"], &tokens["max_in_a_second"], &tokens["refused"]),
        (&json!(9), &json!(9), &json!(1))
    );

    let rows = json["timeline"]["rows"].as_array().expect("rows");
    let sum = |field: &str| rows.iter().filter_map(|row| row[field].as_u64()).sum::<u64>();
    assert_eq!((sum("admitted"), sum("refused")), (5, 7));

    let shown = simulate(&trace, &["--summary"]).ended(0).stdout;
    for part in [
        "12 requests in 2.01s, from 1970-01-01T00:00:01.000Z on: 5 admitted, 7 refused (1 never_admissible, 6 rate)",
        "set api\n  4 admitted, 6 refused (6 rate); in a second at most 5 requests, 2 admitted\n",
        "set chat\n  1 admitted, 1 refused (1 never_admissible)",
        "a row is 100ms; # is up to 1 admitted, x up to 1 refused",
        "  1970-01-01T00:00:01.000Z         2        3  ##xxx\n",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!shown.contains('\u{1b}'), "no colours where there is no terminal");
    assert_eq!(simulate("", &["--summary"]).ended(0).stdout, "no requests\n");
}

/// Replays both declarations; the first is [`NOW`].
fn compare(other: &str, events: &[Value], arguments: &[&str]) -> Run {
    let directory = directory();
    let other = write(directory.path(), "other.toml", other);
    simulate(
        &ndjson(events),
        &[&["--against", text(&other)], arguments].concat(),
    )
}

#[test]
fn a_comparison_prints_the_verdicts_that_flip_and_counts_them() {
    // Three a second instead of two: the third request of each burst flips. Two seconds later, what the other
    // declaration has spent by then makes no difference.
    let other = NOW.replace("capacity = 2, window", "capacity = 3, window");
    let run = compare(&other, &busy(), &[]).ended(0);
    let flips = run.json_lines();
    assert_eq!(flips.len(), 3, "{run:?}");
    for (flip, (line, at_ms)) in flips.iter().zip([(3, 1_002), (8, 3_002)]) {
        assert_eq!((&flip["line"], &flip["at_ms"]), (&json!(line), &json!(at_ms)));
        assert_eq!(
            (&flip["admitted"], &flip["against"]["admitted"]),
            (&json!(false), &json!(true))
        );
        // Here two were taken 2 and 1 ms before, and one is worth 500 ms; there, three were taken, and one is worth 333
        // 1/3 ms.
        assert_eq!(flip["limits"]["requests"]["retry_after_ms"], 498);
        assert_eq!(flip["against"]["limits"]["requests"]["reset_after_ms"], 998);
    }
    let count = json!({"requests": 12, "flips": 2, "to_admitted": 0, "to_refused": 2});
    assert_eq!(flips.last(), Some(&count));

    // A declaration does not differ from itself.
    let run = compare(NOW, &busy(), &["--max-flips", "0"]).ended(0);
    assert_eq!(
        run.stdout,
        "{\"requests\":12,\"flips\":0,\"to_admitted\":0,\"to_refused\":0}\n"
    );
}

#[test]
fn a_gate_fails_with_a_code_of_its_own_where_more_flip_than_may() {
    let other = NOW.replace("capacity = 2, window", "capacity = 3, window");
    compare(&other, &busy(), &["--max-flips", "2"]).ended(0);
    let failed = compare(&other, &busy(), &["--max-flips", "1"]).ended(3);
    assert!(
        failed
            .stderr
            .contains("2 verdicts flip, and --max-flips allows 1"),
        "{failed:?}"
    );
    assert_eq!(failed.json_lines().len(), 3);

    let shown = compare(&other, &busy(), &["--max-flips", "1", "--summary"])
        .ended(3)
        .stdout;
    assert!(
        shown.starts_with("2 of 12 verdicts flip: 0 to admitted, 2 to refused\n"),
        "{shown}"
    );
    assert!(
        shown.contains("now.toml\n12 requests") && shown.contains("other.toml\n12 requests"),
        "{shown}"
    );
    let json = compare(&other, &busy(), &["--summary", "--json"]).ended(0).json();
    assert_eq!(json["comparison"]["flips"], 2);
    assert_eq!(
        (&json["admitted"], &json["against"]["admitted"]),
        (&json!(5), &json!(7))
    );
}

#[test]
fn a_comparison_may_name_limits_that_only_one_declaration_has() {
    let other = NOW.replace("name = \"requests\"", "name = \"calls\"");
    let take = |limit: &str| json!({"at_ms": 1, "set": "api", "cost": {limit: 2}});
    let run = compare(&other, &[take("requests"), take("calls")], &[]).ended(0);
    // For the second request, no requests are left here, so calls are not taken; there only one call was taken before.
    assert_eq!(
        run.json_lines().last().map(|count| count["flips"].clone()),
        Some(json!(0))
    );
    let unknown = compare(&other, &[take("neither")], &[]).ended(65);
    assert!(unknown.stderr.contains("no limit `neither`"), "{unknown:?}");
    let without = NOW.replace("name = \"api\"", "name = \"web\"");
    let unknown = compare(&without, &[take("requests")], &[]).ended(65);
    assert!(unknown.stderr.contains("no set `api`"), "{unknown:?}");
}

/// A trace that looks random: costs, ids, settles and releases.
fn restless() -> String {
    let mut state = 0x9e37_79b9_u64;
    let mut random = move |below: u64| {
        // The multiplier and increment of Knuth's MMIX.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut events = Vec::new();
    let mut known: Vec<u64> = Vec::new();
    let mut at_ms = 1_767_225_600_000;
    for id in 0..5_000 {
        at_ms += random(80);
        if random(3) == 0 && !known.is_empty() {
            let released = known.swap_remove(random(known.len() as u64) as usize);
            if random(2) == 0 {
                events.push(json!({"at_ms": at_ms, "settle": released, "usage": {}}));
            }
            events.push(json!({"at_ms": at_ms, "release": released}));
        } else if random(2) == 0 {
            events.push(json!({"at_ms": at_ms, "set": "api", "id": id}));
            known.push(id);
        } else {
            events.push(json!({"at_ms": at_ms, "set": "chat", "cost": {"tokens": random(4)}}));
        }
    }
    ndjson(&events)
}

#[test]
fn two_runs_are_equal_to_the_byte() {
    let directory = directory();
    // Every refusal looks for expired leases, however fast the program runs.
    let leased = NOW.replace(
        "kind = \"concurrency\", capacity = 2",
        "kind = \"concurrency\", lease = \"700ms\", capacity = 2",
    );
    let leased = write(directory.path(), "leased.toml", leased);
    let trace = restless();
    for arguments in [
        &["--summary"][..],
        &["--summary", "--json"],
        &["--against", text(&leased)],
        &[],
    ] {
        let first = simulate(&trace, arguments).ended(0);
        assert!(!first.stdout.is_empty());
        let second = simulate(&trace, arguments).ended(0);
        assert_eq!(first.stdout, second.stdout, "{arguments:?}");
    }
    let flips = simulate(&trace, &["--against", text(&leased)]).ended(0);
    assert!(flips.json_lines().len() > 100, "the leases matter");
}

fn start(arguments: &[&str], stdin: Stdio, stdout: Stdio) -> Child {
    limitctl()
        .arg("simulate")
        .args(arguments)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .expect("started")
}

fn start_on_standard_input(declaration: &Path) -> Child {
    start(
        &[text(declaration), "--trace", "-"],
        Stdio::piped(),
        Stdio::piped(),
    )
}

#[test]
fn standard_input_is_a_trace_and_needs_no_end() {
    let directory = directory();
    let declaration = write(directory.path(), "now.toml", NOW);
    let mut child = start_on_standard_input(&declaration);
    let mut stdin = child.stdin.take().expect("piped");
    stdin
        .write_all(b"{\"at_ms\": 1, \"set\": \"api\"}\n{\"at_ms\": 0, \"set\": \"api\"}\n")
        .expect("it reads");
    // It ends at the mistake, although more lines could come.
    let run = finish(child).ended(65);
    drop(stdin);
    assert!(
        run.stderr.contains("standard input, line 2: time runs backwards"),
        "{run:?}"
    );
    assert_eq!(run.json_lines().len(), 1);
}

#[test]
fn a_reader_who_has_seen_enough_ends_the_replay_unless_flips_are_counted() {
    let directory = directory();
    let (declaration, other) = write_both(directory.path(), "other.toml", "capacity = 2", "capacity = 1");
    // The last line is a mistake, which is only found by reading that far.
    let trace = write(directory.path(), "trace", restless() + "{}\n");
    let closed = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        Stdio::from(writer)
    };
    let arguments = [text(&declaration), "--trace", text(&trace)];
    let run = finish(start(&arguments, Stdio::null(), closed())).ended(0);
    assert!(run.stderr.is_empty(), "{run:?}");
    let counting = [&arguments[..], &["--against", text(&other), "--max-flips", "0"]].concat();
    finish(start(&counting, Stdio::null(), closed())).ended(65);
    let full = File::options()
        .write(true)
        .open("/dev/full")
        .expect("Linux has it");
    let run = finish(start(&arguments, Stdio::null(), full.into())).ended(1);
    assert!(run.stderr.starts_with("limitctl: cannot write"), "{run:?}");
}

/// The directory of a simulation's segment, once the file's name is gone.
fn directory_of_mapped_segment(pid: u32) -> Option<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let line = maps.lines().find(|line| line.contains("/limitctl-simulate-"))?;
    let path = line.strip_suffix(" (deleted)")?;
    let path = &path[path.find('/')?..];
    Some(Path::new(path).parent()?.to_owned())
}

#[test]
fn nothing_is_left_behind_even_by_a_simulation_that_is_killed() {
    let directory = directory();
    let declaration = write(directory.path(), "now.toml", NOW);
    let mut child = start_on_standard_input(&declaration);
    let deadline = Instant::now() + TIMEOUT;
    let private = loop {
        match directory_of_mapped_segment(child.id()) {
            Some(private) if !private.exists() => break private,
            _ => std::thread::yield_now(),
        }
        assert!(Instant::now() < deadline, "it keeps its directory");
    };
    child.kill().expect("it waits for the trace");
    child.wait().expect("a child of ours");
    assert!(!private.exists());
}

#[test]
fn a_verdict_shows_no_hostile_character_and_reads_back_the_same() {
    let directory = directory();
    // Control characters cannot be declared, but characters that reverse the text can.
    let hostile = "a\u{202e}\u{e0041}";
    let named = NOW.replace("name = \"api\"", &format!("name = \"{hostile}\""));
    let declaration = write(directory.path(), "hostile.toml", named);
    let event = json!({"at_ms": 1, "set": hostile, "id": "\u{1b}[31m"});
    let trace = write(directory.path(), "trace", ndjson(&[event.clone(), event]));
    let run = run(["simulate", text(&declaration), "--trace", text(&trace)]).ended(65);
    assert_eq!(run.json_lines()[0]["set"], hostile);
    for shown in [&run.stdout, &run.stderr] {
        assert!(!shown.contains(['\u{1b}', '\u{202e}', '\u{e0041}']), "{shown:?}");
    }
}

/// [`NOW`], except that each key of `api` has its own limits.
fn keyed() -> String {
    NOW.replace("name = \"api\"\n", "name = \"api\"\nkeyed = { max_keys = 10 }\n")
}

#[test]
fn an_event_of_a_keyed_set_names_a_key_that_can_be_one() {
    let directory = directory();
    let declaration = write(directory.path(), "keyed.toml", keyed());
    let replay = |event: Value| {
        let trace = write(directory.path(), "trace", ndjson(&[event]));
        run(["simulate", text(&declaration), "--trace", text(&trace)])
    };
    let without = replay(json!({"at_ms": 1, "set": "api"})).ended(65);
    for part in [
        "line 1: set `api` is keyed",
        "for example, add \"key\": \"tenant-7\"",
    ] {
        assert!(without.stderr.contains(part), "{part} in {without:?}");
    }
    let empty = replay(json!({"at_ms": 1, "set": "api", "key": ""})).ended(65);
    assert!(
        empty.stderr.contains("line 1: a key for set `api` has 0 bytes"),
        "{empty:?}"
    );
    let long = replay(json!({"at_ms": 1, "set": "api", "key": "k".repeat(65_537)})).ended(65);
    assert!(long.stderr.contains("from 1 to 65536"), "{long:?}");
    let longest = replay(json!({"at_ms": 1, "set": "api", "key": "k".repeat(65_536)})).ended(0);
    assert_eq!(longest.json_lines()[0]["admitted"], true);
}

#[test]
fn a_key_counts_only_in_the_declaration_that_is_keyed() {
    let directory = directory();
    let now = write(directory.path(), "now.toml", NOW);
    let keyed = write(directory.path(), "keyed.toml", keyed());
    let events: Vec<Value> = (0..40)
        .map(|number| json!({"at_ms": 1, "set": "api", "key": format!("k{}", number % 4)}))
        .collect();
    let trace = write(directory.path(), "trace", ndjson(&events));
    let run = run([
        "simulate",
        text(&keyed),
        "--against",
        text(&now),
        "--trace",
        text(&trace),
    ])
    .ended(0);
    let lines = run.json_lines();
    let (comparison, flips) = lines.split_last().expect("lines");
    assert_eq!(
        comparison["to_admitted"],
        flips.len(),
        "only the set as a whole was too small"
    );
    assert_eq!(comparison["to_refused"], 0);
    assert!(!flips.is_empty());
}
