//! Files that are not usable segments: each gives an exact error, and not a byte is changed.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::layout_mirror::RawSegment;
use crate::layout_mirror::words::{self, entry, header, hold, ticket};
use crate::scene;
use crate::scene::process::{Child, TIMEOUT, eventually, in_own_process};
use crate::scene::{create_in, expect_permit, is_admitted, queued};
use shmlimit::declare::LockKind;
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Declaration, Error, Keyed, Limit, OpenError, Segment, SegmentError, SetDeclaration};

const HEADER_BYTES: u64 = 8 * header::SIZE as u64;

fn declaration() -> Declaration {
    scene::declaration().participants(4).add_set(
        SetDeclaration::new("api")
            .add_limit(Limit::calls("calls", 10, Duration::from_secs(3600)))
            .add_limit(Limit::concurrency("slots", 3)),
    )
}

/// A segment to which no process is attached, in a directory of its own.
struct Specimen {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Specimen {
    fn new() -> Self {
        Self::of(&declaration())
    }

    fn of(declaration: &Declaration) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("limits");
        drop(Segment::create(&path, declaration).expect("a segment"));
        Self {
            _directory: directory,
            path,
        }
    }

    fn raw(&self) -> RawSegment {
        RawSegment::open(&self.path)
    }

    fn size(&self) -> u64 {
        fs::metadata(&self.path).expect("a file").len()
    }

    /// Checks that every way to open the file, or a copy of it, returns an error that `is_right` accepts, and changes
    /// nothing.
    fn check(&self, case: &str, is_right: impl Fn(&Error, &Path) -> bool) {
        let copy = self.path.with_extension("copy");
        fs::copy(&self.path, &copy).expect("a copy");
        for path in [&self.path, &copy] {
            let before = fs::read(path).expect("bytes");
            let attempts = [
                ("open", Segment::open(path).map(drop)),
                (
                    "open_or_create",
                    Segment::open_or_create(path, &declaration()).map(drop),
                ),
                ("read", SegmentReader::open(path).map(drop)),
            ];
            for (verb, attempt) in attempts {
                let error = attempt.expect_err(case);
                assert!(is_right(&error, path), "{case}: {verb} answered {error:?}");
                assert!(
                    error.to_string().contains(&path.display().to_string()),
                    "{case}: {error}"
                );
            }
            assert!(
                matches!(
                    Segment::create(path, &declaration()),
                    Err(Error::Open(OpenError::AlreadyExists { .. }))
                ),
                "{case}: replaced by create"
            );
            assert!(
                fs::read(path).expect("bytes") == before,
                "{case}: the file was changed"
            );
        }
        fs::remove_file(copy).expect("the copy");
    }

    fn check_damaged(&self, case: &str, what: &str) {
        self.check(case, |error, path| {
            matches!(error, Error::Segment(SegmentError::Damaged { path: named, what: found })
                if named == path && found.contains(what))
        });
    }
}

fn is_wrong_size(error: &Error, path: &Path, wanted: u64, size: u64) -> bool {
    matches!(error, Error::Open(OpenError::WrongSize { path: named, expected, found })
        if named == path && *expected == wanted && *found == size)
}

/// The crash harness and the tests rely on this format, and most of them would not notice another one.
#[test]
fn segments_have_the_format_that_tests_know() {
    assert_eq!(Specimen::new().raw().word(header::FORMAT), words::FORMAT);
}

#[test]
fn a_truncated_file_names_both_sizes_wherever_it_was_cut() {
    let specimen = Specimen::new();
    let whole = specimen.size();
    let file = OpenOptions::new()
        .write(true)
        .open(&specimen.path)
        .expect("a file");
    let mut sizes: Vec<u64> = (0..whole).step_by(64).collect();
    sizes.extend([1, 7, 8, 511, HEADER_BYTES - 1, HEADER_BYTES + 1, whole - 1]);
    sizes.sort_unstable();
    for size in sizes.into_iter().rev() {
        file.set_len(size).expect("shorter");
        if size < 8 {
            // Too short to tell what it was.
            specimen.check(&format!("{size} bytes"), |error, _| {
                matches!(error, Error::Open(OpenError::NotASegment { .. }))
            });
            continue;
        }
        let expected = if size < HEADER_BYTES { HEADER_BYTES } else { whole };
        specimen.check(&format!("{size} bytes"), |error, path| {
            is_wrong_size(error, path, expected, size)
        });
    }
}

#[test]
fn a_file_that_is_too_long_names_both_sizes() {
    let specimen = Specimen::new();
    let whole = specimen.size();
    for size in [whole + 1, whole + 64, 10 * whole] {
        let file = OpenOptions::new()
            .write(true)
            .open(&specimen.path)
            .expect("a file");
        file.set_len(size).expect("longer");
        specimen.check(&format!("{size} bytes"), |error, path| {
            is_wrong_size(error, path, whole, size)
        });
    }
}

#[test]
fn a_foreign_file_is_no_segment() {
    let specimen = Specimen::new();
    let text = "these are a few lines of another program\n".repeat(200);
    for (case, content) in [
        ("text", text.as_bytes()),
        ("zeros", &[0; 8192]),
        ("ones", &[255; 8192]),
    ] {
        fs::write(&specimen.path, content).expect("written");
        let start = u64::from_ne_bytes(*content.first_chunk().expect("eight bytes"));
        specimen.check(case, |error, path| {
            matches!(error, Error::Open(OpenError::NotASegment { path: named, found, expected })
                if named == path && *found == start && *expected == u64::from_ne_bytes(*b"SHMLIMIT"))
        });
    }
    for content in ["short", ""] {
        fs::write(&specimen.path, content).expect("written");
        let start = content
            .bytes()
            .rev()
            .fold(0, |word, byte| (word << 8) | u64::from(byte));
        let start = if cfg!(target_endian = "big") {
            start.swap_bytes()
        } else {
            start
        };
        specimen.check(
            content,
            |error, _| matches!(error, Error::Open(OpenError::NotASegment { found, .. }) if *found == start),
        );
    }
}

/// An interrupted creation has everything but the magic number.
#[test]
fn a_file_without_its_magic_number_is_no_segment() {
    let specimen = Specimen::new();
    specimen.raw().set_word(header::MAGIC, 0);
    specimen.check("no magic number", |error, _| {
        matches!(error, Error::Open(OpenError::NotASegment { found: 0, .. }))
    });
}

#[test]
fn another_build_is_told_what_differs() {
    for (word, name) in [
        (header::FORMAT, "format number"),
        (header::FINGERPRINT, "layout"),
        (header::BYTE_ORDER, "byte order"),
        (header::WORD_SIZE, "word size"),
        (header::C_LIBRARY, "C library"),
        (header::LOCK_KIND, "lock kind"),
        (header::CLOCK_ID, "clock"),
        (header::HEADER_SIZE, "header size"),
    ] {
        for change in [1, 0xffff_0000_0000_0000] {
            // Which C library it is matters only if the locks are its mutexes.
            let specimen = if word == header::C_LIBRARY {
                Specimen::of(&declaration().lock(LockKind::RobustMutex))
            } else {
                Specimen::new()
            };
            let raw = specimen.raw();
            let ours = raw.word(word);
            raw.set_word(word, ours ^ change);
            // Another build's header is sound in itself.
            raw.seal_header();
            specimen.check(name, |error, path| {
                matches!(error, Error::Open(OpenError::Incompatible { path: named, what, found, expected })
                    if named == path && *what == name && *found == ours ^ change && *expected == ours)
            });
        }
    }
}

#[test]
fn a_file_of_the_other_byte_order_is_told_from_damage() {
    let specimen = Specimen::new();
    let raw = specimen.raw();
    for position in 1..header::SIZE {
        raw.set_word(position, raw.word(position).swap_bytes());
    }
    specimen.check("swapped", |error, _| {
        matches!(
            error,
            Error::Open(OpenError::Incompatible {
                what: "byte order",
                ..
            })
        )
    });
}

#[test]
fn an_unknown_incompatible_feature_is_refused_and_a_compatible_one_ignored() {
    let specimen = Specimen::new();
    let raw = specimen.raw();
    raw.set_word(header::COMPATIBLE_FEATURES, 1 << 40);
    raw.seal_header();
    drop(Segment::open(&specimen.path).expect("a feature that may be ignored"));
    raw.set_word(header::INCOMPATIBLE_FEATURES, 1 << 40);
    raw.seal_header();
    specimen.check("an unknown feature", |error, _| {
        matches!(error, Error::Open(OpenError::Incompatible { what, found, expected: 1, .. })
            if what.contains("features") && *found == 1 << 40)
    });
}

#[test]
fn a_changed_header_does_not_match_its_checksum() {
    for word in [
        header::COMPATIBLE_FEATURES,
        header::CREATED_UTC,
        header::HASH_KEY,
        header::HASH_KEY + 1,
        header::PARTICIPANTS,
        header::PARTICIPANTS_OFFSET,
        header::SETS,
        header::DIRECTORY_OFFSET,
        header::CHECKSUM,
    ] {
        let specimen = Specimen::new();
        let raw = specimen.raw();
        raw.set_word(word, raw.word(word) ^ 0x10);
        specimen.check_damaged(&format!("word {word}"), "the header's checksum does not match");
    }
    let specimen = Specimen::new();
    let raw = specimen.raw();
    let (size, claimed) = (specimen.size(), raw.word(header::TOTAL_SIZE) + 64);
    raw.set_word(header::TOTAL_SIZE, claimed);
    specimen.check("total size", |error, path| {
        is_wrong_size(error, path, claimed, size)
    });
}

/// As a faulty writer would leave the header, with checksums that match.
#[test]
fn a_sealed_header_that_contradicts_itself_is_damaged() {
    for (word, values) in [
        (header::PARTICIPANTS, [0, 3, 5, 4097, u64::MAX]),
        (header::SETS, [0, 2, 1025, 1 << 60, u64::MAX]),
        (header::PARTICIPANTS_OFFSET, [0, 64, 4095, 8192, u64::MAX]),
        (header::DIRECTORY_OFFSET, [0, 4, 4096, 1 << 40, u64::MAX]),
    ] {
        for value in values {
            let specimen = Specimen::new();
            let raw = specimen.raw();
            raw.set_word(word, value);
            raw.seal_header();
            specimen.check_damaged(&format!("word {word} is {value}"), "");
        }
    }
}

#[test]
fn a_directory_that_contradicts_the_file_is_damaged() {
    for word in [
        entry::EXTENT_OFFSET,
        entry::EXTENT_SIZE,
        entry::DEFINITION_ROOM,
        entry::DEFINITION_SIZE,
        entry::DEFINITION_CHECKSUM,
        entry::LIMITS,
        entry::STATE_WORDS,
        entry::HOLDS,
        entry::HELD_AMOUNTS,
        entry::TICKETS,
        entry::SHARDS,
        entry::BUCKETS,
        entry::NAME_WORDS,
    ] {
        let unchanged = Specimen::new();
        let ours = unchanged.raw().word(unchanged.raw().entry_word(word));
        for value in [0, ours ^ 1, ours + 64, ours << 32, 1 << 62, u64::MAX] {
            if value == ours {
                continue;
            }
            let specimen = Specimen::new();
            let raw = specimen.raw();
            raw.set_word(raw.entry_word(word), value);
            specimen.check_damaged(&format!("entry word {word} is {value}"), "");
        }
    }
}

#[test]
fn a_changed_definition_does_not_match_its_checksum() {
    let specimen = Specimen::new();
    let raw = specimen.raw();
    let offset = raw.word(raw.entry_word(entry::EXTENT_OFFSET));
    raw.set_bytes(offset + 20, b"\0");
    specimen.check_damaged("a changed letter", "the checksum of a set's definition");
}

/// As a faulty writer would leave it, with a checksum that matches.
#[test]
fn a_sealed_definition_that_means_nothing_or_something_else_is_damaged() {
    type Change = fn(&str) -> String;
    let changes: [(&str, Change, &str); 6] = [
        ("not TOML", |text| text.replacen('=', "?", 1), "cannot be read"),
        (
            "an unknown field",
            |text| text.replacen("kind", "kine", 1),
            "cannot be read",
        ),
        (
            "a capacity of zero",
            |text| text.replacen("capacity = 10", "capacity = 00", 1),
            "cannot be read",
        ),
        (
            "no set at all",
            |text| format!("#{}", "#".repeat(text.len() - 1)),
            "",
        ),
        (
            "more holds than the directory has",
            |text| text.replacen("holds = 64", "holds = 65", 1),
            "does not fit its definition",
        ),
        (
            "another kind",
            |text| text.replacen("\"gcra\"", "\"gcrb\"", 1),
            "cannot be read",
        ),
    ];
    for (case, change, what) in changes {
        let specimen = Specimen::new();
        let raw = specimen.raw();
        let changed = change(&raw.definition());
        assert_ne!(changed, raw.definition(), "{case}: nothing to change");
        raw.set_definition(changed.as_bytes());
        specimen.check_damaged(case, what);
    }
    let specimen = Specimen::new();
    let raw = specimen.raw();
    let two_letters = raw.definition().replacen("api", "a\u{e9}", 1);
    raw.set_definition(two_letters.as_bytes());
    let segment = Segment::open(&specimen.path).expect("another name is as good");
    assert_eq!(
        segment.set("api").map(drop).expect_err("renamed").to_string(),
        "there is no set `api`; the segment has a\u{e9}"
    );
}

#[test]
fn a_definition_that_is_not_text_is_damaged() {
    let specimen = Specimen::new();
    let raw = specimen.raw();
    let mut bytes = raw.definition().into_bytes();
    bytes[0] = 0xa9;
    raw.set_definition(&bytes);
    specimen.check_damaged("half a letter", "not UTF-8");
}

#[test]
fn a_recovery_looks_at_the_rows_of_the_interrupted_operation_however_large_the_table_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let hour = Duration::from_secs(3600);
    let set = SetDeclaration::new("api")
        .keyed(Keyed::new(60))
        .add_limit(Limit::calls("calls", 10, hour));
    // A thread that ends with a slot lock leaves it to its process.
    let declaration = Declaration::new().lock(LockKind::RobustMutex).add_set(set);
    let segment = Segment::create(&path, &declaration).expect("a segment");
    let api = segment.set("api").expect("declared");
    for number in 0..8 {
        let key = format!("key-{number}");
        assert!(is_admitted(&api.request(), key));
    }
    // A row far from everything that any process uses: a tag without a key.
    let raw = RawSegment::open(&path);
    let tags = raw.tags();
    let unused = (0..).find(|word| raw.word(tags + word) == 0).expect("room");
    raw.set_word(tags + unused, 0x1234);
    let counts = || segment.snapshot().expect("a copy").sets[0].counts;

    raw.lock().take_in_a_thread_that_ends();
    assert!(is_admitted(&api.request(), "key-7"));
    assert_eq!((counts().recoveries, counts().rebuilds), (1, 0));

    // A process that asks for a recovery has everything checked.
    segment.recover().expect("works");
    assert_eq!((counts().recoveries, counts().rebuilds), (1, 1));
    assert_eq!(raw.word(tags + unused), 0);
}

#[test]
fn a_list_of_free_holds_that_runs_in_a_circle_or_names_a_hold_in_use_is_made_again() {
    let test =
        "damaged_files::a_list_of_free_holds_that_runs_in_a_circle_or_names_a_hold_in_use_is_made_again";
    in_own_process(test, TIMEOUT, |directory| {
        for of_one_in_use in [false, true] {
            let path = directory.join(format!("limits-{of_one_in_use}"));
            let slots = SetDeclaration::new("api").add_limit(Limit::concurrency("slots", 3));
            let segment = Segment::create(&path, &scene::declaration().add_set(slots)).expect("a segment");
            let api = segment.set("api").expect("declared");
            let take = || {
                let outcome = api.request().try_acquire().expect("works");
                outcome.into_result()
            };
            let [held, other, another] = [0, 1, 2].map(|_| take().expect("free"));
            drop(other);
            drop(another);
            let raw = RawSegment::open(&path);
            assert_ne!(raw.word(raw.hold_word(0, hold::OWNER)), 0);
            let first = raw.word(raw.free_hold());
            let last = raw.word(raw.hold_word(first - 1, hold::NEXT));
            assert_eq!(
                (first.min(last), first.max(last)),
                (2, 3),
                "named by their indexes plus one"
            );
            let next = if of_one_in_use { 1 } else { first };
            // Written in place of the second: the list still has as many entries as holds are free.
            raw.set_word(
                raw.hold_word(if of_one_in_use { first } else { last } - 1, hold::NEXT),
                next,
            );

            let recovered = &segment.recover().expect("works").sets[0];
            let repairs = recovered.repairs.expect("damaged");
            assert!(repairs.rebuilt && !repairs.poisoned, "{recovered:?}");
            let more = [(); 2].map(|()| take().expect("free"));
            take().expect_err("all are in use");
            drop((held, more));
            assert!(segment.recover().expect("works").sets[0].repairs.is_none());
        }
    });
}

#[test]
fn a_waiter_that_lost_its_ticket_takes_another_and_not_the_next_one_of_its_process() {
    let test =
        "damaged_files::a_waiter_that_lost_its_ticket_takes_another_and_not_the_next_one_of_its_process";
    in_own_process(test, TIMEOUT, |directory| {
        let place = Limit::concurrency("places", 1);
        let (segment, set) = create_in(directory, SetDeclaration::new("set").waiters(4).add_limit(place));
        let permit = expect_permit(set.request().try_acquire());
        let waiter = Child::fork(|| drop(set.request().acquire(TIMEOUT)));
        eventually("it waits", || queued(&segment) == 1);
        let raw = RawSegment::open(segment.path());
        let is_waiting = |index: &usize| {
            let state = raw.word(raw.ticket_word(*index, ticket::STATE));
            state & ticket::PHASE == ticket::WAITING
        };
        let index = (0..4).find(is_waiting).expect("its ticket");
        // The state is changed as if another thread of the same process waited in its place.
        let state = raw.ticket_word(index, ticket::STATE);
        raw.set_word(state, raw.word(state) + 1000 * (ticket::PHASE + 1));
        eventually("it waits in a place of its own", || queued(&segment) == 2);
        waiter.kill();
        drop(permit);
        drop(expect_permit(set.request().acquire(TIMEOUT)));
        assert_eq!(queued(&segment), 0);
    });
}
