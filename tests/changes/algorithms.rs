//! GCRA, the token bucket and the leaky bucket are the same rule: a limit in use can change from one of these names to
//! another.

use std::time::Duration;

use crate::scene;
use crate::scene::clock::Scene;
use crate::scene::expect_permit;
use shmlimit::{Algorithm, Declaration, Limit, LimitSet, Permit, Segment, SetDeclaration, VirtualClock};

const MINUTE: Duration = Duration::from_secs(60);
const NAMES: [Algorithm; 3] = [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket];

fn ten_a_minute(algorithm: Algorithm) -> Declaration {
    let limit = Limit::rate("units", 10, MINUTE).algorithm(algorithm);
    scene::declaration().add_set(SetDeclaration::new("api").add_limit(limit))
}

/// Calls `follow` with a segment of this declaration, its set as another attachment sees it, and a clock at zero.
fn with_segment(algorithm: Algorithm, follow: impl FnOnce(&Segment, &LimitSet, &VirtualClock)) {
    let scene = Scene::declared(Duration::ZERO, &ten_a_minute(algorithm));
    let set = scene.other().set("api").expect("declared");
    follow(&scene.segment, &set, &scene.clock);
}

fn take(set: &LimitSet, cost: u64) -> Permit<'_> {
    let request = set.request().with("units", cost).expect("declared");
    expect_permit(request.try_acquire())
}

fn remaining(set: &LimitSet) -> u64 {
    let request = set.request().with("units", 0).expect("declared");
    request.peek().expect("works")[0].remaining
}

fn refunded(permit: &mut Permit<'_>, used: u64) -> u64 {
    permit.settle([("units", used)]).expect("works").refunded("units")
}

#[test]
fn what_was_used_stays_used_and_is_replenished_as_before() {
    for from in NAMES {
        for to in NAMES {
            with_segment(from, |segment, set, clock| {
                drop(take(set, 10));
                clock.advance_to(MINUTE / 4);
                let changes = segment.apply(&ten_a_minute(to)).expect("applies");
                assert_eq!(changes.len(), usize::from(from != to), "{changes:?}");
                // Two and a half units have come back, and the half must not be lost.
                assert_eq!(remaining(set), 2, "{from:?} to {to:?}");
                clock.advance_to(MINUTE / 10 * 3 - Duration::from_nanos(1));
                assert_eq!(remaining(set), 2);
                clock.advance_to(MINUTE / 10 * 3);
                assert_eq!(remaining(set), 3);
            });
        }
    }
}

#[test]
fn nothing_comes_back_of_what_was_reserved_under_another_name() {
    for refunding in [Algorithm::Gcra, Algorithm::TokenBucket] {
        for (before, after) in [
            (Algorithm::LeakyBucket, refunding),
            (refunding, Algorithm::LeakyBucket),
        ] {
            with_segment(before, |segment, set, _| {
                let mut permit = take(set, 3);
                segment.apply(&ten_a_minute(after)).expect("applies");
                assert_eq!(refunded(&mut permit, 0), 0, "{before:?}, then {after:?}");
                let mut permit = take(set, 3);
                assert_eq!(refunded(&mut permit, 0), 3, "{after:?}");
                assert_eq!(remaining(set), 7);
            });
        }
    }
}
