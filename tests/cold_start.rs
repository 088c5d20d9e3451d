//! Files of another boot, and copies: locks and holders are void, limits go on.

mod process;
mod raw_segment;

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use nix::unistd::pause;
use process::{Child, Dice, PATIENCE, SharedWords, die, eventually, in_own_process};
use raw_segment::{CREATED_UTC, RawSegment};
use shmlimit::{Declaration, Error, Limit, Segment, SegmentReader, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);
const HALF_AN_HOUR: u64 = 1_800_000_000_000;
const SLOTS: u64 = 3;

fn declaration() -> Declaration {
    Declaration::new()
        .participants(8)
        .set(SetDeclaration::new("slots").limit(Limit::concurrency("slots", SLOTS)))
        .set(SetDeclaration::new("calls").limit(Limit::calls("calls", 10, HOUR)))
}

fn create(path: &Path) -> Segment {
    Segment::create(path, &declaration()).expect("a segment")
}

/// Takes calls until one is refused.
fn use_up(segment: &Segment) -> u64 {
    let calls = segment.set("calls").expect("declared");
    let request = calls.request();
    let is_admitted = || calls.try_acquire(&request).expect("works").is_admitted();
    (0..).take_while(|_| is_admitted()).count() as u64
}

fn can_take_slots(segment: &Segment, slots: u64) -> bool {
    let set = segment.set("slots").expect("declared");
    let request = set.request().with("slots", slots).expect("declared");
    set.try_acquire(&request).expect("works").is_admitted()
}

fn take_for_good(segment: &Segment, slots: u64) {
    let set = segment.set("slots").expect("declared");
    let request = set.request().with("slots", slots).expect("declared");
    let permit = set
        .try_acquire(&request)
        .expect("works")
        .permit()
        .expect("room for it");
    std::mem::forget(permit);
}

fn cold_starts(segment: &Segment) -> u64 {
    segment.snapshot().expect("a copy").cold_starts
}

#[test]
fn another_boot_voids_what_was_held_and_keeps_what_was_used() {
    let test = "another_boot_voids_what_was_held_and_keeps_what_was_used";
    in_own_process(test, PATIENCE, |folder| {
        let path = folder.join("limits");
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
    let test = "limits_go_on_by_the_wall_time_that_passed_between_two_boots";
    in_own_process(test, PATIENCE, |folder| {
        let path = folder.join("limits");
        assert_eq!(use_up(&create(&path)), 10);
        let raw = RawSegment::open(&path);
        raw.set_another_boot();
        raw.set_word(CREATED_UTC, raw.word(CREATED_UTC) - HALF_AN_HOUR);
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
    let test = "a_wall_clock_that_was_set_back_between_two_boots_gives_nothing_away";
    in_own_process(test, PATIENCE, |folder| {
        let path = folder.join("limits");
        assert_eq!(use_up(&create(&path)), 10);
        let raw = RawSegment::open(&path);
        raw.set_another_boot();
        raw.set_word(CREATED_UTC, raw.word(CREATED_UTC) + HALF_AN_HOUR);
        raw.seal_header();
        let segment = Segment::open(&path).expect("starts cold");
        assert_eq!(use_up(&segment), 0);
        assert!(can_take_slots(&segment, SLOTS));
    });
}

#[test]
fn a_lock_of_another_boot_is_void_although_a_thread_of_that_number_lives() {
    let test = "a_lock_of_another_boot_is_void_although_a_thread_of_that_number_lives";
    in_own_process(test, PATIENCE, |folder| {
        let path = folder.join("limits");
        drop(create(&path));
        let words = SharedWords::new(1);
        // It is not attached: as far as anybody can tell, its number in the lock is that of another boot's thread.
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
    let test = "a_holder_of_another_boot_is_void_although_a_process_of_that_number_lives";
    in_own_process(test, PATIENCE, |folder| {
        let path = folder.join("limits");
        let words = SharedWords::new(1);
        let _process_of_that_number = Child::fork(|| {
            let segment = create(&path);
            take_for_good(&segment, SLOTS);
            // Without the descriptors nothing but number and start time speaks for it.
            // SAFETY: the library is to stand that its descriptors are closed.
            let answer = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            assert_eq!(answer, 0);
            words[0].store(1, Ordering::SeqCst);
            loop {
                pause();
            }
        });
        eventually("the slots are taken", || words[0].load(Ordering::SeqCst) == 1);
        RawSegment::open(&path).set_another_boot();
        let segment = Segment::open(&path).expect("starts cold");
        eventually("the slots are free", || can_take_slots(&segment, SLOTS));
    });
}

#[test]
fn a_file_of_another_boot_with_somebody_attached_is_refused_until_he_is_gone() {
    let test = "a_file_of_another_boot_with_somebody_attached_is_refused_until_he_is_gone";
    in_own_process(test, PATIENCE, |folder| {
        let path = folder.join("limits");
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
                Err(Error::ForeignBoot { path: named }) if named == path
            ));
        }
        assert!(fs::read(&path).expect("bytes") == before, "something was changed");
        attached.kill();
        assert_eq!(cold_starts(&Segment::open(&path).expect("starts cold")), 1);
    });
}

#[test]
fn a_copy_is_a_segment_of_its_own() {
    let test = "a_copy_is_a_segment_of_its_own";
    in_own_process(test, PATIENCE, |folder| {
        let (path, copy_path) = (folder.join("limits"), folder.join("copy"));
        let original = create(&path);
        take_for_good(&original, 2);
        let calls = original.set("calls").expect("declared");
        for _ in 0..4 {
            assert!(calls.try_acquire(&calls.request()).expect("works").is_admitted());
        }
        // The holder of what the copy says is held is this very process.
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
    let test = "a_file_moved_within_its_file_system_stays_what_it_is";
    in_own_process(test, PATIENCE, |folder| {
        let (path, moved) = (folder.join("limits"), folder.join("moved"));
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
    let test = "a_process_killed_while_it_starts_a_segment_cold_leaves_it_to_the_next";
    in_own_process(test, 5 * PATIENCE, |folder| {
        let path = folder.join("limits");
        let segment = create(&path);
        assert_eq!(use_up(&segment), 10);
        drop(segment);
        let mut dice = Dice(7);
        let raw = RawSegment::open(&path);
        for round in 0..50 {
            raw.set_another_boot();
            let fuse = Duration::from_micros(dice.below(3000));
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
