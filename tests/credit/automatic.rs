//! Limits whose batches of credit are sized automatically: how much a process draws, and what happens to the rest.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::scene::create;
use crate::scene::credit::{
    self, LONG, check, counts, one_limit, one_limit_in, remaining, spend_all, spent_by_children,
};
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use nix::sys::signal::Signal;
use nix::unistd::pause;
use shmlimit::declare::Credit;
use shmlimit::{Algorithm, Declaration, DeclarationError, Keyed, Limit, LimitSet, Segment, SetDeclaration};

/// The algorithms whose batches can be sized automatically.
const BACKLOG: [Algorithm; 3] = [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket];

fn calls(capacity: u64, algorithm: Algorithm) -> Limit {
    credit::calls(capacity, algorithm).credit(Credit::auto())
}

/// Units that are recorded as drawn and not yet spent, over all processes.
fn unspent(segment: &Segment) -> u64 {
    let snapshot = segment.snapshot().expect("a copy");
    let holds = &snapshot.sets[0].holds;
    holds.iter().flat_map(|hold| hold.amounts.values()).sum()
}

fn is_idle(segment: &Segment) -> bool {
    segment.snapshot().expect("a copy").sets[0].holds.is_empty()
}

#[test]
fn a_batch_is_a_sixteenth_of_what_remains() {
    for algorithm in BACKLOG {
        let (_directory, segment, set) = one_limit(calls(16_000, algorithm));
        for spent in 1..=1_000 {
            assert!(check(&set, 1));
            assert_eq!(
                (counts(&segment).taken, unspent(&segment)),
                (1_000, 1_000 - spent)
            );
        }
        assert!(check(&set, 1));
        assert_eq!(counts(&segment).taken, 1_000 + 15_000 / 16, "{algorithm:?}");
    }
}

#[test]
fn the_last_unit_can_be_had_and_no_more() {
    for algorithm in BACKLOG {
        for cost in [1, 7] {
            let (_directory, segment, set) = one_limit(calls(700, algorithm));
            let admitted = (0..1_000).filter(|_| check(&set, cost)).count() as u64;
            assert_eq!(admitted * cost, 700, "{algorithm:?}");
            assert_eq!(
                (
                    counts(&segment).taken - counts(&segment).refunded,
                    unspent(&segment)
                ),
                (700, 0)
            );
            assert!(!check(&set, 1));
        }
    }
}

#[test]
fn what_costs_more_than_a_batch_is_charged_to_the_limit() {
    let (_directory, segment, set) = one_limit(calls(1_600, Algorithm::Gcra));
    assert!(check(&set, 100));
    assert!(is_idle(&segment), "nothing would be left of a batch");
    assert!(check(&set, 1_500));
    assert!(!check(&set, 1));
}

/// A process that draws once and then waits until it is killed.
fn drawing_child<'a>(set: &'a LimitSet, word: &'a AtomicU64) -> Child {
    let child = Child::fork(|| {
        assert!(check(set, 1));
        word.store(1, Ordering::Release);
        loop {
            pause();
        }
    });
    eventually("the child has drawn", || word.load(Ordering::Acquire) == 1);
    child
}

#[test]
fn processes_share_what_is_drawn_in_advance() {
    let test = "automatic::processes_share_what_is_drawn_in_advance";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        const CAPACITY: u64 = 160_000;
        const PROCESSES: u64 = 6;
        let (segment, set) = one_limit_in(directory, calls(CAPACITY, Algorithm::LeakyBucket));
        let words = SharedWords::new(PROCESSES as usize);
        let mut children = Vec::new();
        let mut taken = 0;
        let mut harmonic = 0;
        for (number, word) in (1..).zip(words.iter()) {
            children.push(drawing_child(&set, word));
            // The background worker of a process that has drawn returns what is not used, once it gets round to it.
            let drawn = counts(&segment).taken - taken;
            let largest = (CAPACITY - taken) / (16 * number);
            assert!(drawn >= largest, "{drawn} of {largest} at least");
            taken += drawn;
            harmonic += CAPACITY / (16 * number);
            assert!(unspent(&segment) <= harmonic, "{number} processes");
        }
        children.into_iter().for_each(Child::kill);
    });
}

#[test]
fn handles_and_threads_of_a_process_have_one_batch() {
    let directory = tempfile::tempdir().expect("a directory");
    let (segment, set) = one_limit_in(directory.path(), calls(1_600, Algorithm::Gcra));
    let again = Segment::open(directory.path().join("limits")).expect("attached already");
    let again = again.set("api").expect("declared");
    std::thread::scope(|scope| {
        for set in [&set, &again, &set, &again] {
            scope.spawn(|| (0..25).for_each(|_| assert!(check(set, 1))));
        }
    });
    assert_eq!((counts(&segment).taken, unspent(&segment)), (100, 0));
}

#[test]
fn a_forked_child_draws_a_batch_of_its_own() {
    let test = "automatic::a_forked_child_draws_a_batch_of_its_own";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (segment, set) = one_limit_in(directory, calls(1_600, Algorithm::Gcra));
        assert!(check(&set, 1));
        let words = SharedWords::new(1);
        let child = drawing_child(&set, &words[0]);
        assert!(counts(&segment).taken >= 100 + 1_500 / 32);
        child.kill();
        segment.recover().expect("works");
        // What the killed child had not spent is back. So is what the parent had not spent, if its worker got round to
        // it.
        assert_eq!(remaining(&set) + unspent(&segment), 1_600 - 2);
    });
}

#[test]
fn a_request_that_must_wait_takes_the_batches_back_also_of_a_stopped_process() {
    let test = "automatic::a_request_that_must_wait_takes_the_batches_back_also_of_a_stopped_process";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
            let directory = tempfile::tempdir_in(directory).expect("a directory");
            let (segment, set) = one_limit_in(directory.path(), calls(1_600, algorithm));
            let words = SharedWords::new(1);
            let child = drawing_child(&set, &words[0]);
            child.send(Signal::SIGSTOP);
            child.wait_until_stopped();
            let request = set.request().with("calls", 1_599).expect("declared");
            assert!(request.acquire(TIMEOUT).expect("works").is_admitted());
            assert_eq!((unspent(&segment), remaining(&set)), (0, 0));
            child.kill();
        }
    });
}

#[test]
fn a_change_and_a_reset_take_the_batches_back() {
    let (_directory, segment, set) = one_limit(calls(1_600, Algorithm::Gcra));
    let changed = |limit: Limit| Declaration::new().add_set(SetDeclaration::new("api").add_limit(limit));
    assert!(check(&set, 1));
    assert_eq!(unspent(&segment), 99);
    segment
        .apply(&changed(calls(3_200, Algorithm::Gcra)))
        .expect("applied");
    // Raising the capacity grants nothing for the past.
    assert_eq!((unspent(&segment), remaining(&set)), (0, 1_599));
    assert!(check(&set, 1));
    assert_eq!(unspent(&segment), 1_599 / 16 - 1);
    set.reset().run().expect("works");
    assert_eq!((unspent(&segment), remaining(&set)), (0, 3_200));
    // The batches change to a declared size, and back.
    let fixed = credit::calls(3_200, Algorithm::Gcra).credit(Credit::batch(10));
    for (limit, drawn) in [(fixed, 10), (calls(3_200, Algorithm::Gcra), 3_199 / 16)] {
        segment.apply(&changed(limit)).expect("applied");
        let before = counts(&segment).taken;
        assert!(check(&set, 1));
        assert_eq!(counts(&segment).taken - before, drawn);
    }
}

#[test]
fn what_is_not_spent_comes_back_where_the_algorithm_refunds() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
        let (_directory, segment, set) = one_limit(calls(1_600, algorithm));
        assert!(check(&set, 1));
        eventually("the batch is returned", || is_idle(&segment));
        assert_eq!(remaining(&set), 1_599, "{algorithm:?}");
    }
}

#[test]
fn processes_and_threads_together_admit_what_the_limit_gives() {
    let test = "automatic::processes_and_threads_together_admit_what_the_limit_gives";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        const CAPACITY: u64 = 50_000;
        for algorithm in BACKLOG {
            let in_threads = |set: &LimitSet, spent: &AtomicU64| {
                std::thread::scope(|scope| {
                    for _ in 0..3 {
                        scope.spawn(|| spend_all(set, spent));
                    }
                });
            };
            let limit = calls(CAPACITY, algorithm);
            let (_directory, segment, set, spent) = spent_by_children(directory, limit, 4, in_threads);
            segment.recover().expect("works");
            assert_eq!(spent + remaining(&set), CAPACITY, "{algorithm:?}");
            assert!(remaining(&set) < 100, "{algorithm:?}: {}", remaining(&set));
        }
    });
}

#[test]
fn automatic_credit_that_cannot_be_drawn_is_refused_where_it_is_declared() {
    let one = |limit: Limit| SetDeclaration::new("api").add_limit(limit);
    let by = |algorithm: Algorithm| Limit::calls("calls", 10, LONG).algorithm(algorithm);
    let refused = [
        (
            one(by(Algorithm::FixedWindow).credit(Credit::auto())),
            "come back bit by bit",
        ),
        (
            one(by(Algorithm::SlidingWindow).credit(Credit::auto())),
            "come back bit by bit",
        ),
        (
            one(by(Algorithm::SlidingWindowCounter).credit(Credit::auto())),
            "come back bit by bit",
        ),
        (
            one(by(Algorithm::Gcra).credit(Credit::auto())).keyed(Keyed::new(10)),
            "one for each key",
        ),
        (
            one(by(Algorithm::Gcra).credit(Credit::auto())).add_limit(Limit::calls("more", 10, LONG)),
            "one limit",
        ),
        (
            one(by(Algorithm::Gcra).credit(Credit::auto())).shadow(true),
            "shadow",
        ),
        (
            one(Limit::concurrency("places", 10).credit(Credit::auto())),
            "only calls and rate limits",
        ),
        (
            one(by(Algorithm::Gcra).credit(Credit::auto().window_coupled(false))),
            "for limits without windows",
        ),
    ];
    for (set, advice) in refused {
        let error = Declaration::new()
            .add_set(set)
            .validate()
            .expect_err("no such credit");
        let DeclarationError::Misplaced { place, .. } = &error else {
            panic!("{error}");
        };
        assert!(place.ends_with("credit"), "{error}");
        assert!(error.to_string().contains(advice), "{error}");
    }
}

#[test]
fn automatic_credit_is_declared_by_a_word() {
    let text = |credit: &str| {
        format!(
            "[[set]]\nname = \"api\"\nlimit = [{{ name = \"calls\", kind = \"calls\", capacity = 16_000, window = \"60s\", \
             credit = {credit} }}]"
        )
    };
    let declaration = Declaration::from_toml(&text("\"auto\"")).expect("valid");
    let bound = declaration.sets()[0].limits()[0].bound().expect("a rate");
    assert_eq!((bound.units, bound.per_process), (31_999, 999));
    let written = declaration.to_toml().expect("valid");
    assert!(written.contains("credit = \"auto\""), "{written}");
    let again = Declaration::from_toml(&written).expect("valid");
    assert_eq!(again.to_toml().expect("valid"), written);
    for wrong in ["\"automatic\"", "10", "{ batch = 10, size = 1 }", "{}"] {
        assert!(Declaration::from_toml(&text(wrong)).is_err(), "{wrong}");
    }
    let (_directory, segment, set) = create(declaration.sets()[0].clone());
    assert!(set.request().check().expect("works").is_admitted());
    assert_eq!(counts(&segment).taken, 1_000);
}
