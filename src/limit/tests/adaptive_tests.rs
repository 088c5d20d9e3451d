use proptest::prelude::*;

use super::server::{SERVICE, Seen, Simulation};
use super::{Counting, Limit, REFUSED_FOR_EVER, at};
use crate::limit::tests::every_rule::damaged_state_tests::anything;
use crate::limit::{
    Adaptive, AdaptiveAlgorithm, Assessment, InvalidLimit, Now, Rule, RuleOperations, Sample, Standing,
};

const AIMD: AdaptiveAlgorithm = AdaptiveAlgorithm::Aimd {
    timeout: SERVICE * 6 / 5,
};
const GRADIENT: AdaptiveAlgorithm = AdaptiveAlgorithm::Gradient;
const VEGAS: AdaptiveAlgorithm = AdaptiveAlgorithm::Vegas;
const ALGORITHMS: [AdaptiveAlgorithm; 3] = [AIMD, GRADIENT, VEGAS];

/// Learns only from failures.
const PATIENT_AIMD: AdaptiveAlgorithm = AdaptiveAlgorithm::Aimd { timeout: u64::MAX };

/// Service times that the estimate takes to settle after the capacity has grown or shrunk by a factor of up to eleven.
const SETTLING: u64 = 400;

/// Service times over which it is then averaged.
const WATCHED: u64 = 200;

fn adaptive(algorithm: AdaptiveAlgorithm, start: u64, floor: u64, ceiling: u64) -> Rule {
    Rule::Adaptive(Adaptive::new(algorithm, start, floor, ceiling).expect("valid"))
}

fn sample(latency: u64, in_flight: u64) -> Sample {
    Sample {
        latency,
        in_flight,
        failed: false,
    }
}

fn failed(latency: u64, in_flight: u64) -> Sample {
    Sample {
        failed: true,
        ..sample(latency, in_flight)
    }
}

fn observe(limit: &mut Limit, instant: u64, sample: Sample) {
    limit
        .rule
        .observe(limit.words.as_mut_slice(), at(instant), sample);
}

/// What is admitted when nothing is in use.
fn capacity(limit: &Limit) -> u64 {
    limit.rule.mark(limit.words.as_slice(), at(0)).second
}

/// Within a fifth of the capacity on average, and never far from it.
fn assert_settled(seen: Seen, workers: u64, of: &str) {
    let workers = workers as f64;
    assert!(
        (seen.mean - workers).abs() <= workers / 5.0,
        "{of}: {seen:?} of {workers}"
    );
    assert!(seen.min as f64 >= workers * 0.6, "{of}: {seen:?} of {workers}");
    assert!(seen.max as f64 <= workers * 1.4, "{of}: {seen:?} of {workers}");
}

fn follows_the_capacity(algorithm: AdaptiveAlgorithm, queue: impl Fn(u64) -> usize) {
    // A little more, and much more, than the largest of the capacities can bear.
    for arrivals_in_service in [110, 300] {
        let mut server = Simulation::new(adaptive(algorithm, 20, 1, 1_000), 40, arrivals_in_service);
        for workers in [40, 10, 80, 25, 100, 9, 60] {
            server.workers = workers;
            server.longest_queue = queue(workers);
            server.pass(SETTLING);
            assert_settled(server.pass(WATCHED), workers, &format!("{algorithm:?}"));
        }
    }
}

#[test]
fn aimd_follows_a_server_that_answers_late() {
    follows_the_capacity(AIMD, |_| usize::MAX);
}

#[test]
fn gradient_follows_a_server_that_answers_late() {
    follows_the_capacity(GRADIENT, |_| usize::MAX);
}

#[test]
fn vegas_follows_a_server_that_answers_late() {
    follows_the_capacity(VEGAS, |_| usize::MAX);
}

#[test]
fn each_follows_a_server_that_turns_away_what_it_cannot_queue() {
    for algorithm in [PATIENT_AIMD, GRADIENT, VEGAS] {
        follows_the_capacity(algorithm, |workers| workers as usize / 8);
    }
}

#[test]
fn load_that_never_lets_up_does_not_make_the_estimate_creep() {
    for algorithm in ALGORITHMS {
        let mut server = Simulation::new(adaptive(algorithm, 20, 1, 1_000), 20, 40);
        server.pass(SETTLING);
        for _ in 0..30 {
            assert_settled(server.pass(WATCHED), 20, &format!("{algorithm:?}"));
        }
    }
}

#[test]
fn a_server_that_becomes_slower_for_good_is_not_taken_for_an_overloaded_one_for_ever() {
    for algorithm in [GRADIENT, VEGAS] {
        let mut server = Simulation::new(adaptive(algorithm, 20, 4, 1_000), 20, 80);
        server.pass(SETTLING);
        server.service = 2 * SERVICE;
        server.pass(8_000);
        assert_settled(server.pass(WATCHED), 20, &format!("{algorithm:?}"));
    }
}

#[test]
fn what_is_less_than_half_used_does_not_rise() {
    for algorithm in ALGORITHMS {
        let mut limit = Limit::new(adaptive(algorithm, 20, 1, 1_000));
        for instant in 0..2_000 {
            observe(&mut limit, instant * SERVICE, sample(SERVICE, 9));
            assert!(capacity(&limit) <= 20, "{algorithm:?}");
        }
        // It rises as soon as it is used.
        for instant in 2_000..3_000 {
            let used = sample(SERVICE, capacity(&limit));
            observe(&mut limit, instant * SERVICE, used);
        }
        assert!(capacity(&limit) > 20, "{algorithm:?}");
    }
}

#[test]
fn what_is_dropped_lowers_the_estimate_down_to_the_floor() {
    for algorithm in ALGORITHMS {
        let mut limit = Limit::new(adaptive(algorithm, 100, 7, 1_000));
        for instant in 1..10_000 {
            observe(&mut limit, instant, failed(0, 100));
        }
        assert_eq!(capacity(&limit), 7, "{algorithm:?}");
    }
}

#[test]
fn what_fails_together_lowers_aimd_once() {
    let mut limit = Limit::new(adaptive(AIMD, 100, 1, 1_000));
    for instant in 1_000..1_100 {
        observe(&mut limit, instant, failed(500, 100));
    }
    assert_eq!(capacity(&limit), 90);
    // This one began after the fall at 1,000.
    observe(&mut limit, 1_600, failed(500, 90));
    assert_eq!(capacity(&limit), 81);
}

#[test]
fn aimd_rises_by_one_in_a_round() {
    let mut limit = Limit::new(adaptive(AIMD, 50, 1, 1_000));
    for instant in 0..51 {
        observe(&mut limit, instant, sample(SERVICE, 50));
    }
    assert_eq!(capacity(&limit), 51);
}

#[test]
fn without_a_queue_the_estimate_rises_to_the_ceiling_and_stays() {
    for algorithm in ALGORITHMS {
        let mut limit = Limit::new(adaptive(algorithm, 10, 1, 60));
        let mut max = 0;
        for instant in 0..20_000 {
            let used = sample(SERVICE, capacity(&limit));
            observe(&mut limit, instant, used);
            max = max.max(capacity(&limit));
        }
        assert_eq!(max, 60, "{algorithm:?}");
        // Less is admitted during a probe of the estimate.
        assert!(capacity(&limit) >= 45, "{algorithm:?}");
    }
}

#[test]
fn holds_no_more_than_the_estimate_and_refuses_what_is_above_the_ceiling() {
    let mut limit = Limit::new(adaptive(VEGAS, 3, 1, 5));
    assert_eq!(limit.rule.burst(), 5);
    for _ in 0..3 {
        assert_eq!(limit.take(at(0), 1), Assessment::Admissible);
    }
    assert_eq!(limit.take(at(0), 1), REFUSED_FOR_EVER);
    limit.rule.give_back(limit.words.as_mut_slice(), 2);
    assert_eq!(limit.take(at(0), 2), Assessment::Admissible);
    assert_eq!(limit.assess(at(0), 6), REFUSED_FOR_EVER);
    assert!(!limit.is_replenished(at(0)));
    limit.rule.give_back(limit.words.as_mut_slice(), 3);
    assert!(limit.is_replenished(at(0)));
}

#[test]
fn is_near_a_share_of_the_present_estimate() {
    let mut limit = Limit::new(adaptive(AIMD, 100, 1, 1_000));
    let is_near = |limit: &Limit| {
        let rule = limit.rule;
        rule.is_near(rule.mark(limit.words.as_slice(), at(0)), rule.near_threshold(80))
    };
    limit.charge(at(0), 79);
    assert!(!is_near(&limit));
    observe(&mut limit, 1, failed(0, 79));
    assert_eq!(capacity(&limit), 90);
    assert!(is_near(&limit));
}

#[test]
fn a_reset_forgets_what_was_learnt_and_leaves_the_holders_what_they_hold() {
    for algorithm in ALGORITHMS {
        let mut limit = Limit::new(adaptive(algorithm, 20, 1, 1_000));
        limit.charge(at(0), 5);
        for instant in 1..500 {
            observe(&mut limit, instant, failed(0, 20));
        }
        limit.reset();
        let mut expected = Limit::new(limit.rule);
        expected.charge(at(0), 5);
        assert_eq!(limit.words, expected.words);
    }
}

#[test]
fn a_change_moves_the_estimate_between_the_new_bounds_and_nowhere_else() {
    for algorithm in ALGORITHMS {
        let mut limit = Limit::new(adaptive(algorithm, 50, 1, 100));
        limit.charge(at(0), 5);
        for (start, floor, ceiling, expected) in [(10, 1, 100, 50), (10, 1, 40, 40), (80, 60, 200, 60)] {
            limit.become_other(adaptive(algorithm, start, floor, ceiling), at(0));
            assert_eq!(
                (capacity(&limit), limit.remaining(at(0))),
                (expected, expected - 5)
            );
        }
    }
    let (aimd, patient) = (adaptive(AIMD, 5, 1, 9), adaptive(PATIENT_AIMD, 5, 1, 9));
    assert!(patient.can_migrate(&aimd));
    assert!(!adaptive(VEGAS, 5, 1, 9).can_migrate(&adaptive(GRADIENT, 5, 1, 9)));
}

#[test]
fn what_cannot_be_declared_is_an_error() {
    let max = u64::from(u32::MAX);
    assert!(Adaptive::new(VEGAS, 1, 1, max).is_ok());
    assert_eq!(Adaptive::new(VEGAS, 1, 0, 9), Err(InvalidLimit::Zero("floor")));
    let endless = AdaptiveAlgorithm::Aimd { timeout: 0 };
    assert_eq!(
        Adaptive::new(endless, 1, 1, 9),
        Err(InvalidLimit::Zero("timeout"))
    );
    for (start, floor, ceiling, wrong) in [
        (1, 1, max + 1, "ceiling"),
        (10, 1, 9, "start"),
        (2, 3, 9, "floor"),
    ] {
        let error = Adaptive::new(GRADIENT, start, floor, ceiling).expect_err("out of order");
        assert!(matches!(error, InvalidLimit::AboveMax { what, .. } if what == wrong));
    }
}

fn bounds() -> impl Strategy<Value = (u64, u64, u64)> {
    let max = u64::from(u32::MAX);
    prop_oneof![
        (1..50_u64, 0..50_u64, 0..50_u64).prop_map(|(a, b, c)| (a + b, a, a + b + c)),
        (1..=max, 1..=max, 1..=max).prop_map(|(a, b, c)| {
            let mut bounds = [a, b, c];
            bounds.sort_unstable();
            (bounds[1], bounds[0], bounds[2])
        }),
    ]
}

fn algorithm() -> impl Strategy<Value = AdaptiveAlgorithm> {
    prop_oneof![
        anything().prop_map(|timeout| AdaptiveAlgorithm::Aimd {
            timeout: timeout.max(1)
        }),
        Just(GRADIENT),
        Just(VEGAS),
    ]
}

proptest! {
    #[test]
    fn no_sample_and_no_damage_takes_the_estimate_out_of_its_bounds(
        algorithm in algorithm(), (start, floor, ceiling) in bounds(),
        words in prop::collection::vec(anything(), 6),
        samples in prop::collection::vec((anything(), anything(), anything(), any::<bool>(), 1..40_u32), 1..20),
    ) {
        let rule = adaptive(algorithm, start, floor, ceiling);
        let words = words[..rule.state_words()].to_vec();
        let mut limit = Limit { rule, words };
        for (monotonic, latency, in_flight, failed, times) in samples {
            for _ in 0..times {
                let mut state = Counting { words: &mut limit.words, stores: 0 };
                let now = Now { monotonic, utc: 0 };
                rule.observe(&mut state, now, Sample { latency, in_flight, failed });
                prop_assert!(state.stores <= 6, "{} stores", state.stores);
                prop_assert!((floor..=ceiling).contains(&capacity(&limit)));
                limit.words[0] = 0;
                prop_assert_eq!(limit.remaining(now), capacity(&limit));
            }
        }
    }

    /// Processes report in the order in which they get the lock.
    #[test]
    fn the_order_within_a_round_does_not_matter(
        samples in prop::collection::vec((1..1_000_u64, 0..20_u64, prop::bool::weighted(0.1)), 20..21),
        order in Just((0..20_usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        for algorithm in [GRADIENT, VEGAS] {
            // Two rounds; the first sets the latency to compare with.
            let mut one = Limit::new(adaptive(algorithm, 20, 1, 20));
            for _ in 0..20 {
                observe(&mut one, 0, sample(300, 20));
            }
            let mut other = one.clone();
            for (latency, in_flight, failed) in &samples {
                observe(&mut one, 0, Sample { latency: *latency, in_flight: *in_flight, failed: *failed });
            }
            for (latency, in_flight, failed) in order.iter().map(|index| samples[*index]) {
                observe(&mut other, 0, Sample { latency, in_flight, failed });
            }
            prop_assert_eq!(one.words, other.words);
        }
    }

    #[test]
    fn a_mark_of_zeros_is_unused((start, floor, ceiling) in bounds()) {
        let rule = adaptive(GRADIENT, start, floor, ceiling);
        let unused = Standing { remaining: start, reset_after: 0 };
        prop_assert_eq!(rule.standing(crate::limit::Mark::default()), unused);
        prop_assert_eq!(Limit::new(rule).standing(at(0)), unused);
    }
}

#[test]
fn giving_back_nothing_stores_nothing() {
    let rule = adaptive(AIMD, 20, 1, 1_000);
    let mut limit = Limit::new(rule);
    let mut state = Counting {
        words: &mut limit.words,
        stores: 0,
    };
    rule.give_back(&mut state, 0);
    assert_eq!(state.stores, 0);
}
