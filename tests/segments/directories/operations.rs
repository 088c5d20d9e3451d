//! What can be asked of a segment, asked of a directory.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use shmlimit::declare::Checkpoint;
use shmlimit::pool::PoolStrategy;
use shmlimit::snapshot::SegmentReader;
use shmlimit::{
    Declaration, DeclarationError, Error, Keyed, Limit, LimitPool, OpenOptions, RequestError, Segment,
    SegmentError, SetDeclaration,
};

use super::{HOUR, declaring, place, set_of, use_one, use_up};
use crate::scene::{self, expect_permit};

fn with_keys() -> Declaration {
    let tenants = SetDeclaration::new("tenants")
        .keyed(Keyed::new(100))
        .add_limit(Limit::calls("calls", 2, HOUR));
    let chat = SetDeclaration::new("chat").add_limit(Limit::concurrency("places", 4));
    declaring(&[]).add_set(chat).add_set(tenants)
}

#[test]
fn snapshots_are_of_all_sets_and_name_each_process_once() {
    let (_root, path) = place();
    let segment = Segment::create(&path, &with_keys()).expect("created");
    let chat = segment.set("chat").expect("declared");
    let permit = expect_permit(chat.request().try_acquire());
    let reader = SegmentReader::open(&path).expect("readable");
    for snapshot in [segment.snapshot(), reader.snapshot()] {
        let snapshot = snapshot.expect("a copy");
        assert_eq!(snapshot.path, path);
        let names: Vec<&str> = snapshot.sets.iter().map(|set| set.name.as_str()).collect();
        assert_eq!(names, ["chat", "tenants"]);
        assert_eq!(snapshot.sets[0].active, 1);
        let pids: Vec<u64> = snapshot.participants.iter().map(|it| it.pid).collect();
        assert_eq!(pids, [u64::from(std::process::id())]);
        let of_files: u64 = ["chat", "tenants"]
            .map(|file| std::fs::metadata(path.join(file)).expect("a file").len())
            .iter()
            .sum();
        assert_eq!(snapshot.size, of_files);
        assert!(snapshot.same_place && !snapshot.retired);
    }
    drop(permit);
    assert_eq!(reader.path(), path);
    assert_eq!(reader.memory().sets.len(), 2);
    let diagnosis = reader.diagnose().expect("examined");
    assert!(diagnosis.obstacles.is_empty());
    let sets: Vec<&str> = diagnosis.shards.iter().map(|shard| shard.set.as_str()).collect();
    assert_eq!((sets.first(), sets.last()), (Some(&"chat"), Some(&"tenants")));
    // The whole directory was diagnosed.
    assert_eq!(diagnosis.snapshot.path, path);
    let names: Vec<&str> = diagnosis
        .snapshot
        .sets
        .iter()
        .map(|set| set.name.as_str())
        .collect();
    assert_eq!(names, ["chat", "tenants"]);
    assert_eq!(reader.place().expect("known"), diagnosis.place);
    assert!(reader.declaration().differences(segment.declaration()).is_empty());
    let files = SegmentReader::files_of_sets(&path).expect("a directory");
    assert_eq!(files, Some(vec![path.join("chat"), path.join("tenants")]));
    assert_eq!(
        SegmentReader::files_of_sets(path.join("chat")).expect("a file"),
        None
    );
}

#[test]
fn keys_are_looked_at_in_the_file_of_their_set() {
    let (_root, path) = place();
    let segment = Segment::create(&path, &with_keys()).expect("created");
    let tenants = segment.set("tenants").expect("declared");
    let acme = tenants.request().for_key("acme").expect("keyed");
    assert!(acme.check().expect("a decision").is_admitted());
    let reader = SegmentReader::open(&path).expect("readable");
    let mut seen = Vec::new();
    segment
        .key_snapshots("tenants", |key| seen.push(key.admitted))
        .expect("keyed");
    reader
        .key_snapshots("tenants", |key| seen.push(key.admitted))
        .expect("keyed");
    assert_eq!(seen, [1, 1]);
    assert!(segment.key_snapshot("tenants", "acme").expect("keyed").is_some());
    assert!(reader.key_snapshot("tenants", "other").expect("keyed").is_none());
    let not_keyed = [
        segment.key_snapshot("chat", "acme"),
        reader.key_snapshot("chat", "acme"),
    ];
    for answer in not_keyed {
        assert!(matches!(
            answer,
            Err(Error::Request(RequestError::NotKeyed { .. }))
        ));
    }
    let unknown = [
        segment.key_snapshot("none", "acme"),
        reader.key_snapshot("none", "acme"),
    ];
    for answer in unknown {
        match answer {
            Err(Error::Request(RequestError::UnknownSet { known, .. })) => {
                assert_eq!(known, ["chat", "tenants"]);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_pool_takes_sets_of_several_files() {
    let (_root, path) = place();
    let segment = Segment::create(&path, &declaring(&[("east", 2), ("west", 3)])).expect("created");
    let pool = LimitPool::new(segment.sets(), PoolStrategy::RoundRobin)
        .expect("two")
        .failover(true);
    let request = pool.request();
    let admitted = (0..10).filter(|_| request.try_acquire().expect("a decision").outcome.is_admitted());
    assert_eq!(admitted.count(), 5);
}

#[test]
fn recovery_reset_and_retirement_reach_every_file() {
    let (_root, path) = place();
    let segment = Segment::create(&path, &declaring(&[("chat", 3), ("mail", 5)])).expect("created");
    for (report, rebuilt) in [(segment.recover(), false), (segment.rebuild(), true)] {
        let report = report.expect("recovered");
        let sets: Vec<&str> = report.sets.iter().map(|set| set.set.as_str()).collect();
        assert_eq!(sets, ["chat", "mail"]);
        assert!(report.sets.iter().all(|set| set.repairs.is_some() == rebuilt));
    }
    for set in segment.sets() {
        use_up(&set);
        set.reset().counters().run().expect("reset");
        assert!(use_one(&set));
    }
    segment.retire();
    for set in segment.sets() {
        assert!(matches!(
            set.request().check(),
            Err(Error::Segment(SegmentError::Removed { .. }))
        ));
    }
    // Another process finishes the removal and creates them again.
    let next = Segment::open_or_create(&path, &declaring(&[("chat", 3), ("mail", 5)])).expect("created");
    assert_eq!(use_up(&next.set("mail").expect("declared")), 5);
}

#[test]
fn observers_hear_of_every_set() {
    let (_root, path) = place();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&heard);
    let options = OpenOptions::new().on_request_event(move |event| {
        log.lock().expect("not poisoned").push(event.set.to_owned());
    });
    let segment = options
        .open_or_create(&path, &declaring(&[("chat", 1), ("mail", 1)]))
        .expect("created");
    drop(Segment::open_or_create(&path, &declaring(&[("later", 1)])).expect("created"));
    for name in ["chat", "mail", "later"] {
        use_up(&segment.set(name).expect("there"));
    }
    assert_eq!(*heard.lock().expect("not poisoned"), ["chat", "mail", "later"]);
}

#[test]
fn each_set_has_a_checkpoint_of_its_own_and_is_restored_from_it() {
    let (root, path) = place();
    let kept = root.path().join("kept.d/");
    let list = declaring(&[("chat", 3), ("mail", 5)])
        .checkpoint(Checkpoint::new(&kept).every(Duration::from_secs(3600)));
    let segment = Segment::open_or_create(&path, &list).expect("created");
    for set in segment.sets() {
        assert!(use_one(&set));
    }
    assert!(segment.checkpoint(&kept).expect("written"));
    assert!(segment.checkpoint_failure().is_none());
    drop(segment);
    std::fs::remove_dir_all(&path).expect("as a reboot does");
    let longer = list.add_set(set_of("new", 1));
    let restored = Segment::open_or_create(&path, &longer).expect("restored");
    let left: Vec<u64> = restored.sets().map(|set| use_up(&set)).collect();
    assert_eq!(left, [2, 4, 1]);
}

#[test]
fn what_needs_a_single_file_is_refused_by_the_declaration() {
    let (root, path) = place();
    let refused = |list: &Declaration| {
        let answers = [
            Segment::open_or_create(&path, list).err(),
            Segment::create(&path, list).err(),
        ];
        for answer in answers {
            match answer {
                Some(Error::Declaration(DeclarationError::Value { place, .. })) => {
                    assert!(place.starts_with("segment / "), "{place}");
                }
                other => panic!("{other:?}"),
            }
            assert!(!path.exists(), "nothing was created");
        }
    };
    refused(&declaring(&[("chat", 1)]).checkpoint(Checkpoint::new(root.path().join("kept"))));
}

#[test]
fn a_forked_child_uses_the_directory_of_its_parent() {
    let test = "directories::operations::a_forked_child_uses_the_directory_of_its_parent";
    scene::process::in_own_process(test, scene::process::TIMEOUT, |root| {
        let path = root.join("app.limits.d");
        let segment = Segment::create(&path, &declaring(&[("chat", 3)])).expect("created");
        drop(Segment::open_or_create(&path, &declaring(&[("mail", 3), ("late", 3)])).expect("created"));
        assert!(use_one(&segment.set("mail").expect("found")));
        scene::process::Child::fork(|| {
            for name in ["chat", "mail", "late"] {
                assert!(use_one(&segment.set(name).expect("there")));
            }
        })
        .succeed();
        let left: Vec<u64> = ["chat", "mail", "late"]
            .iter()
            .map(|name| use_up(&segment.set(name).expect("there")))
            .collect();
        assert_eq!(left, [2, 1, 2]);
    });
}
