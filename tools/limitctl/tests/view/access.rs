//! Looking without write permission, and from other namespaces. Tests that need root are skipped without it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::support::host::{FromElsewhere, NOBODY, can_unshare, copy_for_everyone, is_root};
use crate::support::{Actor, Run, create, directory, run_command, text};

/// Runs the program as a user who may read the directory and has no other rights.
fn run_as_nobody(program: &Path, arguments: &[&str]) -> Run {
    run_command(Command::new(program).args(arguments).uid(NOBODY).gid(NOBODY))
}

#[test]
fn a_user_who_may_only_read_can_inspect_and_nothing_else() {
    if !is_root() {
        return;
    }
    let directory = directory();
    let path = create(directory.path());
    let program = copy_for_everyone(directory.path());
    let open_to = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("changed");
    let as_nobody = |arguments: &[&str]| run_as_nobody(&program, arguments);

    open_to(0o600);
    as_nobody(&["inspect", text(&path)]).ended(77);
    let listing = as_nobody(&["list", text(directory.path())]).ended(0).stdout;
    assert!(listing.contains("1 file could not be examined"), "{listing}");

    open_to(0o444);
    let actor = Actor::start("hold", &path);
    let before = fs::read(&path).expect("read");
    let json = as_nobody(&["inspect", "--json", text(&path)]).ended(0).json();
    assert_eq!(json["participants"][0]["pid"], actor.pid());
    assert_eq!(json["participants"][0]["alive"], true);
    assert_eq!(json["sets"][0]["holds"][0]["owner_alive"], true);
    as_nobody(&["doctor", text(&path)]);
    for arguments in [
        &["recover", text(&path)][..],
        &["reset", text(&path)],
        &["remove", "--force", text(&path)],
    ] {
        as_nobody(arguments).ended(77);
    }
    assert!(fs::read(&path).expect("read") == before, "a byte was changed");
    actor.kill();
    let json = as_nobody(&["inspect", "--json", text(&path)]).ended(0).json();
    assert_eq!(json["participants"][0]["alive"], false);
    let new = text(&directory.path().join("new")).to_owned();
    as_nobody(&["create", "--set", "api", "--calls", "requests=1/1s", &new]).ended(77);
}

/// Runs a script with limitctl and the directory as its arguments, in a new mount namespace.
fn run_with_own_mounts(script: &str, directory: &Path) -> Run {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]);
    run_command(command.arg(env!("CARGO_BIN_EXE_limitctl")).arg(directory)).ended(0)
}

#[test]
fn a_read_only_mount_can_be_inspected_and_not_written() {
    if !is_root() || !can_unshare(&["--mount"]) {
        return;
    }
    let directory = directory();
    let script = r#"
        set -e
        mount -t tmpfs none "$2"
        "$1" create --set api --calls requests=10/1d "$2/limits" > /dev/null
        mount -o remount,ro "$2"
        code() { set +e; "$@" > /dev/null 2>&1; echo "$2 $?"; set -e; }
        code "$1" inspect "$2/limits"
        code "$1" recover "$2/limits"
        code "$1" reset "$2/limits"
        code "$1" remove "$2/limits"
        code "$1" create --set api --calls requests=10/1d "$2/other"
    "#;
    let run = run_with_own_mounts(script, directory.path());
    assert!(
        run.stdout
            .starts_with("inspect 0\nrecover 77\nreset 77\nremove 77\ncreate 73\n"),
        "{run:?}"
    );
}

#[test]
fn a_full_file_system_is_an_error_at_creation() {
    if !is_root() || !can_unshare(&["--mount"]) {
        return;
    }
    let directory = directory();
    let script = r#"
        mount -t tmpfs -o size=64k none "$2" || exit 99
        "$1" create --set api --calls requests=10/1d --participants 4096 "$2/limits"
        echo $?
        ls -A "$2"
    "#;
    let run = run_with_own_mounts(script, directory.path());
    assert_eq!(run.stdout, "73\n", "{run:?}");
    assert!(run.stderr.contains("no room"), "{run:?}");
}

#[test]
fn a_process_of_another_pid_namespace_is_seen_alive_and_left_alone() {
    let Some(elsewhere) = FromElsewhere::new() else {
        return;
    };
    let path = &elsewhere.path;
    let inside = |arguments: &[&str]| elsewhere.run(arguments, path);
    let mut actor = Actor::start("hold", path);
    let json = inside(&["inspect", "--json"]).ended(0).json();
    assert_eq!(json["same_place"], false);
    assert_eq!(json["participants"][0]["alive"], true);
    assert_eq!(json["sets"][0]["holds"][0]["owner_alive"], true);
    // The segment is in order where it is used, and nothing is reported here that only holds once no process uses it.
    for (verb, path) in [
        (&["inspect"][..], &**path),
        (&["watch", "--count", "1"], path),
        (&["list"], elsewhere.directory.path()),
    ] {
        let seen = elsewhere.run(verb, path).ended(0).stdout;
        assert!(!seen.contains("cold") && !seen.contains("void"), "{seen}");
    }
    let seen = inside(&["inspect"]).ended(0).stdout;
    assert!(seen.contains("in use elsewhere"), "{seen}");
    assert!(seen.contains("with their ids in PID namespace"), "{seen}");
    let refused = inside(&["recover"]).ended(69);
    assert!(refused.stderr.contains("PID namespace"), "{refused:?}");
    inside(&["remove"]).ended(1);
    assert_eq!(actor.go_on(), "admitted true");
    inside(&["remove", "--force"]).ended(0);
}
