//! Changes and deaths: a definition that never came into force because the process that applied it died, and a lock
//! that a dead process left to a process that does not know the definition yet.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::unistd::pause;
use shmlimit::declare::Credit;
use shmlimit::{Algorithm, Declaration, Limit, OpenOptions, SetDeclaration};

use crate::layout_mirror::RawSegment;
use crate::scene;
use crate::scene::clock::Scene;
use crate::scene::credit::{check, remaining};
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};

const CAPACITY: u64 = 1000;

/// The windows, in seconds, of the definition in force at first, of the one that replaces it, and of the one that never
/// comes into force.
const WINDOWS: [u64; 3] = [1, 100_000, 10_000_000];

fn declared(window: u64) -> Declaration {
    let limit = Limit::calls("calls", CAPACITY, Duration::from_secs(window))
        .algorithm(Algorithm::TokenBucket)
        .credit(Credit::batch(CAPACITY / 10));
    scene::declaration().add_set(SetDeclaration::new("api").add_limit(limit))
}

/// A segment with the second definition.
fn changed() -> Scene {
    let scene = Scene::declared(scene::clock::NEW_YEAR, &declared(WINDOWS[0]));
    scene.segment.apply(&declared(WINDOWS[1])).expect("applies");
    scene
}

/// Leaves the third definition in the file at `path`, as an `apply` does that is killed before the definition comes
/// into force.
fn leave_unapplied(path: &Path) {
    let other = changed();
    other.segment.apply(&declared(WINDOWS[2])).expect("applies");
    RawSegment::open(path).leave_unapplied(&RawSegment::open(&other.path()));
}

#[test]
fn nothing_is_priced_by_a_definition_that_never_came_into_force() {
    let test = "unapplied::nothing_is_priced_by_a_definition_that_never_came_into_force";
    in_own_process(test, 2 * TIMEOUT, |_| {
        let left = [false, true].map(|is_unapplied| {
            let scene = Scene::declared(scene::clock::NEW_YEAR, &declared(WINDOWS[0]));
            let told = SharedWords::new(1);
            // Draws a batch, all of which is replenished within a second.
            let child = Child::fork(|| {
                assert!(check(&scene.set(), 1));
                told[0].store(1, Ordering::Release);
                pause();
            });
            eventually("the child has drawn", || told[0].load(Ordering::Acquire) == 1);
            scene.pass(Duration::from_secs(2));
            scene.segment.apply(&declared(WINDOWS[1])).expect("applies");
            assert!(check(&scene.set(), CAPACITY), "all of it");
            if is_unapplied {
                leave_unapplied(&scene.path());
            }
            child.kill();
            let (path, clock) = (scene.path(), scene.clock.clone());
            // The process that knows the first definition must not be the one that gives the batch back.
            let late = OpenOptions::new()
                .virtual_clock(&clock)
                .open(&path)
                .expect("opens");
            late.recover().expect("works");
            let left = remaining(&late.set("api").expect("declared"));

            late.apply(&declared(WINDOWS[2])).expect("applies");
            let all = remaining(&scene.set());
            assert!(all <= left, "{all} of what was {left}");
            left
        });
        assert_eq!(left, [0, 0]);
    });
}

#[test]
fn the_next_change_writes_over_what_never_came_into_force() {
    let scene = changed();
    leave_unapplied(&scene.path());
    let late = scene.other();
    assert!(check(&late.set("api").expect("declared"), 1));
    for window in [WINDOWS[0], WINDOWS[2], WINDOWS[1]] {
        late.apply(&declared(window)).expect("applies");
        for attached in [&scene.segment, &late, &scene.other()] {
            let changes = attached.apply(&declared(window)).expect("applies");
            assert!(changes.is_empty(), "it is in force: {changes:?}");
            assert!(check(&attached.set("api").expect("declared"), 1));
        }
    }
}

#[test]
fn what_a_dead_process_left_is_recovered_by_one_that_has_yet_to_read_the_definition() {
    let test = "unapplied::what_a_dead_process_left_is_recovered_by_one_that_has_yet_to_read_the_definition";
    in_own_process(test, 2 * TIMEOUT, |_| {
        let scene = Scene::declared(scene::clock::NEW_YEAR, &declared(WINDOWS[0]));
        let changing = scene.other();
        changing.apply(&declared(WINDOWS[1])).expect("applies");
        let child = Child::fork(|| RawSegment::open(&scene.path()).lock().take_and_stop());
        child.wait_until_stopped();
        child.kill();
        // This process takes the lock from the dead one, releases it to read the definition, and takes it again.
        assert!(check(&scene.set(), 1));
        let snapshot = scene.snapshot();
        assert_eq!(snapshot.counts.recoveries, 1);
        assert!(!snapshot.poisoned && !snapshot.lock.owner_died);
    });
}
