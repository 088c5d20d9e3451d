//! Processes whose `/proc` does not say which boot this is, as in systemd units with `ProcSubset=pid`, or that have no
//! `/proc`.
#![allow(unsafe_code, reason = "mounts another /proc")]

use std::path::Path;
use std::sync::atomic::Ordering;

use crate::layout_mirror::RawSegment;
use crate::layout_mirror::words::header;
use crate::scene;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use nix::errno::Errno;
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Error, Limit, OpenError, Segment, SetDeclaration};

const SLOTS: u64 = 2;

fn create(path: &Path) -> Segment {
    let set = SetDeclaration::new("api").add_limit(Limit::concurrency("slots", SLOTS));
    Segment::create(path, &scene::declaration().participants(8).add_set(set)).expect("a segment")
}

fn can_take(segment: &Segment, slots: u64) -> bool {
    let api = segment.set("api").expect("declared");
    let request = api.request().with("slots", slots).expect("declared");
    request.try_acquire().expect("works").is_admitted()
}

fn cold_starts(segment: &Segment) -> u64 {
    segment.snapshot().expect("a copy").cold_starts
}

/// Gives this process mounts of its own, with a `/proc` that only shows processes, or with none. Returns whether that
/// is permitted.
fn hide_proc(is_there: bool) -> bool {
    // SAFETY: no memory is involved.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        println!("skipped: no mounts of its own: {}", Errno::last());
        return false;
    }
    let (none, root, proc) = (c"none".as_ptr(), c"/".as_ptr(), c"/proc".as_ptr());
    let (data, private) = (c"subset=pid".as_ptr(), libc::MS_REC | libc::MS_PRIVATE);
    // SAFETY: the pointers are to strings that end with NUL; no memory of this process is changed.
    let is_private = unsafe { libc::mount(none, root, none, private, std::ptr::null()) } == 0;
    let kind = if is_there { c"proc" } else { c"tmpfs" };
    let options = if is_there { data.cast() } else { std::ptr::null() };
    // SAFETY: as above.
    let is_mounted = is_private && unsafe { libc::mount(none, proc, kind.as_ptr(), 0, options) } == 0;
    if !is_mounted {
        println!("skipped: no such /proc: {}", Errno::last());
    }
    is_mounted
}

/// Two processes use a segment at once; the first may have created it. `is_hidden` says what each one's `/proc` is
/// like.
fn share(path: &Path, creates: bool, is_hidden: [bool; 2]) {
    let words = SharedWords::new(2);
    let first = Child::fork(|| {
        if is_hidden[0] && !hide_proc(true) {
            words[1].store(1, Ordering::SeqCst);
            return;
        }
        let segment = if creates {
            create(path)
        } else {
            Segment::open(path).expect("opens")
        };
        let api = segment.set("api").expect("declared");
        let held = scene::expect_permit(api.request().try_acquire());
        words[0].store(1, Ordering::SeqCst);
        eventually("the other has looked", || words[0].load(Ordering::SeqCst) == 2);
        drop(held);
        assert_eq!(cold_starts(&segment), 0);
    });
    eventually("the first uses it", || {
        words[0].load(Ordering::SeqCst) == 1 || words[1].load(Ordering::SeqCst) == 1
    });
    if words[1].load(Ordering::SeqCst) == 1 {
        return first.succeed();
    }
    Child::fork(|| {
        if is_hidden[1] && !hide_proc(true) {
            return;
        }
        let reader = SegmentReader::open(path).expect("opens");
        let diagnosis = reader.diagnose().expect("a diagnosis");
        assert!(diagnosis.obstacles.is_empty(), "{:?}", diagnosis.obstacles);
        assert!(diagnosis.place.same_boot);
        let segment = Segment::open(path).expect("opens");
        assert!(can_take(&segment, 1) && !can_take(&segment, 2));
    })
    .succeed();
    words[0].store(2, Ordering::SeqCst);
    first.succeed();
}

#[test]
fn a_process_that_is_not_told_the_boot_shares_a_segment_in_either_order() {
    let test = "hidden_proc::a_process_that_is_not_told_the_boot_shares_a_segment_in_either_order";
    in_own_process(test, TIMEOUT, |directory| {
        for (nth, is_hidden) in [[false, true], [true, false], [true, true], [false, false]]
            .iter()
            .enumerate()
        {
            let path = directory.join(format!("created-{nth}"));
            share(&path, true, *is_hidden);
            if !path.exists() {
                return;
            }
            // Nobody uses the segment now. Opened again, it is not taken for a segment of another boot.
            for is_hidden in [[false, true], [true, false], [true, true]] {
                share(&path, false, is_hidden);
            }
        }
    });
}

#[test]
fn who_is_told_the_boot_notes_it_for_those_who_come_later() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    drop(create(&path));
    let raw = RawSegment::open(&path);
    let boot = [0, 1].map(|half| raw.word(header::BOOT_ID + half));
    for unknown in [[0, 0], [boot[0], 0]] {
        // The same holds if the process that recorded the boot died between the two halves.
        for (half, word) in unknown.into_iter().enumerate() {
            raw.set_word(header::BOOT_ID + half, word);
        }
        assert_eq!(cold_starts(&Segment::open(&path).expect("opens")), 0);
        assert_eq!([0, 1].map(|half| raw.word(header::BOOT_ID + half)), boot);
    }
}

/// Nobody uses the segment, so its locks can be recreated; what its clock has shown may come from another boot.
#[test]
fn a_segment_whose_boot_is_not_known_and_whose_clock_is_wrong_here_starts_cold_and_never_ahead() {
    const HOUR: u64 = 3_600_000_000_000;
    let directory = tempfile::tempdir().expect("a directory");
    for (name, error) in [("behind", 0_u64.wrapping_sub(2 * HOUR)), ("ahead", 2 * HOUR)] {
        let path = directory.path().join(name);
        let segment = create(&path);
        assert!(can_take(&segment, 1));
        drop(segment);
        let raw = RawSegment::open(&path);
        let right = raw.word(header::CLOCK_OFFSET);
        raw.set_word(header::CLOCK_OFFSET, right.wrapping_add(error));
        raw.set_word(header::BOOT_ID, 0);
        raw.set_word(header::BOOT_ID + 1, 0);
        assert_eq!(
            cold_starts(&Segment::open(&path).expect("starts cold")),
            1,
            "{name}"
        );
        let now = raw.word(header::CLOCK_OFFSET);
        let ahead = now.wrapping_sub(right).cast_signed();
        // Exact except for what the wall clock was adjusted by meanwhile.
        assert!(
            ahead < HOUR.cast_signed() && ahead > -HOUR.cast_signed(),
            "{name}: {ahead} ns ahead"
        );
    }
}

#[test]
fn a_process_without_proc_is_told_so() {
    let test = "hidden_proc::a_process_without_proc_is_told_so";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = create(&path);
        Child::fork(|| {
            if !hide_proc(false) {
                return;
            }
            match Segment::open(&path) {
                Err(Error::Open(error @ OpenError::ForeignNamespace { expected: 0, .. })) => {
                    assert!(error.to_string().contains("/proc is not mounted"), "{error}");
                }
                other => panic!("{other:?}"),
            }
        })
        .succeed();
        assert!(can_take(&segment, SLOTS));
    });
}
