//! Process-local credit: what it takes, what it gives back, and what becomes of it in forks, deaths and windows.

mod scene;

use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::unistd::pause;
use scene::clock::Scene;
use scene::credit::{ALGORITHMS, LONG, REFUNDING, calls, counts, one_limit, one_limit_in, remaining};
use scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use scene::{create, expect_permit};
use shmlimit::{
    Algorithm, Align, Batch, CreditOutcome, Error, Limit, LimitSet, LocalCredit, OnDeath, RequestError,
    SetDeclaration,
};

fn credit(set: &LimitSet, batch: Batch) -> LocalCredit {
    set.local_credit("calls", batch).expect("a calls limit")
}

fn take(credit: &mut LocalCredit, units: u64) -> bool {
    credit.try_take(units).expect("works").is_taken()
}

#[test]
fn units_are_charged_before_they_are_spent_and_only_once() {
    for algorithm in ALGORITHMS {
        let (_directory, segment, set) = one_limit(calls(100, algorithm));
        let mut credit = credit(&set, Batch::of(10));
        assert_eq!(remaining(&set), 100, "nothing is taken yet");
        for spent in 1..=10 {
            assert!(take(&mut credit, 1));
            assert_eq!(
                (remaining(&set), credit.left()),
                (90, 10 - spent),
                "{algorithm:?}"
            );
        }
        assert!(take(&mut credit, 1));
        assert_eq!((remaining(&set), credit.left()), (80, 9));
        assert_eq!((counts(&segment).admitted, counts(&segment).taken), (2, 20));
    }
}

/// After which everything that was taken is forgotten, whatever the date is.
fn longest_wait(algorithm: Algorithm) -> Duration {
    match algorithm {
        // Up to a sub-window more, of which there are ten.
        Algorithm::SlidingWindowCounter => LONG + LONG / 10,
        _ => LONG,
    }
}

#[test]
fn the_last_unit_of_a_limit_can_be_had() {
    for algorithm in ALGORITHMS {
        for batch in [Batch::of(64), Batch::between(7, 500), Batch::of(u64::MAX)] {
            let (_directory, _segment, set) = one_limit(calls(1000, algorithm));
            let mut credit = credit(&set, batch);
            let spent = (0..2000).filter(|_| take(&mut credit, 1)).count();
            assert_eq!(spent, 1000, "{algorithm:?}, {batch:?}");
            let CreditOutcome::Refused(refusal) = credit.try_take(1).expect("works") else {
                panic!("one more than there are");
            };
            assert_eq!(refusal.binding(), Some("calls"));
            assert!(
                refusal
                    .retry_after()
                    .is_some_and(|wait| wait <= longest_wait(algorithm))
            );
        }
    }
}

/// Finding 19. A sub-window of the sliding window counter is 36.5 days here: these dates fall into all tenths of one.
#[test]
fn the_last_unit_of_a_limit_can_be_had_at_every_date() {
    for algorithm in ALGORITHMS {
        for tenth in 0..10 {
            // 2026-11-22T17:40:00Z, and from then on.
            let date = Duration::from_secs(1_795_369_200) + LONG / 100 * tenth;
            let scene = Scene::at(date, SetDeclaration::new("api").add_limit(calls(100, algorithm)));
            let mut credit = credit(&scene.set(), Batch::between(7, 500));
            assert_eq!((0..200).filter(|_| take(&mut credit, 1)).count(), 100);
            let CreditOutcome::Refused(refusal) = credit.try_take(1).expect("works") else {
                panic!("one more than there are");
            };
            let wait = refusal.retry_after().expect("time heals it");
            assert!(
                wait <= longest_wait(algorithm),
                "{algorithm:?}, {tenth}: {wait:?}"
            );
        }
    }
}

#[test]
fn a_refusal_takes_nothing_and_leaves_what_is_left() {
    let (_directory, _segment, set) = one_limit(calls(20, Algorithm::Gcra));
    let mut credit = credit(&set, Batch::of(10));
    assert!(take(&mut credit, 7));
    assert!(!take(&mut credit, 14));
    assert_eq!((remaining(&set), credit.left()), (10, 3));
    assert!(take(&mut credit, 13));
    assert_eq!((remaining(&set), credit.left()), (0, 0));
    assert!(take(&mut credit, 0));
}

#[test]
fn more_than_a_batch_can_be_taken_at_once() {
    let (_directory, _segment, set) = one_limit(calls(1000, Algorithm::Gcra));
    let mut credit = credit(&set, Batch::of(10));
    assert!(take(&mut credit, 3));
    assert!(take(&mut credit, 500));
    assert_eq!((remaining(&set), credit.left()), (497, 0));
}

#[test]
fn batches_grow_while_there_is_plenty_and_shrink_near_the_limit() {
    let (_directory, segment, set) = one_limit(calls(10_000, Algorithm::Gcra));
    let mut credit = credit(&set, Batch::between(2, 300));
    let mut batches = Vec::new();
    let mut before = 0;
    while take(&mut credit, 1) {
        let taken = counts(&segment).taken;
        if taken > before {
            batches.push(taken - before);
        }
        before = taken;
    }
    assert_eq!(batches[..6], [2, 4, 8, 16, 32, 64]);
    assert_eq!(batches.iter().max(), Some(&300));
    let last = &batches[batches.len() - 6..];
    assert!(last.iter().all(|batch| *batch <= 2), "{batches:?}");
}

#[test]
fn what_was_not_spent_comes_back_where_the_algorithm_refunds() {
    for algorithm in ALGORITHMS {
        let (_directory, segment, set) = one_limit(calls(1000, algorithm));
        let mut credit = credit(&set, Batch::of(100));
        assert!(take(&mut credit, 130));
        assert!(take(&mut credit, 30));
        let back = if REFUNDING.contains(&algorithm) { 70 } else { 0 };
        drop(credit);
        assert_eq!(
            (remaining(&set), counts(&segment).refunded),
            (770 + back, back),
            "{algorithm:?}"
        );
    }
}

#[test]
fn credit_that_was_given_back_is_not_there_to_be_spent() {
    let (_directory, _segment, set) = one_limit(calls(100, Algorithm::TokenBucket));
    let mut credit = credit(&set, Batch::of(100));
    assert!(take(&mut credit, 40));
    assert_eq!(credit.give_back().expect("works"), 60);
    assert_eq!((credit.left(), remaining(&set)), (0, 60));
    assert_eq!(credit.give_back().expect("works"), 0);
    assert!(take(&mut credit, 1));
    assert_eq!((credit.left(), remaining(&set)), (59, 0));
}

#[test]
fn what_time_has_replenished_since_does_not_come_back() {
    let limit = Limit::calls("calls", 100, Duration::from_millis(100));
    let (_directory, _segment, set) = one_limit(limit);
    let mut credit = credit(&set, Batch::of(50));
    assert!(take(&mut credit, 1));
    eventually("the limit is full", || remaining(&set) == 100);
    assert_eq!(credit.give_back().expect("works"), 0);
}

#[test]
fn what_is_left_is_discarded_when_its_window_is_over() {
    for algorithm in [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingWindowCounter,
    ] {
        for align in [Align::FirstUse, Align::Utc] {
            let limit = Limit::calls("calls", 100, Duration::from_millis(300)).algorithm(algorithm);
            let limit = if algorithm == Algorithm::FixedWindow {
                limit.align(align)
            } else {
                limit
            };
            let (_directory, segment, set) = one_limit(limit);
            let mut credit = credit(&set, Batch::of(10));
            assert!(take(&mut credit, 1));
            eventually("the window is over", || remaining(&set) == 100);
            // By the coarse clock, which comes to that instant up to a tick later.
            eventually("what is left is discarded", || credit.left() == 0);
            assert!(take(&mut credit, 1));
            assert_eq!(counts(&segment).taken, 20, "{algorithm:?}");
        }
    }
}

#[test]
fn taking_a_batch_overtakes_nobody() {
    let set = SetDeclaration::new("api")
        .add_limit(calls(100, Algorithm::Gcra))
        .add_limit(Limit::concurrency("places", 1));
    let (_directory, segment, set) = create(set);
    let mut early = credit(&set, Batch::of(10));
    let mut late = credit(&set, Batch::of(10));
    assert!(take(&mut early, 1));
    let held = expect_permit(set.try_acquire(&set.request()));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let outcome = set.acquire(&set.request(), TIMEOUT).expect("works");
            assert!(outcome.is_admitted());
        });
        eventually("somebody waits", || {
            !segment.snapshot().expect("a copy").sets[0].tickets.is_empty()
        });
        assert!(!take(&mut late, 1));
        assert!(take(&mut early, 9), "what was taken before asks nobody");
        drop(held);
        waiter.join().expect("was served");
    });
    assert!(take(&mut late, 1));
}

#[test]
fn only_rate_and_calls_limits_have_credit() {
    let set = SetDeclaration::new("api")
        .add_limit(Limit::rate("tokens", 100, LONG))
        .add_limit(Limit::concurrency("places", 1))
        .add_limit(Limit::budget("money", 100, LONG));
    let (_directory, _segment, set) = create(set);
    for limit in ["places", "money"] {
        assert!(matches!(
            set.local_credit(limit, Batch::of(1)),
            Err(Error::Request(RequestError::NoLocalCredit { .. }))
        ));
    }
    assert!(matches!(
        set.local_credit("calls", Batch::of(1)),
        Err(Error::Request(RequestError::UnknownLimit { .. }))
    ));
    for batch in [Batch::of(0), Batch::between(0, 1), Batch::between(2, 1)] {
        assert!(matches!(
            set.local_credit("tokens", batch),
            Err(Error::Request(RequestError::InvalidBatch { .. }))
        ));
    }
    let mut tokens = set.local_credit("tokens", Batch::of(1)).expect("a rate limit");
    assert!(matches!(
        tokens.try_take(101),
        Err(Error::Request(RequestError::NeverAdmissible {
            cost: 101,
            max: 100,
            ..
        }))
    ));
    assert!(take(&mut tokens, 100));
}

#[test]
fn processes_together_spend_what_the_limit_gives_and_no_more() {
    let test = "processes_together_spend_what_the_limit_gives_and_no_more";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        const PROCESSES: usize = 8;
        const CAPACITY: u64 = 20_000;
        for algorithm in ALGORITHMS {
            let directory = tempfile::tempdir_in(directory).expect("a directory");
            let (segment, set) = one_limit_in(directory.path(), calls(CAPACITY, algorithm));
            let spent = SharedWords::new(PROCESSES);
            let children: Vec<Child> = spent
                .iter()
                .map(|spent| {
                    Child::fork(|| {
                        let mut credit = credit(&set, Batch::between(5, 200));
                        for units in (1..4).cycle() {
                            if take(&mut credit, units) {
                                spent.fetch_add(units, Ordering::Relaxed);
                            } else if units == 1 {
                                break;
                            }
                        }
                    })
                })
                .collect();
            children.into_iter().for_each(Child::succeed);
            let total: u64 = spent.iter().map(|spent| spent.load(Ordering::Relaxed)).sum();
            assert_eq!(total, CAPACITY, "{algorithm:?}");
            assert_eq!(counts(&segment).taken, CAPACITY, "{algorithm:?}");
        }
    });
}

#[test]
fn a_forked_child_has_no_credit_and_gives_none_of_its_parents_back() {
    let test = "a_forked_child_has_no_credit_and_gives_none_of_its_parents_back";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (segment, set) = one_limit_in(directory, calls(100, Algorithm::Gcra));
        let mut inherited = Some(credit(&set, Batch::of(10)));
        let take_one = |credit: &mut Option<LocalCredit>| take(credit.as_mut().expect("a handle"), 1);
        let left = |credit: &Option<LocalCredit>| credit.as_ref().map(LocalCredit::left);
        assert!(take_one(&mut inherited));
        Child::fork(|| inherited = None).succeed();
        assert_eq!(remaining(&set), 90);
        Child::fork(|| {
            assert_eq!(left(&inherited), Some(0));
            let credit = inherited.as_mut().expect("a handle");
            assert_eq!(credit.give_back().expect("works"), 0);
            assert!(take(credit, 1));
            assert_eq!((credit.left(), remaining(&set)), (9, 80));
            inherited = None;
            assert_eq!(remaining(&set), 89, "its own came back");
        })
        .succeed();
        assert_eq!((left(&inherited), remaining(&set)), (Some(9), 89));
        assert_eq!(counts(&segment).refunded, 9);
    });
}

#[test]
fn death_costs_no_more_than_what_was_left_of_a_batch() {
    let test = "death_costs_no_more_than_what_was_left_of_a_batch";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let limit = Limit::rate("calls", 100, LONG).on_death(OnDeath::Refund);
        let (segment, set) = one_limit_in(directory, limit);
        let told = SharedWords::new(1);
        let child = Child::fork(|| {
            let mut credit = credit(&set, Batch::of(10));
            assert!(take(&mut credit, 4));
            told[0].store(1, Ordering::Release);
            pause();
        });
        eventually("the child has taken some", || {
            told[0].load(Ordering::Acquire) == 1
        });
        child.kill();
        segment.recover().expect("works");
        // Four were spent: they do not come back, whatever the policy for what permits reserve.
        let snapshot = segment.snapshot().expect("a copy");
        assert_eq!(snapshot.sets[0].limits[0].remaining, 90);
    });
}
