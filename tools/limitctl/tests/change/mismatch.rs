//! A segment that exists with another declaration: `limitctl create --on-mismatch`.

use std::fs;
use std::path::Path;

use crate::support::{Run, command, directory, limitctl, run, run_command, text};
use shmlimit::Segment;

/// `limitctl create` of a set with one limit, with more arguments.
fn create_another(path: &Path, limit: &[&str], arguments: &[&str]) -> Run {
    let mut command = limitctl();
    command
        .args(["create", "--set", "api"])
        .args(limit)
        .args(arguments)
        .arg(path);
    run_command(&mut command)
}

#[test]
fn what_becomes_of_a_segment_with_another_declaration_is_as_asked() {
    let directory = directory();
    let path = directory.path().join("limits");
    let calls = |capacity: u32, arguments: &[&str]| {
        create_another(&path, &["--calls", &format!("requests={capacity}/1d")], arguments)
    };
    assert!(
        calls(10, &["--on-mismatch", "error"])
            .ended(0)
            .stdout
            .starts_with("created ")
    );
    calls(20, &[]).ended(73);
    let refused = calls(20, &["--on-mismatch", "error"]).ended(78);
    for part in ["declared 20, in the segment 10", text(&path)] {
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
    let applied = calls(20, &["--on-mismatch", "apply"]).ended(0);
    assert!(applied.stdout.starts_with("found "), "{applied:?}");
    assert!(
        applied.stdout.contains("declared 20, in the segment 10"),
        "{applied:?}"
    );
    run(["edit", text(&path), "api", "requests", "capacity=15"]).ended(0);
    let shown = run(["inspect", text(&path)]).ended(0).stdout;
    assert!(shown.contains("edited by an operator"), "{shown}");
    let kept = calls(20, &["--on-mismatch", "apply"]).ended(0);
    assert!(kept.stdout.contains("declared 20, in the segment 15"), "{kept:?}");

    let held = |arguments: &[&str]| create_another(&path, &["--concurrency", "in_flight=4"], arguments);
    for way in ["error", "apply"] {
        let refused = held(&["--on-mismatch", way]).ended(78);
        assert!(refused.stderr.contains("limitctl remove"), "{refused:?}");
    }
    let segment = Segment::open(&path).expect("attached");
    let refused = held(&["--on-mismatch", "recreate_if_unused"]).ended(78);
    assert!(
        refused.stderr.contains(&std::process::id().to_string()),
        "{refused:?}"
    );
    drop(segment);
    let recreated = held(&["--on-mismatch", "recreate_if_unused"]).ended(0);
    assert!(recreated.stdout.starts_with("recreated "), "{recreated:?}");
}

#[test]
fn the_command_that_a_mismatch_names_helps() {
    let directory = directory();
    let path = directory.path().join("my limits");
    let create = |capacity: u32, version: &str| {
        let declaration = format!(
            "[segment]\n{version}\n[[set]]\nname = \"it's\"\n[[set.limit]]\nname = \"requests\"\nkind = \"calls\"\n\
             capacity = {capacity}\nwindow = \"1d\"\n"
        );
        // The command in the message calls the declaration's file that.
        let config = text(&directory.path().join("FILE")).to_owned();
        fs::write(&config, declaration).expect("written");
        run(["create", "--on-mismatch", "error", text(&path), &config])
    };
    create(10, "").ended(0);
    for (capacity, version) in [(25, ""), (25, "version = 3")] {
        let refused = create(capacity, version).ended(78);
        let command = refused.stderr.split('`').nth(1).expect("a command");
        assert!(command.starts_with("limitctl "), "{command}");
        let program = Path::new(env!("CARGO_BIN_EXE_limitctl"))
            .parent()
            .expect("a directory");
        let path = format!("{}:{}", text(program), std::env::var("PATH").unwrap_or_default());
        let mut shell = command_of_shell(command);
        run_command(shell.current_dir(directory.path()).env("PATH", path)).ended(0);
        create(capacity, version).ended(0);
    }
    let json = run(["inspect", "--json", text(&path)]).ended(0).json();
    assert_eq!(json["sets"][0]["version"], 3);
    assert_eq!(json["sets"][0]["edited"], true);
    let shown = run(["inspect", text(&path)]).ended(0).stdout;
    assert!(shown.contains("version 3, edited by an operator"), "{shown}");
}

fn command_of_shell(line: &str) -> std::process::Command {
    let mut shell = command("/bin/sh");
    shell.args(["-c", line]);
    shell
}
