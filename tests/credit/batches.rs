//! Limits with credit: what a process draws, what it admits on its own, and what happens to the rest.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::scene;
use crate::scene::clock::Scene;
use crate::scene::credit::{
    self, LONG, REFUNDING, check, counts, one_limit, one_limit_in, remaining, spend_all, spent_by_children,
};
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use crate::scene::{ALGORITHMS, create, create_in, expect_permit, is_admitted};
use nix::unistd::pause;
use shmlimit::declare::Credit;
use shmlimit::{
    Algorithm, Declaration, DeclarationError, Keyed, Limit, LimitSet, Segment, SetDeclaration, Tier,
};
use tempfile::TempDir;

fn calls(capacity: u64, algorithm: Algorithm, batch: u64) -> Limit {
    credit::calls(capacity, algorithm).credit(Credit::batch(batch))
}

#[test]
fn requests_are_admitted_from_a_batch_that_was_charged_before() {
    for algorithm in ALGORITHMS {
        let (_directory, segment, set) = one_limit(calls(100, algorithm, 10));
        for charged in [10, 20] {
            for _ in 0..10 {
                assert!(check(&set, 1));
                assert_eq!(remaining(&set), 100 - charged, "{algorithm:?}");
            }
        }
        // What is admitted from the second batch is counted when that is returned, or when another is drawn.
        assert_eq!((counts(&segment).admitted, counts(&segment).taken), (11, 20));
        assert!(check(&set, 1));
        assert_eq!((counts(&segment).admitted, counts(&segment).taken), (21, 30));
    }
}

#[test]
fn all_ways_to_ask_spend_the_same_batch() {
    let directory = tempfile::tempdir().expect("a directory");
    let (segment, set) = one_limit_in(directory.path(), calls(100, Algorithm::Gcra, 10));
    let request = set.request();
    assert!(request.try_acquire().expect("works").is_admitted());
    assert!(
        request
            .acquire(Duration::from_secs(1))
            .expect("works")
            .is_admitted()
    );
    assert!(request.check().expect("works").is_admitted());
    let again = Segment::open(directory.path().join("limits")).expect("attached already");
    let again = again.set("api").expect("declared");
    for _ in 0..7 {
        assert!(again.request().check().expect("works").is_admitted());
    }
    assert_eq!(counts(&segment).taken, 10);
}

#[test]
fn a_future_and_threads_spend_the_same_batch() {
    let (_directory, segment, set) = one_limit(calls(100_000, Algorithm::Gcra, 100));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let outcome = runtime.block_on(set.request().acquire_async(None));
    assert!(outcome.expect("works").is_admitted());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1_000).for_each(|_| assert!(check(&set, 1))));
        }
    });
    // 40 batches, and one unit.
    assert_eq!(counts(&segment).taken, 4_100);
    assert_eq!(remaining(&set), 100_000 - 4_100);
}

#[test]
fn the_last_unit_can_be_had_and_no_more() {
    for algorithm in ALGORITHMS {
        for batch in [1, 7, 64, 5_000] {
            let (_directory, _segment, set) = one_limit(calls(1_000, algorithm, batch));
            let admitted: u64 = (0..2_000).map(|_| u64::from(check(&set, 1))).sum();
            assert_eq!(admitted, 1_000, "{algorithm:?}, {batch}");
            let refused = set.request().check().expect("works");
            assert_eq!(refused.binding(), Some("calls"));
            assert!(refused.retry_after().is_some_and(|wait| !wait.is_zero()));
        }
    }
}

/// A sub-window of the sliding window counter is 36.5 days here: these dates fall into every tenth of one.
#[test]
fn the_last_unit_can_be_had_at_every_date() {
    for algorithm in ALGORITHMS {
        for tenth in 0..10 {
            // From 2026-11-22T17:40:00Z on.
            let date = Duration::from_secs(1_795_369_200) + LONG / 100 * tenth;
            let set = SetDeclaration::new("api").add_limit(calls(100, algorithm, 7));
            let scene = Scene::at(date, set);
            let set = scene.set();
            assert_eq!((0..200).filter(|_| check(&set, 1)).count(), 100);
            let refused = set.request().check().expect("works");
            let wait = refused.retry_after().expect("a retry time");
            // At most a sub-window later, there are ten again.
            let longest = match algorithm {
                Algorithm::SlidingWindowCounter => LONG + LONG / 10,
                _ => LONG,
            };
            assert!(wait <= longest, "{algorithm:?}, {tenth}: {wait:?}");
        }
    }
}

#[test]
fn what_is_left_of_a_batch_goes_to_the_next_request_that_needs_more() {
    for algorithm in ALGORITHMS {
        let (_directory, segment, set) = one_limit(calls(20, algorithm, 10));
        // If the algorithm refunds, what is left is given back and drawn again with the rest.
        let charged = if REFUNDING.contains(&algorithm) {
            [10, 10, 18, 18, 20]
        } else {
            [10, 10, 20, 20, 20]
        };
        for charged in charged {
            assert!(check(&set, 4), "{algorithm:?}");
            let counts = counts(&segment);
            assert_eq!(counts.taken - counts.refunded, charged, "{algorithm:?}");
            assert_eq!(remaining(&set), 20 - charged, "{algorithm:?}");
        }
        assert!(!check(&set, 1), "{algorithm:?}");
    }
}

#[test]
fn a_request_as_large_as_a_batch_is_charged_to_the_limit_itself() {
    let (_directory, segment, set) = one_limit(calls(100, Algorithm::Gcra, 10));
    assert!(check(&set, 10));
    assert!(check(&set, 0));
    assert_eq!((remaining(&set), counts(&segment).admitted), (90, 2));
    let request = set.request().with("calls", 101).expect("declared");
    assert!(matches!(
        request.check(),
        Err(shmlimit::Error::Request(
            shmlimit::RequestError::NeverAdmissible { .. }
        ))
    ));
    let request = set.request().with("calls", 30).expect("declared");
    let mut permit = expect_permit(request.try_acquire());
    assert_eq!(
        permit.settle([("calls", 10)]).expect("works").refunded("calls"),
        20
    );
    assert_eq!(remaining(&set), 80);
}

#[test]
fn each_key_has_a_batch_of_its_own_and_more_keys_than_places_give_theirs_back() {
    const KEYS: u64 = 5_000;
    let directory = tempfile::tempdir().expect("a directory");
    let limit = calls(100, Algorithm::Gcra, 10);
    let declared = SetDeclaration::new("api")
        .keyed(Keyed::new(10_000))
        .add_limit(limit);
    let (segment, set) = create_in(directory.path(), declared);
    let request = set.request();
    for _ in 0..3 {
        assert!(is_admitted(&request, "one"));
    }
    assert_eq!(
        request.for_key("one").expect("a key").peek().expect("works")[0].remaining,
        90
    );
    assert_eq!(
        request.for_key("two").expect("a key").peek().expect("works")[0].remaining,
        100
    );
    for round in 0..2 {
        for key in 0..KEYS {
            assert!(is_admitted(&request, key.to_le_bytes()), "{round}");
        }
    }
    let snapshot = segment.snapshot().expect("a copy");
    assert!(
        snapshot.sets[0].holds.len() <= 2_048,
        "{}",
        snapshot.sets[0].holds.len()
    );
    drop((segment, set));
    // On detaching, the process has given back everything that it did not spend: two units of each key are gone, and
    // three of `one`.
    let segment = Segment::open(directory.path().join("limits")).expect("a segment");
    let set = segment.set("api").expect("declared");
    let request = set.request();
    for key in 0..KEYS {
        let request = request.for_key(key.to_le_bytes()).expect("keyed");
        // The part of a batch that time had already replenished did not come back with it.
        assert!(request.peek().expect("works")[0].remaining >= 97);
    }
    assert_eq!(counts(&segment).admitted, 2 * KEYS + 3);
}

#[test]
fn a_process_that_detaches_returns_what_it_did_not_spend() {
    for algorithm in ALGORITHMS {
        let directory = tempfile::tempdir().expect("a directory");
        let (segment, set) = one_limit_in(directory.path(), calls(100, algorithm, 10));
        assert!(check(&set, 4));
        drop((segment, set));
        let segment = Segment::open(directory.path().join("limits")).expect("a segment");
        let set = segment.set("api").expect("declared");
        let back = if REFUNDING.contains(&algorithm) { 6 } else { 0 };
        // Time has replenished a fraction of the last unit.
        assert_eq!(remaining(&set), 90 + back, "{algorithm:?}");
        assert!(counts(&segment).refunded + 1 >= back);
        assert!(segment.snapshot().expect("a copy").sets[0].holds.is_empty());
    }
}

#[test]
fn what_is_not_used_is_returned_by_the_background_worker() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyed = SetDeclaration::new("keyed")
        .keyed(Keyed::new(100))
        .add_limit(calls(100, Algorithm::Gcra, 10));
    let declaration = Declaration::new()
        .add_set(SetDeclaration::new("api").add_limit(calls(100, Algorithm::Gcra, 10)))
        .add_set(keyed);
    let segment = Segment::create(directory.path().join("limits"), &declaration).expect("a segment");
    let (set, keyed) = (
        segment.set("api").expect("declared"),
        segment.set("keyed").expect("declared"),
    );
    // The second time is after the worker has seen that there is nothing to take care of.
    for spent in [3, 6] {
        assert!(check(&set, 3));
        assert!(check_key(&keyed));
        let holds = || {
            segment
                .snapshot()
                .expect("a copy")
                .sets
                .iter()
                .map(|set| set.holds.len())
                .sum::<usize>()
        };
        assert!(holds() > 0 || remaining(&set) == 100 - spent);
        eventually("the batches are returned", || holds() == 0);
        assert_eq!(remaining(&set), 100 - spent);
        assert_eq!(counts(&segment).admitted, spent / 3);
    }
}

#[test]
fn a_request_that_must_wait_takes_the_batches_of_others_back() {
    let test = "batches::a_request_that_must_wait_takes_the_batches_of_others_back";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (segment, set) = one_limit_in(directory, calls(10, Algorithm::Gcra, 10));
        let told = SharedWords::new(2);
        let child = Child::fork(|| {
            assert!(check(&set, 2));
            told[0].store(1, Ordering::Release);
            eventually("the parent has taken some", || {
                told[1].load(Ordering::Acquire) == 1
            });
            assert!(check(&set, 1), "what the parent left");
            assert!(!check(&set, 2), "the batch was taken back");
        });
        eventually("the child has drawn", || told[0].load(Ordering::Acquire) == 1);
        assert!(!check(&set, 7), "it does not have to be admitted at once");
        let request = set.request().with("calls", 7).expect("declared");
        assert!(request.acquire(TIMEOUT).expect("works").is_admitted());
        told[1].store(1, Ordering::Release);
        child.succeed();
        assert_eq!(counts(&segment).admitted, 3);
    });
}

#[test]
fn none_draws_while_a_request_waits() {
    let (_directory, segment, set) = one_limit(calls(20, Algorithm::Gcra, 10));
    assert!(check(&set, 2));
    let request = set.request().with("calls", 19).expect("declared");
    let waits = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let outcome = request.acquire_while(TIMEOUT, || waits.load(Ordering::Relaxed));
            outcome.expect("works").is_admitted()
        });
        eventually("it waits", || {
            !segment.snapshot().expect("a copy").sets[0].tickets.is_empty()
        });
        // 18 are left, 8 of them from the batch that the request took back.
        assert!(!check(&set, 1));
        assert_eq!(counts(&segment).taken, 10);
        waits.store(false, Ordering::Relaxed);
        assert!(!waiter.join().expect("no panic"));
    });
    assert!(check(&set, 1));
    assert_eq!(counts(&segment).taken, 20);
}

#[test]
fn what_a_killed_process_had_drawn_comes_back_and_is_counted() {
    let test = "batches::what_a_killed_process_had_drawn_comes_back_and_is_counted";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        for algorithm in ALGORITHMS {
            let directory = tempfile::tempdir_in(directory).expect("a directory");
            let keyed = SetDeclaration::new("keyed")
                .keyed(Keyed::new(100))
                .add_limit(calls(100, algorithm, 10));
            let declaration = Declaration::new()
                .add_set(SetDeclaration::new("api").add_limit(calls(100, algorithm, 10)))
                .add_set(keyed);
            let segment = Segment::create(directory.path().join("limits"), &declaration).expect("a segment");
            let (set, keyed) = (
                segment.set("api").expect("declared"),
                segment.set("keyed").expect("declared"),
            );
            let told = SharedWords::new(1);
            let child = Child::fork(|| {
                for _ in 0..4 {
                    assert!(check(&set, 1));
                    assert!(check_key(&keyed));
                }
                told[0].store(1, Ordering::Release);
                pause();
            });
            eventually("the child has drawn", || told[0].load(Ordering::Acquire) == 1);
            child.kill();
            let back = if REFUNDING.contains(&algorithm) { 6 } else { 0 };
            let of_key = keyed.request().for_key("a").expect("keyed");
            let left = || (remaining(&set), of_key.peek().expect("works")[0].remaining);
            // Until the batch is reclaimed, it counts as used.
            assert_eq!(left(), (90, 90), "{algorithm:?}");
            segment.recover().expect("works");
            assert_eq!(left(), (90 + back, 90 + back), "{algorithm:?}");
            for set in segment.snapshot().expect("a copy").sets {
                let counts = set.limits[0].counts;
                assert_eq!((counts.admitted, counts.taken), (4, 10), "{algorithm:?}");
                // Time has replenished a fraction of the last unit.
                assert!(
                    (back..=back + 1).contains(&(counts.reclaimed + u64::from(back > 0))),
                    "{counts:?}"
                );
                assert!(set.holds.is_empty());
            }
        }
    });
}

#[test]
fn a_refusal_takes_back_what_the_dead_had_drawn() {
    let test = "batches::a_refusal_takes_back_what_the_dead_had_drawn";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (_segment, set) = one_limit_in(directory, calls(10, Algorithm::TokenBucket, 10));
        let mut child = Child::fork(|| {
            assert!(check(&set, 3));
            scene::process::die();
        });
        child.wait();
        eventually("the rest is there", || check(&set, 7));
        assert!(!check(&set, 1));
    });
}

#[test]
fn a_forked_child_has_nothing_of_its_parents_batch() {
    let test = "batches::a_forked_child_has_nothing_of_its_parents_batch";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (_segment, set) = one_limit_in(directory, calls(100, Algorithm::Gcra, 10));
        assert!(check(&set, 1));
        Child::fork(|| {
            assert!(check(&set, 1));
            assert_eq!(remaining(&set), 80, "a batch of its own");
        })
        .succeed();
    });
}

#[test]
fn a_dead_childs_batch_comes_back_and_the_parents_stays() {
    let test = "batches::a_dead_childs_batch_comes_back_and_the_parents_stays";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (segment, set) = one_limit_in(directory, calls(100, Algorithm::Gcra, 10));
        assert!(check(&set, 1));
        Child::fork(|| assert!(check(&set, 1))).succeed();
        segment.recover().expect("works");
        assert_eq!(remaining(&set), 89);
        for _ in 0..9 {
            assert!(check(&set, 1));
        }
        assert_eq!(counts(&segment).taken, 20);
    });
}

/// Takes one from a key of a keyed set.
fn check_key(keyed: &LimitSet) -> bool {
    is_admitted(&keyed.request(), "a")
}

/// Another handle for the segment that this process is attached to.
fn opened_again(directory: &TempDir) -> Segment {
    Segment::open(directory.path().join("limits")).expect("attached already")
}

#[test]
fn batches_stay_while_one_handle_of_the_segment_is_open() {
    let (directory, segment, set) = one_limit(calls(100, Algorithm::Gcra, 10));
    let other = opened_again(&directory);
    let of_other = other.set("api").expect("declared");
    assert!(check(&set, 1));
    drop((segment, set));
    assert_eq!(other.snapshot().expect("a copy").sets[0].holds.len(), 1);
    for _ in 0..9 {
        assert!(check(&of_other, 1));
    }
    assert_eq!((counts(&other).taken, remaining(&of_other)), (10, 90));
    assert!(check(&of_other, 1));
    drop((other, of_other));
    let segment = Segment::open(directory.path().join("limits")).expect("a segment");
    assert!(segment.snapshot().expect("a copy").sets[0].holds.is_empty());
    assert_eq!(counts(&segment).admitted, 11);
}

#[test]
fn what_was_drawn_by_a_handle_that_was_closed_is_returned_while_another_is_open() {
    let (directory, segment, set) = one_limit(calls(100, Algorithm::Gcra, 10));
    let other = opened_again(&directory);
    assert!(check(&set, 1));
    drop((segment, set));
    // The other handle does nothing that would make it look after its batches.
    eventually("the batch is returned", || {
        other.snapshot().expect("a copy").sets[0].holds.is_empty()
    });
    assert_eq!(counts(&other).admitted, 1);
    // The other handle's own batches are taken care of as well.
    let set = other.set("api").expect("declared");
    assert!(check(&set, 1));
    assert_eq!(other.snapshot().expect("a copy").sets[0].holds.len(), 1);
    eventually("the batch is returned", || {
        other.snapshot().expect("a copy").sets[0].holds.is_empty()
    });
}

#[test]
fn what_a_future_that_does_not_wait_drew_is_returned_when_it_is_not_used() {
    let (_directory, segment, set) = one_limit(calls(100, Algorithm::Gcra, 10));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let outcome = runtime.block_on(set.request().acquire_async(Duration::ZERO));
    assert!(outcome.expect("works").is_admitted());
    assert_eq!(counts(&segment).taken, 10);
    eventually("the batch is returned", || {
        segment.snapshot().expect("a copy").sets[0].holds.is_empty()
    });
    assert_eq!(counts(&segment).admitted, 1);
}

#[test]
fn a_reset_takes_the_batches_away() {
    let keyed = SetDeclaration::new("api")
        .keyed(Keyed::new(100))
        .add_limit(calls(100, Algorithm::Gcra, 10));
    let (_directory, segment, set) = create(keyed);
    let [a, b] = ["a", "b"].map(|key| set.request().for_key(key).expect("keyed"));
    let remaining = || [&a, &b].map(|request| request.peek().expect("works")[0].remaining);
    for request in [&a, &b] {
        assert!(request.check().expect("works").is_admitted());
    }
    assert!(set.key("a").expect("keyed").reset().run().expect("works"));
    assert_eq!(remaining(), [100, 90]);
    for request in [&a, &b] {
        assert!(request.check().expect("works").is_admitted());
    }
    assert_eq!(remaining(), [90, 90]);
    set.reset().run().expect("works");
    assert_eq!(remaining(), [100, 100]);
    assert!(b.check().expect("works").is_admitted());
    assert_eq!(remaining(), [100, 90]);
    drop(segment);
}

#[test]
fn a_change_ends_the_batches_and_may_change_their_size() {
    let (_directory, segment, set) = one_limit(calls(100, Algorithm::Gcra, 10));
    assert!(check(&set, 1));
    let changed = |limit: Limit| Declaration::new().add_set(SetDeclaration::new("api").add_limit(limit));
    segment
        .apply(&changed(calls(50, Algorithm::Gcra, 5)))
        .expect("applied");
    assert!(check(&set, 1));
    // A batch of 5 is drawn from the 49 that the first call left.
    assert_eq!(counts(&segment).taken, 15);
    assert!((43..=45).contains(&remaining(&set)), "{}", remaining(&set));
    let without = Limit::calls("calls", 50, LONG);
    assert!(segment.apply(&changed(without)).is_err(), "needs another segment");
}

#[test]
fn processes_together_admit_what_the_limit_gives() {
    let test = "batches::processes_together_admit_what_the_limit_gives";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        const CAPACITY: u64 = 20_000;
        for algorithm in ALGORITHMS {
            let limit = calls(CAPACITY, algorithm, 50);
            let (_directory, segment, _, spent) = spent_by_children(directory, limit, 6, spend_all);
            assert!(spent <= CAPACITY, "{algorithm:?}: {spent}");
            // Each child ends with less than a batch left over.
            assert!(spent + 6 * 50 > CAPACITY, "{algorithm:?}: {spent}");
            // When a request needed more than was left of a batch, the rest of the batch was given back if the
            // algorithm refunds, and drawn again.
            let counts = counts(&segment);
            assert_eq!(counts.taken - counts.refunded, CAPACITY, "{algorithm:?}");
        }
    });
}

#[test]
fn credit_that_cannot_be_drawn_is_refused_where_it_is_declared() {
    let credit = || Credit::batch(10);
    let one = |limit: Limit| SetDeclaration::new("api").add_limit(limit);
    let refused = [
        one(Limit::concurrency("places", 10).credit(credit())),
        one(Limit::budget("money", 10, LONG).credit(credit())),
        one(Limit::calls("calls", shmlimit::declare::Amount::Unlimited, LONG).credit(credit())),
        one(Limit::calls("calls", 10, LONG).shadow(true).credit(credit())),
        one(Limit::calls("calls", 10, LONG).credit(credit())).shadow(true),
        one(Limit::calls("calls", 10, LONG).credit(credit())).add_limit(Limit::calls("more", 10, LONG)),
        one(Limit::calls("calls", 10, LONG).credit(credit()))
            .keyed(Keyed::new(10))
            .add_tier(Tier::new("gold").capacity("calls", 20)),
        one(Limit::calls("calls", 10, LONG).prefix(24, 48).credit(credit())).keyed(Keyed::new(10)),
        one(Limit::calls("calls", 10, LONG).credit(credit().window_coupled(true))),
    ];
    for set in refused {
        let error = Declaration::new()
            .add_set(set)
            .validate()
            .expect_err("no such credit");
        let DeclarationError::Misplaced { place, .. } = &error else {
            panic!("{error}");
        };
        assert!(place.ends_with("credit") || place.ends_with("tier"), "{error}");
    }
    for batch in [0, 1 << 20, u64::MAX] {
        let limit = Limit::calls("calls", 10, LONG).credit(Credit::batch(batch));
        let error = Declaration::new()
            .add_set(one(limit))
            .validate()
            .expect_err("no such batch");
        assert!(matches!(error, DeclarationError::OutOfRange { .. }), "{error}");
    }
}

#[test]
fn credit_is_declared_in_toml() {
    let declaration = Declaration::from_toml(
        r#"
        [[set]]
        name = "api"
        limit = [{ name = "calls", kind = "calls", capacity = 100, window = "60s", credit = { batch = 10 } }]
        "#,
    )
    .expect("valid");
    let bound = declaration.sets()[0].limits()[0].bound().expect("a rate");
    assert_eq!((bound.units, bound.per_process), (199, 9));
    assert_eq!(
        bound.to_string(),
        "at most 199 in any 1m, and 9 units more for each process"
    );
    let text = declaration.to_toml().expect("valid");
    let read_back = Declaration::from_toml(&text).expect("valid");
    assert_eq!(read_back.to_toml().expect("valid"), text);
}
