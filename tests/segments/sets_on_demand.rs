//! Sets that are made when a process asks for them first: one for each name, however many processes ask at once and
//! whichever of them are killed on the way.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::scene;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use fastrand::Rng;
use shmlimit::{
    Algorithm, Align, Declaration, DeclarationError, Error, Keyed, Limit, OnMismatch, OpenError, OpenOptions,
    RequestError, Segment, SegmentReader, SetDeclaration,
};

const HOUR: Duration = Duration::from_secs(3600);
const CAPACITY: u64 = 6;

fn template() -> SetDeclaration {
    SetDeclaration::new("operation")
        .waiters(8)
        .add_limit(Limit::calls("requests", CAPACITY, HOUR))
}

fn declaration(max_sets: u32) -> Declaration {
    let fixed = SetDeclaration::new("fixed")
        .waiters(8)
        .add_limit(Limit::calls("requests", 1, HOUR));
    scene::declaration()
        .add_set(fixed)
        .add_set(template())
        .sets_on_demand("operation", max_sets)
}

fn names(segment: &Segment) -> Vec<String> {
    segment.sets().map(|set| set.name().to_owned()).collect()
}

fn use_up(segment: &Segment, set: &str) -> u64 {
    let set = segment.set(set).expect("a set");
    let request = set.request();
    (0..)
        .take_while(|_| set.check(&request).expect("works").is_admitted())
        .count() as u64
}

/// Besides the two declared sets there are exactly `made` others.
fn assert_one_set_for_each_name(segment: &Segment, made: usize) {
    let names = names(segment);
    assert_eq!(names.len(), 2 + made, "{names:?}");
    assert_eq!(
        names.iter().collect::<BTreeSet<_>>().len(),
        names.len(),
        "{names:?}"
    );
}

/// Asks for the sets `operation-0` and on, in an order of its own, and answers what each admitted.
fn ask_for_all(path: &Path, sets: usize, dice: &mut Rng, admitted: &SharedWords) {
    let segment = Segment::open(path).expect("attaches");
    let mut order: Vec<usize> = (0..sets).collect();
    for last in (1..sets).rev() {
        order.swap(last, dice.u64(..last as u64 + 1) as usize);
    }
    for number in order {
        let taken = use_up(&segment, &format!("operation-{number}"));
        admitted[number].fetch_add(taken, Ordering::SeqCst);
    }
}

#[test]
fn processes_that_ask_for_a_name_at_the_same_time_share_one_set() {
    let test = "sets_on_demand::processes_that_ask_for_a_name_at_the_same_time_share_one_set";
    in_own_process(test, 5 * TIMEOUT, |directory| {
        const SETS: usize = 20;
        let path = directory.join("limits");
        let segment = Segment::create(&path, &declaration(SETS as u32)).expect("a segment");
        let (admitted, ready) = (SharedWords::new(SETS), SharedWords::new(1));
        let children: Vec<Child> = (0..8)
            .map(|seed| {
                Child::fork(|| {
                    ready[0].fetch_add(1, Ordering::SeqCst);
                    eventually("all are ready", || ready[0].load(Ordering::SeqCst) == 8);
                    ask_for_all(&path, SETS, &mut Rng::with_seed(seed), &admitted);
                })
            })
            .collect();
        for child in children {
            child.succeed();
        }
        for (number, taken) in admitted.iter().enumerate() {
            assert_eq!(taken.load(Ordering::SeqCst), CAPACITY, "set {number}");
        }
        assert_one_set_for_each_name(&segment, SETS);
    });
}

#[test]
fn processes_that_are_killed_while_they_ask_leave_no_name_twice_and_no_copy_unusable() {
    let test =
        "sets_on_demand::processes_that_are_killed_while_they_ask_leave_no_name_twice_and_no_copy_unusable";
    in_own_process(test, 5 * TIMEOUT, |directory| {
        const SETS: usize = 12;
        let mut dice = Rng::with_seed(u64::from(std::process::id()));
        for round in 0..40 {
            let path = directory.join(format!("limits-{round}"));
            let segment = Segment::create(&path, &declaration(SETS as u32)).expect("a segment");
            let asked = SharedWords::new(1);
            let mut children: Vec<Child> = (0..4)
                .map(|_| {
                    Child::fork(|| {
                        let segment = Segment::open(&path).expect("attaches");
                        for number in 0..SETS {
                            segment.set(&format!("operation-{number}")).expect("made");
                            asked[0].fetch_add(1, Ordering::SeqCst);
                        }
                        eventually("it is killed", || false);
                    })
                })
                .collect();
            let seen = dice.u64(..4 * SETS as u64);
            eventually("they have asked for some", || {
                asked[0].load(Ordering::SeqCst) >= seen
            });
            while let Some(child) = children.pop() {
                child.kill();
            }
            for number in 0..SETS {
                assert_eq!(use_up(&segment, &format!("operation-{number}")), CAPACITY);
            }
            assert_one_set_for_each_name(&segment, SETS);
        }
    });
}

#[test]
fn a_name_beyond_the_last_copy_is_unknown_and_the_sets_there_are_are_named() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("limits");
    let segment = Segment::create(&path, &declaration(2)).expect("a segment");
    assert_eq!(names(&segment), ["fixed", "operation"]);
    for name in ["b", "a", "b"] {
        assert_eq!(segment.set(name).expect("made").name(), name);
    }
    match segment.set("c") {
        Err(Error::Request(RequestError::UnknownSet { name, known })) => {
            assert_eq!(name, "c");
            assert_eq!(known, ["fixed", "operation", "b", "a"]);
        }
        other => panic!("{other:?}"),
    }
    for name in ["", "line\nbreak", &"long".repeat(17)] {
        let segment = Segment::create(directory.path().join("other"), &declaration(2)).expect("a segment");
        let refused = segment.set(name);
        assert!(
            matches!(refused, Err(Error::Declaration(DeclarationError::Name { .. }))),
            "{name:?}: {refused:?}"
        );
        assert_eq!(names(&segment), ["fixed", "operation"]);
        OpenOptions::new()
            .remove(segment.path(), shmlimit::Removal::Forced)
            .expect("removed");
    }
}

#[test]
fn who_looks_only_sees_the_sets_that_were_asked_for_and_makes_none() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("limits");
    let keyed = template().keyed(Keyed::new(64));
    let declared = scene::declaration().add_set(keyed).sets_on_demand("operation", 3);
    let segment = Segment::create(&path, &declared).expect("a segment");
    let reader = SegmentReader::open(&path).expect("a segment");
    assert!(matches!(
        reader.key_snapshot("upload", b"tenant"),
        Err(Error::Request(RequestError::UnknownSet { .. }))
    ));
    let upload = segment.set("upload").expect("made");
    assert!(
        upload
            .key("tenant")
            .expect("a key")
            .check(&upload.request())
            .expect("works")
            .is_admitted()
    );
    assert!(
        reader
            .key_snapshot("upload", b"tenant")
            .expect("known by now")
            .is_some()
    );
    let snapshot = reader.snapshot().expect("a copy");
    let sets: Vec<_> = snapshot
        .sets
        .iter()
        .map(|set| (set.name.as_str(), set.copy_of.as_deref()))
        .collect();
    assert_eq!(sets, [("operation", None), ("upload", Some("operation"))]);
    assert_eq!(snapshot.sets[1].counts.admitted, 1);
    assert_eq!(upload.declared_limits()[0].name(), "requests");
}

#[test]
fn a_change_of_the_template_reaches_its_copies_which_keep_their_names_and_what_they_counted() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("limits");
    let of = |capacity| {
        let hour = Limit::calls("requests", capacity, HOUR).algorithm(Algorithm::FixedWindow);
        template_of(hour.align(Align::FirstUse))
    };
    let windows = Segment::open_or_create(&path, &of(CAPACITY)).expect("a segment");
    assert_eq!(use_up(&windows, "upload"), CAPACITY);
    let apply = OpenOptions::new().on_mismatch(OnMismatch::Apply);
    let changed = apply.open_or_create(&path, &of(CAPACITY + 2)).expect("applied");
    assert_eq!(
        changed.mismatches().len(),
        1,
        "one for the template and its copies"
    );
    assert_eq!(use_up(&windows, "upload"), 2, "what was counted stays counted");
    assert_eq!(
        use_up(&changed, "download"),
        CAPACITY + 2,
        "a new copy is as the template is by now"
    );
    assert_eq!(names(&windows), ["operation", "upload", "download"]);
    assert!(
        of(CAPACITY + 2)
            .differences(&changed.declaration_in_force().expect("read"))
            .is_empty()
    );
}

fn template_of(limit: Limit) -> Declaration {
    let template = SetDeclaration::new("operation").waiters(8).add_limit(limit);
    scene::declaration()
        .add_set(template)
        .sets_on_demand("operation", 3)
}

#[test]
fn the_number_of_copies_cannot_change_in_a_live_segment() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("limits");
    let _segment = Segment::open_or_create(&path, &declaration(3)).expect("a segment");
    drop(Segment::open_or_create(&path, &declaration(3)).expect("the same"));
    for (other, field) in [
        (declaration(4), "segment / max_sets_on_demand"),
        (
            declaration(3).sets_on_demand("fixed", 3),
            "segment / sets_on_demand",
        ),
    ] {
        match OpenOptions::new()
            .on_mismatch(OnMismatch::Apply)
            .open_or_create(&path, &other)
        {
            Err(Error::Open(OpenError::ConfigMismatch { differences, .. })) => {
                assert!(
                    differences
                        .iter()
                        .any(|difference| difference.to_string().contains(field)),
                    "{differences:?}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_declaration_of_copies_names_a_declared_set_and_a_possible_number() {
    let of = |toml: &str| {
        let set = "[[set]]\nname = \"operation\"\n[[set.limit]]\nname = \"requests\"\nkind = \"concurrency\"\ncapacity = 1\n";
        Declaration::from_toml(&format!("[segment]\n{toml}\n{set}"))
    };
    assert!(of("sets_on_demand = \"operation\"").is_ok());
    assert!(of("sets_on_demand = \"operation\"\nmax_sets_on_demand = 1023").is_ok());
    for (toml, word) in [
        ("sets_on_demand = \"operations\"", "is no declared set"),
        (
            "sets_on_demand = \"operation\"\nmax_sets_on_demand = 0",
            "max_sets_on_demand",
        ),
        (
            "sets_on_demand = \"operation\"\nmax_sets_on_demand = 1024",
            "max_sets_on_demand",
        ),
        ("max_sets_on_demand = 3", "no set is copied"),
        ("on_demand = \"upload\"", "only a segment makes"),
    ] {
        let error = of(toml).expect_err(toml).to_string();
        assert!(error.contains(word), "{toml}: {error}");
    }
    let text = of("sets_on_demand = \"operation\"")
        .expect("valid")
        .to_toml()
        .expect("text");
    assert!(text.contains("max_sets_on_demand = 64"), "{text}");
}
