//! Whoever may only read a segment can put read locks on it. They keep no dead process alive and make no place look
//! taken, and their owner is named if they are in the way.
#![allow(unsafe_code, reason = "locks as another program does")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::scene;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use nix::sys::signal::Signal;
use shmlimit::declare::LockKind;
use shmlimit::snapshot::{ProcessId, SegmentReader};
use shmlimit::{Declaration, Error, Limit, OpenError, Segment, SetDeclaration};

/// The byte of participant slot 0, and those before it.
const PARTICIPANTS: i64 = 1 << 40;
const ATTACH: i64 = PARTICIPANTS - 1;
const CHECKPOINT: i64 = PARTICIPANTS - 3;

/// Up to the last possible offset.
const ALL: i64 = 0;

fn declaration(kind: LockKind) -> Declaration {
    Declaration::new()
        .lock(kind)
        .participants(3)
        .add_set(SetDeclaration::new("api").add_limit(Limit::concurrency("places", 1)))
}

/// Takes a read lock, through a descriptor that allows no other: a lock of the open file, or a lock of the process,
/// such as lockf(3) takes.
fn read_lock(path: &Path, command: libc::c_int, start: i64, length: i64) -> File {
    let file = File::open(path).expect("readable");
    let lock = libc::flock {
        l_type: libc::F_RDLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    };
    // SAFETY: the structure lives during the call.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    file
}

/// A process with such a lock, which it keeps until this is dropped.
fn reader(path: &Path, command: libc::c_int, start: i64, length: i64) -> Child {
    let words = SharedWords::new(1);
    let child = Child::fork(|| {
        let _locked = read_lock(path, command, start, length);
        words[0].store(1, Ordering::SeqCst);
        loop {
            std::thread::park();
        }
    });
    eventually("it is locked", || words[0].load(Ordering::SeqCst) == 1);
    child
}

#[track_caller]
fn assert_named<T>(outcome: Result<T, Error>, reader: &Child) {
    match outcome.map(drop) {
        Err(Error::Open(OpenError::LockedByReader { processes, .. })) => {
            let ids: Vec<u64> = processes.iter().map(|it: &ProcessId| it.pid).collect();
            assert_eq!(ids, [u64::from(reader.id())]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dead_process_is_dead_whatever_a_reader_locks() {
    let test = "readers_locks::a_dead_process_is_dead_whatever_a_reader_locks";
    in_own_process(test, TIMEOUT, |directory| {
        for (number, kind) in [LockKind::RobustMutex, LockKind::Slot].into_iter().enumerate() {
            for command in [libc::F_OFD_SETLKW, libc::F_SETLKW] {
                let path = directory.join(format!("limits-{number}-{command}"));
                let segment = Segment::create(&path, &declaration(kind)).expect("a segment");
                let api = segment.set("api").expect("declared");
                let words = SharedWords::new(1);
                let holder = Child::fork(|| {
                    std::mem::forget(scene::expect_permit(api.request().try_acquire()));
                    words[0].store(1, Ordering::SeqCst);
                    loop {
                        std::thread::park();
                    }
                });
                eventually("it holds", || words[0].load(Ordering::SeqCst) == 1);
                // The second byte is the child's. Live processes count as alive, and their lock is not a reader's.
                let is_alive = |pid: u32| {
                    let participants = SegmentReader::open(&path).expect("readable").snapshot();
                    let participants = participants.expect("a copy").participants;
                    participants.iter().any(|it| it.pid == u64::from(pid) && it.alive)
                };
                assert!(is_alive(holder.id()) && is_alive(std::process::id()));
                scene::expect_refusal(api.request().try_acquire());
                let pid = holder.id();
                holder.send(Signal::SIGKILL);
                // The reader has the byte as soon as its owner is dead.
                let reader = reader(&path, command, PARTICIPANTS + 1, ALL);
                assert!(!is_alive(pid) && is_alive(std::process::id()));
                drop(scene::expect_permit(api.request().acquire(TIMEOUT)));
                let report = segment.recover().expect("recovers");
                assert_eq!(report.freed_participants, 1);
                // No process has taken a place, and yet none is available.
                Child::fork(|| assert_named(Segment::open(&path), &reader)).succeed();
                drop((holder, reader));
                Child::fork(|| drop(Segment::open(&path).expect("free again"))).succeed();
            }
        }
    });
}

#[test]
fn who_keeps_all_from_joining_by_reading_is_named() {
    let test = "readers_locks::who_keeps_all_from_joining_by_reading_is_named";
    in_own_process(test, TIMEOUT, |directory| {
        let kind = scene::lock_kind();
        let path = directory.join("limits");
        drop(Segment::create(&path, &declaration(kind)).expect("a segment"));
        for (command, start, length) in [
            (libc::F_OFD_SETLK, ATTACH, 1),
            (libc::F_SETLK, 0, ALL),
            (libc::F_OFD_SETLK, PARTICIPANTS, 3),
        ] {
            let reader = reader(&path, command, start, length);
            let mut obstacles = SegmentReader::open(&path)
                .expect("readable")
                .diagnose()
                .expect("a diagnosis")
                .obstacles;
            assert_eq!(obstacles.len(), 1, "{obstacles:?}");
            assert_named::<()>(obstacles.pop().map_or(Ok(()), Err), &reader);
            assert_named(Segment::open(&path), &reader);
            drop(reader);
            drop(Segment::open(&path).expect("free again"));
        }
    });
}

#[test]
fn who_keeps_checkpoints_from_being_written_by_reading_is_named() {
    let test = "readers_locks::who_keeps_checkpoints_from_being_written_by_reading_is_named";
    in_own_process(test, TIMEOUT, |directory| {
        let (path, kept) = (directory.join("limits"), directory.join("kept"));
        let segment = Segment::create(&path, &declaration(scene::lock_kind())).expect("a segment");
        assert!(segment.checkpoint(&kept).expect("written"));
        for command in [libc::F_OFD_SETLK, libc::F_SETLK] {
            let reader = reader(&kept, command, CHECKPOINT, 1);
            assert_named(segment.checkpoint(&kept), &reader);
        }
        assert!(segment.checkpoint(&kept).expect("written"));
    });
}
