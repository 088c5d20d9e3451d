//! Limits that each key has for itself, and that hosts share.

use std::collections::HashMap;
use std::future::Future;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use shmlimit::declare::{FleetLease, Outage};
use shmlimit::fleet::{LeasedRule, StoreProblem};
use shmlimit::{Algorithm, Error, Keyed, Limit, OpenOptions, RefusalReason, SetDeclaration};

use super::host::{Host, LEASE, MINUTE, declaring, fleet};
use super::layout_mirror::RawSegment;
use super::layout_mirror::words::lease;
use super::scene::clock::{NEW_YEAR, Scene};
use super::scene::process::{TIMEOUT, eventually};
use super::scene::{expect_permit, expect_refusal, queued};
use super::store::Store;

/// Long enough that a row is due which only has something to report.
const GATHERED: Duration = Duration::from_millis(500);

fn keyed(limit: Limit, max_keys: u64) -> SetDeclaration {
    SetDeclaration::new("api")
        .keyed(Keyed::new(max_keys))
        .add_limit(limit)
}

fn calls(capacity: u64) -> Limit {
    Limit::calls("calls", capacity, MINUTE).fleet(fleet())
}

fn hosts(limit: &Limit, store: &Store) -> [Host; 2] {
    [(); 2].map(|()| Host::of_set(keyed(limit.clone(), 1000), store))
}

impl Store {
    fn names(&self) -> Vec<String> {
        let limits = self.limits.lock().expect("no panic while locked");
        limits.keys().cloned().collect()
    }
}

impl Host {
    fn admits(&self, key: &str) -> bool {
        let set = self.scene.set();
        let request = set.request().for_key(key);
        let outcome = request
            .and_then(|request| request.try_acquire())
            .expect("a decision");
        outcome.into_result().is_ok()
    }

    /// Makes the segment forget when to look at rows that want something.
    fn forget_when_to_look(&self) {
        let raw = RawSegment::open(&self.scene.path());
        // The record follows the two words of the algorithm.
        let record = raw.leases_of_shard() + 2;
        assert_ne!(
            raw.word(record + lease::ALERTED),
            0,
            "there is something to report"
        );
        for word in [lease::ALERTED, lease::UNMET] {
            raw.set_word(record + word, 0);
        }
    }

    fn reason(&self, key: &str) -> RefusalReason {
        let set = self.scene.set();
        expect_refusal(set.request().for_key(key).expect("a key").try_acquire()).reason()
    }
}

#[test]
fn the_first_unit_of_a_key_needs_no_lease_and_is_reported() {
    let store = Store::default();
    let host = Host::of_set(keyed(calls(60), 1000), &store);
    assert!(host.admits("a") && host.admits("b"));
    assert_eq!(host.reason("a"), RefusalReason::LeasePending);
    // It is asked for at once, because somebody wants more of it. Nobody waits for the other key.
    assert!(host.ask() > 0);
    assert!(host.admits("a"), "it was asked for");
    host.scene.pass(GATHERED);
    host.ask();
    let names = store.names();
    assert_eq!(names.len(), 2);
    assert!(
        names
            .iter()
            .all(|name| !name.ends_with("/a") && !name.ends_with("/b"))
    );
    assert!(host.lease().counts.requests >= 2);
}

#[test]
fn reports_wait_for_one_another() {
    let host = Host::of_set(keyed(calls(60), 1000), &Store::default());
    for key in 0..100 {
        assert!(host.admits(&key.to_string()));
        assert_eq!(host.ask(), 0, "nobody waits for an answer");
    }
    assert!(host.duty.due_in().is_some_and(|due| due < LEASE));
    host.scene.pass(GATHERED);
    assert_eq!(host.ask(), 100);
    host.scene.pass(GATHERED);
    assert_eq!(host.ask(), 0);
    assert_eq!(host.lease().keys, Some(0), "there is nothing left to say");
    assert_eq!(host.duty.due_in(), None);
}

#[test]
fn hosts_know_a_key_by_the_same_hash_and_limits_by_different_ones() {
    let store = Store::default();
    for host in hosts(&calls(60), &store) {
        assert!(host.admits("acme"));
        host.scene.pass(GATHERED);
        assert_eq!(host.ask(), 1);
    }
    assert_eq!(store.names().len(), 1);
    let other = Limit::calls("calls", 60, MINUTE).fleet(FleetLease::new("org/other"));
    let host = Host::of_set(keyed(other, 1000), &store);
    assert!(host.admits("acme"));
    host.scene.pass(GATHERED);
    assert_eq!(host.ask(), 1);
    let names = store.names();
    let hash = |name: &str| name.rsplit('/').next().map(str::to_owned);
    assert_eq!(names.len(), 2);
    assert_ne!(hash(&names[0]), hash(&names[1]));
}

#[test]
fn without_unleased_units_the_first_request_is_asked_for() {
    let limit = Limit::calls("calls", 60, MINUTE).fleet(fleet().unleased(0));
    let host = Host::of_set(keyed(limit, 1000), &Store::default());
    assert_eq!(host.reason("a"), RefusalReason::LeasePending);
    assert_eq!(host.ask(), 1);
    assert!(host.admits("a"));
}

#[test]
fn a_key_that_is_used_up_is_refused_until_the_store_has_a_unit() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::FixedWindow] {
        let store = Store::default();
        let hosts = hosts(&calls(6).algorithm(algorithm), &store);
        let mut admitted = 0;
        for _ in 0..20 {
            for host in &hosts {
                admitted += u64::from(host.admits("a"));
                host.ask();
                host.scene.pass(Duration::from_millis(1));
            }
        }
        // At most what the limit has, and what each host admitted before it had asked.
        assert!((6..=9).contains(&admitted), "{algorithm}: {admitted}");
        let set = hosts[0].scene.set();
        let refusal = expect_refusal(set.request().for_key("a").expect("a key").try_acquire());
        assert_eq!(refusal.reason(), RefusalReason::Lease, "{algorithm}");
        let retry_after = refusal.retry_after().expect("a retry time");
        assert!(retry_after <= MINUTE, "{algorithm}: {retry_after:?}");
        for host in &hosts {
            host.scene.pass(retry_after + Duration::from_millis(100));
        }
        assert!(hosts[0].admits("a"), "{algorithm}");
        // Another key has its own units.
        assert!(hosts[0].admits("b"));
    }
}

#[test]
fn a_busy_key_is_leased() {
    let host = Host::of_set(keyed(calls(60_000), 1000), &Store::default());
    let mut asked = 0;
    let mut admitted = 0;
    for _ in 0..5000 {
        asked += host.ask();
        admitted += usize::from(host.admits("busy"));
        host.scene.pass(Duration::from_millis(2));
    }
    assert!(admitted > 4900, "{admitted}");
    assert!(asked < 150, "{asked} requests for {admitted} admissions");
    // The host gives back what it does not use.
    for _ in 0..100 {
        host.scene.pass(LEASE / 8);
        host.ask();
    }
    assert_eq!((host.lease().keys, host.duty.due_in()), (Some(0), None));
    assert_eq!(host.store.outstanding(&host.store.names()[0]), 0);
}

/// However small the table is, what was spent reaches the store before the row is given to another key.
#[test]
fn no_row_is_given_away_with_something_to_report() {
    let store = Store::default();
    let host = Host::of_set(keyed(calls(60), 16), &store);
    let mut admitted = HashMap::<String, u64>::new();
    for step in 0..2000_u32 {
        let key = (step * 7 % 113).to_string();
        if host.admits(&key) {
            *admitted.entry(key).or_default() += 1;
        }
        if step % 9 == 0 {
            host.scene.pass(Duration::from_millis(50));
            host.ask();
        }
    }
    host.scene.pass(GATHERED);
    host.ask();
    assert!(admitted.len() > 50, "{}", admitted.len());
    let rule = LeasedRule::Backlog {
        capacity: 60,
        window: MINUTE,
        burst: 60,
    };
    // The store's count has not been replenished since the last report, so it contains at least what is still used now.
    assert_eq!(store.names().len(), admitted.len());
    assert!(store.names().iter().any(|name| store.used(name, &rule) > 0));
}

#[test]
fn each_outage_policy_does_what_it_says_by_key() {
    for (policy, with_lease, without) in [
        (Outage::Deny, false, false),
        (Outage::SpendOut, true, false),
        (Outage::Safe, true, true),
        (Outage::Open, true, true),
    ] {
        let limit = Limit::calls("calls", 6000, MINUTE).fleet(fleet().outage(policy));
        let host = Host::of_set(keyed(limit, 1000), &Store::default());
        assert!(host.admits("a"));
        assert!(!host.admits("a"), "{policy}");
        host.ask();
        assert!(host.admits("a"), "{policy}: what is leased is spent");
        host.scene.pass(LEASE * 4 / 5);
        host.fail(StoreProblem::Unreachable);
        assert_eq!(host.admits("a"), with_lease, "{policy}: the lease is not over");
        host.scene.pass(LEASE);
        assert_eq!(host.admits("a"), without, "{policy}: the lease is over");
        let lease = host.lease();
        assert_eq!(lease.problem, Some(StoreProblem::Unreachable), "{policy}");
        assert_eq!(lease.refusing, !without, "{policy}");
        // A key that is first used during the outage follows the policy, too.
        assert_eq!(host.admits("new"), without, "{policy}");
        for _ in 0..20 {
            host.scene.pass(LEASE / 8);
            host.ask();
        }
        assert!(
            host.admits("a") && host.admits("new"),
            "{policy}: the store is back"
        );
        assert_eq!(host.lease().problem, None, "{policy}");
    }
}

#[test]
fn drains_every_key() {
    let host = Host::of_set(keyed(calls(6000), 1000), &Store::default());
    for key in ["a", "b"] {
        assert!(host.admits(key) && !host.admits(key));
        // The keys of a shard are looked at only every so often.
        host.scene.pass(GATHERED);
        host.ask();
        assert!(host.admits(key));
    }
    host.scene.segment.fleet().set_draining(true).expect("works");
    for key in ["a", "b", "new"] {
        assert_eq!(host.reason(key), RefusalReason::Lease);
    }
    for _ in 0..10 {
        host.ask();
        host.scene.pass(LEASE / 8);
    }
    let lease = host.lease();
    assert!(lease.draining && lease.given_back, "{lease:?}");
    for name in host.store.names() {
        assert_eq!(host.store.outstanding(&name), 0);
    }
    host.scene.segment.fleet().set_draining(false).expect("works");
    assert!(host.admits("new"));
}

/// A process that drains a shard begins with the shard's record, and may die before it has got to all rows.
#[test]
fn a_shard_that_drains_drains_all_of_its_keys() {
    let host = Host::of_set(keyed(calls(6000), 20), &Store::default());
    assert!(host.admits("a") && !host.admits("a"));
    host.ask();
    let raw = RawSegment::open(&host.scene.path());
    raw.set_word(raw.leases_of_shard() + 2 + lease::DRAINING, 1);
    for _ in 0..20 {
        host.scene.pass(LEASE / 8);
        host.ask();
    }
    let lease = host.lease();
    assert!(lease.draining && lease.given_back, "{lease:?}");
    assert_eq!(host.reason("a"), RefusalReason::Lease);
}

#[test]
fn who_waits_for_a_key_is_admitted_when_the_answer_comes() {
    let host = Host::of_set(keyed(calls(600), 1000), &Store::default());
    let set = host.scene.set();
    drop(expect_permit(
        set.request().for_key("a").expect("a key").try_acquire(),
    ));
    thread::scope(|scope| {
        let request = set.request().for_key("a").expect("a key");
        let waiter = scope.spawn(move || expect_permit(request.acquire(TIMEOUT)).release());
        eventually("the request waits", || queued(&host.scene.segment) == 1);
        assert_eq!(host.ask(), 1);
        assert!(waiter.join().is_ok(), "admitted");
    });
}

/// A debit comes after the request, perhaps long after the row had nothing left to report.
#[test]
fn what_is_settled_late_is_reported() {
    let budget = Limit::budget("calls", 1000, MINUTE).fleet(fleet());
    // One of the five units comes back in the meantime.
    let slow = Limit::calls("calls", 20, MINUTE).fleet(fleet().unleased(5));
    for (limit, reserved, used, told) in [
        (budget, 0, 400, (400, 0)),
        (slow.clone(), 5, 9, (4, 0)),
        (slow, 5, 0, (0, 4)),
    ] {
        let host = Host::of_set(keyed(limit, 1000), &Store::default());
        let set = host.scene.set();
        let request = set.request().for_key("a").expect("a key");
        let request = request.with("calls", reserved).expect("declared");
        let mut permit = expect_permit(request.try_acquire());
        for _ in 0..10 {
            host.scene.pass(LEASE / 16);
            host.ask();
        }
        assert_eq!(host.lease().keys, Some(0), "the row is on no list");
        let _ = permit.settle([("calls", used)]).expect("works");
        host.scene.pass(GATHERED);
        let asked = host.duty.ask().expect("works");
        let asked: Vec<_> = asked.iter().map(|asked| asked.request()).collect();
        let said: Vec<_> = asked
            .iter()
            .map(|request| (request.spent, request.refunded))
            .collect();
        assert_eq!(said, [told]);
    }
}

/// What was granted to a waiting request comes back if nobody claims it.
#[test]
fn what_is_granted_and_not_collected_is_reported() {
    let limit = Limit::calls("calls", 20, MINUTE).fleet(fleet().unleased(5));
    let host = Host::of_set(keyed(limit, 1000), &Store::default());
    let set = host.scene.set();
    let request = set.request().for_key("a").expect("a key");
    let request = request.with("calls", 5).expect("declared");
    drop(expect_permit(request.try_acquire()));
    let mut waits = Box::pin(request.acquire_async(None));
    let look = &mut Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(look).is_pending());
    for _ in 0..40 {
        host.ask();
        host.scene.pass(LEASE / 8);
    }
    assert_eq!(host.lease().keys, Some(0), "the row is on no list");
    drop(waits);
    host.scene.pass(GATHERED);
    let asked = host.duty.ask().expect("works");
    assert_eq!(asked.len(), 1);
    assert!(asked[0].request().refunded > 0);
}

/// What has already been used is charged and reported, although nothing is left.
#[test]
fn what_is_debited_with_nothing_left_is_reported() {
    let budget = Limit::budget("calls", 10, MINUTE).fleet(fleet());
    let host = Host::of_set(keyed(budget, 1000), &Store::default());
    let set = host.scene.set();
    let mut permit = expect_permit(set.request().for_key("a").expect("a key").try_acquire());
    let mut said = Vec::new();
    for _ in 0..2 {
        let _ = permit.debit("calls", 20).expect("works");
        for _ in 0..10 {
            host.scene.pass(GATHERED);
            for asked in host.duty.ask().expect("works") {
                said.push(asked.request().spent);
                let reply = host.store.answer(asked.request(), host.scene.clock.now());
                host.duty
                    .install(&asked, &reply.expect("answers"))
                    .expect("works");
            }
        }
    }
    assert_eq!(said, [20, 20]);
}

/// A process looks at rows a few at a time, and may die in between, without the lock.
#[test]
fn what_a_process_did_not_come_to_is_asked_for_by_the_next() {
    let host = Host::of_set(keyed(calls(60), 200), &Store::default());
    for key in 0..100 {
        assert!(host.admits(&key.to_string()));
    }
    host.scene.pass(GATHERED);
    // As after a death when the list was begun, but not finished.
    host.forget_when_to_look();
    host.scene.pass(GATHERED);
    assert_eq!(host.ask(), 100);
}

#[test]
fn another_boot_loses_no_unit_that_is_spent_after_it() {
    let host = Host::of_set(keyed(calls(60), 1000), &Store::default());
    assert!(host.admits("a"));
    host.ask();
    let Host { scene, duty, store } = host;
    drop(duty);
    let path = scene.path();
    let copy = path.with_file_name("copy");
    std::fs::copy(&path, &copy).expect("a copy");
    RawSegment::open(&copy).set_another_boot();
    let options = OpenOptions::new().virtual_clock(&scene.clock);
    let segment = options.open(&copy).expect("starts cold");
    assert_ne!(segment.fleet().host(), scene.segment.fleet().host());
    let set = segment.set("api").expect("declared");
    for key in ["a", "b"] {
        drop(expect_permit(
            set.request().for_key(key).expect("a key").try_acquire(),
        ));
    }
    scene.pass(GATHERED);
    let duty = segment.fleet().try_take_duty().expect("works").expect("free");
    let asked = duty.ask().expect("works");
    let spent: Vec<u64> = asked.iter().map(|asked| asked.request().spent).collect();
    assert_eq!(spent, [1, 1]);
    for asked in &asked {
        store.answer(asked.request(), scene.clock.now()).expect("answers");
    }
}

/// Either would change the size of the rows.
#[test]
fn hosts_neither_begin_nor_cease_to_share_a_live_limit_of_keys() {
    let alone = Limit::calls("calls", 60, MINUTE);
    for (declared, changed) in [(alone.clone(), calls(60)), (calls(60), alone)] {
        let host = Scene::declared(NEW_YEAR, &declaring(keyed(declared, 1000)));
        let error = host.segment.apply(&declaring(keyed(changed, 1000)));
        assert!(matches!(error, Err(Error::Change(_))), "{error:?}");
        let set = host.set();
        drop(expect_permit(
            set.request().for_key("a").expect("a key").try_acquire(),
        ));
    }
}

/// Under another key of the store, it is another limit, which knows nothing of what was spent.
#[test]
fn a_live_limit_of_keys_goes_on_under_another_key_of_the_store() {
    let host = Host::of_set(keyed(calls(60), 1000), &Store::default());
    assert!(host.admits("a"));
    assert!(!host.admits("a"));
    let other = FleetLease::new("org/other")
        .lease(LEASE)
        .cold_wait(Duration::ZERO);
    let other = Limit::calls("calls", 60, MINUTE).fleet(other.unleased(3));
    host.scene
        .segment
        .apply(&declaring(keyed(other, 1000)))
        .expect("applies");
    assert!(host.admits("a"));
    host.scene.pass(GATHERED);
    assert_eq!(host.ask(), 1);
    let names = host.store.names();
    assert!(
        names.iter().all(|name| name.starts_with("org/other/")),
        "{names:?}"
    );
    assert!(host.admits("a") && host.admits("b"));
    host.scene.pass(GATHERED);
    assert_eq!(host.ask(), 2);
}

#[derive(Clone, Debug)]
enum Step {
    Take { host: usize, key: u8, cost: u64 },
    Ask { host: usize, loses_answer: bool },
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..2_usize, 0..3_u8, 1..4_u64).prop_map(|(host, key, cost)| Step::Take { host, key, cost }),
        2 => (0..2_usize, prop::bool::weighted(0.2))
            .prop_map(|(host, loses_answer)| Step::Ask { host, loses_answer }),
        2 => (1..3_000_u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever is lost and however long nobody asks, no more of a key is admitted than the burst, what comes back, and
    /// what each host admits before it has asked.
    #[test]
    fn no_key_exceeds_its_bound(
        steps in prop::collection::vec(step(), 1..300),
        unleased in 0..3_u64,
    ) {
        let limit = Limit::calls("calls", 60, MINUTE).burst(8).fleet(fleet().unleased(unleased));
        let store = Store::default();
        let hosts = hosts(&limit, &store);
        let mut admitted: HashMap<u8, Vec<(Duration, u64)>> = HashMap::new();
        let mut time = Duration::ZERO;
        for step in steps {
            match step {
                Step::Take { host, key, cost } => {
                    let set = hosts[host].scene.set();
                    let request = set.request().for_key(key.to_string()).and_then(|request| request.with("calls", cost));
                    if let Ok(request) = request
                        && request.try_acquire().expect("a decision").into_result().is_ok()
                    {
                        admitted.entry(key).or_default().push((time, cost));
                    }
                }
                Step::Ask { host, loses_answer } => {
                    let host = &hosts[host];
                    for asked in host.duty.ask().expect("works") {
                        let reply = host.store.answer(asked.request(), host.scene.clock.now());
                        match reply {
                            Ok(_) if loses_answer => {}
                            Ok(reply) => host.duty.install(&asked, &reply).expect("works"),
                            Err(problem) => {
                                host.duty.report(&asked, problem, Duration::ZERO).expect("works");
                            }
                        }
                    }
                }
                Step::Pass(millis) => {
                    time += Duration::from_millis(millis);
                    for host in &hosts {
                        host.scene.pass(Duration::from_millis(millis));
                    }
                }
            }
        }
        for (key, taken) in admitted {
            for (first, (from, _)) in taken.iter().enumerate() {
                let mut sum = 0;
                for (at, cost) in &taken[first..] {
                    sum += cost;
                    let came_back = (*at - *from).as_secs() + 1;
                    prop_assert!(
                        sum <= 8 + came_back + 2 * unleased,
                        "{sum} of key {key} in {:?}",
                        *at - *from
                    );
                }
            }
        }
    }
}

/// An exchange takes 4,096 requests, and breaks off in the middle of a shard when it has that many.
#[test]
fn keys_at_which_an_exchange_broke_off_are_asked_for_next() {
    const KEYS: usize = 15_000;
    let host = Host::of_set(keyed(calls(6000), KEYS as u64), &Store::default());
    let keys: Vec<String> = (0..KEYS).map(|key| key.to_string()).collect();
    for key in &keys {
        assert!(host.admits(key) && !host.admits(key));
    }
    host.scene.pass(GATHERED);
    // The exchanges follow one another quickly, so nothing that was asked for is due again.
    let ask_for_all = || {
        let ask = |_| {
            host.scene.pass(Duration::from_millis(10));
            host.ask()
        };
        let asked: Vec<usize> = (0..=KEYS / 4096).map(ask).collect();
        assert!(asked.iter().all(|asked| *asked <= 4096 + 64), "{asked:?}");
        asked.iter().sum::<usize>()
    };
    assert_eq!(ask_for_all(), KEYS);
    for key in &keys {
        assert!(host.admits(key), "{key} was asked for");
    }
    host.scene.pass(LEASE);
    // Now the second list is asked for: all of its keys have a lease that is to be renewed or given back.
    assert_eq!(ask_for_all(), KEYS);
}

/// The process that put an answer into force may have died before it told the other shards of the set what that means.
#[test]
fn a_shard_that_was_not_told_that_the_store_is_back_finds_out_when_it_is_to_ask_again() {
    let limit = Limit::calls("calls", 6000, MINUTE).fleet(fleet().unleased(0));
    let host = Host::of_set(keyed(limit, 1000), &Store::default());
    let keys: Vec<String> = (0..100).map(|key| key.to_string()).collect();
    assert!(keys.iter().all(|key| !host.admits(key)));
    let retry_in = LEASE / 4;
    for asked in host.duty.ask().expect("works") {
        let problem = StoreProblem::Unreachable;
        host.duty.report(&asked, problem, retry_in).expect("works");
    }
    let raw = RawSegment::open(&host.scene.path());
    let record = raw.leases_of_shard() + 2;
    let words = || (0..lease::SIZE - lease::OF_DUTY).map(|word| (word, raw.word(record + word)));
    let while_out: Vec<_> = words().collect();
    host.scene.pass(retry_in);
    assert_eq!(host.ask(), keys.len());
    assert_eq!(host.lease().problem, None);
    for (word, value) in while_out {
        raw.set_word(record + word, value);
    }
    assert_eq!(
        host.lease().problem,
        Some(StoreProblem::Unreachable),
        "of one shard"
    );
    // What was granted can still be spent.
    assert!(keys.iter().all(|key| host.admits(key)));
    // A key that is new in the shard waits for one answer and no longer.
    let new: Vec<String> = (100..200).map(|key| key.to_string()).collect();
    assert!(new.iter().all(|key| !host.admits(key)));
    host.scene.pass(Duration::from_millis(10));
    host.ask();
    assert!(new.iter().all(|key| host.admits(key)));
    assert_eq!(host.lease().problem, None);
}
