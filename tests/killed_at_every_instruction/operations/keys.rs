//! Operations to kill, on keyed sets: giving a key a row in each state of the table, and what is done with a row.

use shmlimit::declare::WhenFull;
use shmlimit::{Keyed, Limit, LimitSet, Permit, SetDeclaration};

use crate::beside::bystanders::MAX_WAITERS;
use crate::operations::subject::Subject;
use crate::operations::waiting;
use crate::operations::{self, Operation, PLACES, SET, Victim, YEAR, admitted, everything, operation};

/// The rows of a bucket: as many keys find a place in a table of one bucket.
const BUCKET_ROWS: usize = 32;

/// A table of one bucket. Segments are copied many times, so it is no larger than necessary.
fn one_limit() -> SetDeclaration {
    SetDeclaration::new(SET)
        .waiters(2)
        .keyed(Keyed::new(20))
        .add_limit(Limit::calls("requests", 100, YEAR))
}

fn one_limit_that_evicts() -> SetDeclaration {
    one_limit().keyed(Keyed::new(20).when_full(WhenFull::EvictOldest))
}

fn one_limit_that_evicts_the_least_used() -> SetDeclaration {
    one_limit().keyed(Keyed::new(20).when_full(WhenFull::EvictLeastUsed))
}

fn three_limits_that_evict_the_least_used() -> SetDeclaration {
    three_limits().keyed(Keyed::new(20).when_full(WhenFull::EvictLeastUsed))
}

/// Two buckets, without names.
fn two_buckets() -> SetDeclaration {
    one_limit().keyed(Keyed::new(40).store_keys(false))
}

fn three_limits() -> SetDeclaration {
    SetDeclaration::new(SET)
        .waiters(2)
        .holds(4)
        .keyed(Keyed::new(20).when_full(WhenFull::EvictOldest))
        .add_limit(Limit::calls("requests", 100, YEAR))
        .add_limit(Limit::rate("tokens", 10_000, YEAR))
        .add_limit(Limit::concurrency("in_flight", 3))
}

/// The place comes first, so that a look that finds none has not changed anything yet.
pub fn places_and_rates() -> SetDeclaration {
    SetDeclaration::new(SET)
        .waiters(u32::try_from(MAX_WAITERS).expect("few") + 2)
        .holds(12)
        .keyed(Keyed::new(20))
        .add_limit(Limit::concurrency("in_flight", PLACES))
        .add_limit(Limit::calls("requests", 100, YEAR))
        .add_limit(Limit::rate("tokens", 10_000, YEAR))
}

/// Has this many keys use something that is not replenished while the proof runs.
fn fill(set: &LimitSet, keys: usize) {
    let request = everything(set, 1);
    for number in 0..keys {
        let permit = acquire_by(number, &request);
        // The place is given back, and the rest stays charged.
        drop(permit);
    }
}

fn acquire_by<'a>(number: usize, request: &shmlimit::Request<'a>) -> Permit<'a> {
    Subject::key(&format!("other {number}"))
        .try_acquire(request)
        .expect("works")
        .into_result()
        .expect("admitted")
}

/// Fills the table with this many keys, and lets another come.
fn insert_beside(victim: &Victim, others: usize) {
    let set = victim.set();
    fill(&set, others);
    assert_eq!(victim.keys(), others as u64);
    operations::first_acquire(victim);
}

fn insert_beside_three(victim: &Victim) {
    insert_beside(victim, 3);
}

fn insert_into_the_last_row(victim: &Victim) {
    insert_beside(victim, BUCKET_ROWS - 1);
}

/// Both buckets are filled evenly, so one of them is full when the other has one row left.
fn insert_into_the_second_bucket(victim: &Victim) {
    insert_beside(victim, 2 * BUCKET_ROWS - 1);
}

/// Key number 5 has used something and given all of it back.
fn reuse(victim: &Victim) {
    let set = victim.set();
    fill(&set, 5);
    let mut permit = acquire_by(5, &everything(&set, 20));
    let usage: Vec<_> = set
        .limits()
        .filter_map(|name| Some((set.limit_index(name)?, 0)))
        .collect();
    let _ = permit.settle(usage).expect("works");
    drop(permit);
    for number in 6..BUCKET_ROWS {
        drop(acquire_by(number, &everything(&set, 1)));
    }
    assert_eq!(victim.keys(), BUCKET_ROWS as u64, "no row is unused");
    operations::first_acquire(victim);
}

pub fn evict(victim: &Victim) {
    insert_beside(victim, BUCKET_ROWS);
}

/// All rows are in use: one key has used less than the others, and one all that it may have.
fn evict_the_least_used(victim: &Victim) {
    let set = victim.set();
    for number in 0..BUCKET_ROWS {
        let cost = match number {
            7 => 1,
            12 => 100,
            _ => 2,
        };
        drop(acquire_by(number, &everything(&set, cost)));
    }
    assert_eq!(victim.keys(), BUCKET_ROWS as u64, "no row is unused");
    operations::first_acquire(victim);
}

/// No row can be evicted, because each key is limited.
fn refuse_where_all_are_limited(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 100);
    for number in 0..BUCKET_ROWS {
        // Refused if this has been prepared before, because the key is limited then.
        let key = Subject::key(&format!("other {number}"));
        drop(key.try_acquire(&request).expect("works").into_result());
    }
    refuse(victim);
}

fn refuse_for_want_of_a_row(victim: &Victim) {
    fill(&victim.set(), BUCKET_ROWS);
    refuse(victim);
}

fn refuse(victim: &Victim) {
    let set = victim.set();
    assert_eq!(victim.keys(), BUCKET_ROWS as u64);
    victim.is_refused(&set, &everything(&set, 1));
}

/// When the permit is settled, the row from which it was taken belongs to another key, so its own key gets another row
/// for what it has used beyond what it had reserved.
fn settle_after_eviction(victim: &Victim) {
    let set = victim.set();
    let mut permit = admitted(&set, &everything(&set, 20));
    fill(&set, BUCKET_ROWS);
    let requests = set.limit_index("requests").expect("declared");
    victim.begins();
    let settled = permit.settle([(requests, 30)]).is_ok();
    victim.ends();
    assert!(settled);
}

pub fn reset_a_key(victim: &Victim) {
    let set = victim.set();
    fill(&set, 3);
    let _held = admitted(&set, &everything(&set, 1));
    let key = set.key(crate::operations::subject::KEY).expect("keyed");
    victim.begins();
    let reset = key.reset().run();
    victim.ends();
    victim.expects(reset.expect("works"));
}

/// As [`operation`], for a key.
pub const fn by_key(
    name: &'static str,
    set: fn() -> SetDeclaration,
    transactions: usize,
    run: fn(&Victim),
) -> Operation {
    Operation {
        is_keyed: true,
        ..operation(name, set, transactions, run)
    }
}

/// As [`by_key`], with others that wait in its queue.
const fn beside(waiters: usize, name: &'static str, transactions: usize, run: fn(&Victim)) -> Operation {
    Operation {
        waiters,
        ..by_key(name, places_and_rates, transactions, run)
    }
}

pub const KEY_OPERATIONS: &[Operation] = &[
    // First the row, then the decision.
    by_key(
        "key, into an empty table",
        one_limit,
        2,
        operations::first_acquire,
    ),
    by_key("key, into a bucket of others", one_limit, 2, insert_beside_three),
    by_key("key, into the last row", one_limit, 2, insert_into_the_last_row),
    by_key(
        "key, one bucket full",
        two_buckets,
        2,
        insert_into_the_second_bucket,
    ),
    by_key("key, reuse of a row", one_limit, 2, reuse),
    // One more: the reset of the row's former state.
    by_key("key, eviction", one_limit_that_evicts, 3, evict),
    by_key("key, eviction, 3 limits", three_limits, 3, evict),
    by_key(
        "key, eviction of the least used",
        one_limit_that_evicts_the_least_used,
        3,
        evict_the_least_used,
    ),
    by_key(
        "key, eviction of the least used, 3 limits",
        three_limits_that_evict_the_least_used,
        3,
        evict_the_least_used,
    ),
    by_key(
        "key, refused where all are limited",
        one_limit_that_evicts_the_least_used,
        0,
        refuse_where_all_are_limited,
    ),
    by_key(
        "key, refused for want of a row",
        one_limit,
        0,
        refuse_for_want_of_a_row,
    ),
    by_key(
        "key, settle after eviction",
        one_limit_that_evicts,
        3,
        settle_after_eviction,
    ),
    by_key("key, try_acquire, 3 limits", three_limits, 1, operations::acquire),
    by_key(
        "key, refused by a rate",
        three_limits,
        0,
        operations::acquire_beyond_a_rate,
    ),
    by_key(
        "key, settle with refund",
        three_limits,
        1,
        operations::settle_with_refund,
    ),
    by_key(
        "key, settle with overdraft",
        three_limits,
        1,
        operations::settle_with_overdraft,
    ),
    by_key("key, release", three_limits, 1, operations::release),
    by_key("key, throttled", three_limits, 2, operations::throttled),
    Operation {
        after_a_death: true,
        ..by_key(
            "key, of what the dead hold",
            three_limits,
            3,
            operations::acquire_what_a_dead_process_holds,
        )
    },
    by_key("key, reset", three_limits, 1, reset_a_key),
    beside(1, "key, wait in vain behind 1", 2, waiting::enqueue_and_leave),
    beside(1, "key, release to 1 waiting", 2, waiting::release_to_the_first),
    beside(1, "key, claim a grant, 1 behind", 2, waiting::claim_a_grant),
    beside(1, "key, cancel a grant, 1 behind", 2, waiting::cancel_a_grant),
    Operation {
        is_served: true,
        ..beside(0, "key, wait and be served", 3, waiting::wait_until_served)
    },
];
