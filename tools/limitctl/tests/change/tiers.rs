//! Tiers of keys, as an operator sees and changes them.

use std::path::{Path, PathBuf};

use crate::support::{create_declared, directory, limitctl, run, run_command, show_key, text};
use serde_json::json;
use shmlimit::Segment;

const DECLARATION: &str = r#"
[[set]]
name = "tenants"
keyed = { max_keys = 100 }

  [[set.limit]]
  name = "requests"
  kind = "calls"
  capacity = 10
  window = "1d"

  [[set.tier]]
  name = "gold"
  limits = { requests = { capacity = 1000, burst = 200 } }

  [[set.tier]]
  name = "trial"
"#;

fn create(directory: &Path) -> PathBuf {
    create_declared(directory, "limits", DECLARATION)
}

#[test]
fn tiers_and_what_they_change_are_shown_with_the_limits() {
    let directory = directory();
    let shown = run(["inspect", text(&create(directory.path()))]).ended(0).stdout;
    for part in [
        "10 per 1d, gcra",
        "1,000 per 1d, gcra, burst 200",
        "TIER",
        "gold",
        "trial",
        "as default",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
}

#[test]
fn a_key_is_assigned_to_a_tier_and_shown_in_it() {
    let directory = directory();
    let path = create(directory.path());
    let assign =
        |key: &str, tier: &str| run_command(limitctl().arg("assign").arg(&path).args(["tenants", key, tier]));
    let run_assign = assign("acme", "gold").ended(0);
    assert_eq!(
        run_assign.stdout,
        "tenants, key a... (4 B): from default to gold; the key had no row: it has used nothing lately\n",
        "somebody may have mistyped it"
    );
    assert_eq!(
        assign("acme", "gold").ended(0).stdout,
        "tenants, key a... (4 B): is in gold\n"
    );
    let segment = Segment::open(&path).expect("a segment");
    let set = segment.set("tenants").expect("declared");
    assert_eq!(set.key("acme").expect("keyed").tier().expect("no error"), "gold");
    drop(
        set.request()
            .for_key("other")
            .expect("keyed")
            .try_acquire()
            .expect("no error"),
    );

    let (shown, json) = show_key(&path, "tenants", "acme");
    for part in [
        "tier",
        "gold, assigned",
        "1,000 per 1d, gcra, burst 200",
        "200 of 200",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert_eq!(json["rows"][0]["tier"], "gold");
    assert_eq!(json["rows"][0]["tier_assigned"], json!(true));
    let keys = run(["keys", "--reveal", text(&path), "tenants"]).ended(0).stdout;
    for part in ["TIER", "gold", "default"] {
        assert!(keys.contains(part), "{part} in {keys}");
    }
    assign("acme", "default").ended(0);
    let keys = run(["keys", "--reveal", text(&path), "tenants"]).ended(0).stdout;
    assert!(!keys.contains("TIER"), "{keys}");
}

#[test]
fn a_tier_that_there_is_not_is_a_mistake_of_usage() {
    let directory = directory();
    let path = create(directory.path());
    let run = run(["assign", text(&path), "tenants", "acme", "silver"]).ended(64);
    assert!(run.stderr.contains("it has default, gold, trial"), "{run:?}");
}
