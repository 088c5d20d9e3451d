//! A segment with slot locks under two programs at once: this one, and one of the same sources that is linked with musl, whose
//! mutexes are others. `tools/checks/platforms.sh` builds that, and says where it is in `SHMLIMIT_MUSL_LIMITCTL`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::support::{TIMEOUT, command, directory, finish, limitctl, run, run_command, text};
use shmlimit::SegmentReader;

const PLACES: usize = 2;

/// The other program, where there is one.
fn musl() -> Option<PathBuf> {
    let path = std::env::var_os("SHMLIMIT_MUSL_LIMITCTL").map(PathBuf::from);
    if path.is_none() {
        println!("skipped: no SHMLIMIT_MUSL_LIMITCTL");
    }
    path
}

fn create(directory: &Path, lock: &str) -> PathBuf {
    let path = directory.join(lock);
    let places = format!("running={PLACES}");
    let arguments = [
        "create",
        "--set",
        "jobs",
        "--concurrency",
        &places,
        "--lock",
        lock,
        text(&path),
    ];
    run(arguments).ended(0);
    path
}

fn exec(mut program: Command, segment: &Path, script: &str) -> Child {
    program
        .args(["exec", text(segment), "jobs", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started")
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "it never came to be that {what}");
        std::thread::yield_now();
    }
}

fn held(segment: &Path) -> usize {
    let reader = SegmentReader::open(segment).expect("readable");
    let holds = &reader.snapshot().expect("a copy").sets[0].holds;
    holds.iter().filter(|hold| hold.owner_alive).count()
}

#[test]
fn programs_with_two_c_libraries_never_hold_more_than_there_is() {
    let Some(musl) = musl() else { return };
    let directory = directory();
    let segment = create(directory.path(), "slot");
    let log = directory.path().join("log");
    // Each line is written by one call, at the end of the file.
    let script = format!("echo + >>{log}; sleep 0.02; echo - >>{log}", log = text(&log));
    let jobs: Vec<Child> = (0..24)
        .map(|number| {
            let program = if number % 2 == 0 {
                limitctl()
            } else {
                command(&musl)
            };
            exec(program, &segment, &script)
        })
        .collect();
    for job in jobs {
        finish(job).ended(0);
    }
    let (mut running, mut most, mut ended) = (0_usize, 0, 0);
    for line in fs::read_to_string(&log).expect("a log").lines() {
        if line == "+" {
            running += 1;
            most = most.max(running);
        } else {
            running -= 1;
            ended += 1;
        }
    }
    assert!((1..=PLACES).contains(&most), "{most} at once");
    assert_eq!((running, ended), (0, 24));
}

#[test]
fn what_one_that_was_killed_held_goes_to_one_with_the_other_c_library() {
    let Some(musl) = musl() else { return };
    let directory = directory();
    let segment = create(directory.path(), "slot");
    for musl_dies in [true, false] {
        let program = |is_musl: bool| if is_musl { command(&musl) } else { limitctl() };
        let holders: Vec<Child> = (0..PLACES)
            .map(|_| exec(program(musl_dies), &segment, "read line"))
            .collect();
        eventually("all is held", || held(&segment) == PLACES);
        let waiter = exec(program(!musl_dies), &segment, "echo served");
        let tickets = || {
            let reader = SegmentReader::open(&segment).expect("readable");
            reader.snapshot().expect("a copy").sets[0].tickets.len()
        };
        eventually("another waits", || tickets() == 1);
        for mut holder in holders {
            holder.kill().expect("alive");
            holder.wait().expect("a child of ours");
        }
        assert_eq!(finish(waiter).ended(0).stdout, "served\n");
    }
}

#[test]
fn a_segment_with_robust_mutexes_is_refused_by_a_program_with_another_c_library() {
    let Some(musl) = musl() else { return };
    let directory = directory();
    let segment = create(directory.path(), "robust");
    let refused = run_command(command(&musl).args(["inspect", text(&segment)]));
    assert_ne!(refused.code, 0);
    assert!(
        refused
            .stderr
            .contains("C library: found glibc, this build has musl"),
        "{refused:?}"
    );
    assert!(refused.stderr.contains("lock = \"slot\""), "{refused:?}");
    // For those who use it nothing is wrong with it, so nothing is to be removed.
    let examined = run_command(command(&musl).args(["doctor", text(&segment)])).ended(1);
    assert!(examined.stdout.contains("other_format"), "{examined:?}");
    assert!(!examined.stdout.contains("heal with"), "{examined:?}");
}
