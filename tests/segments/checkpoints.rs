//! Checkpoints: what a segment in memory has counted is there again after a reboot, whatever was killed or torn.

use std::ffi::c_int;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::layout_mirror::RawSegment;
use crate::scene;
use crate::scene::expect_permit;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use fastrand::Rng;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{F_UNLCK, F_WRLCK, SEEK_SET, flock};
use shmlimit::declare::Checkpoint;
use shmlimit::snapshot::SegmentReader;
use shmlimit::{
    Declaration, DeclarationError, Error, Limit, OpenError, Segment, SegmentError, SetDeclaration,
};
use siphasher::sip::SipHasher13;

/// So long that next to nothing is replenished during a test. Half of it is given in nanoseconds.
const WINDOW: Duration = Duration::from_secs(3_600_000);
const HALF_A_WINDOW: u64 = 1_800_000_000_000_000;
const CALLS: u64 = 100_000;

/// More calls than are replenished while a test runs.
const SOME: u64 = 100;

/// The bytes from the start of one head to the next, and to the first image: see the source.
const HEAD: u64 = 4096;
const IMAGES: u64 = 2 * HEAD;

/// How many words a head has. The last is a checksum of the others, and the one before it the wall clock.
const HEAD_WORDS: usize = 9;

fn declaration(kept: &Path) -> Declaration {
    scene::declaration()
        .participants(8)
        .checkpoint(Checkpoint::new(kept))
        .add_set(
            SetDeclaration::new("api")
                .add_limit(Limit::calls("calls", CALLS, WINDOW))
                .add_limit(Limit::rate("tokens", 7 * CALLS, WINDOW))
                .add_limit(Limit::concurrency("slots", 3)),
        )
}

/// Takes this many calls with one request, and always the same share of both limits.
fn take(segment: &Segment, calls: u64) {
    let api = segment.set("api").expect("declared");
    let request = api
        .request()
        .with("calls", calls)
        .and_then(|it| it.with("tokens", 7 * calls));
    let request = request.and_then(|it| it.with("slots", 0)).expect("declared");
    assert!(request.check().expect("works").is_admitted());
}

/// How many calls are left. There are seven times as many tokens.
fn left(segment: &Segment) -> u64 {
    let set = scene::first_set(segment);
    let left = |name: &str| {
        let limit = set
            .limits
            .iter()
            .find(|limit| limit.name == name)
            .expect("declared");
        limit.remaining
    };
    // Both are replenished, the tokens in smaller steps, so they may be up to one call ahead.
    let (calls, tokens) = (left("calls"), left("tokens"));
    assert!(
        (7 * calls..7 * calls + 7).contains(&tokens),
        "{calls} calls and {tokens} tokens"
    );
    calls
}

/// The bytes that a process locks while it makes a segment, and while it writes to a checkpoint.
const CONSTRUCTION: i64 = (1 << 40) - 2;
const WRITING: i64 = (1 << 40) - 3;

/// Locks a byte of a file or unlocks it, as if another process did.
fn set_lock(file: &File, byte: i64, kind: c_int) {
    let lock = flock {
        l_type: kind as i16,
        l_whence: SEEK_SET as i16,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    eventually("nobody else has it", || {
        fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).is_ok()
    });
}

/// Loses the file, as a reboot loses what lies in memory.
fn lose(path: &Path) {
    fs::remove_file(path).expect("it is there");
}

#[test]
fn a_segment_that_is_gone_goes_on_as_its_checkpoint_has_it_without_what_was_held() {
    let test = "checkpoints::a_segment_that_is_gone_goes_on_as_its_checkpoint_has_it_without_what_was_held";
    in_own_process(test, TIMEOUT, |directory| {
        let (path, kept) = (directory.join("limits"), directory.join("kept"));
        Child::fork(|| {
            let segment = Segment::open_or_create(&path, &declaration(&kept)).expect("a segment");
            take(&segment, CALLS / 2);
            let api = segment.set("api").expect("declared");
            let request = api.request().with("calls", 0).and_then(|it| it.with("tokens", 0));
            let request = request.and_then(|it| it.with("slots", 3)).expect("declared");
            std::mem::forget(expect_permit(request.try_acquire()));
            assert!(segment.checkpoint(&kept).expect("written"));
            // What is admitted from here on may be admitted again.
            take(&segment, CALLS / 4);
        })
        .succeed();
        lose(&path);
        let segment = Segment::open_or_create(&path, &declaration(&kept)).expect("restored");
        let left = left(&segment);
        assert!((CALLS / 2..CALLS / 2 + SOME).contains(&left), "{left}");
        let snapshot = segment.snapshot().expect("a copy");
        assert_eq!(snapshot.cold_starts, 1);
        let api = segment.set("api").expect("declared");
        let request = api.request().with("slots", 3).expect("declared");
        eventually("the slots are free", || {
            request.try_acquire().expect("works").is_admitted()
        });
    });
}

#[test]
fn the_time_that_passed_since_the_checkpoint_is_applied() {
    let test = "checkpoints::the_time_that_passed_since_the_checkpoint_is_applied";
    in_own_process(test, TIMEOUT, |directory| {
        let (path, kept) = (directory.join("limits"), directory.join("kept"));
        let segment = Segment::open_or_create(&path, &declaration(&kept)).expect("a segment");
        take(&segment, CALLS);
        // Makes the segment look as if it were of another boot, after the machine was off for half of the window.
        RawSegment::open(&path).set_another_boot();
        assert!(segment.checkpoint(&kept).expect("written"));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&kept)
            .expect("a checkpoint");
        let mut head = [0; HEAD_WORDS * 8];
        file.read_exact_at(&mut head, 0).expect("a head");
        let (words, checksum) = head.split_at_mut((HEAD_WORDS - 1) * 8);
        let taken_utc = words.last_chunk_mut::<8>().expect("words");
        let now = u64::from_ne_bytes(*taken_utc);
        // A clock without a battery starts with 1970, before any checkpoint was taken.
        let off = HALF_A_WINDOW.min(now / 2);
        *taken_utc = (now - off).to_ne_bytes();
        checksum.copy_from_slice(&SipHasher13::new().hash(words).to_ne_bytes());
        file.write_all_at(&head, 0).expect("written");
        drop(segment);
        lose(&path);
        let segment = Segment::open_or_create(&path, &declaration(&kept)).expect("restored");
        let left = left(&segment);
        let replenished = CALLS * (off / 1_000_000) / (2 * HALF_A_WINDOW / 1_000_000);
        assert!(replenished > 0, "{off}");
        assert!((replenished..replenished + SOME).contains(&left), "{left}");
    });
}

#[test]
fn a_torn_checkpoint_leaves_the_one_before_it_and_two_torn_ones_leave_a_new_segment() {
    let test =
        "checkpoints::a_torn_checkpoint_leaves_the_one_before_it_and_two_torn_ones_leave_a_new_segment";
    in_own_process(test, TIMEOUT, |directory| {
        let (path, kept) = (directory.join("limits"), directory.join("kept"));
        let segment = Segment::open_or_create(&path, &declaration(&kept)).expect("a segment");
        let size = fs::metadata(&path).expect("a file").len();
        take(&segment, CALLS / 2);
        assert!(segment.checkpoint(&kept).expect("written"));
        take(&segment, CALLS / 4);
        assert!(segment.checkpoint(&kept).expect("written"));
        drop(segment);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&kept)
            .expect("a checkpoint");
        let restored = || {
            lose(&path);
            // If the image before a torn one was restored, the segment is to be saved at once.
            set_lock(&file, WRITING, F_WRLCK);
            let segment = Segment::open_or_create(&path, &declaration(&kept)).expect("a segment");
            left(&segment)
        };
        let tear = |place| file.write_all_at(&[0xa5; 64], place).expect("written");
        assert!((CALLS / 4..CALLS / 4 + SOME).contains(&restored()));
        // The second was written last, into the second place.
        tear(IMAGES + size + size / 2);
        assert!((CALLS / 2..CALLS / 2 + SOME).contains(&restored()));
        tear(8);
        assert_eq!(restored(), CALLS);
        // The slots are written again, as if there had never been a checkpoint.
        let segment = Segment::open(&path).expect("opens");
        take(&segment, CALLS / 2);
        set_lock(&file, WRITING, F_UNLCK);
        assert!(segment.checkpoint(&kept).expect("written"));
        drop(segment);
        assert!((CALLS / 2..CALLS / 2 + SOME).contains(&restored()));
        file.set_len(IMAGES + 100).expect("cut short");
        assert_eq!(restored(), CALLS);
    });
}

/// Damages a file as a loss of power may: what the header says no longer matches its checksum.
fn damage(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).expect("a segment");
    file.write_all_at(&[0xa5; 8], 112).expect("written");
}

#[test]
fn a_damaged_segment_gives_way_to_its_checkpoint_unless_there_is_none_or_a_process_uses_it() {
    let test = "checkpoints::a_damaged_segment_gives_way_to_its_checkpoint_unless_there_is_none_or_a_process_uses_it";
    in_own_process(test, TIMEOUT, |directory| {
        let (path, kept) = (directory.join("limits"), directory.join("kept"));
        let open = || Segment::open_or_create(&path, &declaration(&kept));
        let refuses = || {
            let before = fs::read(&path).expect("a file");
            let error = open().expect_err("damaged");
            assert!(
                matches!(error, Error::Segment(SegmentError::Damaged { .. })),
                "{error}"
            );
            assert!(fs::read(&path).expect("a file") == before, "it is as it was");
        };
        // Opened in children, so that none inherits the file from another.
        Child::fork(|| take(&open().expect("a segment"), CALLS / 2)).succeed();
        let _ = fs::remove_file(&kept);
        damage(&path);
        refuses();

        lose(&path);
        Child::fork(|| {
            let segment = open().expect("a segment");
            take(&segment, CALLS / 2);
            assert!(segment.checkpoint(&kept).expect("written"));
            // A segment in use is not replaced, however damaged it is, because what its users hold still counts.
            damage(&path);
            Child::fork(refuses).succeed();
        })
        .succeed();

        let restored = SharedWords::new(1);
        let processes: Vec<Child> = (0..4)
            .map(|_| {
                Child::fork(|| {
                    let segment = open().expect("restored");
                    let left = left(&segment);
                    assert!((CALLS / 2..CALLS / 2 + SOME).contains(&left), "{left}");
                    restored[0].fetch_add(1, Ordering::Relaxed);
                    eventually("all have it open", || restored[0].load(Ordering::Relaxed) == 4);
                    take(&segment, 1);
                })
            })
            .collect();
        processes.into_iter().for_each(Child::succeed);
        let left = left(&open().expect("one segment for all"));
        assert!((CALLS / 2 - 4..CALLS / 2 - 4 + SOME).contains(&left), "{left}");
        assert_eq!(
            fs::read_dir(directory).expect("a directory").count(),
            2,
            "nothing else is left"
        );
    });
}

#[test]
fn writers_that_are_killed_leave_a_whole_checkpoint_no_older_than_the_last_that_was_ended() {
    let test =
        "checkpoints::writers_that_are_killed_leave_a_whole_checkpoint_no_older_than_the_last_that_was_ended";
    in_own_process(test, TIMEOUT, |directory| {
        const ROUNDS: u64 = 40;
        let (path, kept) = (directory.join("limits"), directory.join("kept"));
        let elsewhere = directory.join("restored");
        let segment = Segment::open_or_create(&path, &declaration(&kept)).expect("a segment");
        // Calls taken when the last completed checkpoint was begun, and the number of completed checkpoints.
        let words = SharedWords::new(2);
        let mut dice = Rng::with_seed(0x5eed);
        for _ in 0..ROUNDS {
            let before = words[1].load(Ordering::Acquire);
            let writer = Child::fork(|| {
                loop {
                    take(&segment, 20);
                    let taken = CALLS - left(&segment);
                    if segment.checkpoint(&kept).expect("written") {
                        words[0].store(taken, Ordering::Release);
                        words[1].fetch_add(1, Ordering::AcqRel);
                    }
                }
            });
            let more = dice.u64(..3);
            eventually("checkpoints were written", || {
                words[1].load(Ordering::Acquire) > before + more
            });
            for _ in 0..dice.u64(..20_000) {
                std::hint::spin_loop();
            }
            writer.kill();
            let ended = words[0].load(Ordering::Acquire);
            let restored = Segment::open_or_create(&elsewhere, &declaration(&kept)).expect("restored");
            let taken = CALLS - left(&restored);
            assert!(taken > 0 && taken + SOME >= ended, "{taken} of {ended} taken");
            drop(restored);
            lose(&elsewhere);
        }
        // Neither a dead writer's lock nor anything that it was making stays behind.
        assert!(segment.checkpoint(&kept).expect("written"));
        let names = fs::read_dir(directory).expect("a directory").count();
        assert_eq!(names, 2, "a writer left something behind");
    });
}

#[test]
fn a_checkpoint_taken_amid_requests_has_each_of_them_as_a_whole_or_not_at_all() {
    let test = "checkpoints::a_checkpoint_taken_amid_requests_has_each_of_them_as_a_whole_or_not_at_all";
    in_own_process(test, TIMEOUT, |directory| {
        let (path, kept) = (directory.join("limits"), directory.join("kept"));
        let elsewhere = directory.join("restored");
        let segment = Segment::open_or_create(&path, &declaration(&kept)).expect("a segment");
        let words = SharedWords::new(1);
        let busy = Child::fork(|| {
            for _ in 0..CALLS - 10 {
                take(&segment, 1);
                words[0].fetch_add(1, Ordering::Release);
            }
            loop {
                nix::unistd::pause();
            }
        });
        eventually("it takes", || words[0].load(Ordering::Acquire) > 0);
        for _ in 0..30 {
            assert!(segment.checkpoint(&kept).expect("written"));
            let restored = Segment::open_or_create(&elsewhere, &declaration(&kept)).expect("restored");
            // `left` checks that both limits agree.
            assert!(left(&restored) < CALLS);
            drop(restored);
            lose(&elsewhere);
        }
        busy.kill();
    });
}

#[test]
fn a_thread_takes_them_as_declared_in_the_process_that_opened_and_in_a_child_that_outlives_it() {
    let test = "checkpoints::a_thread_takes_them_as_declared_in_the_process_that_opened_and_in_a_child_that_outlives_it";
    in_own_process(test, TIMEOUT, |directory| {
        let (path, kept) = (directory.join("limits"), directory.join("kept"));
        let each_second = |kept: &Path| {
            scene::declaration()
                .checkpoint(Checkpoint::new(kept).every(Duration::from_secs(1)))
                .add_set(SetDeclaration::new("api").add_limit(Limit::calls("calls", 10, WINDOW)))
        };
        let words = SharedWords::new(2);
        let ended = &words[1];
        let parent = Child::fork(|| {
            let segment = Segment::open_or_create(&path, &each_second(&kept)).expect("a segment");
            eventually("one is taken", || kept.exists());
            // Forked as a server does: the child uses what its parent has opened.
            let child = Child::fork(|| {
                nix::sys::prctl::set_pdeathsig(None).expect("it outlives its parent");
                let api = segment.set("api").expect("declared");
                assert!(api.request().check().expect("works").is_admitted());
                words[0].store(1, Ordering::Release);
                eventually("it is not needed any more", || ended.load(Ordering::Acquire) > 0);
            });
            eventually("the child has used it", || words[0].load(Ordering::Acquire) > 0);
            std::mem::forget(child);
        });
        parent.succeed();
        let written = || {
            fs::metadata(&kept)
                .and_then(|it| it.modified())
                .expect("a checkpoint")
        };
        let before = written();
        eventually("the child takes them", || written() > before);
        ended.store(1, Ordering::Release);
        // Nothing is ever restored over an existing segment.
        let segment = Segment::open_or_create(&path, &each_second(&kept)).expect("opens");
        assert_eq!(segment.snapshot().expect("a copy").cold_starts, 0);
        assert!(segment.checkpoint_failure().is_none());
    });
}

#[test]
fn a_child_that_was_forked_while_the_file_was_made_keeps_no_process_from_writing_to_it() {
    let test =
        "checkpoints::a_child_that_was_forked_while_the_file_was_made_keeps_no_process_from_writing_to_it";
    in_own_process(test, TIMEOUT, |directory| {
        let (path, kept) = (directory.join("limits"), directory.join("kept"));
        let segment = Segment::open_or_create(&path, &declaration(&kept)).expect("a segment");
        assert!(segment.checkpoint(&kept).expect("written"));
        // What such a child would have: the file description with the lock of a file under construction.
        let inherited = OpenOptions::new().read(true).write(true).open(&kept);
        let inherited = inherited.expect("a checkpoint");
        set_lock(&inherited, CONSTRUCTION, F_WRLCK);
        take(&segment, 1);
        assert!(segment.checkpoint(&kept).expect("written"));
    });
}

#[test]
fn another_declaration_begins_anew_and_takes_the_file_over() {
    let test = "checkpoints::another_declaration_begins_anew_and_takes_the_file_over";
    in_own_process(test, TIMEOUT, |directory| {
        let (path, kept) = (directory.join("limits"), directory.join("kept"));
        let segment = Segment::open_or_create(&path, &declaration(&kept)).expect("a segment");
        take(&segment, CALLS / 2);
        assert!(segment.checkpoint(&kept).expect("written"));
        drop(segment);
        lose(&path);
        let other = |capacity| {
            scene::declaration()
                .checkpoint(Checkpoint::new(&kept))
                .add_set(SetDeclaration::new("api").add_limit(Limit::calls("calls", capacity, WINDOW)))
        };
        let segment = Segment::open_or_create(&path, &other(10)).expect("a segment");
        assert_eq!(scene::first_set(&segment).limits[0].remaining, 10);
        let api = segment.set("api").expect("declared");
        assert!(api.request().check().expect("works").is_admitted());
        // This segment has another size, so the file is recreated.
        assert!(segment.checkpoint(&kept).expect("written"));
        drop((api, segment));
        lose(&path);
        let segment = Segment::open_or_create(&path, &other(10)).expect("restored");
        assert_eq!(scene::first_set(&segment).limits[0].remaining, 9);
    });
}

#[test]
fn what_is_no_checkpoint_or_not_to_be_trusted_is_an_error_and_stays_as_it_is() {
    let test = "checkpoints::what_is_no_checkpoint_or_not_to_be_trusted_is_an_error_and_stays_as_it_is";
    in_own_process(test, TIMEOUT, |directory| {
        let (path, kept) = (directory.join("limits"), directory.join("kept"));
        fs::write(&kept, b"a diary, of many years").expect("written");
        let refused = Segment::open_or_create(&path, &declaration(&kept));
        assert!(
            matches!(refused, Err(Error::Open(OpenError::NotACheckpoint { .. }))),
            "{refused:?}"
        );
        let segment = Segment::create(&path, &declaration(&directory.join("elsewhere"))).expect("a segment");
        assert!(matches!(
            segment.checkpoint(&kept),
            Err(Error::Open(OpenError::NotACheckpoint { .. }))
        ));
        assert_eq!(fs::read(&kept).expect("there"), b"a diary, of many years");
        fs::remove_file(&kept).expect("there");
        assert!(segment.checkpoint(&kept).expect("written"));
        fs::set_permissions(&kept, Permissions::from_mode(0o666)).expect("its owner");
        drop(segment);
        lose(&path);
        let refused = Segment::open_or_create(&path, &declaration(&kept));
        assert!(
            matches!(refused, Err(Error::Open(OpenError::Untrusted { .. }))),
            "{refused:?}"
        );
        assert!(SegmentReader::open(&path).is_err(), "nothing was created");
        let nowhere = Segment::create(&path, &declaration(&directory.join("no/such/directory")));
        let segment = nowhere.expect("it is needed for checkpoints only");
        assert!(matches!(
            segment.checkpoint(directory.join("no/such/directory")),
            Err(Error::Open(OpenError::NoPlace { .. }))
        ));
    });
}

#[test]
fn a_checkpoint_is_declared_with_a_path_and_a_time_of_a_second_or_more() {
    let of = |checkpoint: &str| {
        let text = format!(
            "[segment]\ncheckpoint = {checkpoint}\n[[set]]\nname = \"s\"\n[[set.limit]]\nname = \"c\"\nkind = \"calls\"\n\
             capacity = 1\nwindow = \"1s\"\n"
        );
        Declaration::from_toml(&text)
    };
    let declared = of(r#"{ path = "/var/lib/x", every = "5m" }"#).expect("valid");
    let checkpoint = declared.segment().checkpoint().expect("declared");
    assert_eq!(checkpoint.path(), Path::new("/var/lib/x"));
    assert_eq!(checkpoint.interval(), Duration::from_secs(300));
    let again = Declaration::from_toml(&declared.to_toml().expect("a text")).expect("valid");
    assert_eq!(again.segment().checkpoint(), Some(checkpoint));
    let defaults = of(r#"{ path = "x" }"#).expect("valid");
    assert_eq!(
        defaults.segment().checkpoint().expect("declared").interval(),
        Duration::from_secs(30)
    );
    for invalid in [
        r#"{ path = "" }"#,
        r#"{ path = "x", every = "999ms" }"#,
        r#"{ path = "x", every = "calendar:day" }"#,
    ] {
        let error = of(invalid).expect_err("invalid");
        assert!(matches!(error, DeclarationError::Value { .. }), "{error}");
        assert!(error.to_string().contains("segment / checkpoint / "), "{error}");
    }
    assert!(of(r#"{ every = "1s" }"#).is_err());
}
