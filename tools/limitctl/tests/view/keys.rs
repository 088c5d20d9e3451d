//! Showing and resetting by key.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{create_declared, directory, limitctl, run, run_command, text};
use serde_json::{Value, json};
use shmlimit::{LimitSet, Segment};

const DECLARATION: &str = r#"
[[set]]
name = "api"
labels = true
keyed = { max_keys = 1_000 }

  [[set.limit]]
  name = "requests"
  kind = "calls"
  capacity = 3
  window = "1d"
  algorithm = "fixed_window"
  align = "first_use"

  [[set.limit]]
  name = "in_flight"
  kind = "concurrency"
  capacity = 2

[[set]]
name = "secret"
keyed = { max_keys = 10, store_keys = false }

  [[set.limit]]
  name = "requests"
  kind = "calls"
  capacity = 1
  window = "1d"

[[set]]
name = "plain"

  [[set.limit]]
  name = "requests"
  kind = "calls"
  capacity = 1
  window = "1d"
"#;

fn create(directory: &Path) -> PathBuf {
    create_declared(directory, "limits", DECLARATION)
}

/// Asks this many times, and gives everything back at once.
fn ask(set: &LimitSet, key: impl AsRef<[u8]>, times: u32) {
    let request = set.request().for_key(key).expect("keyed");
    for _ in 0..times {
        drop(request.try_acquire().expect("works"));
    }
}

/// The set `api` with keys that were asked for 1, 2, 5 and 4 times, in that order.
fn create_and_use(directory: &Path) -> (PathBuf, Segment) {
    let path = create(directory);
    let segment = Segment::open(&path).expect("attached");
    let api = segment.set("api").expect("declared");
    for (key, times) in [("tenant-a", 1), ("tenant-b", 2), ("user-c", 5), ("user-d", 4)] {
        ask(&api, key, times);
    }
    (path, segment)
}

fn texts(selection: &Value) -> Vec<&str> {
    selection["keys"]
        .as_array()
        .expect("keys")
        .iter()
        .map(|key| key["key"]["text"].as_str().expect("UTF-8"))
        .collect()
}

#[test]
fn keys_come_in_the_order_that_is_asked_for_and_only_those() {
    let directory = directory();
    let (path, segment) = create_and_use(directory.path());
    let keys = |arguments: &[&str]| {
        let mut command = limitctl();
        command
            .args(["keys", "--json", "--reveal"])
            .args(arguments)
            .args([text(&path), "api"]);
        run_command(&mut command).ended(0).json()
    };
    let by_refused = keys(&["--by", "refused"]);
    assert_eq!(texts(&by_refused)[..2], ["user-c", "user-d"]);
    assert_eq!(by_refused["keys"][0]["refused"], 2);
    assert_eq!(
        texts(&keys(&["--by", "oldest"])),
        ["tenant-a", "tenant-b", "user-c", "user-d"]
    );
    let by_used = keys(&[]);
    assert_eq!(texts(&by_used)[2..], ["tenant-b", "tenant-a"]);
    assert_eq!((&by_used["seen"], &by_used["matching"]), (&json!(4), &json!(4)));
    assert_eq!(by_used["table"]["in_use"], 4);

    let first = keys(&["--by", "oldest", "--top", "2"]);
    assert_eq!(texts(&first), ["tenant-a", "tenant-b"]);
    assert_eq!(first["matching"], 4);
    assert_eq!(texts(&keys(&["--top", "0"])).len(), 4);
    let matching = keys(&["--match", "tenant", "--by", "oldest"]);
    assert_eq!(texts(&matching), ["tenant-a", "tenant-b"]);
    let limited = keys(&["--limited", "--by", "oldest"]);
    assert_eq!(texts(&limited), ["user-c", "user-d"]);
    assert_eq!(texts(&keys(&["--limited", "--match", "d"])), ["user-d"]);
    assert_eq!(texts(&keys(&["--match", "nobody"])), [""; 0]);
    drop(segment);
}

#[test]
fn text_and_json_of_keys_agree() {
    let directory = directory();
    let (path, segment) = create_and_use(directory.path());
    let api = segment.set("api").expect("declared");
    let held = api.request().for_key("user-e").expect("a key").try_acquire();
    let shown = run([
        "keys",
        "--reveal",
        "--by",
        "oldest",
        "--top",
        "5",
        text(&path),
        "api",
    ])
    .ended(0)
    .stdout;
    let row = |name: &str| -> String {
        let line = shown
            .lines()
            .find(|line| line.trim_start().starts_with(name))
            .expect("a row");
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(row("tenant-b ").starts_with("tenant-b 2 0 "), "{shown}");
    assert!(
        row("tenant-b ").contains(" ago 0 0 1 of 3, full in 23h59m 2 of 2"),
        "{shown}"
    );
    assert!(
        row("user-e ").contains(" ago 1 0 2 of 3, full in 23h59m 1 of 2"),
        "{shown}"
    );
    for part in [
        "keys of api",
        "5 of 2,048 rows in use (0 %)",
        "5 keys, used the longest ago first",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let few = run([
        "keys",
        "--reveal",
        "--top",
        "1",
        "--match",
        "tenant",
        text(&path),
        "api",
    ])
    .ended(0)
    .stdout;
    assert!(
        few.contains("1 of 2 keys that match, admitted most often first"),
        "{few}"
    );
    let none = run(["keys", "--reveal", "--match", "nobody", text(&path), "api"])
        .ended(0)
        .stdout;
    assert!(none.ends_with("\nno keys that match\n"), "{none}");
    let none = run(["keys", "--reveal", text(&path), "secret"]).ended(0).stdout;
    assert!(none.ends_with("\nno keys\n"), "{none}");
    drop(held);
}

#[test]
fn hostile_keys_do_nothing_to_a_terminal_and_read_back_the_same() {
    let directory = directory();
    let path = create(directory.path());
    let segment = Segment::open(&path).expect("attached");
    let api = segment.set("api").expect("declared");
    let hostile = "\u{1b}[2J\u{202e}x\n";
    let long = format!("{}é", "k".repeat(39));
    for key in [hostile.as_bytes(), b"\xff\x1b\x00", long.as_bytes()] {
        ask(&api, key, 1);
    }
    for verb in ["keys", "show"] {
        let mut command = limitctl();
        command.args([verb, "--reveal", text(&path), "api"]);
        if verb == "show" {
            command.arg(hostile);
        }
        let shown = run_command(&mut command).ended(0).stdout;
        assert!(shown.contains(r"\u{1b}[2J\u{202e}x\n"), "{shown}");
        assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown:?}");
    }
    let shown = run(["keys", "--reveal", text(&path), "api"]).ended(0).stdout;
    assert!(shown.contains(" 0xff1b00 "), "{shown}");
    assert!(
        shown.contains(&format!("{}... (41 B)", "k".repeat(39))),
        "{shown}"
    );
    let json = run(["keys", "--reveal", "--json", text(&path), "api"]).ended(0);
    assert!(!json.stdout.contains(['\u{1b}', '\u{202e}']), "{json:?}");
    let json = json.json();
    let labels: Vec<&Value> = json["keys"]
        .as_array()
        .expect("keys")
        .iter()
        .map(|key| &key["key"])
        .collect();
    let find = |field: &str, value: &str| {
        let label = labels.iter().find(|label| label[field] == value).expect("shown");
        assert_eq!(label["fingerprint"].as_str().map(str::len), Some(32));
        (
            label["text"].clone(),
            label["hex"].clone(),
            label["bytes"].clone(),
        )
    };
    assert_eq!(
        find("text", hostile),
        (json!(hostile), Value::Null, json!(hostile.len()))
    );
    assert_eq!(find("hex", "ff1b00"), (Value::Null, json!("ff1b00"), json!(3)));
    assert_eq!(find("text", &"k".repeat(39)).2, 41);
}

#[test]
fn keys_that_are_not_kept_go_by_their_fingerprint() {
    let directory = directory();
    let path = create(directory.path());
    let segment = Segment::open(&path).expect("attached");
    ask(&segment.set("secret").expect("declared"), "alice", 2);
    let json = run(["keys", "--reveal", "--json", text(&path), "secret"])
        .ended(0)
        .json();
    let key = &json["keys"][0]["key"];
    assert_eq!(
        (&key["text"], &key["hex"], &key["bytes"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    let fingerprint = key["fingerprint"].as_str().expect("a text");
    let shown = run([
        "keys",
        "--reveal",
        "--match",
        &fingerprint[..20],
        text(&path),
        "secret",
    ])
    .ended(0)
    .stdout;
    assert!(
        shown.contains(&format!("#{fingerprint}")) && !shown.contains("alice"),
        "{shown}"
    );
    let shown = run(["show", "--json", text(&path), "secret", "alice"])
        .ended(0)
        .json();
    assert_eq!(shown["rows"][0]["key"]["fingerprint"], fingerprint);
    assert_eq!(shown["rows"][0]["refused"], 1);
}

#[test]
fn one_key_is_shown_with_what_those_who_hold_it_are_labelled_with() {
    let directory = directory();
    let (path, segment) = create_and_use(directory.path());
    let api = segment.set("api").expect("declared");
    let hold = |key: &str, label: &str| {
        let outcome = api
            .request()
            .label(label)
            .for_key(key)
            .expect("a key")
            .try_acquire();
        outcome.expect("works").into_result().expect("admitted")
    };
    let held = [hold("tenant-a", "export\x07"), hold("tenant-b", "import")];
    let json = run(["show", "--json", text(&path), "api", "tenant-a"])
        .ended(0)
        .json();
    assert_eq!(json["holds"][0]["label"], "export\x07");
    let shown = run(["show", "--reveal", text(&path), "api", "tenant-a"])
        .ended(0)
        .stdout;
    assert!(shown.contains(r"in_flight 1  export\u{7}"), "{shown}");
    assert!(!shown.contains("import"), "{shown}");
    let inspected = run(["inspect", "--reveal", text(&path)]).ended(0).stdout;
    let has_row = |end: &str| inspected.lines().any(|line| line.ends_with(end));
    assert!(has_row("in_flight 1  tenant-b  import"), "{inspected}");
    drop(held);
}

#[test]
fn one_key_is_shown_with_who_holds_it() {
    let directory = directory();
    let (path, segment) = create_and_use(directory.path());
    let api = segment.set("api").expect("declared");
    let hold = |key: &str| {
        let outcome = api.request().for_key(key).expect("a key").try_acquire();
        outcome.expect("works").into_result().expect("admitted")
    };
    let held = [hold("tenant-a"), hold("tenant-a"), hold("tenant-b")];
    let json = run(["show", "--json", text(&path), "api", "tenant-a"])
        .ended(0)
        .json();
    assert_eq!(json["rows"][0]["admitted"], 3);
    assert_eq!(json["rows"][0]["limits"][0]["remaining"], 0);
    assert_eq!(json["rows"][0]["replenished"], false);
    assert_eq!(json["holds"].as_array().map(Vec::len), Some(2));
    assert_eq!(json["holds"][0]["owner_pid"], std::process::id());
    let shown = run(["show", "--reveal", text(&path), "api", "tenant-a"])
        .ended(0)
        .stdout;
    for part in [
        "key tenant-a of set api",
        "counted      3 admitted, 0 refused",
        "held         2 permits",
        "queued       0 requests",
        "requests   calls        3 per 1d, fixed_window, at most 5 in any 1d  0 of 3, full in 23h59m",
        &format!("{}  holds", std::process::id()),
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let inspected = run(["inspect", "--reveal", text(&path)]).ended(0).stdout;
    assert!(
        inspected
            .lines()
            .any(|line| line.ends_with("in_flight 1  tenant-b")),
        "{inspected}"
    );
    drop(held);

    let shown = run(["show", text(&path), "api", "nobody"]).ended(0).stdout;
    assert!(shown.contains("has no row"), "{shown}");
    let json = run(["show", "--json", text(&path), "api", "nobody"])
        .ended(0)
        .json();
    assert_eq!(json["rows"], json!([]));
}

#[test]
fn a_reset_of_a_key_leaves_the_others_as_they_are() {
    let directory = directory();
    let (path, _segment) = create_and_use(directory.path());
    let left = |key: &str| {
        let json = run(["show", "--json", text(&path), "api", key]).ended(0).json();
        json["rows"][0]["limits"][0]["remaining"].as_u64()
    };
    let reset = run(["reset", "--key", "user-c", text(&path), "api"]).ended(0);
    assert_eq!(
        reset.stdout,
        "api, key u... (6 B): replenished requests, in_flight\n"
    );
    assert_eq!((left("user-c"), left("user-d")), (Some(3), Some(0)));
    let reset = run(["reset", "--key", "user-d", text(&path), "api", "in_flight"]).ended(0);
    assert_eq!(reset.stdout, "api, key u... (6 B): replenished in_flight\n");
    assert_eq!(left("user-d"), Some(0), "only what is named");
    let reset = run(["reset", "--key", "nobody", text(&path), "api"]).ended(0);
    assert_eq!(reset.stdout, "api, key n... (6 B): has used nothing\n");
    run(["reset", text(&path), "api"]).ended(0);
    assert_eq!(left("user-d"), Some(3), "without a key, it is all of them");
}

#[test]
fn an_inspection_of_a_keyed_set_tells_its_table_and_no_single_state() {
    let directory = directory();
    let (path, _segment) = create_and_use(directory.path());
    let shown = run(["inspect", text(&path)]).ended(0).stdout;
    assert!(
        shown.contains("keys     4 of 2,048 rows in use (0 %), at most "),
        "{shown}"
    );
    let row = shown
        .lines()
        .find(|line| line.trim_start().starts_with("requests "))
        .expect("a row");
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        words[..16].join(" "),
        "requests calls 3 per 1d, fixed_window, at most 5 in any 1d by key 9 9",
        "{shown}"
    );
    let json = run(["inspect", "--json", text(&path)]).ended(0).json();
    assert_eq!(json["sets"][0]["keys"]["in_use"], 4);
    assert_eq!(json["sets"][2]["keys"], Value::Null);
}

#[test]
fn a_full_table_says_whom_it_refused() {
    let directory = directory();
    let path = create(directory.path());
    let segment = Segment::open(&path).expect("attached");
    let secret = segment.set("secret").expect("declared");
    for number in 0..100_u8 {
        ask(&secret, [number], 1);
    }
    let shown = run(["inspect", text(&path)]).ended(0).stdout;
    assert!(shown.contains("at most 32 of 32 in a bucket"), "{shown}");
    assert!(shown.contains("for want of a row)"), "{shown}");
}

#[test]
fn a_command_runs_under_a_permit_of_a_key() {
    let directory = directory();
    let path = create(directory.path());
    let exec = |key: &[&str]| {
        let mut command = limitctl();
        command
            .args(["exec", "--timeout", "0"])
            .args(key)
            .args([text(&path), "secret", "--", "true"]);
        run_command(&mut command)
    };
    exec(&["--key", "a"]).ended(0);
    exec(&["--key", "a"]).ended(75);
    exec(&["--key", "b"]).ended(0);
    let without = exec(&[]).ended(64);
    assert!(
        without.stderr.contains("set `secret` is keyed") && without.stderr.contains("add --key KEY"),
        "{without:?}"
    );
}

#[test]
fn what_has_no_keys_or_is_none_ends_with_64() {
    let directory = directory();
    let path = create(directory.path());
    let path = text(&path);
    for arguments in [
        &["keys", path, "plain"][..],
        &["show", path, "plain", "a"],
        &["reset", "--key", "a", path, "plain"],
        &["exec", "--key", "a", path, "plain", "--", "true"],
    ] {
        let run = run_command(limitctl().args(arguments)).ended(64);
        assert!(run.stderr.contains("set `plain` is not keyed"), "{run:?}");
    }
    for arguments in [
        &["keys", path][..],
        &["keys", path, "nonsense"],
        &["keys", "--by", "name", path, "api"],
        &["keys", "--top", "-1", path, "api"],
        &["show", path, "api"],
        &["show", path, "nonsense", "a"],
        &["show", path, "api", ""],
        &["reset", "--key", "a", path],
        &["reset", "--key", "a", "--counters", path, "api"],
        &["reset", "--key", "", path, "api"],
        &["reset", "--key", "a", path, "api", "nonsense"],
    ] {
        run_command(limitctl().args(arguments)).ended(64);
    }
    for verb in ["keys", "show"] {
        let missing = directory.path().join("missing");
        run_command(
            limitctl().args([verb, text(&missing), "api", "a"].iter().take(if verb == "keys" {
                3
            } else {
                4
            })),
        )
        .ended(69);
    }
}

#[test]
fn looking_at_keys_needs_no_permission_to_write_and_locks_nothing() {
    let directory = directory();
    let (path, _segment) = create_and_use(directory.path());
    let before = fs::read(&path).expect("read");
    run(["keys", "--reveal", text(&path), "api"]).ended(0);
    run(["show", text(&path), "api", "user-c"]).ended(0);
    assert!(fs::read(&path).expect("read") == before, "not a byte was changed");
}

#[test]
fn an_address_is_shown_and_reset_by_the_networks_that_contain_it() {
    let directory = directory();
    let declaration = r#"
        [[set]]
        name = "logins"
        keyed = { max_keys = 100 }
        limit = [
            { name = "address", kind = "calls", capacity = 2, window = "1d", prefix = { ipv4 = 32, ipv6 = 64 } },
            { name = "network", kind = "calls", capacity = 9, window = "1d", prefix = { ipv4 = 24, ipv6 = 48 } },
        ]
    "#;
    let path = create_declared(directory.path(), "limits", declaration);
    let segment = Segment::open(&path).expect("attached");
    let logins = segment.set("logins").expect("declared");
    for address in ["203.0.113.7", "203.0.113.7", "203.0.113.8", "2001:db8::1"] {
        let address = address.parse().expect("an address");
        assert!(
            logins
                .request()
                .for_address(address)
                .expect("keyed")
                .check()
                .expect("works")
                .is_admitted()
        );
    }
    let show = |address: &str| {
        let json = run(["show", "--reveal", "--json", text(&path), "logins", address])
            .ended(0)
            .json();
        let rows = json["rows"].as_array().expect("rows").iter().map(|row| {
            let limits = row["limits"].as_array().expect("limits");
            assert_eq!(limits.len(), 1, "a network has the limits that count it: {row}");
            (
                row["key"]["text"].as_str().expect("kept").to_owned(),
                limits[0]["name"].as_str().expect("a name").to_owned(),
                limits[0]["remaining"].as_u64().expect("a number"),
            )
        });
        rows.collect::<Vec<_>>()
    };
    let row = |key: &str, limit: &str, remaining| (key.to_owned(), limit.to_owned(), remaining);
    assert_eq!(
        show("203.0.113.7"),
        [
            row("203.0.113.0/24", "network", 6),
            row("203.0.113.7/32", "address", 0)
        ]
    );
    assert_eq!(show("203.0.113.99"), [row("203.0.113.0/24", "network", 6)]);
    assert_eq!(
        show("2001:db8::ffff"),
        [
            row("2001:db8::/48", "network", 8),
            row("2001:db8::/64", "address", 1)
        ]
    );
    let shown = run(["show", "--reveal", text(&path), "logins", "203.0.113.7"])
        .ended(0)
        .stdout;
    assert!(
        shown.contains("203.0.113.0/24") && shown.contains("203.0.113.7/32"),
        "{shown}"
    );

    let keys = run(["keys", "--reveal", text(&path), "logins"]).ended(0).stdout;
    let line = |name: &str| {
        keys.lines()
            .find(|line| line.contains(name))
            .expect("a row")
            .to_owned()
    };
    assert!(
        line("203.0.113.0/24").contains("6 of 9") && !line("203.0.113.0/24").contains("of 2"),
        "{keys}"
    );
    assert!(
        line("203.0.113.7/32").contains("0 of 2") && !line("203.0.113.7/32").contains("of 9"),
        "{keys}"
    );

    let reset = run(["reset", "--key", "203.0.113.7", text(&path), "logins", "address"]).ended(0);
    assert_eq!(reset.stdout, "logins, key 20... (11 B): replenished address\n");
    assert_eq!(
        show("203.0.113.7"),
        [
            row("203.0.113.0/24", "network", 6),
            row("203.0.113.7/32", "address", 2)
        ]
    );
    for arguments in [
        &["show", text(&path), "logins", "tenant-7"][..],
        &["reset", "--key", "tenant-7", text(&path), "logins"],
    ] {
        let run = run_command(limitctl().args(arguments)).ended(64);
        assert!(
            run.stderr
                .contains("count networks: say whose limits are meant with `address`"),
            "{run:?}"
        );
    }
}

#[test]
fn an_adaptive_limit_shows_the_capacity_that_it_has_found() {
    let directory = directory();
    let limit = r#"{ name = "work", kind = "concurrency", capacity = 8, adaptive = "aimd", ceiling = 64 }"#;
    let declaration = format!(
        "[[set]]\nname = \"api\"\nlimit = [{limit}]\n\n[[set]]\nname = \"keyed\"\nkeyed = {{ max_keys = 10 }}\nlimit = [{limit}]\n"
    );
    let path = create_declared(directory.path(), "limits", &declaration);
    let segment = Segment::open(&path).expect("attached");
    let (api, keyed) = (
        segment.set("api").expect("declared"),
        segment.set("keyed").expect("declared"),
    );
    let _held = api.request().try_acquire().expect("works");
    let _held_by_key = keyed.request().for_key("a").expect("a key").try_acquire();
    let shown = run(["inspect", text(&path)]).ended(0).stdout;
    let row = |number| {
        let mut lines = shown
            .lines()
            .filter(|line| line.trim_start().starts_with("work "));
        let line: &str = lines.nth(number).expect("a row");
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(
        row(0).starts_with("work concurrency 8, adaptive up to 64 7 "),
        "{shown}"
    );
    assert!(row(0).contains("8 at once for now"), "{shown}");
    assert!(
        row(1).contains("by key") && !row(1).contains("for now"),
        "{shown}"
    );
    let shown = run(["show", text(&path), "keyed", "a"]).ended(0).stdout;
    assert!(shown.contains("7 of 8 for now"), "{shown}");
}

#[test]
fn keys_are_masked_unless_they_are_to_be_revealed() {
    let directory = directory();
    let path = create(directory.path());
    let segment = Segment::open(&path).expect("created");
    let set = segment.set("api").expect("declared");
    let secrets = [
        "sk-live-4f9a81c2d7",
        "sk-live-0b16ee93aa",
        "x:y",
        "\u{1F511}\u{1F511}",
    ];
    for secret in secrets {
        ask(&set, secret, 1);
    }
    let masked = run(["keys", text(&path), "api"]).ended(0).stdout;
    let json = run(["keys", "--json", text(&path), "api"]).ended(0);
    for shown in [&masked, &json.stdout] {
        assert!(shown.contains("sk-l"), "{shown}");
        for secret in ["sk-li", "x:y", "\u{1F511}"] {
            assert!(!shown.contains(secret), "{secret} in {shown}");
        }
    }
    let keys = json.json()["keys"].as_array().expect("keys").clone();
    let fingerprints: BTreeSet<&str> = keys
        .iter()
        .map(|key| key["key"]["fingerprint"].as_str().expect("told"))
        .collect();
    assert_eq!(fingerprints.len(), secrets.len());
    for fingerprint in fingerprints {
        assert!(masked.contains(&format!("#{}", &fingerprint[..8])), "{masked}");
    }
    // What is searched for need not be shown.
    let found = run(["keys", "--match", "0b16", text(&path), "api"])
        .ended(0)
        .stdout;
    assert!(
        found.contains("1 key that match") && !found.contains("0b16"),
        "{found}"
    );
    for options in [&["keys", "--reveal"][..], &["keys", "--reveal", "--json"]] {
        let revealed = limitctl()
            .args(options)
            .args([text(&path), "api"])
            .output()
            .expect("runs");
        let revealed = String::from_utf8(revealed.stdout).expect("UTF-8");
        assert!(
            revealed.contains(secrets[0]) && revealed.contains(secrets[1]),
            "{revealed}"
        );
    }
}
