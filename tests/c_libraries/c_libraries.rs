//! A segment with slot locks under two programs at once, built from the same sources: one with this C library, and one
//! with musl, whose mutexes are different. `tools/checks/platforms.sh` builds the latter, and passes its path in
//! `SHMLIMIT_MUSL_HOLDER`.

#[path = "../scene/process.rs"]
mod process;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use process::eventually;
use shmlimit::declare::LockKind;
use shmlimit::snapshot::{SegmentReader, SetSnapshot};
use shmlimit::{Declaration, Limit, Segment, SetDeclaration};

const PLACES: usize = 2;

const OURS: &str = env!("CARGO_BIN_EXE_holder");

/// The other program, if there is one.
fn musl() -> Option<PathBuf> {
    let path = std::env::var_os("SHMLIMIT_MUSL_HOLDER").map(PathBuf::from);
    if path.is_none() {
        println!("skipped: no SHMLIMIT_MUSL_HOLDER");
    }
    path
}

fn create(directory: &Path, lock: LockKind) -> PathBuf {
    let path = directory.join("segment");
    let jobs = SetDeclaration::new("jobs").add_limit(Limit::concurrency("running", PLACES as u64));
    let declaration = Declaration::new().lock(lock).add_set(jobs);
    Segment::create(&path, &declaration).expect("a segment");
    path
}

fn hold(program: &Path, segment: &Path, script: &str) -> Child {
    Command::new(program)
        .arg(segment)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started")
}

fn finish(child: Child) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().expect("a child");
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("text")
}

fn jobs(segment: &Path) -> SetSnapshot {
    let reader = SegmentReader::open(segment).expect("readable");
    reader.snapshot().expect("a copy").sets.remove(0)
}

#[test]
fn programs_with_two_c_libraries_never_hold_more_than_there_is() {
    let Some(musl) = musl() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let segment = create(directory.path(), LockKind::Slot);
    let log = directory.path().join("log");
    // Each line is written by a single call, at the end of the file.
    let script = format!("echo + >>{log}; sleep 0.02; echo - >>{log}", log = log.display());
    let holders: Vec<Child> = [Path::new(OURS), &musl]
        .into_iter()
        .cycle()
        .take(24)
        .map(|program| hold(program, &segment, &script))
        .collect();
    for holder in holders {
        finish(holder);
    }
    let (mut running, mut max, mut ended) = (0_usize, 0, 0);
    for line in fs::read_to_string(&log).expect("a log").lines() {
        if line == "+" {
            running += 1;
            max = max.max(running);
        } else {
            running -= 1;
            ended += 1;
        }
    }
    assert!((1..=PLACES).contains(&max), "{max} at once");
    assert_eq!((running, ended), (0, 24));
}

#[test]
fn what_one_that_was_killed_held_goes_to_one_with_the_other_c_library() {
    let Some(musl) = musl() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let segment = create(directory.path(), LockKind::Slot);
    let ours = Path::new(OURS);
    for (dies, is_served) in [(&*musl, ours), (ours, &musl)] {
        let holders: Vec<Child> = (0..PLACES).map(|_| hold(dies, &segment, "read line")).collect();
        eventually("all is held", || {
            jobs(&segment)
                .holds
                .iter()
                .filter(|hold| hold.owner_alive)
                .count()
                == PLACES
        });
        let waiter = hold(is_served, &segment, "echo served");
        eventually("another waits", || jobs(&segment).tickets.len() == 1);
        for mut holder in holders {
            holder.kill().expect("alive");
            holder.wait().expect("a child of this process");
        }
        assert_eq!(finish(waiter), "served\n");
    }
}

#[test]
fn a_segment_with_robust_mutexes_is_refused_by_a_program_with_another_c_library() {
    let Some(musl) = musl() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let segment = create(directory.path(), LockKind::RobustMutex);
    let refused = hold(&musl, &segment, "echo held")
        .wait_with_output()
        .expect("a child");
    assert!(
        !refused.status.success() && refused.stdout.is_empty(),
        "{refused:?}"
    );
    let message = String::from_utf8(refused.stderr).expect("text");
    assert!(
        message.contains("C library: found glibc, this build has musl"),
        "{message}"
    );
    assert!(message.contains("lock = \"slot\""), "{message}");
}
