//! Files of another boot, and copies: locks and holders are void, limits continue.
#![allow(unsafe_code, reason = "makes a thread leave its robust locks")]

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::layout_mirror::RawSegment;
use crate::layout_mirror::words::{header, participant};
use crate::scene;
use crate::scene::expect_permit;
use crate::scene::process::{Child, SharedWords, TIMEOUT, die, eventually, in_own_process};
use fastrand::Rng;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use nix::unistd::pause;
use shmlimit::declare::LockKind;
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Declaration, Error, Limit, OpenError, Segment, SegmentError, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);
const HALF_AN_HOUR: u64 = 1_800_000_000_000;
const SLOTS: u64 = 3;

fn declaration() -> Declaration {
    declaration_with(scene::lock_kind())
}

fn declaration_with(lock: LockKind) -> Declaration {
    Declaration::new()
        .lock(lock)
        .participants(8)
        .add_set(SetDeclaration::new("slots").add_limit(Limit::concurrency("slots", SLOTS)))
        .add_set(SetDeclaration::new("calls").add_limit(Limit::calls("calls", 10, HOUR)))
}

fn create(path: &Path) -> Segment {
    Segment::create(path, &declaration()).expect("a segment")
}

/// Creates a segment with locks whose owner's death the kernel reports, for processes of one PID namespace.
fn create_with_mutexes(path: &Path) -> Segment {
    Segment::create(path, &declaration_with(LockKind::RobustMutex)).expect("a segment")
}

/// Takes calls until one is refused.
fn use_up(segment: &Segment) -> u64 {
    let calls = segment.set("calls").expect("declared");
    let request = calls.request();
    let is_admitted = || request.try_acquire().expect("works").is_admitted();
    (0..).take_while(|_| is_admitted()).count() as u64
}

fn can_take_slots(segment: &Segment, slots: u64) -> bool {
    let set = segment.set("slots").expect("declared");
    let request = set.request().with("slots", slots).expect("declared");
    request.try_acquire().expect("works").is_admitted()
}

fn take_for_good(segment: &Segment, slots: u64) {
    let set = segment.set("slots").expect("declared");
    let request = set.request().with("slots", slots).expect("declared");
    let permit = expect_permit(request.try_acquire());
    std::mem::forget(permit);
}

fn cold_starts(segment: &Segment) -> u64 {
    segment.snapshot().expect("a copy").cold_starts
}

#[test]
fn another_boot_voids_what_was_held_and_keeps_what_was_used() {
    let test = "cold_start::another_boot_voids_what_was_held_and_keeps_what_was_used";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        Child::fork(|| {
            let segment = create(&path);
            take_for_good(&segment, 2);
            assert_eq!(use_up(&segment), 10);
        })
        .succeed();
        RawSegment::open(&path).set_another_boot();
        let reader = SegmentReader::open(&path).expect("opens");
        assert!(!reader.snapshot().expect("a copy").same_place);
        let segment = Segment::open(&path).expect("starts cold");
        assert_eq!(cold_starts(&segment), 1);
        assert_eq!(use_up(&segment), 0);
        eventually("the slots are free", || can_take_slots(&segment, SLOTS));
        let again = Segment::open(&path).expect("opens");
        assert_eq!(cold_starts(&again), 1, "started cold twice");
    });
}

#[test]
fn limits_go_on_by_the_wall_time_that_passed_between_two_boots() {
    let test = "cold_start::limits_go_on_by_the_wall_time_that_passed_between_two_boots";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        assert_eq!(use_up(&create(&path)), 10);
        let raw = RawSegment::open(&path);
        raw.set_another_boot();
        raw.set_word(header::CREATED_UTC, raw.word(header::CREATED_UTC) - HALF_AN_HOUR);
        raw.seal_header();
        let segment = Segment::open(&path).expect("starts cold");
        assert_eq!(use_up(&segment), 5, "half of the hour has passed");
        drop(segment);
        // No time passed between these two.
        raw.set_another_boot();
        assert_eq!(use_up(&Segment::open(&path).expect("starts cold")), 0);
    });
}

#[test]
fn a_wall_clock_that_was_set_back_between_two_boots_gives_nothing_away() {
    let test = "cold_start::a_wall_clock_that_was_set_back_between_two_boots_gives_nothing_away";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        assert_eq!(use_up(&create(&path)), 10);
        let raw = RawSegment::open(&path);
        raw.set_another_boot();
        raw.set_word(header::CREATED_UTC, raw.word(header::CREATED_UTC) + HALF_AN_HOUR);
        raw.seal_header();
        let segment = Segment::open(&path).expect("starts cold");
        assert_eq!(use_up(&segment), 0);
        assert!(can_take_slots(&segment, SLOTS));
    });
}

#[test]
fn a_lock_of_another_boot_is_void_although_a_thread_of_that_number_lives() {
    let test = "cold_start::a_lock_of_another_boot_is_void_although_a_thread_of_that_number_lives";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        drop(create_with_mutexes(&path));
        let words = SharedWords::new(1);
        // The child is not attached: as far as anybody can tell, its number in the lock belongs to a thread of another
        // boot.
        let _thread_of_that_number = Child::fork(|| {
            let lock = RawSegment::open(&path).lock();
            lock.take();
            words[0].store(1, Ordering::SeqCst);
            loop {
                pause();
            }
        });
        eventually("the lock is taken", || words[0].load(Ordering::SeqCst) == 1);
        RawSegment::open(&path).set_another_boot();
        let segment = Segment::open(&path).expect("starts cold");
        assert!(can_take_slots(&segment, SLOTS));
        assert_eq!(segment.snapshot().expect("a copy").sets[0].counts.recoveries, 0);
    });
}

#[test]
fn a_holder_of_another_boot_is_void_although_a_process_of_that_number_lives() {
    let test = "cold_start::a_holder_of_another_boot_is_void_although_a_process_of_that_number_lives";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        Child::fork(|| {
            let segment = create(&path);
            take_for_good(&segment, SLOTS);
            die();
        })
        .wait();
        let raw = RawSegment::open(&path);
        // As far as anybody can tell, the holder is this very process.
        let probe = Segment::create(directory.join("probe"), &declaration()).expect("a segment");
        let own = RawSegment::open(probe.path());
        for position in [participant::PID, participant::START_TIME] {
            let value = own.word(own.participant_word(0, position));
            raw.set_word(raw.participant_word(0, position), value);
        }
        raw.set_another_boot();
        let segment = Segment::open(&path).expect("starts cold");
        eventually("the slots are free", || can_take_slots(&segment, SLOTS));
    });
}

#[test]
fn a_file_of_another_boot_with_a_process_attached_is_refused_until_that_is_gone() {
    let test = "cold_start::a_file_of_another_boot_with_a_process_attached_is_refused_until_that_is_gone";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        drop(create(&path));
        let words = SharedWords::new(1);
        let attached = Child::fork(|| {
            let _segment = Segment::open(&path).expect("opens");
            words[0].store(1, Ordering::SeqCst);
            loop {
                pause();
            }
        });
        eventually("the child is attached", || words[0].load(Ordering::SeqCst) == 1);
        RawSegment::open(&path).set_another_boot();
        let before = fs::read(&path).expect("bytes");
        for _ in 0..3 {
            assert!(matches!(
                Segment::open(&path),
                Err(Error::Open(OpenError::ForeignBoot { path: named })) if named == path
            ));
        }
        assert!(fs::read(&path).expect("bytes") == before, "something was changed");
        attached.kill();
        assert_eq!(cold_starts(&Segment::open(&path).expect("starts cold")), 1);
    });
}

#[test]
fn a_copy_is_a_segment_of_its_own() {
    let test = "cold_start::a_copy_is_a_segment_of_its_own";
    in_own_process(test, TIMEOUT, |directory| {
        let (path, copy_path) = (directory.join("limits"), directory.join("copy"));
        let original = create(&path);
        take_for_good(&original, 2);
        let calls = original.set("calls").expect("declared");
        for _ in 0..4 {
            assert!(calls.request().try_acquire().expect("works").is_admitted());
        }
        // According to the copy, this very process holds it.
        fs::copy(&path, &copy_path).expect("a copy");
        let copy = Segment::open(&copy_path).expect("starts cold");
        assert_eq!(cold_starts(&copy), 1);
        assert_eq!(use_up(&copy), 6);
        eventually("the copy's slots are free", || can_take_slots(&copy, SLOTS));
        assert_eq!(cold_starts(&original), 0);
        assert!(!can_take_slots(&original, 2), "the original's are held");
        assert_eq!(use_up(&original), 6);
    });
}

#[test]
fn a_file_moved_within_its_file_system_stays_what_it_is() {
    let test = "cold_start::a_file_moved_within_its_file_system_stays_what_it_is";
    in_own_process(test, TIMEOUT, |directory| {
        let (path, moved) = (directory.join("limits"), directory.join("moved"));
        let segment = create(&path);
        fs::rename(&path, &moved).expect("moved");
        let again = Segment::open(&moved).expect("opens");
        assert_eq!(cold_starts(&again), 0);
        take_for_good(&segment, SLOTS);
        assert!(!can_take_slots(&again, 1), "they share the slots");
    });
}

#[test]
fn a_process_killed_while_it_starts_a_segment_cold_leaves_it_to_the_next() {
    let test = "cold_start::a_process_killed_while_it_starts_a_segment_cold_leaves_it_to_the_next";
    in_own_process(test, 5 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create(&path);
        assert_eq!(use_up(&segment), 10);
        drop(segment);
        let mut dice = Rng::with_seed(7);
        let raw = RawSegment::open(&path);
        for round in 0..50 {
            raw.set_another_boot();
            let fuse = Duration::from_micros(dice.u64(..3000));
            let mut child = Child::fork(|| {
                std::thread::spawn(move || {
                    std::thread::sleep(fuse);
                    die();
                });
                loop {
                    let segment = Segment::open(&path).expect("opens or starts cold");
                    take_for_good(&segment, 1);
                    drop(segment);
                    raw.set_another_boot();
                }
            });
            let status = child.wait();
            assert!(
                matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _)),
                "round {round}: the child failed before it was killed"
            );
            let segment = Segment::open(&path).unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert_eq!(use_up(&segment), 0, "round {round}");
            eventually("the slots are free", || can_take_slots(&segment, SLOTS));
            assert!(!segment.snapshot().expect("a copy").sets[0].poisoned);
        }
    });
}

/// With the wall clock an hour ahead, a restarted container must not get back what it had used.
#[test]
fn a_cold_start_within_a_boot_keeps_the_clock() {
    let test = "cold_start::a_cold_start_within_a_boot_keeps_the_clock";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        assert_eq!(use_up(&create_with_mutexes(&path)), 10);
        let raw = RawSegment::open(&path);
        raw.set_word(header::PID_NAMESPACE, raw.word(header::PID_NAMESPACE) + 1);
        raw.set_word(
            header::CREATED_UTC,
            raw.word(header::CREATED_UTC) - 2 * HALF_AN_HOUR,
        );
        raw.seal_header();
        let segment = Segment::open(&path).expect("starts cold");
        assert_eq!(cold_starts(&segment), 1);
        assert_eq!(use_up(&segment), 0);
        drop(segment);
        // The same happens if an earlier cold start was interrupted.
        raw.set_word(header::BOOT_ID, 0);
        let segment = Segment::open(&path).expect("starts cold");
        assert_eq!(cold_starts(&segment), 2);
        assert_eq!(use_up(&segment), 0);
    });
}

/// Kills the calling process while it has the lock of the first set, in a way that the kernel does not mark the lock:
/// like a process made by a bare clone, which has no list of its robust locks.
fn die_with_the_lock_unmarked(path: &Path) -> ! {
    let lock = RawSegment::open(path).lock();
    // Taken before the list is replaced, because musl registers its own when a thread takes its first robust lock.
    lock.take();
    let empty_list = [0_usize; 3];
    // SAFETY: the list's head points to nothing and outlives the thread that the kernel will read it for.
    let answer = unsafe { libc::syscall(libc::SYS_set_robust_list, empty_list.as_ptr(), 24) };
    assert_eq!(answer, 0);
    die()
}

/// This helps after a death that the kernel does not mark.
#[test]
fn a_lock_without_an_owner_is_made_anew_as_soon_as_no_process_is_attached() {
    let test = "cold_start::a_lock_without_an_owner_is_made_anew_as_soon_as_no_process_is_attached";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create_with_mutexes(&path);
        take_for_good(&segment, 1);
        assert_eq!(use_up(&segment), 10);
        Child::fork(|| die_with_the_lock_unmarked(&path)).wait();
        let open = || {
            let options = shmlimit::OpenOptions::new().lock_timeout(Duration::from_millis(10));
            options.open(&path).expect("opens")
        };
        // As long as a process is attached, nobody knows that it will not release the lock.
        let is_stuck = |segment: &Segment| {
            let slots = segment.set("slots").expect("declared");
            matches!(
                slots.request().try_acquire(),
                Err(Error::Segment(SegmentError::LockStuck { .. }))
            )
        };
        assert!(is_stuck(&open()));
        drop(segment);
        let healed = open();
        assert!(!is_stuck(&healed));
        eventually("what was held is free", || can_take_slots(&healed, SLOTS));
        assert_eq!(use_up(&healed), 0);
    });
}

/// The file is a copy that was made while the lock was held.
#[test]
fn a_file_restored_with_the_lock_held_can_be_used() {
    let test = "cold_start::a_file_restored_with_the_lock_held_can_be_used";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        drop(create(&path));
        let raw = RawSegment::open(&path);
        let lock = raw.lock();
        lock.take();
        let copy = fs::read(&path).expect("bytes");
        lock.let_go();
        drop(lock);
        raw.set_bytes(0, &copy);
        let segment = Segment::open(&path).expect("opens");
        assert!(can_take_slots(&segment, SLOTS));
    });
}

#[test]
fn what_a_killed_remover_left_is_removed_and_made_anew_by_open_or_create() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    assert_eq!(use_up(&create(&path)), 10);
    RawSegment::open(&path).set_word(header::RETIRED, 1);
    assert!(matches!(
        Segment::open(&path),
        Err(Error::Segment(SegmentError::Removed { .. }))
    ));
    let successor = Segment::open_or_create(&path, &declaration()).expect("made anew");
    assert_eq!(use_up(&successor), 10);
    let again = Segment::open_or_create(&path, &declaration()).expect("opens");
    assert_eq!(use_up(&again), 0);
}
