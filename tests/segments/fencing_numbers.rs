//! Fencing numbers over the lives of a segment: an older permit has a smaller number, even if the file from which it
//! was taken is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::layout_mirror::RawSegment;
use crate::layout_mirror::words::{control, header};
use crate::scene;
use crate::scene::expect_permit;
use shmlimit::declare::{Checkpoint, OnMismatch};
use shmlimit::{Declaration, Limit, OpenOptions, Removal, Segment, SetDeclaration};

/// JSON represents whole numbers below this exactly.
const JSON: u64 = 1 << 53;

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn path(&self) -> PathBuf {
        self.directory.path().join("limits")
    }

    fn kept(&self) -> PathBuf {
        self.directory.path().join("kept")
    }

    fn declaration(&self) -> Declaration {
        self.declaration_of(1)
    }

    fn declaration_of(&self, slots: u64) -> Declaration {
        let limit = Limit::concurrency("slots", slots);
        let keyed = SetDeclaration::new("keyed").keyed(shmlimit::Keyed::new(10_000));
        scene::declaration()
            .participants(8)
            .checkpoint(Checkpoint::new(self.kept()))
            .add_set(SetDeclaration::new("api").add_limit(limit.clone()))
            .add_set(keyed.add_limit(limit))
    }
}

/// The fencing numbers of the next permits: of a set, and of some keys in their shards.
fn numbers(segment: &Segment) -> Vec<u64> {
    let (api, keyed) = (
        segment.set("api").expect("declared"),
        segment.set("keyed").expect("declared"),
    );
    let mut permits = vec![expect_permit(api.request().try_acquire()).into_owned()];
    for key in 0..20 {
        let key = format!("key {key}");
        permits.push(expect_permit(keyed.request().for_key(key).expect("keyed").try_acquire()).into_owned());
    }
    let number = |permit: &shmlimit::Permit<'_>| permit.fencing_number().expect("it holds something");
    permits.iter().map(number).collect()
}

/// A way in which a segment begins another life.
type Rebirth = fn(&Place);

const REBIRTHS: &[(&str, Rebirth)] = &[
    ("of another boot", |place| {
        RawSegment::open(&place.path()).set_another_boot()
    }),
    ("of a boot that is not known, by a clock that is wrong", |place| {
        let raw = RawSegment::open(&place.path());
        for word in [header::BOOT_ID, header::BOOT_ID + 1, header::CLOCK_OFFSET] {
            raw.set_word(word, 0);
        }
    }),
    ("a copy of itself", |place| {
        let copy = place.directory.path().join("copy");
        fs::copy(place.path(), &copy).expect("copies");
        fs::rename(copy, place.path()).expect("renames");
    }),
    ("created from its checkpoint", |place| {
        fs::remove_file(place.path()).expect("removes")
    }),
    ("damaged, and replaced by its checkpoint", |place| {
        let raw = RawSegment::open(&place.path());
        raw.set_word(header::CHECKSUM, !raw.word(header::CHECKSUM));
    }),
    ("removed, and created anew", |place| {
        OpenOptions::new()
            .remove(place.path(), Removal::Unused)
            .expect("removes");
        fs::remove_file(place.kept()).expect("removes");
    }),
];

fn is_above(numbers: &[u64], former: &[u64], how: &str) {
    for (number, former) in numbers.iter().zip(former) {
        assert!(number > former, "{how}: {number} after {former}");
        assert!(*number < JSON, "{how}: {number}");
    }
}

#[test]
fn numbers_rise_over_every_way_in_which_a_segment_begins_another_life() {
    for (how, rebirth) in REBIRTHS {
        let place = Place {
            directory: tempfile::tempdir().expect("a directory"),
        };
        let open = || Segment::open_or_create(place.path(), &place.declaration()).expect("opens");
        let segment = open();
        let since_the_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let first = numbers(&segment);
        assert!(u128::from(first[0]) <= since_the_epoch.as_micros() + 1_000_000);
        segment.checkpoint(place.kept()).expect("a checkpoint");
        // More than the checkpoint knows about.
        let mut former = first;
        for _ in 0..100 {
            let next = numbers(&segment);
            is_above(&next, &former, how);
            former = next;
        }
        drop(segment);
        rebirth(&place);
        is_above(&numbers(&open()), &former, how);
    }
}

#[test]
fn numbers_rise_where_a_segment_is_recreated_for_another_declaration() {
    let place = Place {
        directory: tempfile::tempdir().expect("a directory"),
    };
    let former = numbers(&Segment::create(place.path(), &place.declaration()).expect("a segment"));
    let other = place.declaration_of(2).participants(16);
    let recreated = OpenOptions::new()
        .on_mismatch(OnMismatch::RecreateIfUnused)
        .open_or_create(place.path(), &other)
        .expect("recreates");
    is_above(&numbers(&recreated), &former, "recreated");
}

fn kept_number(path: &Path, number: u64) {
    let raw = RawSegment::open(path);
    raw.set_word(raw.control() + control::HOLD_SERIAL, number);
}

#[test]
fn a_number_that_is_ahead_of_the_wall_clock_is_kept() {
    let place = Place {
        directory: tempfile::tempdir().expect("a directory"),
    };
    let ahead = JSON - 1_000_000;
    drop(Segment::create(place.path(), &place.declaration()).expect("a segment"));
    kept_number(&place.path(), ahead);
    RawSegment::open(&place.path()).set_another_boot();
    let segment = Segment::open(place.path()).expect("starts cold");
    assert_eq!(numbers(&segment)[0], ahead + 1);
    segment.checkpoint(place.kept()).expect("a checkpoint");
    drop(segment);
    fs::remove_file(place.path()).expect("removes");
    let restored = Segment::open_or_create(place.path(), &place.declaration()).expect("restored");
    assert_eq!(numbers(&restored)[0], ahead + 2);
}
