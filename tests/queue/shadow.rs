//! Waiting admits what asking at once would: a limit in shadow blocks nobody in the queue, however full it is.

use std::time::Duration;

use crate::scene::process::TIMEOUT;
use crate::scene::{create, expect_permit, expect_refusal, first_set};
use shmlimit::{Algorithm, Limit, RefusalReason, SetDeclaration};

/// The limit for which a request waits that would otherwise be admitted.
fn calls() -> Limit {
    Limit::calls("calls", 1, Duration::from_millis(20))
}

fn places() -> Limit {
    Limit::concurrency("places", 1).shadow(true)
}

#[test]
fn a_request_that_waits_for_another_limit_does_not_wait_for_one_in_shadow() {
    let hour = Duration::from_secs(3600);
    for (what, limit, holds) in [
        ("places", places(), Some(8)),
        ("places, and all holds taken", places(), Some(1)),
        ("a rate", Limit::calls("rate", 1, hour).shadow(true), None),
        (
            "a window",
            Limit::calls("window", 1, hour)
                .algorithm(Algorithm::FixedWindow)
                .shadow(true),
            None,
        ),
    ] {
        let mut set = SetDeclaration::new("set").add_limit(limit).add_limit(calls());
        if let Some(holds) = holds {
            set = set.holds(holds);
        }
        let (_directory, segment, set) = create(set);
        let _first = expect_permit(set.request().try_acquire());
        let _second = expect_permit(set.request().acquire(TIMEOUT));
        let _third = expect_permit(set.request().acquire(TIMEOUT));
        let seen = first_set(&segment);
        assert_eq!(seen.limits[0].counts.would_refuse, 2, "{what}: {seen:?}");
    }
}

#[test]
fn a_throttle_does_not_hide_that_every_hold_is_taken() {
    let set = SetDeclaration::new("set")
        .holds(1)
        .add_limit(Limit::concurrency("places", 4));
    let (_directory, _segment, set) = create(set);
    let permit = expect_permit(set.request().try_acquire());
    set.throttle(Duration::from_secs(60)).expect("works");
    let refusal = expect_refusal(set.request().try_acquire());
    assert_eq!(refusal.reason(), RefusalReason::HoldsFull);
    assert_eq!(
        refusal.retry_after(),
        None,
        "no clock says when a hold comes back"
    );
    drop(permit);
    let refusal = expect_refusal(set.request().try_acquire());
    assert_eq!(refusal.reason(), RefusalReason::Throttled);
}
