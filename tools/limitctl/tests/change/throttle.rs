//! Keeping a set or a key from being admitted for a while.

use crate::support::{create_declared, directory, run, text};

const DECLARATION: &str = r#"
[[set]]
name = "mail"
  [[set.limit]]
  name = "sent"
  kind = "calls"
  capacity = 5
  window = "1d"
[[set]]
name = "tenants"
keyed = 100
  [[set.limit]]
  name = "requests"
  kind = "calls"
  capacity = 5
  window = "1d"
"#;

#[test]
fn nothing_of_a_set_is_admitted_until_it_is_reset() {
    let directory = directory();
    let path = create_declared(directory.path(), "limits", DECLARATION);
    let path = text(&path);
    let ask = || run(["exec", "--timeout", "0", path, "mail", "--", "true"]);
    ask().ended(0);
    let throttled = run(["throttle", path, "mail", "10m"]).ended(0).stdout;
    assert!(
        throttled.starts_with("mail: nothing is admitted for "),
        "{throttled}"
    );
    let refused = ask().ended(75);
    assert!(refused.stderr.contains("set `mail` is throttled"), "{refused:?}");
    let shorter = run(["throttle", path, "mail", "1s"]).ended(0).stdout;
    assert!(
        shorter.contains(" for 9m") || shorter.contains(" for 10m"),
        "it was longer already: {shorter}"
    );
    run(["reset", path, "mail"]).ended(0);
    ask().ended(0);
}

#[test]
fn one_key_is_kept_out_and_no_other() {
    let directory = directory();
    let path = create_declared(directory.path(), "limits", DECLARATION);
    let path = text(&path);
    let ask = |key: &str| {
        run([
            "exec",
            "--key",
            key,
            "--timeout",
            "0",
            path,
            "tenants",
            "--",
            "true",
        ])
    };
    ask("acme").ended(0);
    run(["throttle", "--key", "acme", path, "tenants", "10m"]).ended(0);
    let refused = ask("acme").ended(75);
    assert!(refused.stderr.contains("throttled"), "{refused:?}");
    ask("globex").ended(0);
    let whole = run(["throttle", path, "tenants", "10m"]).ended(64);
    assert!(whole.stderr.contains("key"), "{whole:?}");
}

#[test]
fn a_key_that_was_not_used_yet_is_kept_out_and_said_to_be_new() {
    let directory = directory();
    let path = create_declared(directory.path(), "limits", DECLARATION);
    let path = text(&path);
    let throttled = run(["throttle", "--key", "acme", path, "tenants", "10m"]).ended(0);
    assert!(
        throttled.stdout.contains("the key had no row"),
        "somebody may have mistyped it: {throttled:?}"
    );
    let asked = run([
        "exec",
        "--key",
        "acme",
        "--timeout",
        "0",
        path,
        "tenants",
        "--",
        "true",
    ]);
    asked.ended(75);
}

#[test]
fn a_key_for_which_the_table_has_no_room_is_not_said_to_be_throttled() {
    let directory = directory();
    let declaration = DECLARATION.replace("keyed = 100", "keyed = 1");
    let path = create_declared(directory.path(), "limits", &declaration);
    let path = text(&path);
    let ask = |key: &str| {
        run([
            "exec",
            "--key",
            key,
            "--timeout",
            "0",
            path,
            "tenants",
            "--",
            "true",
        ])
    };
    let full = (0..100).find(|key| ask(&key.to_string()).code == 75);
    let key = full.expect("a key without room").to_string();
    let throttled = run(["throttle", "--key", &key, path, "tenants", "10m"])
        .ended(0)
        .stdout;
    assert!(
        throttled.contains("not throttled: the table of keys has no room"),
        "{throttled}"
    );
}
