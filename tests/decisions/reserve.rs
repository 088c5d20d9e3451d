//! Charging now for what is done later.

use std::time::{Duration, Instant};

use crate::scene;
use crate::scene::process::{Child, TIMEOUT, in_own_process};
use shmlimit::{
    Algorithm, Error, Limit, LimitSet, PermitError, RequestError, Reservation, Segment, SetDeclaration,
};

const HOUR: Duration = Duration::from_secs(3600);

fn with_set(set: SetDeclaration, body: impl FnOnce(&LimitSet)) {
    let directory = tempfile::tempdir().expect("a directory");
    let segment = Segment::create(
        directory.path().join("limits"),
        &scene::declaration().add_set(set),
    );
    body(&segment.expect("a segment").sets().next().expect("declared"));
}

fn reserve<'a>(set: &'a LimitSet, cost: u64, max_delay: Duration) -> Option<Reservation<'a>> {
    let name = set.limits().next().expect("declared").to_owned();
    let request = set.request().with(&name, cost).expect("declared");
    request.reserve(max_delay).expect("works").into_result().ok()
}

fn tokens(algorithm: Algorithm) -> SetDeclaration {
    SetDeclaration::new("set").add_limit(Limit::rate("tokens", 3600, HOUR).burst(10).algorithm(algorithm))
}

const AHEAD: [Algorithm; 3] = [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket];

#[test]
fn reservations_follow_one_another_at_the_declared_rate() {
    for algorithm in AHEAD {
        with_set(tokens(algorithm), |set| {
            let started = Instant::now();
            assert_eq!(reserve(set, 10, HOUR).expect("full").delay(), Duration::ZERO);
            for nth in 1..=5_u32 {
                let delay = reserve(set, 10, HOUR).expect("within an hour").delay();
                // One unit per second; elapsed time counts.
                let expected = Duration::from_secs(10) * nth;
                assert!(delay <= expected, "{algorithm:?}: {delay:?} after {nth}");
                assert!(
                    delay + started.elapsed() >= expected,
                    "{algorithm:?}: {delay:?} after {nth}"
                );
            }
        });
    }
}

#[test]
fn what_cannot_be_had_in_time_is_refused_and_changes_nothing() {
    for algorithm in AHEAD {
        with_set(tokens(algorithm), |set| {
            assert!(reserve(set, 10, Duration::ZERO).is_some());
            assert!(reserve(set, 10, Duration::from_secs(9)).is_none());
            let after = reserve(set, 10, Duration::from_secs(11))
                .expect("as before the request")
                .delay();
            assert!(after > Duration::from_secs(9));
        });
    }
}

#[test]
fn a_cancelled_reservation_makes_room_for_another() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
        with_set(tokens(algorithm), |set| {
            assert!(reserve(set, 10, HOUR).is_some());
            let mut reservation = reserve(set, 10, HOUR).expect("within an hour");
            let delay = reservation.delay();
            assert!(reservation.cancel().expect("works"));
            let again = reserve(set, 10, HOUR).expect("within an hour").delay();
            assert!(again <= delay, "{algorithm:?}: {again:?} instead of {delay:?}");
        });
    }
}

#[test]
fn a_reservation_whose_instant_has_come_cannot_be_cancelled() {
    with_set(tokens(Algorithm::Gcra), |set| {
        let mut at_once = reserve(set, 10, HOUR).expect("full");
        assert!(!at_once.cancel().expect("works"));
        assert!(reserve(set, 10, Duration::ZERO).is_none());
    });
}

#[test]
fn windows_that_have_not_begun_are_not_charged() {
    for algorithm in [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingWindowCounter,
    ] {
        let set = SetDeclaration::new("set")
            .add_limit(Limit::rate("tokens", 10, Duration::from_secs(30 * 24 * 3600)).algorithm(algorithm));
        with_set(set, |set| {
            assert!(reserve(set, 10, Duration::ZERO).is_some());
            assert!(reserve(set, 1, Duration::from_secs(365 * 24 * 3600)).is_none());
        });
    }
}

#[test]
fn every_limit_is_charged_as_of_the_instant_of_the_use() {
    let set = SetDeclaration::new("set")
        .add_limit(Limit::rate("slow", 3600, HOUR).burst(10))
        .add_limit(Limit::rate("fast", 3600 * 10, HOUR).burst(10));
    with_set(set, |set| {
        let request = |slow, fast| {
            let request = set.request().with("slow", slow).expect("declared");
            request.with("fast", fast).expect("declared")
        };
        assert!(request(10, 0).try_acquire().expect("works").is_admitted());
        let both = request(10, 10).reserve(HOUR).expect("works").into_result();
        assert!(both.expect("in ten seconds").delay() > Duration::from_secs(9));
        // The fast limit is charged as of ten seconds from now, so nothing of it is left until after that.
        assert!(!request(0, 10).try_acquire().expect("works").is_admitted());
    });
}

#[test]
fn what_is_held_or_debited_later_cannot_be_reserved() {
    let set = tokens(Algorithm::Gcra).add_limit(Limit::concurrency("places", 1));
    with_set(set, |set| {
        let request = set.request().with("tokens", 1).expect("declared");
        let outcome = request.reserve(HOUR);
        assert!(
            matches!(outcome, Err(Error::Request(RequestError::NotReservable { limit, .. })) if limit == "places")
        );
        let without = request.with("places", 0).expect("declared");
        assert!(without.reserve(HOUR).expect("works").into_result().is_ok());
    });
    let set = tokens(Algorithm::Gcra).add_limit(Limit::budget("dollars", 5, HOUR));
    with_set(set, |set| {
        let outcome = set.request().with("tokens", 1).expect("declared").reserve(HOUR);
        assert!(
            matches!(outcome, Err(Error::Request(RequestError::NotReservable { limit, .. })) if limit == "dollars")
        );
    });
}

#[test]
fn no_request_reserves_the_impossible() {
    with_set(tokens(Algorithm::Gcra), |set| {
        let request = set.request().with("tokens", 11).expect("declared");
        assert!(matches!(
            request.reserve(HOUR),
            Err(Error::Request(RequestError::NeverAdmissible { max: 10, .. }))
        ));
    });
}

#[test]
fn a_reservation_can_be_settled_afterwards() {
    with_set(tokens(Algorithm::Gcra), |set| {
        let mut permit = reserve(set, 10, HOUR).expect("full").into_permit();
        let settlement = permit.settle([("tokens", 4)]).expect("works");
        assert_eq!(settlement.refunded("tokens"), 6);
    });
}

#[test]
fn a_forked_child_cannot_cancel_what_its_parent_reserved() {
    in_own_process(
        "reserve::a_forked_child_cannot_cancel_what_its_parent_reserved",
        TIMEOUT,
        |_| {
            with_set(tokens(Algorithm::Gcra), |set| {
                assert!(reserve(set, 10, Duration::ZERO).is_some());
                let mut reserved = reserve(set, 10, HOUR);
                let child = Child::fork(|| {
                    let answer = reserved.take().expect("reserved").cancel();
                    assert!(
                        matches!(answer, Err(Error::Permit(PermitError::Inherited { .. }))),
                        "{answer:?}"
                    );
                });
                child.succeed();
                assert!(reserved.expect("reserved").cancel().expect("works"));
                // If it were given back twice, that would be as much as the first reservation has used.
                assert!(reserve(set, 10, Duration::ZERO).is_none());
            });
        },
    );
}

#[test]
fn a_reservation_counts_as_a_request_does_that_is_admitted_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let in_shadow = Limit::rate("watched", 5, HOUR)
        .algorithm(Algorithm::TokenBucket)
        .shadow(true);
    let set = tokens(Algorithm::TokenBucket).add_limit(in_shadow);
    let segment = Segment::create(
        directory.path().join("limits"),
        &scene::declaration().add_set(set),
    );
    let segment = segment.expect("a segment");
    let set = segment.set("set").expect("declared");
    let request = |units| {
        let request = set.request().with("tokens", units).expect("declared");
        request.with("watched", units).expect("declared")
    };
    let mut counted = Vec::new();
    for is_reserved in [true, false] {
        for units in [1, 9] {
            if is_reserved {
                let reserved = request(units).reserve(HOUR).expect("works");
                drop(reserved.into_result().expect("within an hour"));
            } else {
                assert!(request(units).check().expect("works").is_admitted());
            }
        }
        let limits = &segment.snapshot().expect("no error").sets[0].limits;
        let counts = limits.iter().map(|limit| &limit.counts);
        let counts: Vec<[u64; 4]> = counts
            .map(|counts| [counts.admitted, counts.taken, counts.near, counts.would_refuse])
            .collect();
        counted.push(counts);
        set.reset().run().expect("no error");
    }
    assert_eq!(counted[0], [[2, 10, 1, 0], [1, 1, 0, 1]]);
    assert_eq!(counted[1], [[4, 20, 2, 0], [2, 2, 0, 2]]);
}
