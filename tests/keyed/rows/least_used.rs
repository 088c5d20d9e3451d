//! Which row is taken if the least used key is evicted, and which rows never are.

use std::time::Duration;

use crate::limits::ask;
use crate::scene::expect_permit;
use shmlimit::declare::{Adaptive, WhenFull};
use shmlimit::{Algorithm, Limit, Outcome, RefusalReason, Request};

use super::{MINUTE, NANOSECOND, ROWS, Table, rate};

#[test]
fn the_smallest_share_goes_then_what_is_replenished_soonest_then_what_was_used_longest_ago() {
    let table = Table::new(
        WhenFull::EvictLeastUsed,
        [rate(60), Limit::rate("others", 600, 10 * MINUTE)],
    );
    let both = |units: u64, others: u64| {
        let request = table.set.request().with("units", units).expect("declared");
        request.with("others", others).expect("declared")
    };
    let spend = |key: &str, request: &Request| {
        drop(expect_permit(request.for_key(key).expect("keyed").try_acquire()));
        table.pass(NANOSECOND);
    };
    // What counts is the largest part that is used of any limit: half of one limit outweighs a third of both.
    spend("half of one", &both(0, 300));
    spend("half of the faster", &both(30, 0));
    spend("a third first", &both(20, 20));
    spend("a third later", &both(20, 20));
    spend("a third of the slower", &both(0, 200));
    for number in 5..ROWS {
        spend(&format!("most of it {number}"), &both(50, 0));
    }
    let has_used = |key: &str| {
        let verdicts = both(0, 0).for_key(key).expect("a key").peek().expect("works");
        verdicts.iter().any(|verdict| verdict.remaining < verdict.burst)
    };
    // The faster limit has replenished a few nanoseconds more for keys that used it earlier, so the first one has used
    // less.
    let order = [
        "a third first",
        "a third later",
        "a third of the slower",
        "half of the faster",
        "half of one",
    ];
    for (number, evicted) in order.into_iter().enumerate() {
        assert!(has_used(evicted), "{evicted}, before");
        spend(&format!("new {number}"), &both(59, 0));
        assert!(!has_used(evicted), "{evicted}, after");
        assert!(
            order[number + 1..].iter().all(|key| has_used(key)),
            "only {evicted}"
        );
    }
    assert_eq!(table.counts(), [ROWS, 0, 0, order.len() as u64]);
}

#[test]
fn of_equal_shares_the_one_replenished_first_goes_and_of_those_the_one_used_longest_ago() {
    let window = |name: &str, seconds: u64| {
        Limit::rate(name, 10, Duration::from_secs(seconds)).algorithm(Algorithm::SlidingWindow)
    };
    let table = Table::new(
        WhenFull::EvictLeastUsed,
        [window("units", 60), window("slow", 600)],
    );
    let spend = |key: &str, limit: &str| {
        let request = table.set.request().with(limit, 5).expect("declared");
        drop(expect_permit(request.for_key(key).expect("keyed").try_acquire()));
    };
    spend("slow", "slow");
    table.pass(NANOSECOND);
    spend("first", "units");
    // Replenished at the same instant, but used again later.
    spend("asked again", "units");
    table.pass(NANOSECOND);
    assert_eq!(table.ask("asked again", 6).map(drop), Err(RefusalReason::Rate));
    for number in 3..ROWS {
        spend(&format!("later {number}"), "units");
    }
    for evicted in ["first", "asked again"] {
        spend(&format!("new for {evicted}"), "slow");
        assert_eq!(table.remaining(evicted), 10, "{evicted}");
    }
    assert_eq!(table.counts(), [ROWS, 0, 0, 2]);
}

#[test]
fn a_limited_key_keeps_its_row_and_a_new_one_is_told_when_the_first_is_limited_no_longer() {
    let table = Table::new(WhenFull::EvictLeastUsed, [rate(60)]);
    table.fill("limited", ROWS - 1, 60);
    table.pass(NANOSECOND);
    table.spend("hardly used", 59);
    table.spend("new", 60);
    assert_eq!(table.counts(), [ROWS, 0, 0, 1]);
    let refused_for = || match table
        .request(1)
        .for_key("another")
        .expect("keyed")
        .try_acquire()
        .expect("a decision")
    {
        Outcome::Admitted(_) => None,
        Outcome::Refused(refusal) => {
            assert_eq!(
                (refusal.reason(), refusal.binding()),
                (RefusalReason::TableFull, None)
            );
            refusal.retry_after()
        }
    };
    let unit = MINUTE / 60;
    assert_eq!(refused_for(), Some(unit - NANOSECOND));
    table.pass(unit - 2 * NANOSECOND);
    assert_eq!(refused_for(), Some(NANOSECOND));
    for number in 0..ROWS - 1 {
        assert_eq!(table.remaining(&format!("limited-{number}")), 0);
    }
    table.pass(NANOSECOND);
    assert_eq!(refused_for(), None);
    // One of the keys that were limited made room. The others are limited as before.
    let regained = (0..ROWS - 1).filter(|number| table.remaining(&format!("limited-{number}")) > 1);
    assert_eq!(regained.count(), 1);
    assert_eq!(table.counts(), [ROWS, 2, 0, 2]);
}

#[test]
fn what_is_held_or_waited_for_is_not_evicted_however_little_it_used() {
    let limits = || [rate(60), Limit::concurrency("places", 2)];
    let table = Table::new(WhenFull::EvictLeastUsed, limits());
    let with_place = |key: &str, units: u64| ask(key, &table.request(units));
    let mut held: Vec<_> = (0..ROWS)
        .map(|number| with_place(&format!("held-{number}"), 1).expect("admitted"))
        .collect();
    let refusal = with_place("new", 1).map(drop).expect_err("all rows are held");
    assert_eq!(
        (refusal.reason(), refusal.retry_after()),
        (RefusalReason::TableFull, None)
    );
    held[3].release().expect("is held");
    assert!(with_place("new", 1).is_ok());
    assert_eq!(table.remaining("held-3"), 60);
    assert_eq!(table.counts(), [ROWS, 1, 0, 1]);
}

#[test]
fn how_full_a_table_is_counts_what_is_used_and_not_what_time_has_healed() {
    let table = Table::new(WhenFull::EvictLeastUsed, [rate(60)]);
    let used = || {
        let usage = table.set.table_usage().expect("keyed");
        assert_eq!(usage.rows, ROWS);
        (usage.used, usage.evicted_unused, usage.evicted_in_use)
    };
    assert_eq!(used(), (0, 0, 0));
    table.fill("key", ROWS - 1, 2);
    assert_eq!(used(), (ROWS - 1, 0, 0));
    table.spend("last", 1);
    table.spend("new", 60);
    assert_eq!(used(), (ROWS, 0, 1));
    table.pass(2 * MINUTE / 60);
    assert_eq!(used(), (1, 0, 1));
    table.spend("newer", 60);
    assert_eq!(used(), (2, 1, 1));
}

#[test]
fn a_limit_in_shadow_or_without_a_capacity_keeps_no_row() {
    let shadow = Limit::rate("shadow", 10, MINUTE).shadow(true);
    let unlimited = Limit::rate("unlimited", shmlimit::declare::Amount::Unlimited, MINUTE);
    let table = Table::new(WhenFull::EvictLeastUsed, [rate(60), shadow, unlimited]);
    for number in 0..ROWS {
        let mut request = table.request(1);
        request.set_cost("shadow", 10).expect("declared");
        request.set_cost("unlimited", 1_000_000).expect("declared");
        let key = format!("key-{number}");
        drop(expect_permit(request.for_key(key).expect("keyed").try_acquire()));
    }
    table.spend("new", 1);
    assert_eq!(table.counts(), [ROWS, 0, 0, 1]);
}

#[test]
fn an_evicted_row_of_an_adaptive_limit_starts_as_declared() {
    let adaptive = Limit::concurrency("places", 20)
        .adaptive(Adaptive::Aimd)
        .floor(1)
        .ceiling(100);
    let hourly = Limit::rate("units", 60, 60 * 60 * MINUTE);
    let table = Table::new(WhenFull::EvictLeastUsed, [hourly, adaptive]);
    for number in 0..ROWS {
        for _ in 0..5 {
            let mut permit = table.take(&format!("first {number}"), 1);
            permit.release_failed().expect("is held");
        }
    }
    let capacity = |key: &str| {
        let request = table.set.request().with("places", 0).expect("declared");
        let request = request.with("units", 0).expect("declared");
        let verdicts = request.for_key(key).expect("a key").peek().expect("works");
        verdicts[1].remaining
    };
    assert!((0..ROWS).all(|number| capacity(&format!("first {number}")) < 20));
    let permit = table.take("new", 1);
    assert_eq!(capacity("new"), 19);
    drop(permit);
    assert_eq!(table.counts(), [ROWS, 0, 0, 1]);
}
