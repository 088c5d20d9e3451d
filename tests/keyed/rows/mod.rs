//! The rows of a keyed set: who gets one if there are fewer rows than keys, and what becomes of what a key had left
//! when its row goes to another.
//!
//! A table of at most 32 keys is one bucket of 32 rows, so which keys collide does not depend on the segment's seed.

mod least_used;

use std::time::Duration;

use crate::limits::{ask, is_served};
use crate::scene::clock::{NANOSECOND, Scene};
use crate::scene::process::{Child, TIMEOUT, die, eventually, in_own_process};
use shmlimit::declare::{Adaptive, WhenFull};
use shmlimit::snapshot::SetSnapshot;
use shmlimit::{
    Algorithm, Error, Keyed, Limit, LimitSet, Outcome, Permit, RefusalReason, Request, RequestError,
    SetDeclaration,
};

const ROWS: u64 = 32;
const MINUTE: Duration = Duration::from_secs(60);

struct Table {
    scene: Scene,
    set: LimitSet,
}

impl Table {
    fn new(when_full: WhenFull, limits: impl IntoIterator<Item = Limit>) -> Self {
        let keyed = Keyed::new(ROWS).when_full(when_full);
        let declared = limits
            .into_iter()
            .fold(SetDeclaration::new("api").keyed(keyed), SetDeclaration::add_limit);
        let scene = Scene::new(declared);
        let set = scene.set();
        let table = Self { scene, set };
        assert_eq!(table.snapshot().keys.expect("keyed").rows, ROWS);
        table
    }

    fn snapshot(&self) -> SetSnapshot {
        self.scene.snapshot()
    }

    /// Keys in use, refused, evicted without usage and evicted in use.
    fn counts(&self) -> [u64; 4] {
        let snapshot = self.snapshot();
        let keys = snapshot.keys.expect("keyed");
        [
            keys.in_use,
            snapshot.counts.refused_table_full,
            keys.evicted_unused,
            keys.evicted_in_use,
        ]
    }

    fn pass(&self, time: Duration) {
        self.scene.pass(time);
    }

    fn request(&self, cost: u64) -> Request<'_> {
        self.set.request().with("units", cost).expect("declared")
    }

    fn ask(&self, key: &str, cost: u64) -> Result<Permit<'_>, RefusalReason> {
        match self
            .request(cost)
            .for_key(key)
            .expect("keyed")
            .try_acquire()
            .expect("a decision")
        {
            Outcome::Admitted(permit) => Ok(permit),
            Outcome::Refused(refusal) => Err(refusal.reason()),
        }
    }

    fn take(&self, key: &str, cost: u64) -> Permit<'_> {
        self.ask(key, cost).expect("there is room")
    }

    /// Takes units, and keeps no permit.
    fn spend(&self, key: &str, cost: u64) {
        drop(self.take(key, cost));
    }

    /// Takes units for this many other keys.
    fn fill(&self, name: &str, rows: u64, cost: u64) -> Vec<Permit<'_>> {
        (0..rows)
            .map(|number| self.take(&format!("{name}-{number}"), cost))
            .collect()
    }

    fn remaining(&self, key: &str) -> u64 {
        self.request(0)
            .for_key(key)
            .expect("keyed")
            .peek()
            .expect("works")[0]
            .remaining
    }
}

fn rate(capacity: u64) -> Limit {
    Limit::rate("units", capacity, MINUTE)
}

#[test]
fn a_new_key_is_refused_while_every_row_carries_something() {
    let table = Table::new(WhenFull::Refuse, [rate(60)]);
    table.fill("key", ROWS, 2);
    for number in 1..=3 {
        let outcome = table
            .request(1)
            .for_key("new")
            .expect("keyed")
            .try_acquire()
            .expect("a decision");
        let Outcome::Refused(refusal) = outcome else {
            panic!("admitted without a row");
        };
        assert_eq!(refusal.reason(), RefusalReason::TableFull);
        assert_eq!((refusal.binding(), refusal.retry_after()), (None, None));
        assert_eq!(table.counts(), [ROWS, number, 0, 0]);
    }
    assert_eq!(table.snapshot().counts.refused_table_full, 3);
    assert_eq!(table.remaining("new"), 60, "a look needs no row");
    // Waiting does not help without a queue to wait in.
    let outcome = table
        .request(1)
        .for_key("new")
        .expect("keyed")
        .acquire(None)
        .expect("works");
    assert_eq!(
        outcome.into_result().map(drop).expect_err("no row").reason(),
        RefusalReason::TableFull
    );
    // Keys that have a row go on.
    assert_eq!(table.remaining("key-0"), 58);
    assert!(table.ask("key-0", 58).is_ok());
    assert_eq!(table.ask("key-0", 1).map(drop), Err(RefusalReason::Rate));
}

#[test]
fn a_replenished_row_is_another_keys_from_the_very_nanosecond_on() {
    let table = Table::new(WhenFull::Refuse, [rate(60)]);
    table.fill("key", ROWS, 2);
    table.pass(2 * MINUTE / 60 - NANOSECOND);
    assert_eq!(table.ask("new", 1).map(drop), Err(RefusalReason::TableFull));
    table.pass(NANOSECOND);
    assert_eq!(table.fill("new", ROWS, 60).len() as u64, ROWS);
    assert_eq!(
        table.counts(),
        [ROWS, 1, ROWS, 0],
        "evicted, and nothing was in use"
    );
    for number in 0..ROWS {
        assert_eq!(table.remaining(&format!("new-{number}")), 0);
        assert_eq!(table.remaining(&format!("key-{number}")), 60);
    }
}

#[test]
fn what_is_held_keeps_its_row_and_a_release_frees_it() {
    let table = Table::new(WhenFull::Refuse, [Limit::concurrency("units", 3)]);
    let mut held = table.fill("key", ROWS, 1);
    assert_eq!(table.ask("new", 1).map(drop), Err(RefusalReason::TableFull));
    held[7].release().expect("works");
    let new = table.take("new", 3);
    assert_eq!(table.ask("other", 1).map(drop), Err(RefusalReason::TableFull));
    assert_eq!(table.ask("key-7", 1).map(drop), Err(RefusalReason::TableFull));
    drop(new);
    assert!(table.ask("key-7", 1).is_ok());
    assert_eq!(table.counts(), [ROWS, 3, 2, 0]);
}

#[test]
fn a_full_table_is_healed_by_the_death_of_those_who_hold() {
    in_own_process(
        "rows::a_full_table_is_healed_by_the_death_of_those_who_hold",
        TIMEOUT,
        |_| {
            let table = Table::new(WhenFull::Refuse, [Limit::concurrency("units", 3)]);
            let mut child = Child::fork(|| {
                let _held = table.fill("key", ROWS, 1);
                die()
            });
            child.wait();
            eventually("a row is free", || table.ask("new", 1).is_ok());
            table.fill("other", ROWS, 1);
            let snapshot = table.snapshot();
            assert_eq!((snapshot.counts.reclaimed, snapshot.active), (ROWS, 0));
        },
    );
}

#[test]
fn the_key_used_the_longest_ago_is_forgiven() {
    let table = Table::new(WhenFull::EvictOldest, [rate(60)]);
    for number in 0..ROWS {
        table.spend(&format!("key-{number}"), 60);
        table.pass(NANOSECOND);
    }
    // Being refused counts as a use as well.
    for used_again in ["key-0", "key-2"] {
        assert_eq!(table.ask(used_again, 60).map(drop), Err(RefusalReason::Rate));
        table.pass(NANOSECOND);
    }
    for (number, forgiven) in [1, 3, 4].into_iter().enumerate() {
        assert!(table.ask(&format!("new-{number}"), 60).is_ok());
        table.pass(NANOSECOND);
        let number = number as u64 + 1;
        assert_eq!(table.counts(), [ROWS, 0, 0, number]);
        assert_eq!(table.remaining(&format!("key-{forgiven}")), 60);
        assert_eq!(table.remaining("key-0"), 0);
        assert_eq!(table.remaining("key-2"), 0);
        assert_eq!(table.remaining("key-31"), 0);
    }
}

#[test]
fn a_replenished_row_goes_before_one_that_would_have_to_be_forgiven() {
    let table = Table::new(WhenFull::EvictOldest, [rate(60)]);
    table.fill("old", ROWS - 1, 60);
    table.pass(NANOSECOND);
    // This key was used last, and is the first to have nothing in use.
    table.spend("new", 1);
    table.pass(MINUTE / 60);
    table.spend("newer", 1);
    assert_eq!(table.counts(), [ROWS, 0, 1, 0]);
    table.spend("newest", 1);
    assert_eq!(table.counts(), [ROWS, 0, 1, 1]);
}

#[test]
fn a_key_that_is_held_or_waited_for_is_never_forgiven() {
    let table = Table::new(WhenFull::EvictOldest, [Limit::concurrency("units", 2)]);
    let mut held = table.fill("key", ROWS, 2);
    table.pass(MINUTE);
    assert_eq!(table.ask("new", 1).map(drop), Err(RefusalReason::TableFull));
    assert_eq!(table.counts(), [ROWS, 1, 0, 0]);
    drop(held.pop());
    table.spend("new", 1);
    assert_eq!(table.ask("key-0", 1).map(drop), Err(RefusalReason::Concurrency));
    drop(held);
    assert_eq!(table.snapshot().active, 0);
}

#[test]
fn a_key_in_whose_queue_a_request_waits_keeps_its_row() {
    let table = Table::new(WhenFull::EvictOldest, [rate(60)]);
    let _used = table.take("waited-for", 60);
    let waits = |table: &Table| {
        let tickets = table.snapshot().tickets;
        tickets.iter().any(|ticket| !ticket.granted)
    };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| is_served("waited-for", &table.request(60)));
        eventually("it waits", || waits(&table));
        for number in 0..4 * ROWS {
            table.pass(NANOSECOND);
            assert!(table.ask(&format!("key-{number}"), 60).is_ok());
        }
        assert_eq!(table.remaining("waited-for"), 0);
        assert!(waits(&table));
        table.pass(MINUTE);
        // The waiter sleeps by the real clock, so the next request of its key serves it.
        assert_eq!(table.ask("waited-for", 60).map(drop), Err(RefusalReason::Rate));
        assert!(waiter.join().expect("no panic"));
    });
    assert_eq!(table.counts(), [ROWS, 0, 0, 3 * ROWS + 1]);
}

#[test]
fn what_was_used_above_is_charged_to_the_key_whose_row_is_gone() {
    let table = Table::new(WhenFull::Refuse, [rate(60).algorithm(Algorithm::TokenBucket)]);
    let mut early = table.take("early", 10);
    table.pass(MINUTE);
    // Its row is given to another key, like every other row. All of these keys are replenished again, except for
    // `last`.
    table.fill("other", ROWS, 1);
    table.pass(MINUTE);
    let mut last = table.take("last", 20);
    early.settle([("units", 70)]).expect("works");
    assert_eq!(table.remaining("early"), 0);
    table.pass(MINUTE / 60);
    assert_eq!(
        table.remaining("early"),
        1,
        "60 above what it had reserved, so that nothing was left"
    );
    for number in 0..ROWS {
        assert_eq!(table.remaining(&format!("other-{number}")), 60);
    }
    assert_eq!(last.settle([("units", 20)]).expect("works").overdraft("units"), 0);
    assert_eq!(table.remaining("last"), 41);
}

#[test]
fn what_was_not_used_never_comes_back_to_another_key() {
    let table = Table::new(
        WhenFull::EvictOldest,
        [rate(60).algorithm(Algorithm::TokenBucket)],
    );
    let mut early = table.fill("early", ROWS, 60);
    table.pass(NANOSECOND);
    let late = table.fill("late", ROWS, 60);
    assert_eq!(table.counts(), [ROWS, 0, 0, ROWS]);
    for (number, permit) in early.iter_mut().enumerate() {
        if number % 2 == 0 {
            let settled = permit.settle([("units", 0)]).expect("works");
            assert_eq!(settled.refunded("units"), 0, "it was forgiven all of it");
        }
    }
    for number in 0..ROWS {
        assert!(table.remaining(&format!("late-{number}")) == 0 || table.counts()[3] > ROWS);
        assert!(table.remaining(&format!("early-{number}")) == 60);
    }
    drop(late);
}

/// A budget takes nothing when it admits, so the row may have gone to another key long before the debit.
#[test]
fn a_debit_is_charged_to_the_key_that_was_admitted_whichever_key_has_its_row() {
    for pause in [Duration::ZERO, NANOSECOND, MINUTE] {
        let table = Table::new(WhenFull::Refuse, [Limit::budget("units", 100, 60 * MINUTE)]);
        let mut first = table.fill("first", ROWS, 0);
        table.pass(pause);
        let mut second = table.fill("second", ROWS - 1, 0);
        assert_eq!(table.counts(), [ROWS, 0, ROWS - 1, 0]);
        first[0].settle([("units", 150)]).expect("works");
        assert_eq!(
            table.ask("first-0", 0).map(drop),
            Err(RefusalReason::Budget),
            "after {pause:?}"
        );
        for number in 0..ROWS - 1 {
            assert_eq!(
                table.remaining(&format!("second-{number}")),
                100,
                "after {pause:?}"
            );
        }
        second[3].settle([("units", 40)]).expect("works");
        assert_eq!(table.remaining("second-3"), 60);
        assert_eq!(table.remaining("first-3"), 100);
    }
}

/// A request that costs nothing leaves nothing behind, and may be settled to more.
#[test]
fn an_overdraft_at_the_instant_of_the_decision_is_charged_to_its_own_key() {
    let table = Table::new(WhenFull::Refuse, [rate(60)]);
    let mut free = table.fill("free", ROWS, 0);
    let _paid = table.fill("paid", ROWS - 1, 1);
    for permit in &mut free[..1] {
        permit.settle([("units", 60)]).expect("works");
    }
    assert_eq!(table.remaining("free-0"), 0);
    for number in 0..ROWS - 1 {
        assert_eq!(table.remaining(&format!("paid-{number}")), 59);
    }
}

#[test]
fn a_request_that_can_never_be_met_costs_no_key_its_row() {
    let table = Table::new(WhenFull::EvictOldest, [rate(60)]);
    table.fill("key", ROWS, 60);
    table.pass(NANOSECOND);
    let request = table.request(61).for_key("new").expect("keyed");
    let impossible = |error: Option<Error>| {
        matches!(
            error,
            Some(Error::Request(RequestError::NeverAdmissible { max: 60, .. }))
        )
    };
    assert!(impossible(request.try_acquire().err()));
    assert!(impossible(request.acquire(TIMEOUT).err()));
    assert!(impossible(request.reserve(MINUTE).err()));
    assert_eq!(table.counts(), [ROWS, 0, 0, 0]);
    for number in 0..ROWS {
        assert_eq!(table.remaining(&format!("key-{number}")), 0);
    }
}

#[test]
fn the_first_request_of_a_key_that_took_anothers_row_is_refunded_like_any_other() {
    let table = Table::new(
        WhenFull::EvictOldest,
        [rate(60).algorithm(Algorithm::TokenBucket)],
    );
    table.fill("key", ROWS, 60);
    table.pass(NANOSECOND);
    let mut first = table.take("new", 50);
    assert_eq!(table.counts(), [ROWS, 0, 0, 1]);
    assert_eq!(
        first.settle([("units", 20)]).expect("works").refunded("units"),
        30
    );
    assert_eq!(table.remaining("new"), 40);
}

#[test]
fn a_settle_that_charges_nothing_costs_no_key_its_row() {
    let table = Table::new(WhenFull::EvictOldest, [rate(60)]);
    let mut evicted = table.take("evicted", 50);
    table.pass(NANOSECOND);
    table.fill("key", ROWS, 60);
    assert_eq!(table.counts(), [ROWS, 0, 0, 1]);
    table.pass(NANOSECOND);
    assert_eq!(
        evicted.settle([("units", 20)]).expect("works").refunded("units"),
        0
    );
    assert_eq!(table.counts(), [ROWS, 0, 0, 1]);
}

/// A set has as many limits as there may be, and everything that they have learnt must be forgotten at once.
#[test]
fn a_reused_row_of_an_adaptive_limit_starts_as_declared() {
    for algorithm in [Adaptive::Aimd, Adaptive::Gradient, Adaptive::Vegas] {
        let limits = (0..16).map(|index| {
            Limit::concurrency(format!("limit {index}"), 20)
                .adaptive(algorithm)
                .floor(1)
                .ceiling(100)
        });
        let table = Table::new(WhenFull::Refuse, limits);
        let request = table.set.request();
        let acquire = |key: &str| ask(key, &request);
        let first: Vec<String> = (0..ROWS).map(|number| format!("first {number}")).collect();
        for key in &first {
            for _ in 0..60 {
                let mut permit = acquire(key).expect("one fits always");
                table.scene.clock.advance_to(table.scene.clock.now() + MINUTE);
                permit.release_failed().expect("is held");
            }
        }
        let capacity = |key: &str| request.for_key(key).expect("a key").peek().expect("works")[0].remaining;
        assert!(first.iter().all(|key| capacity(key) < 20), "{algorithm:?}");
        for number in 0..ROWS {
            let key = format!("second {number}");
            let permit = acquire(&key).expect("nothing is held by this key");
            assert!(
                permit.verdicts().all(|verdict| verdict.remaining == 19),
                "{algorithm:?}"
            );
            drop(permit);
            assert_eq!(capacity(&key), 20, "{algorithm:?}");
        }
        assert_eq!(table.counts(), [ROWS, 0, ROWS, 0]);
    }
}

/// The key's row is given to another key and made again within one nanosecond. What the key's earlier permit reserved
/// was forgotten with the old row, and must not be refunded to the new one.
#[test]
fn a_refund_does_not_reach_a_row_that_was_made_again_in_the_same_nanosecond() {
    let table = Table::new(WhenFull::EvictOldest, [rate(60)]);
    let mut early = table.take("key", 40);
    table.fill("other", ROWS - 1, 1);
    // All were used at the same instant, so the newcomer's name decides which key is forgotten.
    let forgives_it = |number| {
        table.spend(&format!("newcomer-{number}"), 1);
        table.remaining("key") == 60
    };
    assert!((0..10_000).any(forgives_it));
    let used = table.take("key", 50);
    assert_eq!(early.settle([("units", 0)]).expect("works").refunded("units"), 0);
    assert_eq!(table.remaining("key"), 10, "of 60, 50 are used");
    drop(used);
}

#[test]
fn a_refund_does_not_reach_a_row_that_was_reset_in_the_same_nanosecond_but_what_is_taken_then_is_refunded() {
    let table = Table::new(WhenFull::Refuse, [rate(60)]);
    let mut before = table.take("key", 40);
    assert!(table.set.key("key").expect("a key").reset().run().expect("works"));
    let mut after = table.take("key", 50);
    assert_eq!(before.settle([("units", 0)]).expect("works").refunded("units"), 0);
    assert_eq!(table.remaining("key"), 10);
    assert_eq!(
        after.settle([("units", 20)]).expect("works").refunded("units"),
        30
    );
    assert_eq!(table.remaining("key"), 40);
}
