//! What one process sees of a set.

use std::time::Duration;

use shmlimit::{Declaration, Error, Limit, Outcome, RefusalReason, Segment, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);

fn segment(set: SetDeclaration) -> (tempfile::TempDir, Segment) {
    let folder = tempfile::tempdir().expect("a folder");
    let segment =
        Segment::create(folder.path().join("limits"), &Declaration::new().set(set)).expect("a segment");
    (folder, segment)
}

#[test]
fn refuses_the_eleventh_of_ten() {
    let (_folder, segment) = segment(SetDeclaration::new("api").limit(Limit::calls("requests", 10, HOUR)));
    let api = segment.set("api").expect("declared");
    let request = api.request();
    for _ in 0..10 {
        assert!(api.try_acquire(&request).expect("works").is_admitted());
    }
    let Outcome::Refused(refusal) = api.try_acquire(&request).expect("works") else {
        panic!("admitted")
    };
    assert_eq!(refusal.binding(), Some("requests"));
    assert_eq!(refusal.reason(), RefusalReason::Rate);
    assert!(refusal.retry_after().expect("time heals it") <= HOUR / 10);
}

#[test]
fn a_refusal_by_the_second_limit_charges_nothing_to_the_first() {
    let (_folder, segment) = segment(
        SetDeclaration::new("api")
            .limit(Limit::calls("requests", 10, HOUR))
            .limit(Limit::concurrency("in_flight", 2)),
    );
    let api = segment.set("api").expect("declared");
    let request = api.request();
    let first = api
        .try_acquire(&request)
        .expect("works")
        .permit()
        .expect("admitted");
    let _second = api
        .try_acquire(&request)
        .expect("works")
        .permit()
        .expect("admitted");
    for _ in 0..20 {
        let refusal = api
            .try_acquire(&request)
            .expect("works")
            .permit()
            .expect_err("full");
        assert_eq!(
            (refusal.binding(), refusal.retry_after()),
            (Some("in_flight"), None)
        );
    }
    drop(first);
    let third = api
        .try_acquire(&request)
        .expect("works")
        .permit()
        .expect("one was given back");
    let remaining = third
        .verdicts()
        .map(|verdict| verdict.remaining)
        .collect::<Vec<_>>();
    assert_eq!(remaining, [7, 0]);
}

#[test]
fn settling_refunds_what_was_not_used_and_charges_what_was_used_above() {
    let (_folder, segment) = segment(SetDeclaration::new("llm").limit(Limit::rate("tokens", 1000, HOUR)));
    let llm = segment.set("llm").expect("declared");
    assert!(matches!(
        llm.try_acquire(&llm.request()),
        Err(Error::CostRequired { .. })
    ));
    let request = llm.request().with("tokens", 600).expect("declared");
    let mut permit = llm
        .try_acquire(&request)
        .expect("works")
        .permit()
        .expect("admitted");
    assert_eq!(
        permit
            .settle([("tokens", 100)])
            .expect("first")
            .refunded("tokens"),
        500
    );
    assert!(matches!(
        permit.settle([("tokens", 100)]),
        Err(Error::AlreadySettled { .. })
    ));
    drop(permit);
    let mut permit = llm
        .try_acquire(&request)
        .expect("works")
        .permit()
        .expect("refunded");
    assert_eq!(
        permit
            .settle([("tokens", 2000)])
            .expect("first")
            .overdraft("tokens"),
        1400
    );
    let refusal = llm
        .try_acquire(&llm.request().with("tokens", 1).unwrap())
        .unwrap()
        .permit()
        .expect_err("overdrawn");
    assert_eq!(refusal.verdicts().next().expect("one").remaining, 0);
    assert!(refusal.retry_after().expect("time heals it") > HOUR);
}
