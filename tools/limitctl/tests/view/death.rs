//! Processes that use a segment while it is shown, and die while using it.

use std::fs;

use crate::support::health::{assert_well, findings};
use crate::support::{Actor, create, die_with_lock_and_permit, directory, run, text};
use nix::sys::signal::Signal;
use shmlimit::snapshot::SegmentReader;

#[test]
fn a_stopped_holder_of_the_lock_blocks_no_reader_and_is_named() {
    let directory = directory();
    let path = create(directory.path());
    let actor = Actor::start("spin", &path);
    actor.stop_with_the_lock(&path);
    let pid = actor.pid();

    let shown = run(["inspect", text(&path)]).ended(0).stdout;
    assert!(shown.contains(&format!("held by process {pid} (")), "{shown}");
    let json = run(["inspect", "--json", text(&path)]).ended(0).json();
    assert_eq!(json["sets"][0]["lock"]["holder_pid"], pid);
    run(["list", text(directory.path())]).ended(0);

    let named = format!("process {pid} ");
    let reset = run(["reset", "--lock-timeout", "50ms", text(&path)]).ended(69);
    assert!(reset.stderr.contains(&named), "{reset:?}");
    let recover = run(["recover", "--lock-timeout", "50ms", text(&path)]).ended(69);
    assert!(recover.stdout.contains(&named), "{recover:?}");

    actor.signal(Signal::SIGCONT);
    run(["reset", text(&path)]).ended(0);
}

#[test]
fn what_a_killed_process_left_is_found_by_doctor_which_changes_nothing_and_set_right_by_recover() {
    let directory = directory();
    let path = create(directory.path());
    let (locker, holder) = die_with_lock_and_permit(&path);

    let before = fs::read(&path).expect("read");
    let found = findings(&path);
    run(["inspect", text(&path)]).ended(0);
    assert!(fs::read(&path).expect("read") == before, "a byte was changed");

    let has = |kind: &str, pid: Option<u32>| {
        found
            .iter()
            .any(|it| it["finding"] == kind && pid.is_none_or(|pid| it["pid"] == pid))
    };
    assert!(has("lock_owner_dead", None), "{found:?}");
    assert!(has("participant_dead", Some(locker)), "{found:?}");
    assert!(has("participant_dead", Some(holder)), "{found:?}");
    assert!(has("held_by_the_dead", Some(holder)), "{found:?}");

    let json = run(["recover", "--json", text(&path)]).ended(0).json();
    assert_eq!(json["sets"][0]["repairs"]["owner_died"], true);
    assert!(json["sets"][0]["reclaimed"].as_u64().expect("a number") >= 1);
    let set = run(["inspect", "--json", text(&path)]).ended(0).json()["sets"][0].clone();
    assert_eq!(set["lock"]["owner_died"], false);
    assert_eq!(set["counts"]["recoveries"], 1);
    assert_eq!(set["limits"][1]["remaining"], 4);
    assert_well(&path);
}

#[test]
fn recover_says_what_it_did() {
    let directory = directory();
    let path = create(directory.path());
    let first = Actor::start("attach", &path);
    let second = Actor::start("hold", &path);
    first.kill();
    second.kill();
    let shown = run(["recover", text(&path)]).ended(0).stdout;
    assert!(
        shown.contains("api: gave back 1 hold of dead processes"),
        "{shown}"
    );
    // The other one's participant slot went to limitctl itself.
    assert!(shown.contains("freed 1 place of dead processes"), "{shown}");
}

#[test]
fn doctor_finds_nothing_wrong_with_a_segment_in_heavy_use() {
    let directory = directory();
    let path = create(directory.path());
    let _actors = [Actor::start("spin", &path), Actor::start("spin", &path)];
    for _ in 0..50 {
        let found = findings(&path);
        assert!(found.is_empty(), "{found:?}");
    }
}

#[test]
fn remove_refuses_while_a_process_is_attached_and_tells_it_when_forced() {
    let directory = directory();
    let path = create(directory.path());
    let mut actor = Actor::start("attach", &path);
    let refused = run(["remove", text(&path)]).ended(1);
    assert!(
        refused
            .stderr
            .contains(&format!("in use by process {}", actor.pid())),
        "{refused:?}"
    );
    assert!(path.exists());
    assert!(
        !SegmentReader::open(&path)
            .expect("untouched")
            .snapshot()
            .expect("copied")
            .retired
    );

    run(["remove", "--force", text(&path)]).ended(0);
    assert!(!path.exists());
    assert_eq!(actor.go_on(), "retired");
}

#[test]
fn a_refused_remove_does_no_harm() {
    let directory = directory();
    let path = create(directory.path());
    let mut actor = Actor::start("attach", &path);
    run(["remove", text(&path)]).ended(1);
    assert_eq!(actor.go_on(), "admitted true");
}

#[test]
fn the_dead_do_not_keep_a_segment_from_being_removed() {
    let directory = directory();
    let path = create(directory.path());
    Actor::start("hold", &path).kill();
    run(["remove", text(&path)]).ended(0);
    assert!(!path.exists());
}

#[test]
fn what_a_killed_process_holds_is_shown_apart_and_as_free_without_changing_a_byte() {
    let directory = directory();
    let path = create(directory.path());
    let holder = Actor::start("hold", &path);
    let look = || run(["inspect", "--json", text(&path)]).ended(0).json()["sets"][0].clone();
    let set = look();
    assert_eq!((&set["active"], &set["of_dead"]), (&1.into(), &0.into()));
    assert_eq!(set["limits"][1]["remaining"], 3);
    holder.kill();

    let before = fs::read(&path).expect("read");
    let set = look();
    assert_eq!((&set["active"], &set["of_dead"]), (&0.into(), &1.into()));
    let in_flight = &set["limits"][1];
    assert_eq!(
        (&in_flight["remaining"], &in_flight["of_dead"]),
        (&4.into(), &1.into())
    );
    let shown = run(["inspect", text(&path)]).ended(0).stdout;
    assert!(
        shown.contains("hold something, at most 1 at once; 1 more of dead processes"),
        "{shown}"
    );
    assert!(shown.contains("1 of dead processes"), "{shown}");
    assert!(fs::read(&path).expect("read") == before, "a byte was changed");
}
