//! Single keys' own capacities, as an operator sees and changes them.

use std::path::{Path, PathBuf};

use crate::support::{Run, create_declared, directory, limitctl, run, run_command, show_key, text};
use serde_json::json;
use shmlimit::Segment;

const DECLARATION: &str = r#"
[[set]]
name = "tenants"
keyed = { max_keys = 100, overrides = true }
limit = [
  { name = "requests", kind = "calls", capacity = 10, window = "1d" },
  { name = "cost", kind = "rate", capacity = 2, unit = "0.01", window = "1d" },
]
"#;

fn create(directory: &Path) -> PathBuf {
    create_declared(directory, "limits", DECLARATION)
}

fn set(path: &Path, arguments: &[&str]) -> Run {
    run_command(limitctl().arg("edit").arg(path).arg("tenants").args(arguments))
}

#[test]
fn a_key_is_given_a_capacity_of_its_own_and_shown_with_it() {
    let directory = directory();
    let path = create(directory.path());
    let given = set(&path, &["requests", "capacity=500", "--key", "acme"]).ended(0);
    assert!(
        given.stdout.contains(
            r#"set "tenants" / key a... (4 B) / limit "requests" / capacity: 500 (was not declared)"#
        ),
        "{}",
        given.stdout
    );
    let again = set(&path, &["requests", "capacity=500", "--key", "acme"]).ended(0);
    assert_eq!(again.stdout, "nothing to change\n");
    let json = set(&path, &["--json", "cost", "capacity=1.5", "--key", "acme"])
        .ended(0)
        .json();
    assert_eq!(json["changes"][0]["before"], json!(null));
    assert_eq!(json["changes"][0]["after"], "1.5");
    let segment = Segment::open(&path).expect("a segment");
    let tenants = segment.set("tenants").expect("declared");
    let overrides = tenants.key("acme").expect("keyed").overrides().expect("no error");
    assert_eq!(
        overrides,
        [("requests".to_owned(), 500), ("cost".to_owned(), 150)]
    );
    let request = tenants.request().with("cost", 1).expect("declared");
    let others = request.for_key("other").expect("keyed");
    drop(others.try_acquire().expect("no error"));

    let (shown, json) = show_key(&path, "tenants", "acme");
    for part in [
        "500 per 1d, gcra, at most 999 in any 1d; its own, in place of 10 per 1d, gcra",
        "500 of 500 of its own",
        "1.5 per 1d",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert_eq!(json["rows"][0]["limits"][0]["override_capacity"], 500);
    let keys = run(["keys", "--reveal", text(&path), "tenants"]).ended(0).stdout;
    assert!(keys.contains("500 of 500 of its own"), "{keys}");
    assert!(keys.contains("9 of 10, full"), "{keys}");

    let taken = set(&path, &["requests", "capacity=none", "--key", "acme"]).ended(0);
    assert!(
        taken.stdout.contains("capacity: no longer declared (was 500)"),
        "{}",
        taken.stdout
    );
    let overrides = tenants.key("acme").expect("keyed").overrides().expect("no error");
    assert_eq!(overrides, [("cost".to_owned(), 150)]);
}

#[test]
fn what_no_key_can_have_of_its_own_is_a_mistake_of_usage() {
    let directory = directory();
    let path = create(directory.path());
    for (arguments, why) in [
        (["requests", "capacity=0"], "at least 1"),
        (["requests", "capacity=unlimited"], "unlimited"),
        (["cost", "capacity=0.001"], "0.001"),
        (["requests", "window=30s"], "write capacity=200"),
        (["typo", "capacity=5"], "typo"),
    ] {
        let run = set(&path, &[arguments[0], arguments[1], "--key", "acme"]).ended(64);
        assert!(run.stderr.contains(why), "{run:?}");
    }
    let segment = Segment::open(&path).expect("a segment");
    let tenants = segment.set("tenants").expect("declared");
    assert_eq!(tenants.table_usage().expect("keyed").used, 0);
}
