//! Services that are restarted with another declaration while the segment of the previous one exists.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::scene;
use crate::scene::expect_permit;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use fastrand::Rng;
use shmlimit::declare::{Align, MismatchOutcome, OnMismatch};
use shmlimit::snapshot::SegmentReader;
use shmlimit::{
    Algorithm, Declaration, Error, Limit, OpenError, OpenOptions, Segment, SegmentError, SetDeclaration,
};

const HOUR: Duration = Duration::from_secs(3600);

/// Sets with a limit of calls each, all of the same capacity.
fn declaring(sets: &[&str], capacity: u64) -> Declaration {
    let set = |name: &&str| SetDeclaration::new(*name).add_limit(Limit::calls("requests", capacity, HOUR));
    sets.iter()
        .map(set)
        .fold(scene::declaration(), Declaration::add_set)
}

fn api(capacity: u64) -> Declaration {
    declaring(&["api"], capacity)
}

/// The same kind of limit with an algorithm to which no live segment can change. A window aligned to the clock could
/// end in the middle of a test.
fn windowed(capacity: u64) -> Declaration {
    let requests = Limit::calls("requests", capacity, HOUR)
        .algorithm(Algorithm::FixedWindow)
        .align(Align::FirstUse);
    scene::declaration().add_set(SetDeclaration::new("api").add_limit(requests))
}

fn options(on_mismatch: OnMismatch) -> OpenOptions {
    OpenOptions::new().on_mismatch(on_mismatch)
}

fn open(path: &Path, on_mismatch: OnMismatch, declaration: &Declaration) -> Result<Segment, Error> {
    options(on_mismatch).open_or_create(path, declaration)
}

/// The capacity in force in each set, its version, and whether it was edited.
fn in_force(path: &Path) -> Vec<(u64, Option<u64>, bool)> {
    let reader = SegmentReader::open(path).expect("a segment");
    let snapshot = reader.snapshot().expect("a snapshot");
    let capacity = |name: &str| {
        let declaration = reader.declaration();
        (1..=200_u64)
            .find(|capacity| {
                let set = declaring(&[name], *capacity);
                let declared = declaration.sets().iter().find(|set| set.name() == name);
                let declared = scene::declaration().add_set(declared.expect("a set").clone());
                set.differences(&declared).is_empty()
            })
            .expect("a capacity that was declared")
    };
    snapshot
        .sets
        .iter()
        .map(|set| (capacity(&set.name), set.version, set.edited))
        .collect()
}

fn outcomes(segment: &Segment) -> Vec<MismatchOutcome> {
    segment
        .mismatches()
        .iter()
        .map(|mismatch| mismatch.outcome())
        .collect()
}

fn mismatch(outcome: Result<Segment, Error>) -> (Vec<String>, String) {
    match outcome {
        Err(error @ Error::Open(OpenError::ConfigMismatch { .. })) => {
            let message = error.to_string();
            let Error::Open(OpenError::ConfigMismatch { differences, .. }) = error else {
                unreachable!("just matched")
            };
            (differences.iter().map(ToString::to_string).collect(), message)
        }
        other => panic!("{other:?} in place of a mismatch"),
    }
}

#[test]
fn another_number_is_applied_to_the_live_segment_and_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let former = open(&path, OnMismatch::Apply, &api(10)).expect("created");
    assert!(former.mismatches().is_empty(), "there was nothing to differ from");
    let set = former.set("api").expect("declared");
    for _ in 0..4 {
        drop(expect_permit(set.request().try_acquire()));
    }
    let segment = open(&path, OnMismatch::Apply, &api(20)).expect("applied");
    let [mismatch] = segment.mismatches() else {
        panic!("{:?}", segment.mismatches())
    };
    assert_eq!(mismatch.outcome(), MismatchOutcome::Replaced);
    assert_eq!((mismatch.set(), mismatch.declared_version()), (Some("api"), None));
    let text = mismatch.to_string();
    assert!(
        text.contains("capacity: declared 20, in the segment 10"),
        "{text}"
    );
    assert_eq!(in_force(&path), [(20, None, false)]);
    assert!(segment.declaration().differences(&api(20)).is_empty());
    // This is true of the handle of the previous declaration, too, and what was taken stays taken.
    let left = set.request().peek().expect("works")[0].remaining;
    assert_eq!(left, 6, "a raised limit does not grant the past");
}

#[test]
fn the_same_declaration_again_is_no_mismatch_in_any_way() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let declaration = api(10).version(3);
    let _first = open(&path, OnMismatch::Error, &declaration).expect("created");
    for way in [OnMismatch::Apply, OnMismatch::Error, OnMismatch::RecreateIfUnused] {
        let again = open(&path, way, &declaration).expect("opened");
        assert!(again.mismatches().is_empty());
    }
}

#[test]
fn versions_go_up_and_never_down() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let start = |declaration: &Declaration| open(&path, OnMismatch::Apply, declaration).expect("opened");
    start(&api(10).version(2));
    assert_eq!(outcomes(&start(&api(20).version(3))), [MismatchOutcome::Upgraded]);
    assert_eq!(in_force(&path), [(20, Some(3), false)]);
    let older = start(&api(10).version(2));
    assert_eq!(outcomes(&older), [MismatchOutcome::KeptNewer]);
    assert!(older.declaration().differences(&api(20)).is_empty());
    assert_eq!(
        outcomes(&start(&api(30))),
        [MismatchOutcome::KeptNewer],
        "no version is below any"
    );
    assert_eq!(outcomes(&start(&api(40).version(3))), [MismatchOutcome::Replaced]);
    assert_eq!(in_force(&path), [(40, Some(3), false)]);
    // A higher version of the same limits counts as well.
    assert_eq!(outcomes(&start(&api(40).version(9))), [MismatchOutcome::Upgraded]);
    assert_eq!(
        outcomes(&start(&api(50).version(8))),
        [MismatchOutcome::KeptNewer]
    );
    assert_eq!(in_force(&path), [(40, Some(9), false)]);
}

#[test]
fn what_an_operator_has_changed_stays_until_a_higher_version() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let start = |declaration: &Declaration| open(&path, OnMismatch::Apply, declaration).expect("opened");
    for version in [None, Some(5)] {
        let of = |capacity, raised: u64| {
            version.map_or(api(capacity), |version| api(capacity).version(version + raised))
        };
        let segment = start(&of(10, 0));
        segment.apply(&api(15)).expect("applied");
        assert_eq!(in_force(&path), [(15, version, true)]);
        for capacity in [10, 20] {
            assert_eq!(outcomes(&start(&of(capacity, 0))), [MismatchOutcome::KeptEdited]);
            assert_eq!(in_force(&path), [(15, version, true)]);
        }
        let (differences, _) = mismatch(open(&path, OnMismatch::Error, &of(10, 0)));
        assert!(
            differences[0].contains("declared 10, in the segment 15"),
            "{differences:?}"
        );
        assert!(
            outcomes(&start(&of(15, 0))).is_empty(),
            "the program declares the same by now"
        );
        segment
            .apply(&api(16))
            .expect("an operator may change what an operator has changed");
        let next = api(30).version(6);
        assert_eq!(outcomes(&start(&next)), [MismatchOutcome::Upgraded]);
        assert_eq!(in_force(&path), [(30, Some(6), false)]);
        drop(segment);
        OpenOptions::new()
            .remove(&path, shmlimit::Removal::Unused)
            .expect("removed");
    }
}

#[test]
fn with_error_every_difference_is_one_but_of_a_lower_version() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let start = |declaration: &Declaration| open(&path, OnMismatch::Error, declaration);
    drop(start(&api(10).version(2)).expect("created"));
    let (differences, message) = mismatch(start(&api(20).version(2)));
    assert_eq!(
        differences,
        [
            r#"set "api" / limit "requests" / burst: declared 20, in the segment 10"#,
            r#"set "api" / limit "requests" / capacity: declared 20, in the segment 10"#
        ]
    );
    let path_text = path.to_str().expect("Unicode");
    assert!(message.starts_with(path_text), "{message}");
    let command = format!("`limitctl edit {path_text} api requests burst=20 capacity=20`");
    assert!(message.contains(&command), "{message}");
    let (differences, message) = mismatch(start(&api(10).version(3)));
    assert_eq!(
        differences,
        [r#"set "api" / version: declared 3, in the segment 2"#]
    );
    assert!(
        message.contains(&format!("`limitctl apply {path_text} FILE`")),
        "{message}"
    );
    let older = start(&api(20).version(1)).expect("a lower version is not compared");
    assert_eq!(outcomes(&older), [MismatchOutcome::KeptNewer]);
    assert_eq!(in_force(&path), [(10, Some(2), false)], "nothing was changed");
    assert_eq!(
        SegmentReader::open(&path)
            .expect("a segment")
            .snapshot()
            .expect("one")
            .participants
            .len(),
        1
    );
}

#[test]
fn what_cannot_change_live_is_named_and_changes_nothing_whatever_the_version() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let first = open(&path, OnMismatch::Apply, &api(10).version(2)).expect("created");
    for version in [1, 2, 3] {
        for way in [OnMismatch::Apply, OnMismatch::Error] {
            let (differences, message) = mismatch(open(&path, way, &windowed(20).version(version)));
            let text = differences.join("\n");
            for part in [
                r#"algorithm: declared "fixed_window", in the segment "gcra""#,
                "capacity: declared 20, in the segment 10",
            ] {
                assert!(text.contains(part), "{part} is not in {text}");
            }
            for part in ["limitctl remove", "recreate_if_unused"] {
                assert!(message.contains(part), "{part} is not in {message}");
            }
        }
    }
    assert_eq!(in_force(&path), [(10, Some(2), false)]);
    assert_eq!(
        first.snapshot().expect("one").participants.len(),
        1,
        "who may not open it does not join"
    );
}

#[test]
fn a_segment_is_recreated_where_no_other_process_is_attached_and_only_there() {
    let test = "redeploy::a_segment_is_recreated_where_no_other_process_is_attached_and_only_there";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        let words = SharedWords::new(2);
        let other = Child::fork(|| {
            let _segment = Segment::create(&path, &api(10)).expect("created");
            words[0].store(1, Ordering::SeqCst);
            eventually("it may go", || words[1].load(Ordering::SeqCst) == 1);
        });
        eventually("the other is attached", || words[0].load(Ordering::SeqCst) == 1);
        let recreate = |declaration: &Declaration| open(&path, OnMismatch::RecreateIfUnused, declaration);
        for declaration in [windowed(10), api(11)] {
            let (differences, message) = mismatch(recreate(&declaration));
            assert!(!differences.is_empty());
            assert!(
                message.contains(&format!("in use by process {}", other.id())),
                "{message}"
            );
        }
        let same = recreate(&api(10)).expect("the same");
        words[1].store(1, Ordering::SeqCst);
        other.succeed();
        // By now, only this process has it open.
        let next = recreate(&windowed(20)).expect("recreated");
        assert!(next.declaration().differences(&windowed(20)).is_empty());
        let set = same.set("api").expect("declared");
        assert!(matches!(
            set.request().try_acquire(),
            Err(Error::Segment(SegmentError::Removed { .. }))
        ));
        // What other modes would keep, this one keeps, too.
        next.apply(&windowed(25)).expect("applied");
        let started = recreate(&windowed(20)).expect("opened");
        assert_eq!(outcomes(&started), [MismatchOutcome::KeptEdited]);
        assert!(started.declaration().differences(&windowed(25)).is_empty());
    });
}

/// All of them find the old file; one replaces it, and all use its successor.
#[test]
fn processes_that_recreate_at_once_share_one_successor() {
    let test = "redeploy::processes_that_recreate_at_once_share_one_successor";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        const PROCESSES: u64 = 8;
        for round in 0..20 {
            let path = directory.join(format!("limits-{round}"));
            drop(Segment::create(&path, &api(10)).expect("created"));
            let words = SharedWords::new(4);
            let children: Vec<Child> = (0..PROCESSES)
                .map(|_| {
                    Child::fork(|| {
                        words[0].fetch_add(1, Ordering::SeqCst);
                        while words[1].load(Ordering::SeqCst) == 0 {
                            std::thread::yield_now();
                        }
                        let segment =
                            open(&path, OnMismatch::RecreateIfUnused, &windowed(40)).expect("opens");
                        let set = segment.set("api").expect("declared");
                        let request = set.request();
                        while request.try_acquire().expect("works").is_admitted() {
                            words[2].fetch_add(1, Ordering::SeqCst);
                        }
                        words[3].fetch_add(1, Ordering::SeqCst);
                        eventually("all are done", || words[3].load(Ordering::SeqCst) == PROCESSES);
                    })
                })
                .collect();
            eventually("all are ready", || words[0].load(Ordering::SeqCst) == PROCESSES);
            words[1].store(1, Ordering::SeqCst);
            children.into_iter().for_each(Child::succeed);
            assert_eq!(words[2].load(Ordering::SeqCst), 40, "round {round}");
        }
    });
}

/// Workers of two releases are started in any order while both are in use: in the end the newer one is in force in
/// every set, and no worker fails to start.
#[test]
fn four_processes_of_two_versions_at_once_end_with_the_higher() {
    let test = "redeploy::four_processes_of_two_versions_at_once_end_with_the_higher";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let sets = ["a", "b", "c"];
        for round in 0..40_u64 {
            let path = directory.join(format!("limits-{round}"));
            let words = SharedWords::new(2);
            let children: Vec<Child> = (0..4_u64)
                .map(|worker| {
                    let words = &words;
                    let path = &path;
                    Child::fork(move || {
                        words[0].fetch_add(1, Ordering::SeqCst);
                        while words[1].load(Ordering::SeqCst) == 0 {
                            std::thread::yield_now();
                        }
                        for restart in 0..10 {
                            // Half of them belong to the next release from their third start on.
                            let version = if worker % 2 == 0 && restart >= 2 { 8 } else { 7 };
                            let declaration = declaring(&sets, 10 * version).version(version);
                            let segment = open(path, OnMismatch::Apply, &declaration).expect("starts");
                            for set in segment.sets() {
                                drop(set.request().try_acquire().expect("works"));
                            }
                        }
                    })
                })
                .collect();
            eventually("all are ready", || words[0].load(Ordering::SeqCst) == 4);
            words[1].store(1, Ordering::SeqCst);
            children.into_iter().for_each(Child::succeed);
            assert_eq!(in_force(&path), [(80, Some(8), false); 3], "round {round}");
        }
    });
}

#[test]
fn without_versions_the_process_that_starts_last_wins() {
    let test = "redeploy::without_versions_the_process_that_starts_last_wins";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        for capacity in [10, 20, 15, 30] {
            let children: Vec<Child> = (0..4)
                .map(|_| {
                    Child::fork(|| drop(open(&path, OnMismatch::Apply, &api(capacity)).expect("starts")))
                })
                .collect();
            children.into_iter().for_each(Child::succeed);
            assert_eq!(in_force(&path), [(capacity, None, false)]);
        }
    });
}

#[test]
fn a_process_killed_while_it_applies_leaves_each_set_as_one_declaration_or_the_other() {
    let test = "redeploy::a_process_killed_while_it_applies_leaves_each_set_as_one_declaration_or_the_other";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let sets = ["a", "b", "c"];
        let of = |version: u64| declaring(&sets, 10 + version % 2 * 10).version(version);
        drop(open(&path, OnMismatch::Apply, &of(1)).expect("created"));
        let words = SharedWords::new(1);
        let mut dice = Rng::with_seed(20_261_123);
        for _ in 0..60 {
            let before = words[0].load(Ordering::SeqCst);
            let child = Child::fork(|| {
                loop {
                    let version = words[0].fetch_add(1, Ordering::SeqCst) + 2;
                    drop(open(&path, OnMismatch::Apply, &of(version)).expect("starts"));
                }
            });
            eventually("it applies", || words[0].load(Ordering::SeqCst) > before);
            // Not for synchronisation: so that the worker ends at any moment of a change.
            std::thread::sleep(Duration::from_micros(dice.u64(..3000)));
            child.kill();
            for (capacity, version, edited) in in_force(&path) {
                let version = version.expect("each has one");
                assert_eq!(
                    capacity,
                    10 + version % 2 * 10,
                    "a set that is half of one and half of another"
                );
                assert!(!edited);
            }
            let version = words[0].fetch_add(1, Ordering::SeqCst) + 2;
            drop(open(&path, OnMismatch::Apply, &of(version)).expect("the next starts"));
            assert_eq!(
                in_force(&path),
                [(10 + version % 2 * 10, Some(version), false); 3]
            );
        }
    });
}

#[test]
fn a_program_cannot_declare_the_mark_of_an_operator() {
    let text = "[segment]\nedited = true\n[[set]]\nname = \"s\"\n[[set.limit]]\nname = \"l\"\nkind = \"concurrency\"\ncapacity = 1\n";
    let error = Declaration::from_toml(text).expect_err("not to be declared");
    assert!(error.to_string().contains("segment / edited"), "{error}");
    for version in [0, 1 << 63] {
        let error = api(1).version(version).validate().expect_err("out of range");
        assert!(error.to_string().contains("segment / version"), "{error}");
    }
    api(1).version((1 << 63) - 1).validate().expect("the highest");
}

#[test]
fn another_mode_is_named_with_the_command_that_helps_and_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let mode = || fs::metadata(&path).expect("a file").permissions().mode() & 0o777;
    for way in [OnMismatch::Apply, OnMismatch::Error, OnMismatch::RecreateIfUnused] {
        let created = open(&path, way, &api(10).mode(0o640)).expect("created");
        assert!(
            created.mismatches().is_empty(),
            "it has the mode that is declared"
        );
        let undeclared = open(&path, way, &api(10)).expect("opens");
        assert!(undeclared.mismatches().is_empty(), "no mode is declared");
        let differing = open(&path, way, &api(10).mode(0o660)).expect("opens");
        let [mismatch] = differing.mismatches() else {
            panic!("{:?}", differing.mismatches())
        };
        assert_eq!(
            (mismatch.set(), mismatch.outcome()),
            (None, MismatchOutcome::KeptMode)
        );
        assert_eq!(
            mismatch.to_string(),
            format!(
                "the file keeps its mode, which differs from that declared: segment / mode: declared \"0660\", in the \
                 segment \"0640\" (`chmod 0660 {}`, by its owner, changes it)",
                path.display()
            )
        );
        assert_eq!(mode(), 0o640);
        fs::set_permissions(&path, Permissions::from_mode(0o660)).expect("as it says");
        let followed = open(&path, way, &api(10).mode(0o660)).expect("opens");
        assert!(followed.mismatches().is_empty());
        created.retire();
    }
}
