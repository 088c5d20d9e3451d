//! Keeping a set or a key from being admitted for a while.

use crate::support::{Run, create_declared, directory, run, text};

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

fn ask(path: &str, key: &str) -> Run {
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
}

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
    ask(path, "acme").ended(0);
    run(["throttle", "--key", "acme", path, "tenants", "10m"]).ended(0);
    let refused = ask(path, "acme").ended(75);
    assert!(refused.stderr.contains("throttled"), "{refused:?}");
    ask(path, "globex").ended(0);
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
    ask(path, "acme").ended(75);
}

#[test]
fn a_key_for_which_there_is_no_row_is_said_not_to_be_throttled() {
    let directory = directory();
    let declaration = DECLARATION.replace("keyed = 100", "keyed = 1");
    let path = create_declared(directory.path(), "limits", &declaration);
    let path = text(&path);
    let mut tried = (0..1_000).map(|number| {
        let key = format!("key{number}");
        run(["throttle", "--key", &key, path, "tenants", "10m"])
    });
    let refused = tried.find(|run| run.code != 0).expect("rows end").ended(1);
    assert!(refused.stderr.contains("not throttled"), "{refused:?}");
}
