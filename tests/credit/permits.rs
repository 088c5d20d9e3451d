//! Limits with credit: what happens to what permits did not use, and what refusals promise.

use std::time::Duration;

use crate::scene::clock::Scene;
use crate::scene::credit::{LONG, REFUNDING, check, counts, from_first_use, one_limit, remaining};
use crate::scene::process::TIMEOUT;
use crate::scene::{ALGORITHMS, expect_permit};
use shmlimit::declare::Credit;
use shmlimit::{Algorithm, Limit, LimitSet, Permit, SetDeclaration};

const START: Duration = Duration::from_secs(1);

#[test]
fn what_a_permit_did_not_use_goes_into_the_batch_of_its_process() {
    for algorithm in ALGORITHMS {
        let limit = from_first_use(Limit::rate("calls", 100, LONG), algorithm).credit(Credit::batch(10));
        let (_directory, segment, set) = one_limit(limit);
        let request = set.request().with("calls", 8).expect("declared");
        let mut permit = expect_permit(request.try_acquire());
        let back = if REFUNDING.contains(&algorithm) { 5 } else { 0 };
        assert_eq!(
            permit.settle([("calls", 3)]).expect("works").refunded("calls"),
            back,
            "{algorithm:?}"
        );
        assert_eq!((remaining(&set), counts(&segment).refunded), (90, 0));
        assert!(check(&set, 2 + back));
        assert_eq!(counts(&segment).taken, 10);
        // Less than a batch is left, however much permits give back.
        let mut permits: Vec<_> = (0..2).map(|_| expect_permit(request.try_acquire())).collect();
        for permit in &mut permits {
            permit.cancel().expect("works");
        }
        let left = segment.snapshot().expect("a copy").sets[0].holds[0]
            .amounts
            .clone();
        assert!(left.iter().all(|(_, units)| *units < 10), "{left:?}");
        // What was used beyond the reservation is charged to the limit.
        let before = remaining(&set);
        let mut permit = expect_permit(request.try_acquire());
        assert_eq!(
            permit.settle([("calls", 28)]).expect("works").overdraft("calls"),
            20
        );
        assert!(remaining(&set) <= before - 20);
    }
}

/// A rate of 100 with batches of 10, and a permit for 8 that was admitted from one of them.
fn drawn_permit(set: &LimitSet) -> Permit<'_> {
    let request = set.request().with("calls", 8).expect("declared");
    let permit = expect_permit(request.try_acquire());
    assert_eq!(remaining(set), 90);
    permit
}

#[test]
fn what_a_permit_did_not_use_goes_into_no_batch_but_its_own() {
    for algorithm in REFUNDING {
        let limit = Limit::rate("calls", 100, LONG)
            .algorithm(algorithm)
            .credit(Credit::batch(10));
        let (_directory, segment, set) = one_limit(limit);
        let mut permit = drawn_permit(&set);
        assert!(check(&set, 2));
        assert!(check(&set, 9), "of the next batch");
        assert_eq!(remaining(&set), 80);
        let settled = permit.settle([("calls", 3)]).expect("works");
        assert_eq!(settled.refunded("calls"), 5, "{algorithm:?}");
        assert_eq!(
            (remaining(&set), counts(&segment).refunded),
            (85, 5),
            "{algorithm:?}"
        );
        let left = &segment.snapshot().expect("a copy").sets[0].holds[0].amounts;
        assert_eq!(*left, [("calls".to_owned(), 1)].into(), "{algorithm:?}");
    }
}

#[test]
fn what_a_permit_did_not_use_goes_to_the_limit_where_its_batch_was_taken_back() {
    for algorithm in REFUNDING {
        let limit = Limit::rate("calls", 100, LONG)
            .algorithm(algorithm)
            .credit(Credit::batch(10));
        let (_directory, _segment, set) = one_limit(limit);
        let mut permit = drawn_permit(&set);
        // The request has to wait, so the 2 units that are left come back. Then it gives up at once.
        let request = set.request().with("calls", 93).expect("declared");
        let outcome = request.acquire_while(TIMEOUT, || false).expect("works");
        assert!(!outcome.is_admitted());
        assert_eq!(remaining(&set), 92);
        let settled = permit.settle([("calls", 3)]).expect("works");
        assert_eq!(settled.refunded("calls"), 5, "{algorithm:?}");
        assert_eq!(remaining(&set), 97, "{algorithm:?}");
    }
}

#[test]
fn several_permits_of_one_batch_get_back_no_more_than_time_has_left_of_it() {
    for algorithm in REFUNDING {
        // One unit every 10 µs.
        let limit = Limit::rate("calls", 100, Duration::from_micros(1_000))
            .algorithm(algorithm)
            .credit(Credit::batch(10));
        let scene = Scene::at(START, SetDeclaration::new("api").add_limit(limit));
        let set = scene.set();
        let request = set.request().with("calls", 2).expect("declared");
        let mut permits: Vec<_> = (0..5).map(|_| expect_permit(request.try_acquire())).collect();
        // Six of the ten are replenished, and other requests take 50: only the last two permits have anything to give
        // back.
        scene.clock.advance_to(START + Duration::from_micros(60));
        assert!(check(&set, 50));
        assert_eq!(remaining(&set), 46);
        for permit in &mut permits {
            permit.cancel().expect("works");
        }
        let left = &scene.snapshot().holds[0].amounts;
        assert_eq!(*left, [("calls".to_owned(), 4)].into(), "{algorithm:?}");
        assert_eq!(remaining(&set), 46, "{algorithm:?}");
    }
}

#[test]
fn a_refusal_says_when_the_whole_cost_is_there_whatever_becomes_of_the_batch() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        let limit = Limit::calls("calls", 8, Duration::from_secs(8))
            .algorithm(algorithm)
            .credit(Credit::batch(6));
        let scene = Scene::at(START, SetDeclaration::new("api").add_limit(limit));
        let set = scene.set();
        assert!(check(&set, 4));
        // Time replenishes the batch, of which 2 units are left, and a request that is not admitted from it takes all
        // of the limit.
        scene.clock.advance_to(START + Duration::from_secs(6));
        assert!(check(&set, 8));
        let request = set.request().with("calls", 5).expect("declared");
        let refused = request.check().expect("works");
        assert_eq!(
            refused.retry_after(),
            Some(Duration::from_secs(5)),
            "{algorithm:?}"
        );
        // The 2 units are lost meanwhile.
        let waiting = set.request().with("calls", 8).expect("declared");
        let outcome = waiting.acquire_while(TIMEOUT, || false).expect("works");
        assert!(!outcome.is_admitted());
        scene
            .clock
            .advance_to(START + Duration::from_nanos(10_999_999_999));
        assert!(!check(&set, 5), "{algorithm:?}");
        scene.clock.advance_to(START + Duration::from_secs(11));
        assert!(check(&set, 5), "{algorithm:?}");
    }
}
