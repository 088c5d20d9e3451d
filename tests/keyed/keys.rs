//! Looking at the keys of a set without the lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shmlimit::declare::Align;
use shmlimit::snapshot::{KeySnapshot, SegmentReader};
use shmlimit::{Algorithm, Declaration, Error, Keyed, Limit, RequestError, Segment, SetDeclaration};

const DAY: Duration = Duration::from_secs(86_400);

fn calls(capacity: u64) -> Limit {
    Limit::calls("requests", capacity, DAY)
        .algorithm(Algorithm::FixedWindow)
        .align(Align::FirstUse)
}

/// A segment with a keyed set `api`, and a reader for it.
fn open(directory: &tempfile::TempDir, set: SetDeclaration) -> (Segment, SegmentReader) {
    let path = directory.path().join("limits");
    let declaration = Declaration::new().add_set(set);
    let segment = Segment::create(&path, &declaration).expect("created");
    let reader = SegmentReader::open(&path).expect("a segment");
    (segment, reader)
}

fn by_name(reader: &SegmentReader) -> BTreeMap<String, KeySnapshot> {
    let mut keys = BTreeMap::new();
    reader
        .key_snapshots("api", |key| {
            let name = key.key.text().expect("UTF-8").to_owned();
            assert!(keys.insert(name, key.clone()).is_none(), "shown twice");
        })
        .expect("a keyed set");
    keys
}

#[test]
fn shows_each_key_with_what_it_used_and_what_is_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let set = SetDeclaration::new("api")
        .keyed(Keyed::new(5_000))
        .holds(1_000)
        .add_limit(calls(3))
        .add_limit(Limit::concurrency("in_flight", 2));
    let (segment, reader) = open(&directory, set);
    assert!(by_name(&reader).is_empty());

    let api = segment.set("api").expect("declared");
    let mut permits = Vec::new();
    for number in 0..1_000 {
        let key = &format!("tenant-{number}");
        for _ in 0..=number % 4 {
            permits.extend(
                api.request()
                    .for_key(key)
                    .expect("keyed")
                    .try_acquire()
                    .expect("works")
                    .into_result()
                    .ok(),
            );
        }
    }
    let keys = by_name(&reader);
    assert_eq!(keys.len(), 1_000);
    for number in 0..1_000_u32 {
        let key = &keys[&format!("tenant-{number}")];
        let asked = number % 4 + 1;
        let admitted = asked.min(2);
        assert_eq!((key.admitted, key.refused), (admitted, asked - admitted));
        assert_eq!(key.held, u64::from(admitted));
        assert_eq!(key.limits[0].remaining, 3 - u64::from(admitted));
        assert_eq!(key.limits[1].remaining, 2 - u64::from(admitted));
        assert!(!key.replenished && !key.torn && key.queued == 0);
    }
    let snapshot = reader.snapshot().expect("a copy");
    let table = snapshot.sets[0].keys.expect("it is keyed");
    assert_eq!(table.in_use, 1_000);
    assert!((1..=32).contains(&table.fullest_bucket), "{table:?}");
    for hold in &snapshot.sets[0].holds {
        let text = hold.key.as_ref().and_then(|key| key.text()).expect("kept");
        assert_eq!(hold.key.as_ref(), Some(&keys[text].key));
    }

    let one = segment
        .key_snapshot("api", "tenant-3")
        .expect("keyed")
        .expect("it has a row");
    assert_eq!(one.key, keys["tenant-3"].key);
    assert!(
        segment
            .key_snapshot("api", "tenant-1000")
            .expect("keyed")
            .is_none()
    );
    drop(permits);
    api.key("tenant-3").expect("a key").reset().run().expect("works");
    let one = reader
        .key_snapshot("api", "tenant-3")
        .expect("keyed")
        .expect("it has a row");
    assert!(one.replenished);
    assert_eq!((one.held, one.limits[0].remaining), (0, 3));
}

#[test]
fn a_key_is_shown_as_far_as_it_is_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let set = SetDeclaration::new("api")
        .keyed(Keyed::new(10))
        .add_limit(calls(9));
    let (segment, reader) = open(&directory, set);
    let api = segment.set("api").expect("declared");
    // The name has 39 bytes before a character of two bytes, of which the first is the last byte that is kept.
    let cut = format!("{}é and so on", "x".repeat(39));
    for key in [&b"\xff\x00\x01"[..], cut.as_bytes(), "größe".as_bytes()] {
        drop(
            api.request()
                .for_key(key)
                .expect("a key")
                .try_acquire()
                .expect("works"),
        );
    }
    let label = |key: &[u8]| reader.key_snapshot("api", key).expect("keyed").expect("used").key;

    let binary = label(b"\xff\x00\x01");
    assert_eq!(
        (binary.text(), binary.bytes, binary.is_cut()),
        (None, Some(3), false)
    );
    assert_eq!(binary.kept.as_deref(), Some(&b"\xff\x00\x01"[..]));
    assert_eq!(serde_json::to_value(&binary).expect("JSON")["hex"], "ff0001");
    let cut_label = label(cut.as_bytes());
    assert_eq!(cut_label.text(), Some(&cut[..39]));
    assert_eq!(
        (cut_label.bytes, cut_label.is_cut()),
        (Some(cut.len() as u64), true)
    );
    let whole = label("größe".as_bytes());
    assert_eq!((whole.text(), whole.is_cut()), (Some("größe"), false));
    let json = serde_json::to_value(&whole).expect("JSON");
    assert_eq!((&json["text"], &json["hex"]), (&"größe".into(), &().into()));
    assert_eq!(json["fingerprint"].as_str().map(str::len), Some(32));
}

#[test]
fn nothing_of_a_key_is_kept_where_it_is_declared_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyed = Keyed::new(10).store_keys(false);
    let (segment, reader) = open(
        &directory,
        SetDeclaration::new("api").keyed(keyed).add_limit(calls(9)),
    );
    let api = segment.set("api").expect("declared");
    drop(
        api.request()
            .for_key("secret")
            .expect("a key")
            .try_acquire()
            .expect("works"),
    );
    let file = std::fs::read(directory.path().join("limits")).expect("read");
    assert!(!file.windows(6).any(|bytes| bytes == b"secret"));
    let key = reader
        .key_snapshot("api", "secret")
        .expect("keyed")
        .expect("used");
    assert_eq!(
        (&key.key.kept, key.key.bytes, key.key.text()),
        (&None, None, None)
    );
    assert_eq!(key.admitted, 1);
}

#[test]
fn who_waits_is_counted_in_the_line_of_its_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let set = SetDeclaration::new("api")
        .keyed(Keyed::new(10))
        .add_limit(Limit::concurrency("in_flight", 1));
    let (segment, reader) = open(&directory, set);
    let api = segment.set("api").expect("declared");
    let key = |name: &str| reader.key_snapshot("api", name).expect("keyed");
    let held: Vec<_> = ["a", "b"]
        .iter()
        .map(|name| {
            api.request()
                .for_key(name)
                .expect("a key")
                .try_acquire()
                .expect("works")
        })
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let outcome = api.request().for_key("a").expect("a key").acquire(None);
                assert!(outcome.expect("works").is_admitted());
            });
        }
        while key("a").is_none_or(|key| key.queued < 2) {
            std::thread::yield_now();
        }
        assert_eq!(key("b").map(|key| (key.queued, key.held)), Some((0, 1)));
        let tickets = &reader.snapshot().expect("a copy").sets[0].tickets;
        let names: Vec<_> = tickets
            .iter()
            .map(|ticket| ticket.key.as_ref().and_then(|key| key.text()))
            .collect();
        assert_eq!(names, [Some("a"), Some("a")]);
        drop(held);
    });
    assert_eq!(
        key("a").map(|key| (key.queued, key.held, key.admitted)),
        Some((0, 0, 3))
    );
}

#[test]
fn a_key_that_is_not_torn_belongs_together_whatever_goes_on_meanwhile() {
    const CAPACITY: u64 = 1 << 40;
    let directory = tempfile::tempdir().expect("a directory");
    let set = SetDeclaration::new("api")
        .keyed(Keyed::new(64))
        .add_limit(calls(CAPACITY));
    let (segment, reader) = open(&directory, set);
    let api = segment.set("api").expect("declared");
    let is_done = AtomicBool::new(false);
    let check = |key: &KeySnapshot| {
        let used = CAPACITY - key.limits[0].remaining;
        assert!(key.torn || used == u64::from(key.admitted), "{key:?}");
        !key.torn
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let keys = [[0], [1], [2_u8]];
            for key in keys.iter().cycle().take(200_000) {
                drop(
                    api.request()
                        .for_key(key)
                        .expect("keyed")
                        .try_acquire()
                        .expect("works"),
                );
            }
            is_done.store(true, Ordering::Relaxed);
        });
        while !is_done.load(Ordering::Relaxed) {
            reader
                .key_snapshots("api", |key| _ = check(key))
                .expect("a keyed set");
            reader
                .key_snapshot("api", [1])
                .expect("keyed")
                .as_ref()
                .map(check);
        }
    });
    let mut count = 0;
    reader
        .key_snapshots("api", |key| {
            assert!(check(key), "nothing changes it any more");
            count += 1;
        })
        .expect("a keyed set");
    assert_eq!(count, 3);
}

#[test]
fn what_cannot_be_looked_at_is_said() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let declaration = Declaration::new()
        .add_set(SetDeclaration::new("plain").add_limit(calls(1)))
        .add_set(
            SetDeclaration::new("api")
                .keyed(Keyed::new(10))
                .add_limit(calls(1)),
        );
    let segment = Segment::create(&path, &declaration).expect("created");
    let reader = SegmentReader::open(&path).expect("a segment");
    let nothing = |_: &KeySnapshot| panic!("unused");
    for refused in [
        reader.key_snapshots("plain", nothing),
        segment.key_snapshots("plain", nothing),
    ] {
        assert!(matches!(refused, Err(Error::Request(RequestError::NotKeyed { set })) if set == "plain"));
    }
    assert!(
        matches!(reader.key_snapshots("none", nothing), Err(Error::Request(RequestError::UnknownSet { known, .. })) if known.len() == 2)
    );
    assert!(matches!(
        reader.key_snapshot("plain", "a"),
        Err(Error::Request(RequestError::NotKeyed { .. }))
    ));
    assert!(matches!(
        reader.key_snapshot("api", ""),
        Err(Error::Request(RequestError::InvalidKey { bytes: 0, .. }))
    ));
}

#[test]
fn who_only_looks_goes_by_changes_made_since_it_began_to() {
    let directory = tempfile::tempdir().expect("a directory");
    let of = |capacity, name: &str| {
        SetDeclaration::new("api")
            .keyed(Keyed::new(1_000))
            .add_metadata("name", name)
            .add_limit(calls(capacity))
    };
    let (segment, reader) = open(&directory, of(10, "first"));
    let idle = Segment::open(segment.path()).expect("a segment");
    let api = segment.set("api").expect("declared");
    for _ in 0..4 {
        drop(
            api.request()
                .for_key("a")
                .expect("a key")
                .try_acquire()
                .expect("works"),
        );
    }
    for capacity in [20, 5, 30] {
        let asked = Declaration::new().add_set(of(capacity, "later"));
        segment.apply(&asked).expect("applied");
        let mut seen = vec![
            reader.key_snapshot("api", "a").expect("keyed").expect("used"),
            idle.key_snapshot("api", "a").expect("keyed").expect("used"),
        ];
        reader
            .key_snapshots("api", |key| seen.push(key.clone()))
            .expect("keyed");
        assert_eq!(seen.len(), 3);
        for key in seen {
            let limit = &key.limits[0];
            assert_eq!((limit.capacity, limit.remaining), (Some(capacity), capacity - 4));
        }
        for snapshot in [reader.snapshot(), idle.snapshot()] {
            let set = &snapshot.expect("a copy").sets[0];
            assert_eq!(set.limits[0].capacity, Some(capacity));
            assert_eq!(set.metadata["name"], "later");
        }
    }
}

#[test]
fn what_would_be_changed_is_told_by_who_may_only_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let of = |capacity| Declaration::new().add_set(SetDeclaration::new("api").add_limit(calls(capacity)));
    let path = directory.path().join("limits");
    let segment = Segment::create(&path, &of(10)).expect("created");
    let reader = SegmentReader::open(&path).expect("a segment");
    let changes = reader.preview(&of(20)).expect("possible");
    assert_eq!(
        changes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["set \"api\" / limit \"requests\" / capacity: declared 20, in the segment 10"]
    );
    assert_eq!(segment.apply(&of(20)).expect("applied"), changes);

    let reader = SegmentReader::open(&path).expect("a segment");
    assert!(reader.preview(&of(20)).expect("possible").is_empty());
    // There is room for a definition half as long again, or 512 bytes longer.
    let endless = (0..32).fold(SetDeclaration::new("api").add_limit(calls(20)), |set, number| {
        set.add_metadata(format!("entry-{number}"), "x".repeat(200))
    });
    let endless = Declaration::new().add_set(endless);
    let told = reader.preview(&endless).expect_err("too long").to_string();
    assert!(told.contains("has grown too long"), "{told}");
    assert_eq!(segment.apply(&endless).expect_err("too long").to_string(), told);
}

#[test]
fn whatever_a_damaged_file_says_looking_comes_to_an_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let set = SetDeclaration::new("api")
        .keyed(Keyed::new(64))
        .add_limit(calls(3))
        .add_limit(Limit::concurrency("in_flight", 2));
    let (segment, reader) = open(&directory, set);
    let api = segment.set("api").expect("declared");
    let permits: Vec<_> = (0..20_u8)
        .map(|number| {
            api.request()
                .for_key([number])
                .expect("a key")
                .try_acquire()
                .expect("works")
        })
        .collect();
    let whole = std::fs::read(reader.path()).expect("read");
    drop(permits);
    // Everything before that is covered by checksums: the header, the tables, and the definition.
    let definition = whole.windows(9).position(|bytes| bytes == b"[segment]");
    let words = definition.expect("it is there") / 8 + 200..whole.len() / 8;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let path = directory.path().join("damaged");
    let mut opened = 0;
    for _ in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..40 {
            let word = words.start + random() as usize % words.len();
            let value = [0, u64::MAX, random(), random() % 64][random() as usize % 4];
            bytes[word * 8..][..8].copy_from_slice(&value.to_ne_bytes());
        }
        std::fs::write(&path, &bytes).expect("written");
        let Ok(reader) = SegmentReader::open(&path) else {
            continue;
        };
        opened += 1;
        let mut count = 0;
        reader.key_snapshots("api", |_| count += 1).expect("a keyed set");
        let table = reader.snapshot().expect("a copy").sets[0]
            .keys
            .expect("it is keyed");
        assert!(count <= table.rows && table.fullest_bucket <= 32, "{table:?}");
        for number in 0..20_u8 {
            let _ = reader.key_snapshot("api", [number]).expect("a keyed set");
        }
    }
    assert!(opened > 200, "{opened}");
}
