//! Limits that hosts share, with a store that keeps its promises and runs on the same clock: what each host may spend,
//! and what all of them together admit.

mod by_key;
mod cold_wait;
mod host;
#[path = "../layout_mirror/mod.rs"]
mod layout_mirror;
mod places_by_key;
mod processes;
#[path = "../scene/mod.rs"]
mod scene;
mod service;
mod store;

use std::path::Path;
use std::thread;
use std::time::Duration;

use host::{Host, KEY, LEASE, MINUTE, calls, declaring, fleet};
use layout_mirror::RawSegment;
use layout_mirror::words::{control, journal, lease};
use scene::process::{TIMEOUT, eventually};
use scene::{expect_permit, expect_refusal, queued};
use shmlimit::declare::{FleetLease, Outage};
use shmlimit::fleet::{Asked, LeaseReply, LeaseRequest, LeasedRule, StoreProblem};
use shmlimit::{
    Algorithm, Error, Limit, LimitSet, OpenOptions, Permit, PermitError, RefusalReason, Segment,
    SetDeclaration,
};
use store::Store;

#[test]
fn refuses_for_want_of_a_lease_until_the_store_has_granted_one() {
    let host = Host::new(calls(100), &Store::default());
    let set = host.scene.set();
    let refusal = expect_refusal(set.request().try_acquire());
    assert_eq!(
        (refusal.reason(), refusal.binding(), refusal.retry_after()),
        (RefusalReason::LeasePending, Some("calls"), None)
    );
    assert_eq!(host.scene.snapshot().counts.refused_lease_pending, 1);
    assert_eq!(host.ask(), 1);
    drop(expect_permit(set.request().try_acquire()));
}

/// A limit that is used up, one of which nothing is leased yet, and one whose store is out look different.
#[test]
fn says_why_nothing_is_leased() {
    for limit in [
        calls(100),
        Limit::budget("calls", 100, MINUTE).fleet(fleet()),
        Limit::concurrency("calls", 4).fleet(fleet()),
    ] {
        let host = Host::new(limit, &Store::default());
        let reason = |host: &Host| expect_refusal(host.scene.set().request().try_acquire()).reason();
        assert_eq!(reason(&host), RefusalReason::LeasePending);
        host.fail(StoreProblem::OutOfMemory);
        assert_eq!(reason(&host), RefusalReason::StoreOut);
        host.fail(StoreProblem::Quarantine);
        assert_eq!(reason(&host), RefusalReason::StoreOut);
        // Other hosts have everything.
        let asked = host.duty.ask().expect("works").remove(0);
        let nothing = LeaseReply {
            share: 1,
            grant_number: 1,
            hosts: 2,
            ..LeaseReply::granting(asked.request(), 0, LEASE)
        };
        host.duty.install(&asked, &nothing).expect("works");
        assert_eq!(reason(&host), RefusalReason::Lease);
        host.scene.pass(2 * LEASE);
        assert_eq!(
            reason(&host),
            RefusalReason::LeasePending,
            "what was known is old"
        );
        let counts = host.scene.snapshot().counts;
        assert_eq!(
            (
                counts.refused_lease_pending,
                counts.refused_store_out,
                counts.refused_lease
            ),
            (2, 2, 1)
        );
        assert_eq!(counts.refused(), 5);
    }
}

#[test]
fn two_hosts_admit_together_what_one_would() {
    let store = Store::default();
    let hosts = [Host::new(calls(100), &store), Host::new(calls(100), &store)];
    let mut admitted = 0;
    for _ in 0..400 {
        for host in &hosts {
            admitted += host.admitted_of(1);
            // Lets the pause end that follows an answer without units. Less than a unit is replenished meanwhile.
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
    let lease = host.lease();
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
    let before = host.left();
    assert!(before > 0);
    host.duty.install(&first, &reply).expect("works");
    assert_eq!(host.left(), before, "a second answer is none");
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
        let limit = Limit::calls("calls", 6000, MINUTE).fleet(
            FleetLease::new(KEY)
                .lease(LEASE)
                .cold_wait(Duration::ZERO)
                .outage(policy),
        );
        let host = Host::new(limit, &Store::default());
        host.ask();
        assert!(host.is_admitted(), "{policy}: what is leased is spent");
        host.scene.pass(LEASE * 4 / 5);
        host.fail(StoreProblem::Unreachable);
        assert_eq!(host.is_admitted(), with_lease, "{policy}: the lease is not over");
        host.scene.pass(LEASE);
        assert_eq!(host.is_admitted(), without, "{policy}: the lease is over");
        let lease = host.lease();
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

#[test]
fn who_waits_is_admitted_when_an_answer_comes() {
    let host = Host::new(calls(600), &Store::default());
    let set = host.scene.set();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| expect_permit(set.request().acquire(TIMEOUT)).release());
        eventually("the request waits", || queued(&host.scene.segment) == 1);
        assert_eq!(host.ask(), 1);
        assert!(waiter.join().is_ok(), "admitted");
    });
    assert_eq!(host.scene.snapshot().counts.waited, 1);
}

#[test]
fn a_set_is_taken_as_a_whole_or_not_at_all() {
    let set = SetDeclaration::new("api")
        .add_limit(Limit::concurrency("in_flight", 2))
        .add_limit(calls(60_000));
    let host = Host::of_set(set, &Store::default());
    let set = host.scene.set();
    let refusal = expect_refusal(set.request().try_acquire());
    assert_eq!(
        (refusal.reason(), refusal.binding()),
        (RefusalReason::LeasePending, Some("calls"))
    );
    assert_eq!(host.scene.snapshot().active, 0);
    host.ask();
    let left = || host.scene.snapshot().limits[1].remaining;
    let before = left();
    let _held = [
        expect_permit(set.request().try_acquire()),
        expect_permit(set.request().try_acquire()),
    ];
    let refusal = expect_refusal(set.request().try_acquire());
    assert_eq!(refusal.reason(), RefusalReason::Concurrency);
    assert_eq!(left(), before - 2, "a refusal spends nothing");
}

#[test]
fn unused_cost_comes_back_to_the_lease() {
    let tokens = Limit::rate("tokens", 60_000, MINUTE)
        .algorithm(Algorithm::TokenBucket)
        .fleet(fleet());
    let host = Host::new(tokens, &Store::default());
    let set = host.scene.set();
    let request = set.request().with("tokens", 500).expect("a limit");
    expect_refusal(request.try_acquire());
    host.ask();
    let before = host.left();
    let mut permit = expect_permit(request.try_acquire());
    let settled = permit.settle([("tokens", 100)]).expect("settles");
    assert_eq!(settled.refunded("tokens"), 400);
    assert_eq!(host.left(), before - 100);
}

#[test]
fn a_budget_admits_while_a_unit_is_leased_and_reports_what_was_debited() {
    let budget = Limit::budget("spend", 1000, Duration::from_secs(3600)).fleet(fleet());
    let host = Host::new(budget, &Store::default());
    host.is_admitted();
    host.ask();
    let set = host.scene.set();
    let mut permit = expect_permit(set.request().try_acquire());
    assert!(permit.debit("spend", 400).is_ok());
    drop(permit);
    host.is_admitted();
    let asked = host.duty.ask().expect("works").remove(0);
    assert_eq!(asked.request().spent, 400);
}

#[test]
fn places_without_a_lease_are_taken_back_the_youngest_first() {
    let places = Limit::concurrency("places", 8).fleet(fleet());
    let host = Host::new(places, &Store::default());
    let set = host.scene.set();
    let mut permits = Vec::new();
    while permits.len() < 3 {
        host.ask();
        permits.extend(set.request().try_acquire().expect("a decision").into_result());
        host.scene.pass(Duration::from_millis(1));
    }
    let numbers: Vec<_> = permits
        .iter()
        .map(|permit| permit.fleet_fencing_number())
        .collect();
    assert!(
        numbers.is_sorted() && numbers.iter().all(Option::is_some),
        "{numbers:?}"
    );
    assert_eq!(host.scene.snapshot().limits[0].counts.reclaimed, 0);
    // The store does not answer, and the lease runs out.
    host.fail(StoreProblem::Unreachable);
    host.scene.pass(LEASE);
    host.fail(StoreProblem::Unreachable);
    assert!(permits.iter().all(|permit| permit.reclaimed()), "none is leased");
    assert_eq!(host.scene.snapshot().active, 0);

    // The same with the policy `safe`: some places stay, and the youngest are lost.
    let places = Limit::concurrency("places", 8).fleet(fleet().outage(Outage::Safe));
    let store = Store::default();
    let others = Host::new(places.clone(), &store);
    others.is_admitted();
    others.ask();
    let host = Host::new(places, &store);
    let set = host.scene.set();
    let mut permits = Vec::new();
    while permits.len() < 6 {
        host.ask();
        permits.extend(set.request().try_acquire().expect("a decision").into_result());
        host.scene.pass(Duration::from_millis(10));
    }
    // Until it is time to renew the lease.
    host.scene.pass(LEASE * 5 / 8);
    host.fail(StoreProblem::Unreachable);
    host.scene.pass(LEASE);
    host.fail(StoreProblem::Unreachable);
    let lost: Vec<bool> = permits.iter().map(|permit| permit.reclaimed()).collect();
    assert_eq!(
        lost,
        [false, false, false, false, true, true],
        "its share is four"
    );
}

/// Permits of a host for this many of eight places, each taken later than the one before.
fn holding<'a>(host: &Host, set: &'a LimitSet, count: usize) -> Vec<Permit<'a>> {
    let mut permits = Vec::new();
    while permits.len() < count {
        host.ask();
        permits.extend(set.request().try_acquire().expect("a decision").into_result());
        host.scene.pass(Duration::from_millis(10));
    }
    permits
}

#[test]
fn places_are_lost_with_their_lease_where_no_process_has_duty() {
    let places = Limit::concurrency("places", 8).fleet(fleet());
    let host = Host::new(places, &Store::default());
    let set = host.scene.set();
    let permits = holding(&host, &set, 3);
    let Host { scene, duty, .. } = host;
    drop(duty);
    assert!(permits.iter().all(|permit| !permit.reclaimed()));
    let mut permits = permits.into_iter();
    let mut first = permits.next().expect("three");
    scene.pass(LEASE);
    assert!(first.reclaimed() && permits.as_slice().iter().all(Permit::reclaimed));
    assert_eq!(scene.snapshot().active, 0, "a look leaves them out");
    let error = first.heartbeat().expect_err("not renewed");
    assert!(
        matches!(error, Error::Permit(PermitError::Reclaimed { .. })),
        "{error}"
    );
    // Releasing the first gives nothing back, and any process that looks under the lock takes the others back.
    first.release().expect("works");
    let refusal = expect_refusal(set.request().try_acquire());
    assert_eq!(refusal.reason(), RefusalReason::LeasePending);
    assert_eq!(scene.snapshot().limits[0].counts.reclaimed, 2);
    assert!(permits.all(|permit| permit.reclaimed()));
}

#[test]
fn places_that_were_lost_are_not_held_again_when_an_answer_comes_late() {
    let places = Limit::concurrency("places", 8).fleet(fleet());
    let host = Host::new(places, &Store::default());
    let set = host.scene.set();
    let permits = holding(&host, &set, 3);
    host.scene.pass(LEASE);
    assert!(permits.iter().all(Permit::reclaimed));
    // The first answer is to a request from before, and another follows.
    host.ask();
    host.ask();
    assert!(permits.iter().all(Permit::reclaimed), "they stay lost");
    assert_eq!(host.scene.snapshot().active, 0);
}

#[test]
fn above_a_share_the_youngest_places_are_lost_where_no_process_looks() {
    let places = Limit::concurrency("places", 8).fleet(fleet().outage(Outage::Safe));
    let store = Store::default();
    let other = Host::new(places.clone(), &store);
    other.is_admitted();
    other.ask();
    let host = Host::new(places, &store);
    let set = host.scene.set();
    let permits = holding(&host, &set, 6);
    // Until it is time to renew the lease.
    host.scene.pass(LEASE * 5 / 8);
    host.fail(StoreProblem::Unreachable);
    host.scene.pass(LEASE);
    let lost: Vec<bool> = permits.iter().map(Permit::reclaimed).collect();
    assert_eq!(
        lost,
        [false, false, false, false, true, true],
        "its share is four"
    );
    assert_eq!(host.scene.snapshot().active, 4);
    permits[3].heartbeat().expect("whole");
    assert!(permits[4].heartbeat().is_err());
    expect_refusal(set.request().try_acquire());
    assert_eq!(host.scene.snapshot().limits[0].counts.reclaimed, 2);
}

#[test]
fn places_of_many_holds_are_taken_back_in_batches() {
    let places = Limit::concurrency("places", 300).fleet(fleet());
    let host = Host::new(places, &Store::default());
    let set = host.scene.set();
    let permits = holding(&host, &set, 200);
    host.scene.pass(LEASE);
    expect_refusal(set.request().try_acquire());
    assert_eq!(host.scene.snapshot().limits[0].counts.reclaimed, 200);
    assert!(permits.iter().all(Permit::reclaimed));
}

#[test]
fn duty_that_is_overdue_passes_on_and_late_answers_are_none() {
    let host = Host::new(calls(6000), &Store::default());
    let late = host.duty.ask().expect("works").remove(0);
    let reply = |asked: &Asked| {
        let answer = host.store.answer(asked.request(), host.scene.clock.now());
        answer.expect("answers")
    };
    let early_reply = reply(&late);
    let other = OpenOptions::new()
        .virtual_clock(&host.scene.clock)
        .open(host.scene.path())
        .expect("the same segment");
    let take = || other.fleet().try_take_duty().expect("works");
    assert!(take().is_none(), "the first may be exchanging still");
    let overdue_for = || {
        let fleet = other.snapshot().expect("a copy").fleet.expect("declared");
        fleet.duty.expect("a process has it").overdue_for
    };
    assert_eq!(overdue_for(), None);
    host.scene.pass(Duration::from_secs(4));
    assert_eq!(overdue_for(), Some(Duration::from_secs(1)));
    let duty = take().expect("overdue");
    assert!(duty.is_held() && !host.duty.is_held());
    assert_eq!(
        other
            .snapshot()
            .expect("a copy")
            .fleet
            .expect("declared")
            .takeovers,
        1
    );
    // Whatever the first process goes on to do changes nothing.
    host.duty
        .report(&late, StoreProblem::Unreachable, MINUTE)
        .expect("works");
    host.duty.install(&late, &early_reply).expect("works");
    assert!(host.duty.ask().expect("works").is_empty());
    let lease = host.lease();
    assert!(
        lease.asking && lease.problem.is_none() && lease.counts.failures == 0,
        "{lease:?}"
    );
    let again = duty.ask().expect("works").remove(0);
    assert_eq!(again.request(), late.request(), "the same again");
    duty.install(&again, &reply(&again)).expect("works");
    assert!(!host.lease().asking);
    // The other keeps the duty as long as it is heard of, and the first cannot take it away by being dropped.
    host.scene.pass(Duration::from_secs(2));
    assert!(duty.keep(MINUTE));
    let Host {
        scene, duty: first, ..
    } = host;
    drop(first);
    scene.pass(Duration::from_secs(50));
    assert!(scene.segment.fleet().try_take_duty().expect("works").is_none());
    assert!(duty.is_held());
    drop(duty);
    assert!(scene.segment.fleet().try_take_duty().expect("works").is_some());
}

#[test]
fn a_host_whose_account_a_copy_goes_on_with_becomes_another() {
    let host = Host::new(calls(6000), &Store::default());
    host.ask();
    assert!(host.is_admitted());
    // The copy asks once more than the host, and gives everything back.
    let first = host.duty.ask();
    assert!(first.expect("works").is_empty(), "nothing is due");
    host.scene.pass(LEASE * 7 / 8);
    let asked = host.duty.ask().expect("works").remove(0);
    let of_copy = LeaseRequest {
        sequence: asked.request().sequence + 1,
        held: 0,
        wanted: 0,
        ..asked.request().clone()
    };
    host.store
        .answer(&of_copy, host.scene.clock.now())
        .expect("answers");
    assert_eq!(host.ask(), 1);
    assert_eq!(host.lease().problem, Some(StoreProblem::Stale));
    assert!(!host.is_admitted(), "what was leased is not its own any more");
    let next = host.duty.ask().expect("works").remove(0);
    assert_ne!(next.request().host, of_copy.host);
    assert_eq!((next.request().sequence, next.request().held), (1, 0));
    host.ask();
    assert_eq!(host.lease().problem, None);
    assert!(host.is_admitted());
}

#[test]
fn a_request_has_the_version_of_the_limit_that_it_says() {
    let of =
        |version, capacity| declaring(SetDeclaration::new("api").add_limit(calls(capacity))).version(version);
    let host = Host::declared(&of(1, 6000), &Store::default());
    let before = host.duty.ask().expect("works").remove(0);
    let capacity = |asked: &Asked| match asked.request().declared.rule {
        LeasedRule::Backlog { capacity, .. } => capacity,
        _ => 0,
    };
    host.scene.segment.apply(&of(2, 12_000)).expect("applies");
    let after = host.duty.ask().expect("works").remove(0);
    assert_eq!((before.request().version, capacity(&before)), (1, 6000));
    assert_eq!((after.request().version, capacity(&after)), (2, 12_000));
}

#[test]
fn a_live_limit_comes_to_be_shared_and_not_without_a_burst() {
    let alone = Limit::calls("calls", 60, MINUTE);
    let store = Store::default();
    let host = Host::new(alone.clone(), &store);
    for _ in 0..40 {
        assert!(host.is_admitted());
    }
    let set = |limit: &Limit| declaring(SetDeclaration::new("api").add_limit(limit.clone()));
    let changes = host.scene.segment.apply(&set(&calls(60))).expect("applies");
    assert!(
        changes.iter().any(|change| change.path().ends_with("fleet")),
        "{changes:?}"
    );
    assert!(!host.is_admitted(), "nothing is leased yet");
    let admitted = host.admitted_of(60);
    assert!((1..=20).contains(&admitted), "{admitted} of 20 that were left");
    // Under another key, it is another limit: what is leased of this one is over.
    let other = Limit::calls("calls", 60, MINUTE).fleet(FleetLease::new("org/api/other"));
    host.scene.segment.apply(&set(&other)).expect("applies");
    assert!(!host.is_admitted());
    host.ask();
    assert!(host.is_admitted());
    let left = host.left();
    host.scene.segment.apply(&set(&alone)).expect("applies");
    assert_eq!(host.left(), left, "what was leased, and not a burst");
    host.scene.pass(MINUTE);
    assert_eq!(host.left(), 60);

    // A segment that was created without a fleet has no room for leases.
    let plain = scene::clock::Scene::new(SetDeclaration::new("api").add_limit(alone));
    let error = plain.segment.apply(&set(&calls(60))).expect_err("no room");
    assert!(error.to_string().contains("fleet"), "{error}");
}

/// Opens a copy of a segment that has a lease, after `change` has been made to the copy.
fn opened_copy(host: &Host, change: impl FnOnce(&Path)) -> Segment {
    host.ask();
    assert!(host.is_admitted());
    let path = host.scene.path();
    let copy = path.with_file_name("copy");
    std::fs::copy(&path, &copy).expect("a copy");
    change(&copy);
    let options = OpenOptions::new().virtual_clock(&host.scene.clock);
    options.open(&copy).expect("starts cold")
}

fn asks_as_a_host_without_a_lease(copy: &Segment) {
    let set = copy.set("api").expect("declared");
    let refusal = expect_refusal(set.request().try_acquire());
    assert_eq!(refusal.reason(), RefusalReason::LeasePending);
    let duty = copy.fleet().try_take_duty().expect("works").expect("free");
    let asked = duty.ask().expect("works").remove(0);
    assert_eq!((asked.request().sequence, asked.request().spent), (1, 0));
}

#[test]
fn a_copy_of_the_file_is_another_host_without_a_lease() {
    let host = Host::new(calls(6000), &Store::default());
    let copy = opened_copy(&host, |_| ());
    assert_ne!(copy.fleet().host(), host.scene.segment.fleet().host());
    asks_as_a_host_without_a_lease(&copy);
    assert!(host.is_admitted(), "the first goes on");
}

#[test]
fn a_copy_with_a_damaged_journal_is_another_host_once_it_is_reset() {
    let host = Host::new(calls(6000), &Store::default());
    let copy = opened_copy(&host, |path| {
        let raw = RawSegment::open(path);
        raw.set_word(raw.control() + control::JOURNAL, journal::ENTRIES as u64 + 1);
    });
    let set = copy.set("api").expect("declared");
    assert!(set.request().try_acquire().is_err(), "it is poisoned");
    set.reset().run().expect("heals it");
    asks_as_a_host_without_a_lease(&copy);
}

/// The crash harness finds its way in leases by these numbers. A word that it does not know would be a change outside
/// of a transaction.
/// a transaction.
#[test]
fn what_tests_know_of_the_record_is_what_the_document_says() {
    let document = include_str!("../../shm-layout.md");
    let (_, table) = document
        .split_once("by their place in it:\n")
        .expect("the record has a table");
    let rows = table.trim_start().lines().skip(2);
    let rows: Vec<&str> = rows.take_while(|line| line.starts_with('|')).collect();
    let at = |name: &str| rows.iter().position(|row| row.contains(&format!("| `{name}` |")));
    assert_eq!(rows.len(), lease::SIZE);
    let known = [
        ("spent", lease::SPENT),
        ("allowance", lease::ALLOWANCE),
        ("valid_until", lease::VALID_UNTIL),
        ("alerted", lease::ALERTED),
        ("refunded", lease::REFUNDED),
        ("asked", lease::ASKED),
        ("unmet", lease::UNMET),
        ("draining", lease::DRAINING),
        ("used_at", lease::USED_AT),
        ("paced_until", lease::PACED_UNTIL),
        ("duty", lease::SIZE - lease::OF_DUTY),
    ];
    for (name, place) in known {
        assert_eq!(at(name), Some(place), "{name}");
    }
}
