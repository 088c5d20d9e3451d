//! Requests that wait in a trace, and hold what they get for a time.

use serde_json::{Value, json};

use crate::support::{Run, directory, limitctl, replay_declaration, run_command, text};

/// Keys that share two places.
const PLACES: &str = r#"
[[set]]
name = "llm"
keyed = 100
limit = [{ name = "places", kind = "concurrency", capacity = 2, scope = "all_keys" }]
"#;

fn request(at_ms: u64, key: &str, wait_ms: u64, hold_ms: u64) -> Value {
    json!({"at_ms": at_ms, "set": "llm", "key": key, "wait_ms": wait_ms, "hold_ms": hold_ms})
}

/// When each request was made, whether it was admitted, and how long it waited, in the order of the decisions.
fn decisions(declaration: &str, events: &[Value]) -> Vec<(u64, bool, u64)> {
    let run = replay_declaration(declaration, events).ended(0);
    let decision = |verdict: Value| {
        let number = |name: &str| verdict[name].as_u64().expect("a number");
        let is_admitted = verdict["admitted"].as_bool().expect("a verdict");
        (number("at_ms"), is_admitted, number("waited_ms"))
    };
    run.json_lines().into_iter().map(decision).collect()
}

#[test]
fn requests_wait_until_others_give_back_and_no_longer_than_they_say() {
    let events = [
        request(0, "a", 0, 1_000),
        request(1, "a", 0, 1_500),
        // Three wait for two places: the last of them would have to wait until 1,700 ms.
        request(2, "b", 5_000, 700),
        request(3, "c", 5_000, 800),
        request(4, "d", 900, 100),
        request(5, "e", 1_694, 100),
    ];
    assert_eq!(
        decisions(PLACES, &events),
        [
            (0, true, 0),
            (1, true, 0),
            (4, false, 900),
            (2, true, 998),
            (3, true, 1_498),
            (5, false, 1_694),
        ]
    );
}

#[test]
fn time_alone_serves_waits_to_the_millisecond_and_what_is_not_used_comes_back() {
    let declaration = r#"
[[set]]
name = "llm"
limit = [{ name = "tokens", kind = "rate", capacity = 100, window = "1s", algorithm = "fixed_window" }]
"#;
    let request = |at_ms: u64, used: u64| json!({"at_ms": at_ms, "set": "llm", "cost": {"tokens": 60}, "wait_ms": 9_000, "hold_ms": 100, "usage": {"tokens": used}});
    // The second gets what the first did not use of the window; the third waits for the next window.
    let events = [request(100, 10), request(150, 60), request(160, 60)];
    let admitted = [(100, true, 0), (150, true, 50), (160, true, 840)];
    assert_eq!(decisions(declaration, &events), admitted);
}

/// Replays events against a declaration, which is compared with another if there is one.
fn simulate(declaration: &str, other: Option<&str>, events: &[Value], arguments: &[&str]) -> Run {
    let directory = directory();
    let write = |name: &str, content: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).expect("written");
        path
    };
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    let (declaration, trace) = (write("declared.toml", declaration), write("trace", &lines));
    let mut command = limitctl();
    command.args(["simulate", text(&declaration), "--trace", text(&trace)]);
    if let Some(other) = other {
        command.args(["--against", text(&write("other.toml", other))]);
    }
    run_command(command.args(arguments))
}

/// Declares one place for all keys, which is given to another request once its lease has expired.
fn leased() -> String {
    PLACES.replace("capacity = 2", "capacity = 1, lease = \"30s\"")
}

#[test]
fn a_request_that_waits_gets_a_place_whose_lease_has_expired_when_it_expires() {
    let events = [request(0, "a", 0, 500_000), request(1_000, "b", 1_000_000, 10)];
    assert_eq!(
        decisions(&leased(), &events),
        [(0, true, 0), (1_000, true, 29_000)]
    );
}

#[test]
fn a_key_that_lets_its_leases_expire_is_charged_for_them_as_if_it_had_given_back() {
    for hold_ms in [29_000, 500_000] {
        let mut events = vec![request(0, "first", 0, 5_000)];
        for at_ms in (10..90).step_by(2) {
            events.push(request(at_ms, "long", 10_000_000, hold_ms));
            events.push(request(at_ms + 1, "short", 10_000_000, 1_000));
        }
        let run = replay_declaration(&leased(), &events).ended(0);
        let keys: Vec<Value> = run
            .json_lines()
            .into_iter()
            .map(|verdict| verdict["key"].clone())
            .collect();
        let long = keys.iter().take(13).filter(|key| **key == "long").count();
        assert!(long <= 2, "{hold_ms}: {keys:?}");
    }
}

#[test]
fn a_key_joins_those_that_wait_for_what_all_share_as_soon_as_its_own_limits_admit_it() {
    let declaration = r#"
[[set]]
name = "llm"
keyed = 100
limit = [
    { name = "units", kind = "rate", capacity = 10, window = "10s", scope = "all_keys" },
    { name = "own", kind = "rate", capacity = 1, window = "5s" },
]
"#;
    let request = |at_ms: u64, key: &str, units: u64, wait_ms: Option<u64>| json!({"at_ms": at_ms, "set": "llm", "key": key, "cost": {"units": units, "own": 1}, "wait_ms": wait_ms});
    let events = [
        request(0, "first", 10, None),
        request(0, "early", 0, None),
        request(10, "large", 9, Some(100_000)),
        // Its own limit admits it at 5 s, before the next request comes; what all keys share admits it long after that.
        request(20, "early", 8, Some(100_000)),
        request(6_500, "late", 8, Some(100_000)),
    ];
    let run = replay_declaration(declaration, &events).ended(0);
    let keys: Vec<Value> = run
        .json_lines()
        .into_iter()
        .map(|verdict| verdict["key"].clone())
        .collect();
    assert_eq!(keys, ["first", "early", "large", "early", "late"]);
}

#[test]
fn the_summary_says_what_each_key_got_of_what_all_share() {
    let key = |number| if number == 7 { "quiet" } else { "noisy" };
    let events: Vec<Value> = (0..8)
        .map(|number| request(number, key(number), 60_000, 1_000))
        .collect();
    let summary = simulate(PLACES, None, &events, &["--summary", "--json"])
        .ended(0)
        .json();
    let shares = &summary["sets"][0]["shares"];
    for (key, requests) in [("noisy", 7), ("quiet", 1)] {
        let share = &shares[key];
        assert_eq!(
            (&share["requests"], &share["admitted"]),
            (&json!(requests), &json!(requests))
        );
        assert_eq!(share["used"], json!({"places": requests}));
    }
    let text = simulate(PLACES, None, &events, &["--summary"]).ended(0).stdout;
    for part in ["SHARE", "87.5 %", "12.5 %"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn two_declarations_are_compared_by_request_however_long_each_lets_it_wait() {
    let more = PLACES.replace("capacity = 2", "capacity = 3");
    // With two places the third waits for a second, and the fourth in vain; with three only the fourth waits.
    let wait = |at_ms| if at_ms == 3 { 500 } else { 5_000 };
    let events: Vec<Value> = (0..5)
        .map(|at_ms| request(at_ms, "a", wait(at_ms), 1_000))
        .collect();
    let lines = simulate(&more, Some(PLACES), &events, &[]).ended(0).json_lines();
    let [count] = &lines[..] else {
        panic!("a flip: {lines:?}");
    };
    assert_eq!((&count["requests"], &count["flips"]), (&json!(5), &json!(0)));
    let events = [0, 0, 0].map(|at_ms| request(at_ms, "a", 999, 1_000));
    let lines = simulate(&more, Some(PLACES), &events, &[]).ended(0).json_lines();
    let flip = &lines[0];
    assert_eq!((&flip["line"], &flip["waited_ms"]), (&json!(3), &json!(0)));
    assert_eq!(
        (&flip["admitted"], &flip["against"]["admitted"]),
        (&json!(true), &json!(false))
    );
}

#[test]
fn what_cannot_wait_or_is_no_limit_is_a_mistake_of_its_line() {
    let networks = r#"
[[set]]
name = "llm"
keyed = 100
limit = [{ name = "places", kind = "calls", capacity = 2, window = "1s", prefix = [32, 64] }]
"#;
    let unknown = json!({"at_ms": 0, "set": "llm", "key": "a", "hold_ms": 5, "usage": {"tokens": 1}});
    for (declaration, event, part) in [
        (
            networks,
            request(0, "203.0.113.7", 5, 0),
            "requests cannot wait: leave out `wait_ms`",
        ),
        (PLACES, unknown, "has no limit `tokens`"),
    ] {
        let run = simulate(declaration, None, &[event], &[]).ended(65);
        assert!(
            run.stderr.contains(part) && run.stderr.contains("line 1"),
            "{run:?}"
        );
    }
}
