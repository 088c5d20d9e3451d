//! A keyed set whose keys wait in order for places and tokens of all keys together.

use std::time::Duration;

use fastrand::Rng;
use shmlimit::declare::Scope;
use shmlimit::snapshot::SetSnapshot;
use shmlimit::{Keyed, Limit, LimitSet, Outcome, Permit, Request, SetDeclaration, Tier};

use crate::check_held;
use crate::scene::process::eventually;

pub const SET: &str = "tenants";
/// Few, so that most requests wait, and for several keys at once.
pub const PLACES: u64 = 3;
/// The first two pay for more.
const TENANTS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const SECOND: Duration = Duration::from_secs(1);

pub fn declaration() -> SetDeclaration {
    SetDeclaration::new(SET)
        .holds(64)
        .keyed(Keyed::new(TENANTS.len() as u64))
        .add_limit(Limit::concurrency("in_flight", PLACES).scope(Scope::AllKeys))
        .add_limit(Limit::rate("all_tokens", 5_000_000, SECOND).scope(Scope::AllKeys))
        .add_limit(Limit::calls("calls", 200_000, SECOND))
        .add_tier(Tier::new("paid").weight(10))
}

/// Waits for a place, often for too short a time to get one, and returns a part of the tokens.
pub fn acquire<'a>(set: &'a LimitSet, dice: &mut Rng) -> Option<(Permit<'a>, u64)> {
    let number = dice.usize(..TENANTS.len());
    let units = 1 + dice.u64(..2);
    let tokens = dice.u64(1..1000);
    let outcome = request(set, number)
        .with("in_flight", units)
        .and_then(|request| request.with("all_tokens", tokens))
        .expect("declared")
        .acquire(Duration::from_micros(dice.u64(..3000)))
        .expect("works");
    let Outcome::Admitted(mut permit) = outcome else {
        return None;
    };
    if dice.bool() {
        permit.settle([("all_tokens", dice.u64(..1500))]).expect("once");
    }
    Some((permit, units))
}

fn request(set: &LimitSet, number: usize) -> Request<'_> {
    let request = set.request().for_key(TENANTS[number]).expect("keyed");
    if number < 2 {
        request.with_tier("paid").expect("declared")
    } else {
        request
    }
}

/// Checks what the holds of all keys say.
pub fn check(set: &SetSnapshot) {
    check_held(set, PLACES);
}

/// Makes one request that is admitted.
pub fn check_that_nothing_is_left(set: &LimitSet) {
    let all = request(set, 0)
        .with("in_flight", PLACES)
        .and_then(|request| request.with("all_tokens", 0))
        .expect("declared");
    eventually("all places can be held at once, as nobody waits", || {
        all.try_acquire().expect("works").is_admitted()
    });
    eventually("nothing of any key is used, held, kept or owed", || {
        set.table_usage().expect("keyed").used == 0
    });
}
