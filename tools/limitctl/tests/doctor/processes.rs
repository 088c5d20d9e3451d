//! Doctor's findings on processes that really are stopped or die, healed by the commands that the findings name.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::support;
use crate::support::health::{assert_healed, assert_well, findings, heal, the, wait_for};
use crate::support::{
    Actor, TIMEOUT, create, create_declared, die_with_lock_and_permit, directory, run, text,
};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

/// A segment with the set `api` of one limit.
pub fn create_with(directory: &Path, limit: &str) -> PathBuf {
    create_declared(
        directory,
        "limits",
        &format!("[[set]]\nname = \"api\"\n[[set.limit]]\n{limit}"),
    )
}

pub const ONE_PLACE: &str = "name = \"places\"\nkind = \"concurrency\"\ncapacity = 1\n";

/// Waits until this many requests are in the queue.
pub fn wait_for_queue(path: &Path, length: usize) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let json = run(["inspect", "--json", text(path)]).ended(0).json();
        let tickets = json["sets"][0]["tickets"].as_array().expect("tickets");
        if tickets.len() == length {
            return;
        }
        assert!(Instant::now() < deadline, "{json}");
    }
}

pub fn pid_of(finding: &Value) -> u64 {
    finding["pid"]
        .as_u64()
        .unwrap_or_else(|| panic!("no process: {finding}"))
}

#[test]
fn nothing_is_wrong_with_a_segment_in_heavy_use() {
    let directory = directory();
    let path = create(directory.path());
    let _actors = [Actor::start("spin", &path), Actor::start("spin", &path)];
    for _ in 0..30 {
        assert_well(&path);
    }
}

#[test]
fn what_killed_processes_left_is_found_without_changing_a_byte_and_healed() {
    let directory = directory();
    let path = create(directory.path());
    let (locker, holder) = die_with_lock_and_permit(&path);

    let before = fs::read(&path).expect("read");
    let found = findings(&path);
    let shown = run(["doctor", text(&path)]).ended(0).stdout;
    run(["doctor", "--strict", text(&path)]).ended(1);
    assert!(fs::read(&path).expect("read") == before, "a byte was changed");

    let lock = the("lock_owner_dead", &found);
    assert_eq!(
        (&lock["severity"], &lock["set"]),
        (&"warning".into(), &"api".into())
    );
    assert_eq!(the("held_by_the_dead", &found)["pid"], holder);
    let mut dead: Vec<u64> = found
        .iter()
        .filter(|it| it["finding"] == "participant_dead")
        .map(pid_of)
        .collect();
    dead.sort_unstable();
    let mut expected = [u64::from(locker), u64::from(holder)];
    expected.sort_unstable();
    assert_eq!(dead, expected);
    // Text and JSON have to report the same.
    for finding in &found {
        for part in ["finding", "what", "meaning", "heal"] {
            let part = finding[part].as_str().expect("text");
            // How long ago it was changes.
            let part = part.split(" ago").next().unwrap_or_default();
            let part = part.rsplit_once("at most ").map_or(part, |(start, _)| start);
            assert!(shown.contains(part), "{part} in {shown}");
        }
    }
    heal(lock);
    assert_well(&path);
}

#[test]
fn a_stopped_process_with_the_lock_is_an_error_until_it_goes_on() {
    let directory = directory();
    let path = create(directory.path());
    let actor = Actor::start("spin", &path);
    actor.stop_with_the_lock(&path);
    let finding = assert_healed("lock_stuck", "error", &path);
    assert_eq!(pid_of(&finding), u64::from(actor.pid()));
    assert_eq!(finding["heal"], format!("kill -CONT {}", actor.pid()));
    assert_well(&path);
}

#[test]
fn a_process_that_a_debugger_stops_is_freed_by_ending_the_debugger() {
    let directory = directory();
    let path = create(directory.path());
    let actor = Actor::start("hold", &path);
    let pid = Pid::from_raw(i32::try_from(actor.pid()).expect("a pid"));
    ptrace::attach(pid).expect("a child of ours");
    let finding = wait_for("holder_stopped", &path);
    assert_eq!(finding["heal"], format!("kill {}", std::process::id()));
    // The named command is not run: this process is the debugger.
    ptrace::detach(pid, None).expect("attached");
    let deadline = Instant::now() + TIMEOUT;
    while !findings(&path).is_empty() {
        assert!(Instant::now() < deadline, "it does not go on");
    }
}

#[test]
fn a_stopped_holder_of_a_permit_is_a_warning_until_it_goes_on() {
    let directory = directory();
    let path = create(directory.path());
    let actor = Actor::start("hold", &path);
    actor.signal(Signal::SIGSTOP);
    wait_for("holder_stopped", &path);
    let finding = assert_healed("holder_stopped", "warning", &path);
    assert!(
        finding["what"].as_str().expect("text").contains("holds 1 permit"),
        "{finding}"
    );
    assert_well(&path);
}

#[test]
fn a_lease_that_is_over_is_found_and_ended() {
    let directory = directory();
    let path = create_with(directory.path(), &format!("{ONE_PLACE}lease = \"10ms\"\n"));
    let actor = Actor::start("hold", &path);
    wait_for("lease_over", &path);
    let finding = assert_healed("lease_over", "warning", &path);
    assert_eq!(pid_of(&finding), u64::from(actor.pid()));
    assert_well(&path);
}

#[test]
fn what_was_given_back_under_a_stuck_lock_is_found_and_finished() {
    let directory = directory();
    let path = create(directory.path());
    let mut giver = Actor::start("hold", &path);
    let locker = Actor::start("spin", &path);
    locker.stop_with_the_lock(&path);
    assert!(giver.go_on().contains("was not released in time"));
    giver.drop_what_it_holds();
    wait_for("returned_unfinished", &path);
    let found = findings(&path);
    assert_eq!(the("returned_unfinished", &found)["severity"], "warning");
    // The lock is healed first: its holder then finishes what was given back meanwhile.
    heal(the("lock_stuck", &found));
    heal(the("returned_unfinished", &found));
    assert_well(&path);
}

#[test]
fn a_stopped_process_that_is_first_in_the_queue_is_an_error_for_those_behind_it() {
    let directory = directory();
    let path = create_with(directory.path(), ONE_PLACE);
    let holder = Actor::start("hold", &path);
    let first = Actor::start("wait", &path);
    wait_for_queue(&path, 1);
    first.signal(Signal::SIGSTOP);
    let alone = wait_for("queue_stopped", &path);
    assert_eq!(alone["severity"], "warning", "{alone}");
    let second = Actor::start("wait", &path);
    wait_for_queue(&path, 2);
    let finding = assert_healed("queue_stopped", "error", &path);
    assert_eq!(pid_of(&finding), u64::from(first.pid()));
    assert_well(&path);
    holder.kill();
    assert_eq!(first.answer(), "granted");
    first.kill();
    assert_eq!(second.answer(), "granted");
}

#[test]
fn a_place_in_the_queue_of_a_dead_process_is_found_and_taken_back() {
    let directory = directory();
    let path = create_with(directory.path(), ONE_PLACE);
    let _holder = Actor::start("hold", &path);
    let waiter = Actor::start("wait", &path);
    wait_for_queue(&path, 1);
    let waiter = waiter.kill();
    let finding = assert_healed("ticket_of_the_dead", "warning", &path);
    assert_eq!(pid_of(&finding), u64::from(waiter));
    assert_well(&path);
}

#[test]
fn a_place_in_the_queue_that_was_given_up_under_a_stuck_lock_is_found_and_taken_back() {
    let directory = directory();
    let path = create_with(directory.path(), ONE_PLACE);
    let _holder = Actor::start("hold", &path);
    let mut waiter = Actor::start("queue", &path);
    wait_for_queue(&path, 1);
    let locker = Actor::start("spin", &path);
    locker.stop_with_the_lock(&path);
    assert_eq!(waiter.go_on(), "left");
    wait_for("ticket_given_up", &path);
    // The process with the lock would finish this, but is killed before, and no other process needs the set.
    locker.kill();
    let finding = assert_healed("ticket_given_up", "warning", &path);
    assert_eq!(finding["heal"], format!("limitctl recover {}", text(&path)));
    wait_for_queue(&path, 0);
    assert_well(&path);
}

#[test]
fn a_table_without_room_for_another_process_is_an_error() {
    let directory = directory();
    let path = directory.path().join("limits");
    let flags = ["--set", "api", "--concurrency", "places=1", "--participants", "1"];
    let arguments = [&["create"][..], &flags, &[text(&path)]].concat();
    support::run_command(support::limitctl().args(arguments)).ended(0);
    let actor = Actor::start("attach", &path);
    let found = findings(&path);
    let finding = the("participants_full", &found);
    assert_eq!(finding["severity"], "error");
    assert!(
        finding["heal"]
            .as_str()
            .expect("a command")
            .contains("--participants 2")
    );
    actor.kill();
    heal(the("participant_dead", &findings(&path)));
    assert_well(&path);
}

#[test]
fn a_retired_segment_is_removed() {
    let directory = directory();
    let path = create(directory.path());
    shmlimit::Segment::open(&path).expect("attached").retire();
    assert_healed("retired", "warning", &path);
    assert!(!path.exists());
    run(["doctor", text(&path)]).ended(69);
    let shown = run(["doctor", text(directory.path())]).ended(0).stdout;
    assert!(shown.contains("no segments in"), "{shown}");
}

#[test]
fn every_view_of_holders_says_which_of_them_is_stopped() {
    let directory = directory();
    let path = create_with(directory.path(), ONE_PLACE);
    let actor = Actor::start("hold", &path);
    let states = || {
        let shown = run(["inspect", text(&path)]).ended(0).stdout;
        let pid = actor.pid().to_string();
        let lines = shown
            .lines()
            .filter(|line| line.split_whitespace().any(|word| word == pid));
        let is_stopped = lines.map(|line| line.contains("stopped"));
        is_stopped.collect::<Vec<bool>>()
    };
    assert_eq!(
        states(),
        [false, false],
        "among the processes, and among the holders"
    );
    actor.signal(Signal::SIGSTOP);
    wait_for("holder_stopped", &path);
    assert_eq!(states(), [true, true]);
    actor.signal(Signal::SIGCONT);
}

#[test]
fn who_held_nothing_when_it_was_killed_is_worth_a_note_and_no_alarm() {
    let directory = directory();
    let path = create_with(directory.path(), ONE_PLACE);
    Actor::start("attach", &path).kill();
    assert_eq!(the("participant_dead", &findings(&path))["severity"], "note");
    run(["doctor", "--strict", text(&path)]).ended(0);
    Actor::start("hold", &path).kill();
    assert_eq!(the("participant_dead", &findings(&path))["severity"], "warning");
    run(["doctor", "--strict", text(&path)]).ended(1);
}
