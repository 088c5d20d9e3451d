//! What happens in a segment, line by line, compared with its counters.

use std::process::Stdio;
use std::time::Duration;

use crate::support::{Actor, TIMEOUT, create, directory, limitctl, lines_of, run, run_without_reader, text};
use serde_json::Value;
use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};

fn json_lines(output: &str) -> Vec<Value> {
    let lines = output.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}")))
        .collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn rates_are_what_the_counters_grew_by() {
    let directory = directory();
    let path = create(directory.path());
    let spinning = Actor::start("spin", &path);
    let shown = run(["watch", "--json", "--every", "100ms", "--count", "4", text(&path)]).ended(0);
    drop(spinning);
    let lines = json_lines(&shown.stdout);
    assert_eq!(lines.len(), 4);
    let mut refused = 0.0;
    for pair in lines.windows(2) {
        let (before, now) = (&pair[0]["sets"][0], &pair[1]["sets"][0]);
        let elapsed = number(&pair[1]["elapsed"]);
        assert!(elapsed > 0.0);
        for (rate, counter) in [
            (&now["rates"]["admitted"], "admitted"),
            (&now["rates"]["refused"], "refused_rate"),
        ] {
            let grown = number(&now["counts"][counter]) - number(&before["counts"][counter]);
            let rated = number(rate) * elapsed;
            assert!(
                (rated - grown).abs() < 1e-3 * grown.max(1.0),
                "{rated} is not {grown}"
            );
        }
        let limit = |set: &Value| number(&set["limits"][0]["counts"]["refused"]);
        let rated = number(&now["limits"][0]["rates"]["refused"]) * elapsed;
        let grown = limit(now) - limit(before);
        assert!(
            (rated - grown).abs() < 1e-3 * grown.max(1.0),
            "{rated} is not {grown}"
        );
        refused += grown;
    }
    assert!(refused > 0.0, "the traffic is real: {lines:?}");
    let last = &lines[3];
    assert_eq!(last["state"], "ok");
    assert_eq!(
        (&last["participants"], &last["dead_participants"]),
        (&1.into(), &0.into())
    );
    // Ten calls a day, and no permit is held.
    assert_eq!(last["sets"][0]["limits"][0]["usage"]["of"]["used"], 10);
    assert_eq!(last["sets"][0]["counts"]["admitted"], 10);
}

#[test]
fn lines_for_people_have_a_heading_once_and_a_line_for_each_set() {
    let directory = directory();
    let path = create(directory.path());
    let holding = Actor::start("hold", &path);
    let shown = run(["watch", "--every", "0.02", "--count", "3", text(&path)])
        .ended(0)
        .stdout;
    drop(holding);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 4, "{shown}");
    assert!(lines[0].starts_with("TIME      SET  ADMITTED/S"), "{shown}");
    for line in &lines[1..] {
        assert!(line.ends_with("requests 1 of 10, in_flight 1 of 4"), "{shown}");
        assert!(
            line.contains("  api           0           0           0        1        0  "),
            "{shown}"
        );
    }
}

#[test]
fn the_hottest_keys_come_first_by_what_was_asked_since_the_line_before() {
    let directory = directory();
    let path = directory.path().join("limits");
    let declaration = Declaration::new().add_set(
        SetDeclaration::new("tenants")
            .keyed(Keyed::new(100))
            .add_limit(Limit::calls("requests", 5, Duration::from_secs(86_400))),
    );
    let segment = Segment::create(&path, &declaration).expect("created");
    let tenants = segment.set("tenants").expect("declared");
    let ask = |key: &str, times| {
        for _ in 0..times {
            let asked = tenants.request().for_key(key).expect("keyed").check();
            let _ = asked.expect("works").is_admitted();
        }
    };
    // Asked before the first interval, so that it does not count as current activity.
    ask("former", 50);
    let mut child = limitctl()
        .args([
            "watch",
            "--json",
            "--reveal",
            "--keys",
            "2",
            "--every",
            "50ms",
            text(&path),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let lines = lines_of(child.stdout.take().expect("piped"));
    lines
        .recv_timeout(TIMEOUT)
        .expect("the first line, after the first look");
    ask("calm", 1);
    ask("hot", 8);
    // An interval that ends between two requests has only some of them.
    let mut seen = std::collections::BTreeMap::new();
    let all = std::collections::BTreeMap::from([("calm".to_owned(), (1, 0)), ("hot".to_owned(), (5, 3))]);
    let deadline = std::time::Instant::now() + TIMEOUT;
    while seen != all {
        assert!(std::time::Instant::now() < deadline, "{seen:?}");
        let line = lines.recv_timeout(TIMEOUT).expect("a line");
        let line: Value = serde_json::from_str(&line).expect("JSON");
        let elapsed = number(&line["elapsed"]);
        let hottest = line["sets"][0]["hottest"].as_array().cloned().unwrap_or_default();
        let asked = |hot: &Value, result: &str| (number(&hot["rates"][result]) * elapsed).round() as u64;
        let of_each = hottest
            .iter()
            .map(|hot| asked(hot, "admitted") + asked(hot, "refused"));
        assert!(of_each.is_sorted_by(|one, next| one >= next), "{hottest:?}");
        for hot in hottest
            .iter()
            .filter(|hot| asked(hot, "admitted") + asked(hot, "refused") > 0)
        {
            let name = hot["key"]["text"].as_str().expect("kept").to_owned();
            let sum: &mut (u64, u64) = seen.entry(name).or_default();
            sum.0 += asked(hot, "admitted");
            sum.1 += asked(hot, "refused");
        }
    }
    child.kill().expect("killed");
    child.wait().expect("a child of ours");
}

#[test]
fn goes_on_with_the_segment_that_takes_the_place() {
    let directory = directory();
    let path = create(directory.path());
    let mut child = limitctl()
        .args(["watch", "--json", "--every", "20ms", text(&path)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let lines = lines_of(child.stdout.take().expect("piped"));
    let wait_for = |wanted: &dyn Fn(&Value) -> bool| {
        let deadline = std::time::Instant::now() + TIMEOUT;
        loop {
            let line = lines.recv_timeout(TIMEOUT).expect("a line");
            if wanted(&serde_json::from_str(&line).expect("JSON")) {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "it never says so");
        }
    };
    wait_for(&|line| line["state"] == "ok");
    run(["remove", text(&path)]).ended(0);
    wait_for(&|line| line["state"] == "removed");
    create(directory.path());
    let segment = Segment::open(&path).expect("attached");
    let api = segment.set("api").expect("declared");
    let admitted = api.request().try_acquire().expect("works");
    assert!(admitted.is_admitted());
    wait_for(&|line| line["state"] == "ok" && line["sets"][0]["counts"]["admitted"] == 1);
    drop(lines);
    child.kill().expect("killed");
    child.wait().expect("a child of ours");
}

#[test]
fn ends_when_its_reader_has_seen_enough() {
    let directory = directory();
    let path = create(directory.path());
    run_without_reader(&["watch", "--every", "10ms", text(&path)]);
}

#[test]
fn an_interval_that_makes_no_sense_is_refused() {
    for interval in ["0", "1ms", "2d", "soon"] {
        run(["watch", "--every", interval, "limits"]).ended(64);
    }
    run(["watch", "/nowhere/limits"]).ended(69);
}
