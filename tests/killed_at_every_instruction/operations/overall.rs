//! Operations to kill, on limits that all keys have together: whatever takes them, gives them back, or waits for them,
//! for a key that also has a limit for itself.

use shmlimit::declare::{Scope, WhenFull};
use shmlimit::{Keyed, Limit, SetDeclaration};

use crate::beside::bystanders::MAX_WAITERS;
use crate::operations::changes::taken_by_keys;
use crate::operations::keys::{by_key, evict, reset_a_key};
use crate::operations::subject::Subject;
use crate::operations::waiting::served;
use crate::operations::{self, Operation, PLACES, SET, Victim, YEAR, waiting};

fn rates_and_places() -> SetDeclaration {
    of_three_limits(100, Limit::rate("tokens", 10_000, YEAR), 3)
}

/// More for each key, another rate for all of them, and fewer places than before.
fn other_rates_and_places() -> SetDeclaration {
    of_three_limits(1_000, Limit::rate("tokens", 5_000, YEAR * 2), 2)
}

/// The rates come first, as in the other sets of three limits.
fn of_three_limits(requests: u64, tokens: Limit, places: u64) -> SetDeclaration {
    SetDeclaration::new(SET)
        .waiters(2)
        .holds(4)
        .keyed(Keyed::new(20).when_full(WhenFull::EvictOldest))
        .add_limit(Limit::calls("requests", requests, YEAR))
        .add_limit(tokens.scope(Scope::AllKeys))
        .add_limit(Limit::concurrency("in_flight", places).scope(Scope::AllKeys))
}

/// The place comes first, so that a look that finds none has not changed anything yet.
fn places_and_rates() -> SetDeclaration {
    SetDeclaration::new(SET)
        .waiters(u32::try_from(MAX_WAITERS).expect("few") + 2)
        .holds(12)
        .keyed(Keyed::new(20))
        .add_limit(Limit::concurrency("in_flight", PLACES).scope(Scope::AllKeys))
        .add_limit(Limit::calls("requests", 100, YEAR))
        .add_limit(Limit::rate("tokens", 10_000, YEAR).scope(Scope::AllKeys))
}

fn apply(victim: &Victim) {
    let set = victim.set();
    let _held = taken_by_keys(&set);
    victim.apply(other_rates_and_places());
}

/// If the victim's own key had held the place, the key behind it would be served first.
fn cancel_a_grant(victim: &Victim) {
    waiting::cancel_what_was_held_by(&Subject::of_another(&victim.set(), 0), victim);
}

const fn of_all(name: &'static str, transactions: usize, run: fn(&Victim)) -> Operation {
    by_key(name, rates_and_places, transactions, run)
}

/// An operation with this many others that wait for a place.
const fn beside(waiters: usize, name: &'static str, transactions: usize, run: fn(&Victim)) -> Operation {
    Operation {
        waiters,
        ..by_key(name, places_and_rates, transactions, run)
    }
}

pub const OVERALL_OPERATIONS: &[Operation] = &[
    of_all("all keys, into an empty table", 2, operations::first_acquire),
    of_all("all keys, eviction", 3, evict),
    of_all("all keys, try_acquire", 1, operations::acquire),
    of_all(
        "all keys, refused by a rate",
        0,
        operations::acquire_beyond_a_rate,
    ),
    of_all("all keys, settle with refund", 1, operations::settle_with_refund),
    of_all(
        "all keys, settle with overdraft",
        1,
        operations::settle_with_overdraft,
    ),
    of_all("all keys, release", 1, operations::release),
    of_all("all keys, throttled", 2, operations::throttled),
    Operation {
        after_a_death: true,
        ..of_all(
            "all keys, of what the dead hold",
            3,
            operations::acquire_what_a_dead_process_holds,
        )
    },
    of_all("all keys, reset of one", 1, reset_a_key),
    served(beside(
        0,
        "all keys, wait and be served, the first",
        3,
        waiting::wait_until_served,
    )),
    served(beside(
        3,
        "all keys, wait and be served behind 3",
        3,
        waiting::wait_until_served,
    )),
    served(beside(
        1,
        "all keys, wait and be served behind 1",
        3,
        waiting::wait_until_served,
    )),
    beside(
        1,
        "all keys, wait in vain behind 1",
        2,
        waiting::enqueue_and_leave,
    ),
    beside(
        1,
        "all keys, release to 1 waiting",
        2,
        waiting::release_to_the_first,
    ),
    Operation {
        applies: true,
        // The limit of each of the three keys, both limits of all keys, and then the generation.
        ..of_all("all keys, apply, 3 limits", 6, apply)
    },
    // The waiter behind the victim was granted its place together with the victim.
    beside(1, "all keys, claim a grant, 1 behind", 1, waiting::claim_a_grant),
    beside(1, "all keys, cancel a grant, 1 behind", 2, cancel_a_grant),
];
