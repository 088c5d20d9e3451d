//! Doctor's findings on processes that are frozen with their cgroup, which the kernel reports as sleeping.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::processes::{ONE_PLACE, create_with, pid_of, wait_for_queue};
use crate::support::health::{assert_healed, assert_well, findings_of, heal, shell, wait_for};
use crate::support::host::{can_unshare, is_root};
use crate::support::{Actor, TIMEOUT, create_with_locks, directory, run_command, text};
use nix::sys::signal::Signal;
use serde_json::Value;

/// A test's own cgroup, in which processes can be frozen; removed when it is dropped.
struct Freezer {
    /// The cgroup of the processes.
    directory: PathBuf,
    /// The cgroup that is frozen: the same, or one above it.
    frozen: PathBuf,
    switch: &'static str,
    states: [&'static str; 2],
}

/// Where freezers may be, in both versions of cgroups.
const PLACES: [(&str, &str, [&str; 2]); 3] = [
    ("/sys/fs/cgroup/freezer", "freezer.state", ["FROZEN", "THAWED"]),
    ("/sys/fs/cgroup/unified", "cgroup.freeze", ["1", "0"]),
    ("/sys/fs/cgroup", "cgroup.freeze", ["1", "0"]),
];

impl Freezer {
    /// One for each way to freeze processes on this host.
    fn each(test: &str) -> Vec<Self> {
        let mut made = Vec::new();
        for (root, switch, states) in PLACES {
            for is_above in [false, true] {
                let name = format!("limitctl-doctor-{}-{test}-{is_above}", std::process::id());
                let outer = Path::new(root).join(&name);
                let inner = outer.join("inner");
                if fs::create_dir(&outer).is_err() {
                    continue;
                }
                if fs::create_dir(&inner).is_err() || !inner.join(switch).exists() {
                    let _ = fs::remove_dir(&inner);
                    let _ = fs::remove_dir(&outer);
                    continue;
                }
                made.push(Self {
                    frozen: if is_above { outer } else { inner.clone() },
                    directory: inner,
                    switch,
                    states,
                });
            }
        }
        if made.is_empty() {
            println!("skipped: no cgroup in which processes can be frozen");
        }
        made
    }

    fn freeze(&self, actor: &Actor) {
        fs::write(self.directory.join("cgroup.procs"), actor.pid().to_string()).expect("moved");
        fs::write(self.frozen.join(self.switch), self.states[0]).expect("frozen");
    }

    fn thaw(&self) {
        fs::write(self.frozen.join(self.switch), self.states[1]).expect("thawed");
    }

    fn heal(&self) -> String {
        format!(
            "echo {} > {}",
            self.states[1],
            text(&self.frozen.join(self.switch))
        )
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        // Not every kernel kills frozen processes, and a cgroup with processes cannot be removed.
        self.thaw();
        let deadline = Instant::now() + TIMEOUT;
        while fs::remove_dir(&self.directory).is_err() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let _ = fs::remove_dir(self.directory.parent().expect("below another"));
    }
}

#[track_caller]
fn assert_frozen(finding: &Value, severity: &str, actor: &Actor, freezer: &Freezer) {
    assert_eq!(finding["severity"], severity, "{finding}");
    assert_eq!(pid_of(finding), u64::from(actor.pid()), "{finding}");
    let what = finding["what"].as_str().expect("text");
    assert!(what.contains("is frozen with its cgroup"), "{what}");
    assert_eq!(finding["heal"], freezer.heal());
}

#[test]
fn a_frozen_holder_is_a_warning_until_its_cgroup_is_thawed() {
    for freezer in Freezer::each("holder") {
        for lock in ["robust", "slot"] {
            let directory = directory();
            let path = create_with_locks(directory.path(), lock);
            let holder = Actor::start("hold", &path);
            freezer.freeze(&holder);
            wait_for("holder_stopped", &path);
            let finding = assert_healed("holder_stopped", "warning", &path);
            assert_frozen(&finding, "warning", &holder, &freezer);
            assert_well(&path);
            holder.kill();
        }
    }
}

#[test]
fn a_frozen_process_with_the_lock_is_an_error_until_its_cgroup_is_thawed() {
    for freezer in Freezer::each("lock") {
        let directory = directory();
        let path = crate::support::create(directory.path());
        let owner = Actor::start("spin", &path);
        owner.stop_with_the_lock(&path);
        freezer.freeze(&owner);
        // The process is continued, but stays frozen.
        owner.signal(Signal::SIGCONT);
        let finding = assert_healed("lock_stuck", "error", &path);
        assert_frozen(&finding, "error", &owner, &freezer);
        assert_well(&path);
        owner.kill();
    }
}

#[test]
fn a_frozen_process_at_the_head_of_a_queue_is_found_until_its_cgroup_is_thawed() {
    for freezer in Freezer::each("queue") {
        let directory = directory();
        let path = create_with(directory.path(), ONE_PLACE);
        let holder = Actor::start("hold", &path);
        let waiter = Actor::start("wait", &path);
        wait_for_queue(&path, 1);
        freezer.freeze(&waiter);
        wait_for("queue_stopped", &path);
        let finding = assert_healed("queue_stopped", "warning", &path);
        assert_frozen(&finding, "warning", &waiter, &freezer);
        holder.kill();
        assert_eq!(waiter.answer(), "granted");
        waiter.kill();
    }
}

/// In a container that does not show cgroups, the only thing to be seen is that the head does not collect its grant.
#[test]
fn a_queue_whose_head_is_frozen_where_that_cannot_be_seen_is_served_by_recover() {
    if !is_root() || !can_unshare(&["--mount"]) {
        return;
    }
    let Some(freezer) = Freezer::each("unseen").into_iter().next() else {
        return;
    };
    let directory = directory();
    let limit = "name = \"calls\"\nkind = \"calls\"\ncapacity = 1\nwindow = \"2s\"\nalgorithm = \"gcra\"\n";
    let path = create_with(directory.path(), limit);
    let taker = Actor::start("hold", &path);
    let waiter = Actor::start("wait", &path);
    wait_for_queue(&path, 1);
    freezer.freeze(&waiter);
    taker.kill();
    let without_cgroups = format!(
        "exec unshare --mount sh -c 'umount --recursive --lazy /sys/fs/cgroup; exec limitctl doctor --json {}'",
        text(&path)
    );
    let deadline = Instant::now() + TIMEOUT;
    let finding = loop {
        let said = run_command(&mut shell(&without_cgroups)).json();
        if let Some(finding) = findings_of(&said)
            .into_iter()
            .find(|it| it["finding"] == "queue_stuck")
        {
            break finding;
        }
        assert!(Instant::now() < deadline, "{said}");
    };
    assert_eq!(
        (&finding["severity"], pid_of(&finding)),
        (&"error".into(), u64::from(waiter.pid()))
    );
    heal(&finding);
    freezer.thaw();
    assert_eq!(waiter.answer(), "granted");
    waiter.kill();
}
