//! What is killed of tiers: a key that begins in one, that changes it, and what others find of its row.

use shmlimit::{Algorithm, Keyed, Limit, OnDeath, SetDeclaration, Tier, WhenFull};

use crate::operations::{Operation, SET, Victim, YEAR, admitted, everything, operation};
use crate::subject::{KEY, Subject};

/// One limit of each way to go on counting in another tier: some with more, some with less, over another time.
fn tiers() -> SetDeclaration {
    let gold = Tier::new("gold")
        .capacity("requests", 1_000)
        .capacity("tokens", 5_000)
        .window("tokens", YEAR * 2)
        .capacity("counted", 2_000)
        .window("counted", YEAR / 2)
        .capacity("in_flight", 2);
    SetDeclaration::new(SET)
        .waiters(2)
        .holds(4)
        .keyed(Keyed::new(20).store_keys(false).when_full(WhenFull::EvictOldest))
        .limit(Limit::calls("requests", 100, YEAR))
        .limit(
            Limit::rate("tokens", 10_000, YEAR)
                .algorithm(Algorithm::TokenBucket)
                .on_death(OnDeath::Refund),
        )
        .limit(
            Limit::rate("counted", 1_000, YEAR)
                .algorithm(Algorithm::SlidingWindow)
                .entries(2),
        )
        .limit(Limit::concurrency("in_flight", 3))
        .tier(gold)
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
    let subject = Subject::of(&set);
    victim.begins();
    let outcome = subject.try_acquire(&request);
    victim.ends();
    victim.expects(outcome.expect("works").is_admitted());
}

fn request_in_another_tier(victim: &Victim) {
    let set = victim.set();
    let _held = admitted(&set, &everything(&set, 2));
    request_in_a_tier(victim);
}

/// What was reserved before is refunded by the rules of the tier before.
fn settle_after_a_change(victim: &Victim) {
    let set = victim.set();
    let mut permit = admitted(&set, &everything(&set, 20));
    set.assign(KEY, "gold").expect("a tier");
    let tokens = set.limit_index("tokens").expect("declared");
    victim.begins();
    let settled = permit.settle([(tokens, 5)]).is_ok();
    victim.ends();
    assert!(settled);
}

fn reset_a_key(victim: &Victim) {
    let set = victim.set();
    set.assign(KEY, "gold").expect("a tier");
    let _held = admitted(&set, &everything(&set, 1));
    let key = set.key(KEY).expect("keyed");
    victim.begins();
    let reset = key.reset(&[]);
    victim.ends();
    victim.expects(reset.expect("works"));
}

/// A table of assigned keys, of which one has to go.
fn evict_an_assigned_key(victim: &Victim) {
    let set = victim.set();
    for number in 0..32 {
        set.assign(format!("other {number}"), "gold").expect("a row");
    }
    request_in_a_tier(victim);
}

/// As [`operation`], by a key of a set with tiers.
const fn by_tier(name: &'static str, transactions: usize, run: fn(&Victim)) -> Operation {
    Operation {
        is_keyed: true,
        ..operation(name, tiers, transactions, run)
    }
}

pub const TIER_OPERATIONS: &[Operation] = &[
    // The row, its reset, its tier.
    by_tier("tier, of a new key", 3, assign),
    by_tier("tier, change of a key in use", 1, assign_a_key_in_use),
    // The same, and then the decision.
    by_tier("tier, named by the first request", 4, request_in_a_tier),
    by_tier("tier, changed by a request", 2, request_in_another_tier),
    by_tier("tier, settle after a change", 1, settle_after_a_change),
    by_tier("tier, reset", 1, reset_a_key),
    // The reset of the row before.
    by_tier("tier, eviction of an assigned key", 5, evict_an_assigned_key),
];
