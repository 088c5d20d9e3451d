//! Doctor's findings depend on what is wrong, not on who looks or what else is in the directory.
#![allow(unsafe_code, reason = "locks as another program does")]

use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::support::health::{assert_well, findings, shell, the};
use crate::support::host::{NOBODY, can_unshare, has, is_root};
use crate::support::{Actor, Run, create, directory, run, run_command, text};
use nix::unistd::{Uid, chown};
use serde_json::Value;

/// Another user, who has nothing to do with the segment.
const SOMEONE: u32 = NOBODY - 1;

fn run_as(user: u32, arguments: &str, path: &Path) -> Run {
    let script = format!(
        "exec setpriv --reuid={user} --regid={user} --clear-groups limitctl {arguments} {}",
        text(path)
    );
    run_command(&mut shell(&script))
}

/// A directory for all users, like `/dev/shm`, if the test can act as other users.
fn public_directory() -> Option<tempfile::TempDir> {
    let own = env!("CARGO_BIN_EXE_limitctl");
    let can_run = is_root() && has("setpriv", &["--reuid=65534", "--clear-groups", own, "--version"]);
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).expect("changed");
    can_run.then_some(directory)
}

fn give(path: &Path, mode: u32, user: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("changed");
    chown(path, Some(Uid::from_raw(user)), None).expect("given away");
}

#[test]
fn files_of_other_programs_are_no_findings_whoever_looks() {
    let Some(directory) = public_directory() else {
        return;
    };
    let at = |name: &str| directory.path().join(name);
    let segment = create(directory.path());
    give(&segment, 0o600, NOBODY);
    for (name, content, mode) in [
        ("PostgreSQL.1804289383", &[7; 26_976][..], 0o600),
        ("sem.mp-abc", &[0; 32], 0o600),
        ("sem.shared", &[0; 32], 0o666),
        ("pulse-shm-1", &[1; 100_000], 0o700),
        (".org.chromium.Chromium.x", &[2; 5000], 0o666),
        ("empty", &[], 0o644),
        (".limits.1.2.3.shmlimit-new", &[0; 9000], 0o600),
    ] {
        fs::write(at(name), content).expect("written");
        fs::set_permissions(at(name), Permissions::from_mode(mode)).expect("changed");
    }
    fs::hard_link(at("empty"), at("second-name")).expect("linked");
    symlink("nowhere", at(".#limits")).expect("linked");
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    fs::create_dir(at("directory")).expect("a directory");

    let by_root = run(["doctor", "--strict", "--json", text(directory.path())])
        .ended(0)
        .json();
    let by_owner = run_as(NOBODY, "doctor --strict --json", directory.path())
        .ended(0)
        .json();
    let by_someone = run_as(SOMEONE, "doctor --strict --json", directory.path())
        .ended(0)
        .json();
    // This user alone cannot tell the segment from other files.
    for (report, segments, unreadable) in [(by_root, 1, 0), (by_owner, 1, 4), (by_someone, 0, 5)] {
        assert_eq!(
            report["segments"].as_array().expect("reports").len(),
            segments,
            "{report}"
        );
        assert_eq!(report["unreadable"], unreadable, "{report}");
    }
    let shown = run_as(NOBODY, "doctor", directory.path()).ended(0).stdout;
    assert!(
        shown.contains("4 files there cannot be read by this user"),
        "{shown}"
    );
    // A file that is named directly is meant to be a segment.
    assert_eq!(
        the("not_a_segment", &findings(&at("sem.shared")))["severity"],
        "error"
    );
    run_as(NOBODY, "doctor", &at("sem.mp-abc")).ended(1);
}

#[test]
fn what_is_well_for_its_owner_is_well_whoever_may_look_at_it_and_whether_or_not_it_is_in_use() {
    let Some(directory) = public_directory() else {
        return;
    };
    let path = create(directory.path());
    for mode in [0o600, 0o640, 0o644, 0o660, 0o664] {
        give(&path, mode, NOBODY);
        run_as(NOBODY, "doctor --strict", &path).ended(0);
        for user in [0, SOMEONE] {
            if user != 0 && mode & 0o004 == 0 {
                // A user who may not read it knows nothing about it.
                run_as(user, "doctor", &path).ended(1);
                run_as(user, "doctor --strict", directory.path()).ended(0);
                continue;
            }
            for shown in [&path, directory.path()] {
                let report = run_as(user, "doctor --strict --json", shown).ended(0).json();
                let notes = report["segments"][0]["findings"].as_array().expect("findings");
                assert!(!notes.is_empty(), "it says who it is for");
                assert!(notes.iter().all(|it| it["severity"] == "note"), "{report}");
                for note in notes {
                    let heal = note["heal"].as_str().expect("a command");
                    assert!(!heal.contains("mv") && !heal.contains("chmod"), "{heal}");
                }
            }
        }
    }
}

#[test]
fn a_read_only_mount_is_no_error_for_those_who_use_the_segment_elsewhere() {
    if !is_root() || !can_unshare(&["--mount"]) {
        return;
    }
    let directory = directory();
    let path = create(directory.path());
    let holder = Actor::start("hold", &path);
    let script = format!(
        "exec unshare --mount sh -c 'mount --bind {0} {0} && mount -o remount,bind,ro {0} && exec limitctl doctor --strict --json {1}'",
        text(directory.path()),
        text(&path)
    );
    let report = run_command(&mut shell(&script)).ended(0).json();
    let notes = report["segments"][0]["findings"].as_array().expect("findings");
    assert_eq!(the("read_only", notes)["severity"], "note");
    holder.kill();
    run(["recover", text(&path)]).ended(0);
    let report = run_command(&mut shell(&script)).ended(1).json();
    let found: &Vec<Value> = report["segments"][0]["findings"].as_array().expect("findings");
    assert_eq!(the("read_only", found)["severity"], "error");
}

#[test]
fn who_keeps_others_from_joining_by_a_lock_for_reading_is_named() {
    let directory = directory();
    let path = create(directory.path());
    let file = File::open(&path).expect("readable");
    let mut lock = libc::flock {
        l_type: libc::F_RDLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    for command in [libc::F_OFD_SETLK, libc::F_SETLK] {
        lock.l_type = libc::F_RDLCK as libc::c_short;
        assert_eq!(
            // SAFETY: the descriptor is open, and the pointer is to a live structure of the kind that the command takes.
            unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) },
            0
        );
        let found = findings(&path);
        let finding = the("locked_by_reader", &found);
        assert_eq!(finding["severity"], "error");
        // A child that another test has forked at the same time has the file open, too, until it executes its program.
        let heal = finding["heal"].as_str().expect("a command");
        let own = std::process::id().to_string();
        assert!(
            heal.strip_prefix("kill ")
                .is_some_and(|ended| ended.split(' ').any(|process| process == own)),
            "{heal}"
        );
        run(["doctor", text(&path)]).ended(1);
        lock.l_type = libc::F_UNLCK as libc::c_short;
        assert_eq!(
            // SAFETY: as above.
            unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) },
            0
        );
        assert_well(&path);
    }
}
