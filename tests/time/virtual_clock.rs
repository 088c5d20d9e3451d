//! Decisions by a clock that is advanced by hand, exact to the nanosecond.

use std::time::{Duration, Instant};

use crate::scene::clock::{NANOSECOND, NEW_YEAR, Scene};
use crate::scene::{ALGORITHMS, expect_permit};
use proptest::prelude::*;
use shmlimit::declare::Align;
use shmlimit::{
    Algorithm, Error, Limit, LimitSet, Outcome, Permit, PermitError, Refusal, SetDeclaration, VirtualClock,
};

const MINUTE: Duration = Duration::from_secs(60);

fn one_limit_at(start: Duration, limit: Limit) -> (Scene, LimitSet) {
    let scene = Scene::at(start, SetDeclaration::new("api").add_limit(limit));
    let set = scene.set();
    (scene, set)
}

fn try_one(set: &LimitSet) -> Result<Permit<'_>, Refusal> {
    match set.request().try_acquire().expect("a decision") {
        Outcome::Admitted(permit) => Ok(permit),
        Outcome::Refused(refusal) => Err(refusal),
    }
}

fn refused_for(set: &LimitSet) -> Duration {
    let refusal = try_one(set).map(|_| ()).expect_err("to be refused");
    refusal.retry_after().expect("a retry time")
}

#[test]
fn a_refused_call_is_admitted_at_exactly_the_promised_nanosecond() {
    // 3 in 7 seconds: one in 2 1/3 s, so the promise is rounded up to a nanosecond.
    let limit = Limit::calls("requests", 3, Duration::from_secs(7)).algorithm(Algorithm::Gcra);
    let (scene, set) = one_limit_at(NEW_YEAR, limit);
    for _ in 0..3 {
        assert!(try_one(&set).is_ok());
    }
    let retry_after = refused_for(&set);
    assert_eq!(retry_after, Duration::from_nanos(2_333_333_334));
    scene.clock.advance_to(NEW_YEAR + retry_after - NANOSECOND);
    assert_eq!(refused_for(&set), NANOSECOND);
    scene.clock.advance_to(NEW_YEAR + retry_after);
    assert!(try_one(&set).is_ok());
    assert!(try_one(&set).is_err());
}

#[test]
fn a_window_by_the_wall_clock_turns_when_the_virtual_clock_comes_to_its_end() {
    let limit = Limit::calls("requests", 1, Duration::from_secs(60)).algorithm(Algorithm::FixedWindow);
    let (scene, set) = one_limit_at(NEW_YEAR + Duration::from_secs(59), limit);
    assert!(try_one(&set).is_ok());
    assert_eq!(refused_for(&set), Duration::from_secs(1));
    scene
        .clock
        .advance_to(NEW_YEAR + Duration::from_secs(60) - NANOSECOND);
    assert_eq!(refused_for(&set), NANOSECOND);
    scene.clock.advance_to(NEW_YEAR + Duration::from_secs(60));
    assert!(try_one(&set).is_ok());
}

#[test]
fn a_lease_runs_out_on_the_virtual_clock_however_often_it_was_looked_for() {
    let lease = Duration::from_secs(30);
    let (scene, set) = one_limit_at(NEW_YEAR, Limit::concurrency("in_flight", 1).lease(lease));
    let first = try_one(&set).expect("free");
    scene.clock.advance_to(NEW_YEAR + lease - NANOSECOND);
    for _ in 0..100 {
        assert!(try_one(&set).is_err());
    }
    assert!(!first.reclaimed());
    scene.clock.advance_to(NEW_YEAR + lease);
    assert!(
        first.reclaimed(),
        "also while no other request has taken its place"
    );
    let second = try_one(&set).expect("the lease has run out");
    assert!(first.reclaimed() && !second.reclaimed());
}

#[test]
fn releasing_after_a_lease_ran_out_changes_nothing_and_is_remembered() {
    let lease = Duration::from_secs(30);
    let (scene, set) = one_limit_at(NEW_YEAR, Limit::concurrency("in_flight", 1).lease(lease));
    let mut late = try_one(&set).expect("free");
    scene.clock.advance_to(NEW_YEAR + lease);
    late.release()
        .expect("nothing is wrong with the work that was done");
    assert!(late.reclaimed());
    assert!(matches!(
        late.heartbeat(),
        Err(Error::Permit(PermitError::AlreadyReleased { .. }))
    ));

    let mut renewed = try_one(&set).expect("free");
    scene.clock.advance_to(NEW_YEAR + 2 * lease);
    assert!(renewed.reclaimed());
    renewed.heartbeat().expect("no other request has taken its place");
    assert!(!renewed.reclaimed());
    renewed.release().expect("works");
    assert!(!renewed.reclaimed());
}

#[test]
fn the_clock_never_goes_back_and_its_clones_are_the_same_clock() {
    let clock = VirtualClock::new(NEW_YEAR);
    let same = clock.clone();
    same.advance_to(NEW_YEAR + NANOSECOND);
    clock.advance_to(NEW_YEAR);
    assert_eq!(clock.now(), NEW_YEAR + NANOSECOND);
    // The latest instant that the rules are proven for.
    clock.advance_to(Duration::MAX);
    assert_eq!(same.now(), Duration::from_nanos(1 << 63));
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let algorithms = prop::sample::select(ALGORITHMS.to_vec());
    (
        algorithms,
        1..20_u64,
        1_000_000..100_000_000_000_u64,
        any::<bool>(),
    )
        .prop_map(|(algorithm, capacity, window, by_first_use)| {
            let limit = Limit::calls("requests", capacity, Duration::from_nanos(window)).algorithm(algorithm);
            if algorithm == Algorithm::FixedWindow && by_first_use {
                limit.align(Align::FirstUse)
            } else {
                limit
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_algorithm_refuses_until_the_promised_nanosecond_and_admits_at_it(
        limit in any_limit(),
        start in 0..(1_u64 << 62),
        requests in prop::collection::vec((1..20_u64, 0..10_000_000_000_u64), 1..20),
    ) {
        let (scene, set) = one_limit_at(Duration::from_nanos(start), limit);
        for (cost, pause) in requests {
            scene.clock.advance_to(scene.clock.now() + Duration::from_nanos(pause));
            let request = set.request().with("requests", cost).expect("declared");
            // What could never be admitted is an error.
            let Ok(Outcome::Refused(refusal)) = request.try_acquire() else {
                continue;
            };
            let promised = scene.clock.now() + refusal.retry_after().expect("a retry time");
            scene.clock.advance_to(promised - NANOSECOND);
            prop_assert!(!request.try_acquire().expect("a decision").is_admitted());
            scene.clock.advance_to(promised);
            prop_assert!(request.try_acquire().expect("a decision").is_admitted());
        }
    }
}

#[test]
fn who_waits_is_served_when_the_clock_has_been_moved_on_and_sleeps_until_then() {
    let hour = Duration::from_secs(3600);
    let (scene, set) = one_limit_at(Duration::from_secs(1), Limit::calls("calls", 1, hour));
    assert!(set.request().check().expect("works").is_admitted());
    let is_admitted_within = |max_looks: u32| {
        let mut looks = 0;
        let outcome = set.request().acquire_while(None, || {
            looks += 1;
            looks <= max_looks
        });
        outcome.expect("works").is_admitted()
    };
    let started = Instant::now();
    assert!(!is_admitted_within(10));
    // Even if the clock shows an instant in the machine's past, the wait does not look all the time.
    assert!(
        started.elapsed() >= Duration::from_millis(100),
        "it did not sleep"
    );
    scene.clock.advance_to(2 * hour);
    assert!(is_admitted_within(u32::MAX));
}

#[test]
fn a_lease_that_ran_out_is_lost_although_its_permit_still_holds_something_else() {
    let set = SetDeclaration::new("jobs")
        .add_limit(Limit::concurrency("leased", 1).lease(MINUTE))
        .add_limit(Limit::concurrency("running", 2));
    let scene = Scene::new(set);
    let jobs = scene.set();
    let take = || expect_permit(jobs.request().try_acquire());
    let mut late = take();
    scene.pass(2 * MINUTE);
    let mut next = take();
    assert!(late.reclaimed() && !next.reclaimed());
    assert!(matches!(
        late.heartbeat(),
        Err(Error::Permit(PermitError::Reclaimed { .. }))
    ));
    next.heartbeat().expect("its own");
    for permit in [&mut late, &mut next] {
        permit.release().expect("gives back what is left");
    }
    assert!(late.reclaimed() && !next.reclaimed());
    let remaining = |index: usize| scene.snapshot().limits[index].remaining;
    assert_eq!([0, 1].map(remaining), [1, 2]);
}
