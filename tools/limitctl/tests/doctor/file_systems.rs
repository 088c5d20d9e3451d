//! Doctor's findings on file systems that segments cannot use, or that have no room: each mounted for real, and healed
//! by the command that the finding names.

use serde_json::Value;

use crate::files::findings_in;
use crate::support::health::{shell, the};
use crate::support::host::{can_unshare, has, is_root};
use crate::support::{directory, run_command, text};

/// Runs doctor in a new mount namespace, in which `prepare` prepares the directory `$1`. Then runs the command that the
/// finding names, and doctor once more: on the same file or, if it was moved, on the one that `prepare` names in
/// `$healed`.
fn healed_in_a_mount_namespace(kind: &str, prepare: &str) -> Option<(Vec<Value>, Vec<Value>)> {
    if !is_root() || !can_unshare(&["--mount"]) {
        return None;
    }
    let directory = directory();
    let script = format!(
        r#"
        set -e
        {prepare}
        limitctl doctor --json "$1/limits" || true
        echo =====
        eval "$(limitctl doctor --json "$1/limits" | grep -A 4 '"finding": "{kind}"' | sed -n 's/.*"heal": "\(.*\)".*/\1/p')"
        limitctl doctor --json "${{healed:-$1/limits}}" || true
        "#
    );
    let mut command = shell(&format!(
        "exec unshare --mount sh -c '{}' sh {}",
        script.replace('\'', r"'\''"),
        text(directory.path())
    ));
    let run = run_command(&mut command).ended(0);
    let (before, after) = run
        .stdout
        .split_once("=====\n")
        .unwrap_or_else(|| panic!("{run:?}"));
    Some((findings_in(before), findings_in(after)))
}

#[test]
fn a_segment_that_was_copied_to_a_file_system_that_copies_on_write_is_an_error_until_it_is_moved() {
    if !has("mkfs.btrfs", &["--version"]) || !has("losetup", &["--find"]) {
        return;
    }
    // The disk is in the memory of this mount namespace, and ends with it.
    let copied = r#"
        mount -t tmpfs none /dev/shm
        truncate -s 128m /dev/shm/disk && mkfs.btrfs --quiet /dev/shm/disk >/dev/null
        mount -o loop /dev/shm/disk "$1"
        limitctl create --set api --calls requests=10/1d /dev/shm/original >/dev/null
        cp --sparse=never --reflink=never /dev/shm/original "$1/limits"
        healed=/dev/shm/limits
    "#;
    let Some((before, after)) = healed_in_a_mount_namespace("unsupported_file_system", copied) else {
        return;
    };
    let finding = the("unsupported_file_system", &before);
    assert_eq!(finding["severity"], "error");
    assert!(
        finding["what"].as_str().expect("text").contains("btrfs"),
        "{finding}"
    );
    // The next process that opens it starts it cold, like any copy.
    let kinds: Vec<&Value> = after.iter().map(|finding| &finding["finding"]).collect();
    assert_eq!(kinds, ["cold"]);
}

/// A store into a segment that is copied on write may need space.
#[test]
fn a_segment_that_is_created_where_files_are_copied_on_write_is_exempted_from_that() {
    if !has("mkfs.btrfs", &["--version"]) || !has("losetup", &["--find"]) || !has("lsattr", &["-V"]) {
        return;
    }
    let created = r#"
        mount -t tmpfs none /dev/shm
        truncate -s 128m /dev/shm/disk && mkfs.btrfs --quiet /dev/shm/disk >/dev/null
        mount -o loop /dev/shm/disk "$1"
        limitctl create --set api --calls requests=10/1d "$1/limits" >/dev/null
        lsattr "$1/limits" | grep -q "^[^ ]*C"
        limitctl exec "$1/limits" api -- true
    "#;
    let Some((before, _)) = healed_in_a_mount_namespace("unsupported_file_system", created) else {
        return;
    };
    let kinds: Vec<&Value> = before.iter().map(|finding| &finding["finding"]).collect();
    assert!(
        !kinds.contains(&&Value::from("unsupported_file_system")),
        "{kinds:?}"
    );
}

#[test]
fn a_full_file_system_is_a_warning_until_it_has_room() {
    let full = r#"
        mount -t tmpfs -o size=1m,mode=700 none "$1"
        limitctl create --set api --calls requests=10/1d --participants 8 "$1/limits" >/dev/null
        head -c 2m /dev/zero > "$1/filler" 2>/dev/null || true
    "#;
    let Some((before, after)) = healed_in_a_mount_namespace("no_space", full) else {
        return;
    };
    assert_eq!(the("no_space", &before)["severity"], "warning");
    assert_eq!(after, Vec::<Value>::new());
}

#[test]
fn a_segment_on_an_overlay_is_an_error_until_it_is_moved() {
    let copied = format!("{OVERLAY}\nhealed=/dev/shm/limits");
    let Some((before, after)) = healed_in_a_mount_namespace("locks_not_kept", &copied) else {
        return;
    };
    let finding = the("locks_not_kept", &before);
    assert_eq!(finding["severity"], "error");
    assert!(
        finding["what"].as_str().expect("text").contains("an overlay"),
        "{finding}"
    );
    // The next process that opens it starts it cold, like any copy.
    let kinds: Vec<&Value> = after.iter().map(|finding| &finding["finding"]).collect();
    assert_eq!(kinds, ["cold"]);
}

/// A container's file system at `$1`, with a segment in it.
const OVERLAY: &str = r#"
    mount -t tmpfs none /dev/shm
    mkdir /dev/shm/lower /dev/shm/upper /dev/shm/work
    limitctl create --set api --concurrency places=1 /dev/shm/lower/limits >/dev/null
    mount -t overlay none -o lowerdir=/dev/shm/lower,upperdir=/dev/shm/upper,workdir=/dev/shm/work "$1"
"#;

#[test]
fn no_verb_uses_or_removes_what_lies_on_an_overlay_and_selftest_says_why() {
    let verbs = format!(
        r#"{OVERLAY}
        ends() {{
            expected=$1; shift
            "$@" >/dev/null 2>/dev/shm/said || code=$?
            [ "${{code:-0}}" = "$expected" ] || {{ echo "$*: $code"; cat /dev/shm/said; exit 1; }}
            code=0
        }}
        ends 69 limitctl exec --timeout 0 "$1/limits" api -- true
        grep -q "is on an overlay.*volume" /dev/shm/said
        ends 69 limitctl recover "$1/limits"
        ends 69 limitctl reset "$1/limits" api
        ends 69 limitctl remove "$1/limits"
        ends 0 limitctl inspect "$1/limits"
        ends 1 limitctl doctor "$1"
        ends 73 limitctl create --set api --concurrency places=1 "$1/others"
        ends 1 limitctl selftest "$1"
        limitctl selftest "$1" | grep -q "locks *failed"
        [ "$(ls -A "$1")" = limits ]
        ends 0 limitctl remove --force "$1/limits"
        "#
    );
    // The segment is gone, so doctor examines another one on the same file system.
    let left = "cp --reflink=never /dev/shm/lower/limits \"$1/limits\"";
    healed_in_a_mount_namespace(
        "locks_not_kept",
        &format!("({verbs}) >&2\n{left}\nhealed=/dev/shm/limits"),
    );
}

#[test]
fn a_segment_on_a_read_only_mount_is_an_error_until_it_is_mounted_otherwise() {
    let read_only = r#"
        mount -t tmpfs -o mode=700 none "$1"
        limitctl create --set api --calls requests=10/1d "$1/limits" >/dev/null
        mount -o remount,ro "$1"
    "#;
    let Some((before, after)) = healed_in_a_mount_namespace("read_only", read_only) else {
        return;
    };
    assert_eq!(the("read_only", &before)["severity"], "error");
    assert_eq!(after, Vec::<Value>::new());
}
