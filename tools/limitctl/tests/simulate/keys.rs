//! Simulations with keys and addresses, compared with traces worked out by hand.

use crate::support::replay_declaration;
use serde_json::{Value, json};

/// Replays events against a declaration, and returns the verdicts.
fn verdicts_of(declaration: &str, events: &[Value]) -> Vec<Value> {
    replay_declaration(declaration, events).ended(0).json_lines()
}

const KEYED: &str = r#"
[[set]]
name = "s"
keyed = { max_keys = 100 }
limit = [{ name = "l", kind = "calls", capacity = 2, window = "1s", algorithm = "fixed_window", align = "utc" }]
"#;

#[test]
fn each_key_of_a_keyed_set_has_limits_of_its_own() {
    let event = |at_ms: u64, key: &str| json!({"at_ms": at_ms, "set": "s", "key": key});
    let trace = [
        (event(0, "a"), true, 1, 0, 1_000),
        (event(0, "b"), true, 1, 0, 1_000),
        (event(100, "a"), true, 0, 0, 900),
        (event(200, "a"), false, 0, 800, 800),
        (event(200, "b"), true, 0, 0, 800),
        (event(999, "b"), false, 0, 1, 1),
        (event(1_000, "a"), true, 1, 0, 1_000),
    ];
    let events: Vec<Value> = trace.iter().map(|(event, ..)| event.clone()).collect();
    for ((event, admitted, remaining, retry, reset), verdict) in trace.iter().zip(verdicts_of(KEYED, &events))
    {
        let whole = json!({
            "at_ms": event["at_ms"],
            "set": "s",
            "key": event["key"],
            "admitted": admitted,
            "binding": if *admitted { Value::Null } else { json!("l") },
            "limits": {"l": {"remaining": remaining, "retry_after_ms": retry, "reset_after_ms": reset}},
        });
        assert_eq!(verdict, whole, "{event}");
    }
}

#[test]
fn what_a_key_holds_is_given_back_to_that_key() {
    let declaration = r#"
        [[set]]
        name = "s"
        keyed = { max_keys = 10, store_keys = false }
        limit = [
            { name = "l", kind = "concurrency", capacity = 1 },
            { name = "t", kind = "rate", capacity = 100, window = "60s", algorithm = "token_bucket" },
        ]
    "#;
    let take = |at_ms: u64, key: &str, id: u64| json!({"at_ms": at_ms, "set": "s", "key": key, "id": id, "cost": {"t": 60}});
    let verdicts = verdicts_of(
        declaration,
        &[
            take(0, "a", 1),
            take(0, "b", 2),
            take(0, "a", 3),
            json!({"at_ms": 0, "settle": 1, "usage": {"t": 10}}),
            json!({"at_ms": 0, "release": 1}),
            take(0, "a", 4),
            take(0, "b", 5),
        ],
    );
    let said: Vec<_> = verdicts
        .iter()
        .map(|verdict| {
            (
                verdict["admitted"].as_bool(),
                verdict["limits"]["t"]["remaining"].as_u64(),
            )
        })
        .collect();
    // The first of `a` settles to 10 of 60, which leaves 90 for its second; `b` still holds its first.
    let expected = [(true, 40), (true, 40), (false, 40), (true, 30), (false, 40)];
    assert_eq!(
        said,
        expected.map(|(admitted, remaining)| (Some(admitted), Some(remaining)))
    );
}

#[test]
fn a_key_without_a_row_is_refused_and_no_limit_binds() {
    // 10 keys have at most two buckets of 32 rows.
    let declaration = KEYED.replace("max_keys = 100", "max_keys = 10");
    let events: Vec<Value> = (0..200)
        .map(|number| json!({"at_ms": 5, "set": "s", "key": format!("k{number}")}))
        .collect();
    let verdicts = verdicts_of(&declaration, &events);
    let (admitted, refused): (Vec<_>, Vec<_>) = verdicts
        .iter()
        .partition(|verdict| verdict["admitted"] == json!(true));
    assert!((10..=64).contains(&admitted.len()), "{}", admitted.len());
    assert!(
        refused.iter().all(|verdict| verdict["binding"].is_null()),
        "{:?}",
        refused[0]
    );
    let later = [
        &events[..],
        &[json!({"at_ms": 1_000, "set": "s", "key": "another"})],
    ]
    .concat();
    let last = verdicts_of(&declaration, &later).pop().expect("a verdict");
    assert_eq!(last["admitted"], json!(true), "replenished rows make room");

    for (policy, capacity, admits_all) in [
        ("evict_oldest", 1, true),
        ("evict_least_used", 2, true),
        // Each key is limited, so none is evicted.
        ("evict_least_used", 1, false),
    ] {
        let evicting = declaration
            .replace("max_keys = 10", &format!("max_keys = 10, when_full = {policy:?}"))
            .replace("capacity = 2", &format!("capacity = {capacity}"));
        let verdicts = verdicts_of(&evicting, &events);
        let admits = |verdict: &Value| verdict["admitted"] == json!(true);
        assert_eq!(verdicts.iter().all(admits), admits_all, "{policy} of {capacity}");
    }
}

#[test]
fn an_address_counts_against_every_network_that_contains_it() {
    let declaration = r#"
        [[set]]
        name = "s"
        keyed = { max_keys = 100 }
        limit = [
            { name = "l", kind = "calls", capacity = 2, window = "1s", prefix = { ipv4 = 32, ipv6 = 64 } },
            { name = "n", kind = "calls", capacity = 3, window = "1s", prefix = { ipv4 = 24, ipv6 = 48 } },
        ]
    "#;
    let event = |key: &str| json!({"at_ms": 0, "set": "s", "key": key});
    let trace = [
        ("203.0.113.7", Value::Null),
        ("203.0.113.7", Value::Null),
        ("203.0.113.7", json!("l")),
        ("203.0.113.8", Value::Null),
        ("203.0.113.9", json!("n")),
        ("203.0.114.9", Value::Null),
        ("2001:db8::1", Value::Null),
    ];
    let events: Vec<Value> = trace.iter().map(|(key, _)| event(key)).collect();
    for ((key, binding), verdict) in trace.iter().zip(verdicts_of(declaration, &events)) {
        assert_eq!(&verdict["binding"], binding, "{key}");
        assert_eq!(verdict["admitted"], json!(binding.is_null()), "{key}");
    }
    let wrong = replay_declaration(declaration, &[event("tenant-7")]).ended(65);
    for part in ["line 1: ", "`tenant-7` is not an address", "203.0.113.7"] {
        assert!(wrong.stderr.contains(part), "{part} in {wrong:?}");
    }
}
