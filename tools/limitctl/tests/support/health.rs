//! Reads what `limitctl doctor` reports, and runs its commands.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use super::host::with_limitctl_on_path;
use super::{Run, TIMEOUT, command, run, run_command, text};

/// The findings on a segment and its host.
pub fn findings(path: &Path) -> Vec<Value> {
    findings_of(&run(["doctor", "--json", text(path)]).json())
}

/// The findings in a report on one segment.
pub fn findings_of(report: &Value) -> Vec<Value> {
    let of_segment = report["segments"][0]["findings"].as_array().expect("findings");
    let of_host = report["findings"].as_array().expect("findings");
    // Notes that are not about a process are about the host, and tests may run on disks.
    let all = of_segment.iter().chain(of_host);
    all.filter(|finding| finding["severity"] != "note" || finding["pid"].is_u64())
        .cloned()
        .collect()
}

/// The only finding of this kind.
#[track_caller]
pub fn the<'a>(kind: &str, findings: &'a [Value]) -> &'a Value {
    let of_kind: Vec<&Value> = findings.iter().filter(|it| it["finding"] == kind).collect();
    match of_kind[..] {
        [finding] => finding,
        _ => panic!("{kind}: {findings:#?}"),
    }
}

/// Waits for a finding of this kind.
#[track_caller]
pub fn wait_for(kind: &str, path: &Path) -> Value {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let found = findings(path);
        if let Some(finding) = found.iter().find(|it| it["finding"] == kind) {
            return finding.clone();
        }
        assert!(Instant::now() < deadline, "no {kind}: {found:#?}");
    }
}

/// Runs the command that a finding names, in a shell that finds this limitctl.
#[track_caller]
pub fn heal(finding: &Value) -> Run {
    let heal = finding["heal"]
        .as_str()
        .unwrap_or_else(|| panic!("no command: {finding}"));
    run_command(&mut shell(heal)).ended(0)
}

/// A shell that runs a script, with this limitctl first on the path.
pub fn shell(script: &str) -> Command {
    let mut shell = command("sh");
    with_limitctl_on_path(&mut shell);
    shell.args(["-c", script]);
    shell
}

/// Asserts that the finding of this kind has this severity, that the exit code matches it, and that its command heals
/// it completely.
#[track_caller]
pub fn assert_healed(kind: &str, severity: &str, path: &Path) -> Value {
    let found = findings(path);
    let finding = the(kind, &found).clone();
    assert_eq!(finding["severity"], severity, "{finding}");
    let is_ill = i32::from(found.iter().any(|it| it["severity"] == "error"));
    run(["doctor", text(path)]).ended(is_ill);
    run(["doctor", "--strict", text(path)]).ended(1);
    heal(&finding);
    finding
}

#[track_caller]
pub fn assert_well(path: &Path) {
    assert_eq!(findings(path), Vec::<Value>::new());
    run(["doctor", "--strict", text(path)]).ended(0);
}
