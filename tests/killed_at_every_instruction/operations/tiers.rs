//! Operations to kill, on tiers and on keys' own capacities: a key that begins with one, a key that changes it, and
//! what others find in its row.

use shmlimit::declare::WhenFull;
use shmlimit::{Keyed, LimitSet, SetDeclaration, Tier};

use crate::operations::changes::{before, unkeyed};
use crate::operations::subject::KEY;
use crate::operations::{Operation, Victim, YEAR, admitted, everything, first_acquire, operation};

/// A limit for each way in which counting can go on by another rule.
fn limits() -> SetDeclaration {
    before(unkeyed())
}

fn table() -> Keyed {
    Keyed::new(20).store_keys(false).when_full(WhenFull::EvictOldest)
}

/// Some capacities are higher, some are lower, and some are for another time.
fn gold() -> Tier {
    Tier::new("gold")
        .capacity("requests", 1_000)
        .capacity("tokens", 5_000)
        .window("tokens", YEAR * 2)
        .capacity("counted", 2_000)
        .window("counted", YEAR / 2)
        .capacity("in_flight", 2)
}

fn tiers() -> SetDeclaration {
    limits().keyed(table()).add_tier(gold())
}

fn overrides() -> SetDeclaration {
    limits().keyed(table().overrides(true))
}

fn assign(victim: &Victim) {
    let set = victim.set();
    let key = set.key(KEY).expect("keyed");
    victim.begins();
    let assigned = key.assign("gold").is_ok();
    victim.ends();
    assert!(assigned);
}

fn assign_a_key_in_use(victim: &Victim) {
    let set = victim.set();
    let _held = admitted(&set, &everything(&set, 2));
    assign(victim);
}

fn request_in_a_tier(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 1).with_tier("gold").expect("declared");
    victim.is_admitted(&set, &request);
}

fn request_in_another_tier(victim: &Victim) {
    let set = victim.set();
    let _held = admitted(&set, &everything(&set, 2));
    request_in_a_tier(victim);
}

/// Nothing comes back of what was reserved before.
fn settle_after_a_change(victim: &Victim) {
    let set = victim.set();
    let mut permit = admitted(&set, &everything(&set, 20));
    set.key(KEY).expect("keyed").assign("gold").expect("a tier");
    let tokens = set.limit_index("tokens").expect("declared");
    victim.begins();
    let settled = permit.settle([(tokens, 5)]).is_ok();
    victim.ends();
    assert!(settled);
}

fn reset_a_key(victim: &Victim) {
    let set = victim.set();
    set.key(KEY).expect("keyed").assign("gold").expect("a tier");
    let _held = admitted(&set, &everything(&set, 1));
    let key = set.key(KEY).expect("keyed");
    victim.begins();
    let reset = key.reset().run();
    victim.ends();
    victim.expects(reset.expect("works"));
}

/// A table of assigned keys, one of which has to go.
fn evict_an_assigned_key(victim: &Victim) {
    let set = victim.set();
    for number in 0..32 {
        set.key(format!("other {number}"))
            .expect("keyed")
            .assign("gold")
            .expect("a row");
    }
    request_in_a_tier(victim);
}

/// Overrides the capacity of a bucket, whose state is written anew.
fn override_capacity(victim: &Victim) {
    let set = victim.set();
    let key = set.key(KEY).expect("keyed");
    victim.begins();
    let overridden = key.override_capacity("tokens", 5_000).is_ok();
    victim.ends();
    assert!(overridden);
}

fn override_of_a_key_in_use(victim: &Victim) {
    let set = victim.set();
    let _held = admitted(&set, &everything(&set, 2));
    override_capacity(victim);
}

/// Lets the key have more of each limit.
fn have_capacities(set: &LimitSet) {
    for (limit, capacity) in [
        ("requests", 200),
        ("tokens", 20_000),
        ("counted", 2_000),
        // As many as there are holds.
        ("in_flight", 4),
    ] {
        let key = set.key(KEY).expect("keyed");
        key.override_capacity(limit, capacity).expect("a capacity");
    }
}

fn clear_override(victim: &Victim) {
    let set = victim.set();
    have_capacities(&set);
    let _held = admitted(&set, &everything(&set, 150));
    let key = set.key(KEY).expect("keyed");
    victim.begins();
    let cleared = key.clear_override("requests").is_ok();
    victim.ends();
    assert!(cleared);
}

fn request_with_overrides(victim: &Victim) {
    let set = victim.set();
    have_capacities(&set);
    let request = everything(&set, 150);
    victim.is_admitted(&set, &request);
}

/// Requests everything, and says how much of two limits the key may have.
fn request_naming_capacities(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 1)
        .with_override("tokens", 5_000)
        .and_then(|request| request.with_override("in_flight", 2))
        .expect("capacities");
    victim.is_admitted(&set, &request);
}

fn request_naming_other_capacities(victim: &Victim) {
    let set = victim.set();
    let _held = admitted(&set, &everything(&set, 2));
    request_naming_capacities(victim);
}

/// The capacity that a request has named is set again for the key, and nothing else changes.
fn override_with_the_same_by_name(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 1).with_override("tokens", 5_000);
    let _held = admitted(&set, &request.expect("a capacity"));
    override_capacity(victim);
}

/// A table of keys for which requests have named capacities, without using anything.
fn reuse_of_a_row_with_capacities(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 0).with("requests", 0).expect("declared");
    let request = request.with("in_flight", 0).expect("declared");
    let request = request.with_override("tokens", 5_000).expect("a capacity");
    for number in 0..32 {
        let request = request.for_key(format!("other {number}")).expect("keyed");
        assert!(request.check().expect("works").is_admitted());
    }
    first_acquire(victim);
}

/// Here, too, nothing comes back of what was reserved before.
fn settle_after_an_override(victim: &Victim) {
    let set = victim.set();
    let mut permit = admitted(&set, &everything(&set, 20));
    let key = set.key(KEY).expect("keyed");
    key.override_capacity("tokens", 5_000).expect("a capacity");
    let tokens = set.limit_index("tokens").expect("declared");
    victim.begins();
    let settled = permit.settle([(tokens, 5)]).is_ok();
    victim.ends();
    assert!(settled);
}

/// A table of keys with capacities of their own, one of which has to go.
fn evict_an_overridden_key(victim: &Victim) {
    let set = victim.set();
    for number in 0..32 {
        let key = set.key(format!("other {number}")).expect("keyed");
        key.override_capacity("tokens", 5_000).expect("a row");
    }
    first_acquire(victim);
}

/// As [`operation`], for a key of a set whose keys can have capacities of their own.
const fn by_override(name: &'static str, transactions: usize, run: fn(&Victim)) -> Operation {
    Operation {
        is_keyed: true,
        ..operation(name, overrides, transactions, run)
    }
}

/// As [`operation`], for a key of a set with tiers.
const fn by_tier(name: &'static str, transactions: usize, run: fn(&Victim)) -> Operation {
    Operation {
        is_keyed: true,
        ..operation(name, tiers, transactions, run)
    }
}

pub const TIER_OPERATIONS: &[Operation] = &[
    // The row, its reset, and its tier.
    by_tier("tier, of a new key", 3, assign),
    by_tier("tier, change of a key in use", 1, assign_a_key_in_use),
    // The same, and then the decision.
    by_tier("tier, named by the first request", 4, request_in_a_tier),
    by_tier("tier, changed by a request", 2, request_in_another_tier),
    // What was reserved before the change stays charged, so this is only counted.
    by_tier("tier, settle after a change", 0, settle_after_a_change),
    by_tier("tier, reset", 1, reset_a_key),
    // One more: the reset of the row's former state.
    by_tier("tier, eviction of an assigned key", 5, evict_an_assigned_key),
    // The row, its reset, and the capacity.
    by_override("override, of a new key", 3, override_capacity),
    by_override("override, of a key in use", 1, override_of_a_key_in_use),
    by_override("override, taken away", 1, clear_override),
    by_override(
        "override, request of a key that has some",
        1,
        request_with_overrides,
    ),
    by_override("override, settle after a change", 0, settle_after_an_override),
    // The row, its reset, the capacities, and the decision.
    by_override(
        "override, named by the first request",
        4,
        request_naming_capacities,
    ),
    // Both capacities at once, and then the decision.
    by_override(
        "override, changed by a request",
        2,
        request_naming_other_capacities,
    ),
    by_override(
        "override, by name after a request",
        1,
        override_with_the_same_by_name,
    ),
    // The reset of the row, the row, and the decision.
    by_override(
        "override, row reused of a key that a request gave one",
        3,
        reuse_of_a_row_with_capacities,
    ),
    // The reset of the row, the row, and the decision.
    by_override(
        "override, eviction of a key that has one",
        3,
        evict_an_overridden_key,
    ),
];
