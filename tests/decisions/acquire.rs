//! What one process sees of a set.

use std::time::Duration;

use crate::scene::{create, expect_permit, expect_refusal};
use shmlimit::{Error, Limit, Outcome, PermitError, RefusalReason, RequestError, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn refuses_the_eleventh_of_ten() {
    let (_directory, _segment, api) =
        create(SetDeclaration::new("api").add_limit(Limit::calls("requests", 10, HOUR)));
    let request = api.request();
    for _ in 0..10 {
        assert!(request.try_acquire().expect("works").is_admitted());
    }
    let Outcome::Refused(refusal) = request.try_acquire().expect("works") else {
        panic!("admitted")
    };
    assert_eq!(refusal.binding(), Some("requests"));
    assert_eq!(refusal.reason(), RefusalReason::Rate);
    assert!(refusal.retry_after().expect("a retry time") <= HOUR / 10);
}

#[test]
fn a_refusal_by_the_second_limit_charges_nothing_to_the_first() {
    let (_directory, _segment, api) = create(
        SetDeclaration::new("api")
            .add_limit(Limit::calls("requests", 10, HOUR))
            .add_limit(Limit::concurrency("in_flight", 2)),
    );
    let request = api.request();
    let first = expect_permit(request.try_acquire());
    let _second = expect_permit(request.try_acquire());
    for _ in 0..20 {
        let refusal = expect_refusal(request.try_acquire());
        assert_eq!(
            (refusal.binding(), refusal.retry_after()),
            (Some("in_flight"), None)
        );
    }
    drop(first);
    let third = expect_permit(request.try_acquire());
    let remaining = third
        .verdicts()
        .map(|verdict| verdict.remaining)
        .collect::<Vec<_>>();
    assert_eq!(remaining, [7, 0]);
}

#[test]
fn settling_refunds_what_was_not_used_and_charges_what_was_used_above() {
    let (_directory, _segment, llm) =
        create(SetDeclaration::new("llm").add_limit(Limit::rate("tokens", 1000, HOUR)));
    assert!(matches!(
        llm.request().try_acquire(),
        Err(Error::Request(RequestError::CostRequired { .. }))
    ));
    let request = llm.request().with("tokens", 600).expect("declared");
    let mut permit = expect_permit(request.try_acquire());
    assert_eq!(
        permit
            .settle([("tokens", 100)])
            .expect("first")
            .refunded("tokens"),
        500
    );
    assert!(matches!(
        permit.settle([("tokens", 100)]),
        Err(Error::Permit(PermitError::AlreadySettled { .. }))
    ));
    drop(permit);
    let mut permit = expect_permit(request.try_acquire());
    assert_eq!(
        permit
            .settle([("tokens", 2000)])
            .expect("first")
            .overdraft("tokens"),
        1400
    );
    let refusal = llm
        .request()
        .with("tokens", 1)
        .unwrap()
        .try_acquire()
        .unwrap()
        .into_result()
        .expect_err("overdrawn");
    assert_eq!(refusal.verdicts().next().expect("one").remaining, 0);
    assert!(refusal.retry_after().expect("a retry time") > HOUR);
}

#[test]
fn what_time_has_replenished_is_not_refunded_out_of_what_others_took() {
    let window = Duration::from_millis(200);
    let (_directory, _segment, llm) =
        create(SetDeclaration::new("llm").add_limit(Limit::rate("tokens", 1000, window)));
    let all = llm.request().with("tokens", 1000).expect("declared");
    let take = || loop {
        if let Outcome::Admitted(permit) = all.try_acquire().expect("works") {
            return permit;
        }
        std::thread::yield_now();
    };
    let mut early = take();
    let _late = take();
    // The window of the early permit is over, and the late one has taken what came back.
    assert!(early.settle([("tokens", 0)]).expect("first").refunded("tokens") < 1000);
    let mut earlier = vec![take(), take()];
    let _latest = take();
    for permit in &mut earlier {
        let refunded = permit.settle([("tokens", 0)]).expect("first").refunded("tokens");
        assert_eq!(refunded, 0, "a reservation that was replenished was paid back");
    }
}

#[test]
fn what_was_reserved_before_a_reset_is_not_refunded_after_it() {
    let (_directory, _segment, llm) =
        create(SetDeclaration::new("llm").add_limit(Limit::rate("tokens", 1000, HOUR)));
    let all = llm.request().with("tokens", 1000).expect("declared");
    let mut before = expect_permit(all.try_acquire());
    llm.reset().run().expect("works");
    let _after = expect_permit(all.try_acquire());
    assert_eq!(
        before.settle([("tokens", 0)]).expect("first").refunded("tokens"),
        0
    );
    assert!(!all.try_acquire().expect("works").is_admitted());
}

#[test]
fn a_full_table_of_holds_binds_before_a_limit_that_time_replenishes() {
    let (_directory, _segment, api) = create(
        SetDeclaration::new("api")
            .add_limit(Limit::calls("requests", 1, HOUR))
            .add_limit(Limit::concurrency("in_flight", 8))
            .holds(1),
    );
    let request = api.request();
    let _held = expect_permit(request.try_acquire());
    let refusal = expect_refusal(request.try_acquire());
    assert_eq!(refusal.reason(), RefusalReason::HoldsFull);
    assert!(refusal.to_string().contains("holds"), "{refusal}");
    assert_eq!((refusal.binding(), refusal.retry_after()), (None, None));
}

#[test]
fn asking_with_a_cost_of_zero_holds_nothing() {
    let (_directory, segment, pool) = create(
        SetDeclaration::new("pool")
            .add_limit(Limit::concurrency("connections", 1))
            .holds(1),
    );
    let asking = pool.request().with("connections", 0).expect("declared");
    let _held = expect_permit(pool.request().try_acquire());
    let asked = expect_permit(asking.try_acquire());
    assert_eq!(segment.snapshot().expect("a copy").sets[0].active, 1);
    drop(asked);
    assert_eq!(segment.snapshot().expect("a copy").sets[0].active, 1);
}

#[test]
fn a_full_table_of_holds_refuses_only_what_is_held_outside_of_shadow() {
    let (_directory, segment, llm) = create(
        SetDeclaration::new("llm")
            .add_limit(Limit::calls("requests", 10, HOUR))
            .add_limit(Limit::concurrency("in_flight", 8).shadow(true))
            .add_limit(Limit::concurrency("places", 100))
            .holds(1),
    );
    let without_places = llm.request().with("places", 0).expect("declared");
    let _held = expect_permit(without_places.try_acquire());
    let without_a_hold = expect_permit(without_places.try_acquire());
    let refusal = expect_refusal(llm.request().try_acquire());
    assert_eq!(refusal.reason(), RefusalReason::HoldsFull);
    drop(without_a_hold);
    let set = &segment.snapshot().expect("a copy").sets[0];
    assert_eq!(set.active, 1);
    let of_limits = set
        .limits
        .iter()
        .map(|limit| (limit.counts.admitted, limit.counts.would_refuse, limit.remaining))
        .collect::<Vec<_>>();
    assert_eq!(of_limits, [(2, 0, 8), (1, 1, 7), (2, 0, 100)]);
}

#[test]
fn a_recovery_of_what_is_sound_repairs_nothing() {
    let (_directory, segment, pool) =
        create(SetDeclaration::new("pool").add_limit(Limit::concurrency("connections", 8)));
    let take = || expect_permit(pool.request().try_acquire());
    let mut permits: Vec<_> = (0..5).map(|_| take()).collect();
    // Some holds are in use, others between them are free again, and those after them were never used.
    drop(permits.remove(3));
    drop(permits.remove(1));
    for held in (0..=3).rev() {
        let recovered = &segment.recover().expect("works").sets[0];
        assert!(recovered.repairs.is_none(), "{held} held: {recovered:?}");
        assert_eq!(recovered.reclaimed, 0);
        assert_eq!(segment.snapshot().expect("a copy").sets[0].active, held);
        permits.pop();
    }
}
