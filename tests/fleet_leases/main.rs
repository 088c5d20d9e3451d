//! Limits that hosts share, with a store that keeps its promises and stands on the same clock: what each host may spend,
//! and what all of them admit together.

#[path = "../scene/mod.rs"]
mod scene;
mod store;

use std::time::Duration;

use scene::clock::{NEW_YEAR, Scene};
use scene::{expect_permit, expect_refusal};
use shmlimit::fleet::{Duty, StoreProblem};
use shmlimit::{Declaration, FleetLease, Limit, Outage, RefusalReason, SetDeclaration};
use store::Store;

const MINUTE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(2);
const KEY: &str = "org/api/calls";

fn declaring(limit: Limit) -> Declaration {
    Declaration::new()
        .fleet_url("redis://127.0.0.1:1")
        .add_set(SetDeclaration::new("api").add_limit(limit))
}

fn calls(capacity: u64) -> Limit {
    Limit::calls("calls", capacity, MINUTE).fleet(FleetLease::new(KEY))
}

/// One host: a segment, and the process that has duty.
struct Host {
    scene: Scene,
    duty: Duty,
    store: Store,
}

impl Host {
    fn new(limit: Limit, store: &Store) -> Self {
        let scene = Scene::declared(NEW_YEAR, &declaring(limit));
        let duty = scene
            .segment
            .fleet()
            .try_take_duty()
            .expect("works")
            .expect("no process has duty");
        Self {
            scene,
            duty,
            store: store.clone(),
        }
    }

    /// Asks the store what is due, and brings the answers into force; answers how many questions that were.
    fn ask(&self) -> usize {
        let asked = self.duty.ask().expect("works");
        for asked in &asked {
            match self.store.answer(asked.request(), self.scene.clock.now()) {
                Ok(reply) => self.duty.install(asked, &reply).expect("works"),
                Err(problem) => self.duty.report(asked, problem, Duration::ZERO).expect("works"),
            }
        }
        asked.len()
    }

    fn fail(&self, problem: StoreProblem) {
        for asked in self.duty.ask().expect("works") {
            self.duty.report(&asked, problem, Duration::ZERO).expect("works");
        }
    }

    fn is_admitted(&self) -> bool {
        let set = self.scene.set();
        let outcome = set.try_acquire(&set.request()).expect("a decision");
        outcome.into_result().is_ok()
    }

    /// How many of so many requests are admitted, asking the store whenever something is due.
    fn admitted_of(&self, requests: usize) -> usize {
        let admit = |_: &usize| {
            self.ask();
            self.is_admitted()
        };
        (0..requests).filter(admit).count()
    }
}

#[test]
fn refuses_for_want_of_a_lease_until_the_store_has_granted_one() {
    let host = Host::new(calls(100), &Store::default());
    let set = host.scene.set();
    let refusal = expect_refusal(set.try_acquire(&set.request()));
    assert_eq!(
        (refusal.reason(), refusal.binding(), refusal.retry_after()),
        (RefusalReason::Lease, Some("calls"), None)
    );
    assert_eq!(host.scene.snapshot().counts.refused_lease, 1);
    assert_eq!(host.ask(), 1);
    drop(expect_permit(set.try_acquire(&set.request())));
}

#[test]
fn two_hosts_admit_together_what_one_would() {
    let store = Store::default();
    let hosts = [Host::new(calls(100), &store), Host::new(calls(100), &store)];
    let mut admitted = 0;
    for _ in 0..400 {
        for host in &hosts {
            admitted += host.admitted_of(1);
            // Past the pause after the store had nothing, and nothing comes back worth a unit.
            host.scene.pass(Duration::from_millis(1));
        }
    }
    assert!((90..=100).contains(&admitted), "{admitted} of 100 were admitted");
}

#[test]
fn what_is_not_spent_is_over_with_its_lease() {
    let host = Host::new(calls(6000), &Store::default());
    host.ask();
    assert!(host.is_admitted());
    host.scene.pass(LEASE);
    assert!(!host.is_admitted(), "the lease is over");
    host.ask();
    let lease = host.scene.snapshot().limits[0].lease.clone().expect("shared");
    assert!(lease.counts.expired_units > 0, "{lease:?}");
    assert!(host.is_admitted());
}

#[test]
fn an_answer_to_another_request_changes_nothing() {
    let host = Host::new(calls(100), &Store::default());
    let first = host.duty.ask().expect("works").remove(0);
    let reply = host
        .store
        .answer(first.request(), host.scene.clock.now())
        .expect("answers");
    host.duty.install(&first, &reply).expect("works");
    let left = |host: &Host| host.scene.snapshot().limits[0].remaining;
    let before = left(&host);
    assert!(before > 0);
    host.duty.install(&first, &reply).expect("works");
    assert_eq!(left(&host), before, "a second answer is none");
}

#[test]
fn a_repeated_request_has_the_same_content_whatever_was_spent_since() {
    let host = Host::new(calls(6000), &Store::default());
    host.ask();
    while host.duty.due_in() != Some(Duration::ZERO) {
        assert!(host.is_admitted());
    }
    let first = host.duty.ask().expect("works").remove(0);
    assert!(host.is_admitted());
    let again = host.duty.ask().expect("works").remove(0);
    assert_eq!(first.request(), again.request());
    assert!(first.request().sequence > 1);
}

#[test]
fn each_outage_policy_does_what_it_says() {
    for (policy, with_lease, without) in [
        (Outage::Deny, false, false),
        (Outage::SpendOut, true, false),
        (Outage::Safe, true, true),
        (Outage::Open, true, true),
    ] {
        let limit = Limit::calls("calls", 6000, MINUTE).fleet(FleetLease::new(KEY).outage(policy));
        let host = Host::new(limit, &Store::default());
        host.ask();
        assert!(host.is_admitted(), "{policy}: what is leased is spent");
        host.scene.pass(LEASE * 4 / 5);
        host.fail(StoreProblem::Unreachable);
        assert_eq!(host.is_admitted(), with_lease, "{policy}: the lease is not over");
        host.scene.pass(LEASE);
        assert_eq!(host.is_admitted(), without, "{policy}: the lease is over");
        let lease = host.scene.snapshot().limits[0].lease.clone().expect("shared");
        assert_eq!(lease.problem, Some(StoreProblem::Unreachable));
        assert_eq!(lease.out_for, Some(LEASE));
        host.ask();
        host.ask();
        assert!(host.is_admitted(), "{policy}: the store is back");
    }
}

#[test]
fn drains_and_gives_everything_back() {
    let host = Host::new(calls(6000), &Store::default());
    host.ask();
    assert!(host.is_admitted());
    assert!(host.store.outstanding(KEY) > 0);
    host.scene.segment.fleet().set_draining(true).expect("works");
    assert!(!host.is_admitted(), "it drains");
    assert_eq!(host.ask(), 1);
    assert_eq!(host.store.outstanding(KEY), 0);
    assert_eq!(host.ask(), 0, "there is nothing left to say");
    host.scene.segment.fleet().set_draining(false).expect("works");
    assert!(!host.is_admitted());
    host.ask();
    assert!(host.is_admitted());
}
