//! What inspect and doctor say of limits that hosts share.

mod support;

use std::fs;
use std::time::Duration;

use shmlimit::Segment;
use shmlimit::fleet::{LeaseReply, StoreProblem};
use support::health::findings;
use support::{directory, run, text};

const DECLARED: &str = r#"
[fleet]
url = "redis://127.0.0.1:1"

[[set]]
name = "api"

  [[set.limit]]
  name = "calls"
  kind = "calls"
  capacity = 6000
  window = "60s"
  fleet = { key = "org/api/calls" }
"#;

#[test]
fn leases_are_shown_and_what_is_wrong_with_them_is_found() {
    let directory = directory();
    let config = directory.path().join("limits.toml");
    fs::write(&config, DECLARED).expect("written");
    let path = directory.path().join("limits");
    run(["create", "--config", text(&config), text(&path)]).ended(0);
    let kinds = |path| -> Vec<String> {
        let found = findings(path);
        let kind = |finding: &serde_json::Value| finding["finding"].as_str().expect("a word").to_owned();
        found.iter().map(kind).collect()
    };
    assert!(kinds(&path).contains(&"no_duty".to_owned()));

    let segment = Segment::open(&path).expect("a segment");
    let duty = segment.fleet().try_take_duty().expect("works").expect("free");
    let asked = duty.ask().expect("works").remove(0);
    let reply = LeaseReply {
        sequence: asked.request().sequence,
        granted: asked.request().wanted,
        remaining: Duration::from_secs(3600),
        share: 7,
        grant_number: 1,
        drained_in: Duration::ZERO,
    };
    duty.install(&asked, &reply).expect("works");
    assert!(
        !kinds(&path)
            .iter()
            .any(|kind| kind == "no_duty" || kind.starts_with("store_"))
    );
    let shown = run(["inspect", text(&path)]).ended(0);
    for word in ["redis://127.0.0.1:1", "org/api/calls", "spend_out", "answers"] {
        assert!(shown.stdout.contains(word), "{word} is not in {}", shown.stdout);
    }
    let json = run(["inspect", "--json", text(&path)]).ended(0).json();
    assert_eq!(json["sets"][0]["limits"][0]["lease"]["share"], 7);
    assert_eq!(json["fleet"]["duty"]["pid"], std::process::id());

    let set = segment.set("api").expect("declared");
    while duty.due_in() != Some(Duration::ZERO) {
        assert!(set.check(&set.request()).expect("decides").is_admitted());
    }
    let asked = duty.ask().expect("works").remove(0);
    duty.report(&asked, StoreProblem::Unreachable, Duration::from_secs(3600))
        .expect("works");
    assert!(kinds(&path).contains(&"store_unreachable".to_owned()));
}
