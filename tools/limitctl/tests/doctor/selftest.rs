//! The selftest, in a place where limits work and in one where nothing can be created.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use crate::support::{TIMEOUT, directory, limitctl, run, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// All checks.
const CHECKS: [&str; 9] = [
    "locks",
    "create",
    "recovery",
    "liveness",
    "exec",
    "fork",
    "wake",
    "hand_over",
    "clock",
];

fn entries(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}

#[test]
fn limits_work_here_and_nothing_is_left_behind() {
    let directory = directory();
    let json = run(["selftest", "--json", text(directory.path())])
        .ended(0)
        .json();
    assert_eq!(json["passed"], true, "{json:#}");
    let checks = json["checks"].as_array().expect("checks");
    let names: Vec<&str> = checks
        .iter()
        .filter_map(|check| check["check"].as_str())
        .collect();
    assert_eq!(names, CHECKS);
    for check in checks {
        assert_eq!(check["passed"], true, "{check}");
    }
    assert!(
        checks[6]["figures"]["median"].as_f64().expect("measured") > 0.0,
        "{json:#}"
    );
    assert_eq!(entries(directory.path()), BTreeSet::new());

    let shown = run(["selftest", text(directory.path())]).ended(0).stdout;
    assert!(shown.ends_with("limits work here\n"), "{shown}");
    for name in CHECKS {
        assert!(shown.contains(&format!("  {name} ")), "{name} in {shown}");
    }
    assert_eq!(entries(directory.path()), BTreeSet::new());
}

#[test]
fn where_nothing_can_be_created_that_is_the_answer() {
    let directory = directory();
    let missing = directory.path().join("missing");
    let run_ = run(["selftest", text(&missing)]).ended(73);
    assert!(run_.stderr.contains("missing"), "{run_:?}");
    let file = directory.path().join("file");
    fs::write(&file, "").expect("written");
    run(["selftest", text(&file)]).ended(73);
    run(["selftest", "/proc"]).ended(73);
    assert_eq!(entries(directory.path()), BTreeSet::from(["file".to_owned()]));
}

#[test]
fn an_interrupted_test_removes_what_it_made_first() {
    let directory = directory();
    let mut child = limitctl()
        .args(["selftest", text(directory.path())])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("started");
    let deadline = Instant::now() + TIMEOUT;
    while entries(directory.path()).is_empty() {
        assert!(
            child.try_wait().expect("a child of ours").is_none(),
            "it ended by itself"
        );
        assert!(Instant::now() < deadline, "it does not begin");
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    kill(pid, Signal::SIGTERM).expect("a child that was not waited for");
    let status = loop {
        match child.try_wait().expect("a child of ours") {
            Some(status) => break status,
            None => assert!(Instant::now() < deadline, "it does not end"),
        }
        std::thread::yield_now();
    };
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
    assert_eq!(entries(directory.path()), BTreeSet::new());
}
