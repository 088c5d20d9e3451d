//! Doctor's findings on damaged files, on files in the wrong place, and on a host without room: each case is real, and
//! is healed by the command that the finding names.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::layout_mirror::RawSegment;
use crate::layout_mirror::words::{LOCK_WORD_INDEX, control, header};
use crate::support::health::{assert_healed, assert_well, findings, findings_of, heal, shell, the, wait_for};
use crate::support::host::{FromElsewhere, NOBODY, can_unshare, copy_for_everyone, has, is_root};
use crate::support::{
    Actor, TIMEOUT, create, create_with_locks, create_with_mutexes, directory, finish, lines_of, run,
    run_command, text,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use shmlimit::Segment;
use shmlimit::snapshot::SegmentReader;

/// The position of a word of the control record of the only set's only shard.
fn control_word(raw: &RawSegment, word: usize) -> usize {
    raw.control() + word
}

#[test]
fn damaged_headers_are_an_error_and_never_a_crash() {
    let directory = directory();
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("damaged", |path| {
            RawSegment::open(path).set_word(header::SETS, u64::MAX)
        }),
        ("damaged", |path| {
            let raw = RawSegment::open(path);
            raw.set_word(header::PARTICIPANTS, u64::MAX);
            raw.seal_header();
        }),
        ("damaged", |path| {
            let definition = vec![b'?'; RawSegment::open(path).definition().len()];
            RawSegment::open(path).set_definition(&definition);
        }),
        ("other_format", |path| {
            RawSegment::open(path).set_word(header::FORMAT, 999)
        }),
        ("wrong_size", |path| {
            let file = fs::File::options().write(true).open(path).expect("opened");
            file.set_len(8192).expect("truncated");
        }),
    ];
    for (kind, damage) in damages {
        let path = create(directory.path());
        damage(&path);
        let before = fs::read(&path).expect("read");
        run(["doctor", text(&path)]).ended(1);
        assert!(fs::read(&path).expect("read") == before, "a byte was changed");
        // It is also found in a directory, next to healthy segments.
        let in_directory = run(["doctor", "--json", text(directory.path())]).ended(1).json();
        assert_eq!(
            in_directory["segments"][0]["findings"][0]["finding"], kind,
            "{in_directory}"
        );
        let finding = assert_healed(kind, "error", &path);
        assert!(
            finding["heal"]
                .as_str()
                .expect("a command")
                .contains("remove --force")
        );
        assert!(!path.exists());
        create(directory.path());
        assert_well(&path);
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn any_word_of_the_header_and_of_the_control_may_be_anything() {
    let directory = directory();
    let path = create(directory.path());
    let raw = RawSegment::open(&path);
    let sound = fs::read(&path).expect("read");
    let words =
        (0..header::RECORD).chain((control::LOCK_SIZE..control::SIZE).map(|word| control_word(&raw, word)));
    for word in words {
        for value in [u64::MAX, 0x0101_0101_0101] {
            raw.set_word(word, value);
            let code = run(["doctor", "--json", text(&path)]).code;
            assert!(code == 0 || code == 1, "word {word} of {value:#x}: {code}");
        }
        raw.set_bytes(0, &sound);
    }
}

#[test]
fn what_is_no_segment_is_moved_aside_and_left_out_of_directories() {
    let directory = directory();
    let path = directory.path().join("limits");
    for content in [&b""[..], b"#!/bin/sh\n", &[0; 10_000]] {
        fs::write(&path, content).expect("written");
        run(["doctor", "--strict", text(directory.path())]).ended(0);
        assert_healed("not_a_segment", "error", &path);
        assert!(!path.exists());
    }
    run(["doctor", text(&path)]).ended(69);
}

#[test]
fn counts_that_contradict_the_holds_are_counted_again() {
    let directory = directory();
    let path = create(directory.path());
    let raw = RawSegment::open(&path);
    raw.set_word(control_word(&raw, control::ACTIVE), 3);
    assert_healed("counts_wrong", "error", &path);
    assert_eq!(raw.word(control_word(&raw, control::ACTIVE)), 0);
    assert_well(&path);
}

#[test]
fn the_rebuild_can_be_asked_for() {
    let directory = directory();
    let path = create(directory.path());
    let actor = Actor::start("hold", &path);
    assert!(
        run(["recover", text(&path)])
            .ended(0)
            .stdout
            .contains("nothing to recover")
    );
    let json = run(["recover", "--rebuild", "--json", text(&path)])
        .ended(0)
        .json();
    assert_eq!(json["sets"][0]["repairs"]["rebuilt"], true, "{json}");
    let set = run(["inspect", "--json", text(&path)]).ended(0).json()["sets"][0].clone();
    assert_eq!(
        (&set["active"], &set["counts"]["rebuilds"]),
        (&1.into(), &1.into()),
        "{set}"
    );
    actor.kill();
}

#[test]
fn half_done_operations_are_carried_to_their_end() {
    let directory = directory();
    let path = create(directory.path());
    let raw = RawSegment::open(&path);
    // The marker of a reset that covers nothing, or of a rebuild.
    for marker in [255, 254] {
        raw.set_word(control_word(&raw, control::JOURNAL), marker);
        assert_healed("half_done", "warning", &path);
        assert_well(&path);
    }
}

#[test]
fn a_set_is_poisoned_until_it_is_recovered_or_reset_as_its_poison_needs() {
    let directory = directory();
    let path = create(directory.path());
    let raw = RawSegment::open(&path);
    for (poison, verb) in [(1, "recover"), (2, "reset")] {
        raw.set_word(control_word(&raw, control::POISONED), poison);
        let finding = assert_healed("poisoned", "error", &path);
        assert!(
            finding["heal"].as_str().expect("a command").contains(verb),
            "{finding}"
        );
        assert_well(&path);
    }
}

#[test]
fn locks_without_an_owner_are_made_anew() {
    let directory = directory();
    let path = create_with_mutexes(directory.path());
    let raw = RawSegment::open(&path);
    let lock = 8 * control_word(&raw, 0) as u64;
    // The lock names a thread: the one with the largest possible id, which no system gives out.
    raw.set_bytes(lock + 4 * LOCK_WORD_INDEX as u64, &0x3fff_fffe_u32.to_ne_bytes());
    assert_healed("lock_orphaned", "error", &path);
    assert_well(&path);
    if cfg!(target_env = "gnu") {
        // The C library's value for a mutex that no process can take any more.
        raw.set_bytes(lock + 8, &(i32::MAX - 1).to_ne_bytes());
        assert_healed("lock_lost", "error", &path);
        assert_well(&path);
    }
}

#[test]
fn a_file_of_another_boot_and_a_copy_start_cold() {
    let directory = directory();
    let path = create(directory.path());
    RawSegment::open(&path).set_another_boot();
    let finding = assert_healed("cold", "warning", &path);
    assert!(
        finding["what"]
            .as_str()
            .expect("text")
            .contains("before this boot"),
        "{finding}"
    );
    assert_well(&path);

    let copy = directory.path().join("copy of limits");
    fs::copy(&path, &copy).expect("copied");
    let finding = assert_healed("cold", "warning", &copy);
    assert!(
        finding["what"].as_str().expect("text").contains("a copy"),
        "{finding}"
    );
    assert_well(&copy);
}

#[test]
fn a_file_of_another_boot_that_is_in_use_is_an_error_until_those_who_use_it_are_ended() {
    let directory = directory();
    let path = create(directory.path());
    let actor = Actor::start("hold", &path);
    // A process that only looks, which must be left alone.
    let onlooker = SegmentReader::open(&path).expect("readable");
    RawSegment::open(&path).set_another_boot();
    let finding = assert_healed("foreign_boot", "error", &path);
    assert_eq!(finding["heal"], format!("kill {}", actor.pid()));
    wait_for("cold", &path);
    assert_healed("cold", "warning", &path);
    assert_well(&path);
    drop(onlooker);
}

#[test]
fn files_that_others_could_have_planted_are_made_ones_that_are_trusted() {
    // The command that finds a file's other names searches the whole file system, so this uses a small one.
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = create(directory.path());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("changed");
    assert_healed("untrusted", "error", &path);
    assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o664);
    assert_well(&path);

    // With a second name, the command lists the names, and people decide which one to remove.
    let second = directory.path().join("second");
    fs::hard_link(&path, &second).expect("linked");
    let names = heal(the("untrusted", &findings(&path))).stdout;
    assert!(
        names.contains(text(&second)) && names.contains(text(&path)),
        "{names}"
    );
    fs::remove_file(&second).expect("removed");
    assert_well(&path);

    let link = directory.path().join("link");
    symlink(&path, &link).expect("linked");
    heal(the("untrusted", &findings(&link)));
}

#[test]
fn a_file_of_another_user_is_trusted_in_a_directory_that_no_other_may_write() {
    let own = env!("CARGO_BIN_EXE_limitctl");
    if !is_root() || !has("setpriv", &["--reuid=65533", own, "--version"]) {
        return;
    }
    let directory = directory();
    let path = create(directory.path());
    let open_to =
        |mode| fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).expect("changed");
    let (user, group) = (
        nix::unistd::Uid::from_raw(NOBODY),
        nix::unistd::Gid::from_raw(NOBODY),
    );
    nix::unistd::chown(&path, Some(user), Some(group)).expect("given away");
    // The members of the file's group should be able to use it, and are refused.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).expect("changed");
    let of_member = |path: &Path| {
        let script = format!(
            "exec setpriv --reuid={} --regid={} --clear-groups limitctl doctor --json {}",
            NOBODY - 1,
            fs::metadata(path).expect("there").gid(),
            text(path)
        );
        findings_in(&run_command(&mut shell(&script)).stdout)
    };
    open_to(0o777);
    let found = of_member(&path);
    assert_eq!(the("untrusted", &found)["severity"], "error");
    heal(the("untrusted", &found));
    assert_eq!(of_member(&path), Vec::<Value>::new());

    open_to(0o1777);
    heal(the("untrusted", &of_member(&path)));
    let moved = directory.path().join("segments/limits");
    assert!(!path.exists());
    assert_eq!(of_member(&moved), Vec::<Value>::new());
}

#[test]
fn a_sparse_copy_is_copied_again() {
    let directory = directory();
    let path = create(directory.path());
    let sparse = directory.path().join("sparse");
    let copied = Command::new("cp")
        .arg("--sparse=always")
        .args([&path, &sparse])
        .status();
    assert!(copied.expect("started").success());
    let metadata = fs::metadata(&sparse).expect("there");
    if metadata.blocks() * 512 >= metadata.len() {
        println!("skipped: this file system keeps no holes");
        return;
    }
    let found = findings(&sparse);
    heal(the("sparse", &found));
    heal(the("cold", &findings(&sparse)));
    assert_well(&sparse);
}

/// Doctor's findings, from its JSON in the output of a script.
pub(crate) fn findings_in(json: &str) -> Vec<Value> {
    findings_of(&serde_json::from_str(json).unwrap_or_else(|error| panic!("{error} in {json}")))
}

#[test]
fn a_segment_of_a_dead_namespace_is_adopted_and_one_in_use_elsewhere_is_an_error() {
    let Some(elsewhere) = FromElsewhere::new() else {
        return;
    };
    let path = &elsewhere.path;
    let inside = |arguments: &[&str]| elsewhere.run(arguments, path);
    // The process that opens it there adopts the segment, and its namespace ends with the process.
    inside(&["recover"]).ended(0);
    let finding = assert_healed("cold", "warning", path);
    assert!(
        finding["what"].as_str().expect("text").contains("PID namespace"),
        "{finding}"
    );
    assert_well(path);

    let actor = Actor::start("hold", path);
    let found = findings_in(&inside(&["doctor", "--json"]).ended(1).stdout);
    assert_eq!(the("foreign_namespace", &found)["severity"], "error");
    assert_eq!(
        found.len(),
        1,
        "nothing is said of processes that it cannot name: {found:#?}"
    );
    actor.kill();
    inside(&["recover"]).ended(0);
    heal(the("cold", &findings(path)));
    assert_well(path);
}

#[test]
fn what_is_of_another_c_library_is_an_error_and_not_to_be_removed() {
    let directory = directory();
    let path = create_with_mutexes(directory.path());
    let another = if cfg!(target_env = "musl") { 1 } else { 2 };
    RawSegment::open(&path).set_word(header::C_LIBRARY, another);
    let found = findings(&path);
    let finding = the("other_format", &found);
    assert_eq!(finding["severity"], "error");
    assert_eq!(
        finding["heal"],
        Value::Null,
        "processes may use it that this one cannot see"
    );
}

/// A command that holds a permit until SIGTERM ends it.
struct Holder(Child);

impl Holder {
    fn start(by: &[&str], path: &Path) -> Self {
        let exec = [
            "limitctl",
            "exec",
            text(path),
            "api",
            "--",
            "sh",
            "-c",
            "echo held; exec cat",
        ];
        let mut command = shell(&["exec", &by.join(" "), "\"$@\""].join(" "));
        let mut child = command
            .arg("sh")
            .args(exec)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = lines_of(child.stdout.take().expect("piped"));
        assert_eq!(lines.recv_timeout(TIMEOUT).as_deref(), Ok("held"));
        Self(child)
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        finish(self.0).ended(0);
    }
}

#[test]
fn what_is_in_use_in_a_namespace_is_examined_there_by_the_command_that_is_named() {
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc"];
    if !is_root() || !can_unshare(&unshare[1..]) || !has("nsenter", &["--all", "--target", "1", "true"]) {
        return;
    }
    let directory = directory();
    let path = create(directory.path());
    let holder = Holder::start(&unshare, &path);
    let found = findings(&path);
    let finding = the("foreign_namespace", &found);
    assert_eq!(finding["severity"], "error");
    let there = heal(finding).stdout;
    assert!(
        there.contains("processes   1 of") && there.contains("0 errors"),
        "{there}"
    );
    holder.end();
    assert_healed("cold", "warning", &path);
    assert_well(&path);
}

#[test]
fn who_is_stopped_in_a_container_is_seen_from_the_host_by_every_view() {
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc"];
    if !is_root() || !can_unshare(&unshare[1..]) {
        return;
    }
    let directory = directory();
    let path = create_with_locks(directory.path(), "slot");
    let holder = Holder::start(&unshare, &path);
    let stopped_in_views = || {
        let shown = run(["inspect", text(&path)]).ended(0).stdout;
        let of_it = shown.lines().filter(|line| line.contains(" in namespace "));
        let is_stopped = of_it.map(|line| line.contains("stopped"));
        is_stopped.collect::<Vec<bool>>()
    };
    assert_eq!(
        stopped_in_views(),
        [false, false],
        "among the processes, and among the holders"
    );
    let report = run(["doctor", "--json", text(&path)]).ended(0).json();
    let pids = report["segments"][0]["pids"].as_array().expect("ids");
    let pid = i32::try_from(pids[0].as_i64().expect("an id")).expect("an id");
    kill(Pid::from_raw(pid), Signal::SIGSTOP).expect("stopped");
    wait_for("holder_stopped", &path);
    assert_eq!(stopped_in_views(), [true, true]);
    heal(the("holder_stopped", &findings(&path)));
    assert_eq!(stopped_in_views(), [false, false]);
    holder.end();
}

#[test]
fn what_its_owner_uses_is_no_error_because_root_would_not_open_it() {
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let own = env!("CARGO_BIN_EXE_limitctl");
    if !is_root() || !has(as_nobody[0], &[&as_nobody[1..], &[own, "--version"]].concat()) {
        return;
    }
    let directory = directory();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).expect("changed");
    let path = create(directory.path());
    nix::unistd::chown(&path, Some(nix::unistd::Uid::from_raw(NOBODY)), None).expect("given away");
    // Write permission for the group makes no difference to root.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).expect("changed");
    let holder = Holder::start(&as_nobody, &path);
    let report = run(["doctor", "--json", text(&path)]).ended(0).json();
    let notes = report["segments"][0]["findings"].as_array().expect("findings");
    let finding = the("untrusted", notes);
    assert_eq!(finding["severity"], "note");
    assert!(heal(finding).stdout.contains("0 errors"));
    assert!(path.exists());
    holder.end();
    // Nor is this an error while nobody uses it: whatever lets root open it would take it away from its owner.
    run(["doctor", "--strict", text(&path)]).ended(0);
    let report = run(["doctor", "--json", text(&path)]).ended(0).json();
    let notes = report["segments"][0]["findings"].as_array().expect("findings");
    assert!(heal(the("untrusted", notes)).stdout.contains("0 errors"));
    Holder::start(&as_nobody, &path).end();
}

/// A test's own memory cgroup, removed when it is dropped.
struct MemoryCgroup(PathBuf);

impl MemoryCgroup {
    const LIMIT: u64 = 64 << 20;

    fn new() -> Option<Self> {
        let name = format!("limitctl-doctor-{}", std::process::id());
        for (root, limit) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ] {
            let directory = Path::new(root).join(&name);
            if fs::create_dir(&directory).is_err() {
                continue;
            }
            let made = Self(directory);
            if fs::write(made.0.join(limit), Self::LIMIT.to_string()).is_ok() {
                return Some(made);
            }
        }
        println!("skipped: no memory cgroup can be made here");
        None
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_cgroup_at_its_memory_limit_is_a_warning_until_the_limit_is_raised() {
    let Some(cgroup) = MemoryCgroup::new() else { return };
    // The memory is on tmpfs, whose pages stay charged to the cgroup after the process that wrote them has ended.
    let memory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = create(memory.path());
    let script = format!(
        "echo $$ > {0}/cgroup.procs && head -c 62m /dev/zero > {1}/filler && exec limitctl doctor --json {2}",
        text(&cgroup.0),
        text(memory.path()),
        text(&path)
    );
    let found = findings_in(&run_command(&mut shell(&script)).ended(0).stdout);
    let finding = the("memory_near_limit", &found);
    assert_eq!(finding["severity"], "warning");
    heal(finding);
    let again = findings_in(&run_command(&mut shell(&script)).ended(0).stdout);
    assert_eq!(again, Vec::<Value>::new());
    drop(memory);
}

#[test]
fn who_may_not_read_a_file_is_told_whose_it_is() {
    if !is_root() {
        return;
    }
    let directory = directory();
    let path = create(directory.path());
    let mut as_nobody = Command::new(copy_for_everyone(directory.path()));
    as_nobody
        .args(["doctor", "--json", text(&path)])
        .uid(NOBODY)
        .gid(NOBODY);
    let found = findings_in(&run_command(&mut as_nobody).ended(1).stdout);
    let finding = the("denied", &found);
    assert_eq!(
        finding["heal"],
        format!("sudo -u root limitctl doctor {}", text(&path))
    );
}

#[test]
fn a_segment_that_is_well_is_shown_with_what_it_is() {
    let directory = directory();
    let path = create(directory.path());
    let segment = Segment::open(&path).expect("attached");
    let json = run(["doctor", "--json", text(&path)]).ended(0).json();
    let report = &json["segments"][0];
    assert_eq!(
        (&report["mode"], &report["alive"], &report["sets"]),
        (&"0600".into(), &1.into(), &1.into())
    );
    assert_eq!(report["size"], fs::metadata(&path).expect("there").len());
    assert_eq!(report["pids"][0], std::process::id());
    assert_eq!(report["pid_namespace"], json["host"]["pid_namespace"]);
    let shown = run(["doctor", text(&path)]).ended(0).stdout;
    for part in ["mode 0600", "1 of 256, and 0 dead", "0 errors, 0 warnings"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    drop(segment);
}
