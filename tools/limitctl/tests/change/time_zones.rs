//! Time zones of calendar windows: created, shown, changed, and examined.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::health::{findings, the};
use crate::support::{directory, run, text};

/// A zone that no database knows, at UTC in all years about which anything is known.
fn declaration(until: i64) -> String {
    format!(
        r#"
            [[set]]
            name = "api"

              [[set.limit]]
              name = "calls"
              kind = "calls"
              capacity = 10
              window = "calendar:day"
              algorithm = "fixed_window"
              time_zone = {{ name = "Test/Zone", until = {until}, offsets = "0" }}
        "#
    )
}

fn create(directory: &Path, until: i64) -> PathBuf {
    let config = directory.join(format!("{until}.toml"));
    fs::write(&config, declaration(until)).expect("written");
    let path = directory.join(format!("{until}.limits"));
    run(["create", text(&path), text(&config)]).ended(0);
    path
}

#[test]
fn the_doctor_warns_when_nothing_is_known_of_the_next_year() {
    let directory = directory();
    let path = create(directory.path(), 2001);
    let found = findings(&path);
    let finding = the("time_zone_ends", &found);
    assert_eq!(
        (&finding["severity"], &finding["set"]),
        (&"warning".into(), &"api".into())
    );
    let what = finding["what"].as_str().expect("text");
    assert!(
        what.contains("Test/Zone") && what.contains("until the end of 2001"),
        "{what}"
    );
    let path = create(directory.path(), 9998);
    let found = findings(&path);
    assert!(
        found.iter().all(|finding| finding["finding"] != "time_zone_ends"),
        "{found:?}"
    );
}

#[test]
fn a_zone_becomes_an_offset_and_back_in_a_live_segment() {
    let directory = directory();
    let path = create(directory.path(), 9998);
    let edit = |value: &str| run(["edit", text(&path), "api", "calls", value]).ended(0).stdout;
    let shown = run(["inspect", text(&path)]).ended(0).stdout;
    assert!(
        shown.contains("10 per calendar:day in Test/Zone, fixed_window"),
        "{shown}"
    );
    let said = edit("utc_offset=+05:30");
    assert!(
        said.contains("time_zone: no longer declared (was \"Test/Zone\")"),
        "{said}"
    );
    assert!(
        said.contains("utc_offset: \"+05:30\" (was not declared)"),
        "{said}"
    );
    let config = directory.path().join("9998.toml");
    let said = run(["apply", text(&path), text(&config)]).ended(0).stdout;
    assert!(
        said.contains("time_zone: \"Test/Zone\" (was not declared)"),
        "{said}"
    );
    let again = run(["apply", text(&path), text(&config)]).ended(0).stdout;
    assert_eq!(again, "nothing to change\n");
    let unknown = run(["edit", text(&path), "api", "calls", "time_zone=No/Such"]);
    let refused = unknown.ended(78).stderr;
    assert!(refused.contains("time_zone: \"No/Such\" is not "), "{refused}");
}
