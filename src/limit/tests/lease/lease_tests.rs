//! Limits that hosts share: several hosts with clocks of their own, a store that loses messages, and the bound that
//! all of them keep together.

use proptest::prelude::*;

use crate::choices::Outage;
use crate::limit::tests::every_rule::damaged_state_tests::anything;

use super::lease_store::{
    Host, LEASE, MILLISECOND, OUT, SCALE, SECOND, SLOWEST, Store, answered, backlog, leased, stale,
};
use crate::limit::tests::{Limit, at};
use crate::limit::{
    Answer, Budget, Charge, Concurrency, FixedWindow, LEASE_WORDS, Quarantine, Rule, RuleOperations,
};

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Take(usize, u64),
    /// Asks; the request or the answer may be lost, late or duplicated.
    Exchange {
        host: usize,
        request_lost: bool,
        answer_lost: bool,
        late: u64,
        twice: bool,
    },
    /// A copy of the host asks the store, and keeps what it holds.
    Copy(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..LEASE).prop_map(Step::Pass),
        3 => (1..50 * MILLISECOND).prop_map(Step::Pass),
        1 => (0..3_usize).prop_map(Step::Copy),
        12 => (0..3_usize, 1..6_u64).prop_map(|(host, cost)| Step::Take(host, cost)),
        8 => (0..3_usize, prop::bool::weighted(0.1), prop::bool::weighted(0.2), prop_oneof![3 => Just(0), 1 => 1..3 * SECOND], any::<bool>())
            .prop_map(|(host, request_lost, answer_lost, late, twice)| Step::Exchange {
                host,
                request_lost,
                answer_lost,
                late,
                twice,
            }),
    ]
}

/// Between any two instants no more was admitted than the burst and what came back.
fn keeps_the_bound(admitted: &[(u64, u64)], capacity: u64, burst: u64) -> Result<(), TestCaseError> {
    for (first, (from, _)) in admitted.iter().enumerate() {
        let mut sum = 0;
        for (until, cost) in &admitted[first..] {
            sum += cost;
            let back = (u128::from(until - from) * u128::from(capacity)).div_ceil(SCALE) as u64;
            prop_assert!(
                sum <= burst + back,
                "{sum} were admitted from {from} to {until}: at most {}",
                burst + back
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn hosts_never_admit_more_than_one_limit_would(
        capacity in 30..600_u64,
        burst in 5..60_u64,
        policy in prop_oneof![Just(Outage::SpendOut), Just(Outage::Deny)],
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let rule = leased(&backlog(capacity, burst), policy);
        // One of them has a clock that is as slow as is allowed.
        let mut hosts = [Host::new(rule, 1000), Host::new(rule, SLOWEST), Host::new(rule, 1001)];
        let mut store = Store::new(capacity, burst);
        let mut time = 3600 * SECOND;
        store.level_at = time;
        let mut admitted = Vec::new();
        let mut identities = hosts.len() as u64;
        for step in steps {
            match step {
                Step::Copy(host) => {
                    if let Some(account) = store.accounts.get_mut(&host) {
                        account.sequence += 1000;
                    }
                }
                Step::Pass(by) => time += by,
                Step::Take(host, cost) => {
                    if hosts[host].take(time, cost) {
                        admitted.push((time, cost));
                    }
                }
                Step::Exchange { host, request_lost, answer_lost, late, twice } => {
                    let Some(ask) = hosts[host].ask(time) else { continue };
                    prop_assert_eq!(hosts[host].ask(time), Some(ask), "a repeat is the same");
                    let attempt = time;
                    if request_lost {
                        hosts[host].fail(time, ask.sequence);
                        continue;
                    }
                    let account = if ask.identity == 0 { host } else { ask.identity as usize };
                    let answer = store.answer(account, ask, time);
                    time += late;
                    if answer.is_none() {
                        identities += 1;
                        hosts[host].fail_by(time, ask.sequence, stale(identities));
                        prop_assert_eq!(hosts[host].limit.remaining(hosts[host].now(time)), 0, "it is another's");
                        continue;
                    }
                    let Some(answer) = answer.filter(|_| !answer_lost) else {
                        hosts[host].fail(time, ask.sequence);
                        continue;
                    };
                    prop_assert!(hosts[host].install(attempt, time, answer));
                    if twice {
                        prop_assert!(!hosts[host].install(attempt, time, answer), "it counts once");
                    }
                }
            }
        }
        keeps_the_bound(&admitted, capacity, burst)?;
    }

    #[test]
    fn a_host_alone_that_asks_whenever_it_is_due_gets_nearly_all(
        capacity in 600..60_000_u64,
        requests in 400..1_000_u64,
    ) {
        let mut host = Host::new(leased(&backlog(capacity, capacity), Outage::SpendOut), 1000);
        let mut store = Store::new(capacity, capacity);
        let mut time = 3600 * SECOND;
        store.level_at = time;
        let mut admitted = 0;
        for _ in 0..requests {
            time += MILLISECOND;
            if let Some(ask) = host.ask(time) {
                let answer = store.answer(0, ask, time).expect("the latest");
                host.install(time, time, answer);
            }
            admitted += u64::from(host.take(time, 1));
        }
        // The first requests find little, until the host knows its use, and the store is not asked more often than paced.
        prop_assert!(admitted + 150 >= requests.min(capacity), "{admitted} of {requests}");
    }

    #[test]
    fn no_words_make_a_lease_panic(
        words in proptest::collection::vec(anything(), LEASE_WORDS + 3),
        now in any::<u64>(), cost in any::<u64>(), which in 0..4_usize, outage in 0..4_usize,
        numbers in any::<[u64; 9]>(), is_first in any::<bool>(),
    ) {
        let local = [
            backlog(10, 10),
            Rule::FixedWindow(FixedWindow::utc(10, SECOND).expect("valid")),
            Rule::Budget(Budget::new(FixedWindow::utc(10, SECOND).expect("valid")).expect("valid")),
            Rule::Concurrency(Concurrency::new(10).expect("valid")),
        ][which];
        let policies = [Outage::Deny, Outage::SpendOut, Outage::Safe, Outage::Open];
        let rule = leased(&local, policies[outage]);
        let Rule::Leased(lease) = rule else { panic!("it is shared") };
        let mut state = words;
        state.truncate(rule.state_words());
        let (state, now) = (state.as_mut_slice(), at(now));
        let _ = rule.assess(state, now, cost);
        let _ = rule.take(state, now, cost);
        let mark = rule.mark(state, now);
        let _ = rule.standing(mark);
        let charge = Charge { mark: Some(mark), ..Limit::unmarked(now, cost) };
        let _ = rule.refund(state, now, cost, &charge);
        rule.give_back(state, cost);
        let _ = lease.due_at(state, now);
        let _ = lease.ask(state, now);
        let [sequence, granted, remaining, share, grant_number, drained_in, ceiling, hosts, available] = numbers;
        let sequence = if is_first { 1 } else { sequence };
        let quarantine = (hosts % 2 == 0).then_some(Quarantine { code: 6, remaining: granted });
        let free_in = drained_in;
        let answer = Answer {
            sequence, granted, remaining, share, grant_number, drained_in, ceiling, hosts, quarantine, available, free_in,
        };
        lease.install(state, now, cost, answer);
        lease.fail(state, now, sequence, OUT, cost);
        lease.fail(state, now, sequence, stale(cost | 1), cost);
        lease.set_draining(state, is_first);
        let _ = lease.read_state(state, now);
        rule.migrate(&local, state, now);
        local.migrate(&rule, state, now);
    }

    #[test]
    fn what_was_used_is_not_granted_anew_where_a_limit_comes_to_be_shared(
        used in 0..100_u64, wanted in 1..200_u64,
    ) {
        let local = backlog(100, 100);
        let mut host = Host::new(local, 1000);
        host.limit.words.resize(local.state_words() + LEASE_WORDS, 0);
        let time = 3600 * SECOND;
        host.limit.charge(at(time), used);
        host.limit.become_other(leased(&local, Outage::SpendOut), at(time));
        prop_assert!(!host.take(time, wanted.min(100)), "nothing is leased yet");
        let mut store = Store::new(100, 100);
        store.level_at = time;
        let ask = host.ask(time).expect("it is due");
        prop_assert_eq!(ask.spent, used);
        let answer = store.answer(0, ask, time).expect("the latest");
        prop_assert!(answer.granted <= 100 - used);
        host.install(time, time, answer);
        // Nor is it once the limit is no longer shared.
        let left = host.limit.remaining(at(time));
        host.limit.become_other(local, at(time));
        prop_assert_eq!(host.limit.remaining(at(time)), left);
    }
}

#[test]
fn what_is_unused_and_not_reported_comes_back_to_the_lease() {
    let mut host = Host::new(leased(&backlog(600, 600), Outage::SpendOut), 1000);
    let mut store = Store::new(600, 600);
    let time = 3600 * SECOND;
    store.level_at = time;
    host.take(time, 100);
    let ask = host.ask(time).expect("due");
    let answer = store.answer(0, ask, time).expect("answers");
    host.install(time, time, answer);
    let before = host.limit.remaining(at(time));
    assert!(host.take(time, 100));
    assert_eq!(host.limit.refund_any(at(time), 60), 60);
    assert_eq!(host.limit.remaining(at(time)), before - 40);
    // Units that have been reported are taken back by the store.
    host.take(time, 1000);
    let ask = host.ask(time).expect("due");
    assert_eq!((ask.spent, ask.refunded), (40, 0));
    assert_eq!(host.limit.refund_any(at(time), 30), 30);
    let answer = store.answer(0, ask, time).expect("answers");
    host.install(time, time, answer);
    host.take(time, 1000);
    let ask = host.ask(time + LEASE).expect("due");
    assert_eq!((ask.spent, ask.refunded), (40, 30));
}

#[test]
fn a_request_that_says_what_is_over_gives_way_to_another() {
    let mut host = Host::new(leased(&backlog(6000, 600), Outage::Safe), 1000);
    let mut store = Store::new(6000, 600);
    let time = 3600 * SECOND;
    store.level_at = time;
    host.take(time, 10);
    let ask = host.ask(time).expect("due");
    let answer = store.answer(0, ask, time).expect("answers");
    host.install(time, time, answer);
    assert!(host.take(time, 1));
    // It is renewed before its end, but no answer comes.
    let late = time + LEASE * 7 / 8;
    let ask = host.ask(late).expect("due");
    assert!(ask.held > 0);
    host.fail(late, ask.sequence);
    assert_eq!(host.ask(late), Some(ask), "as long as it lasts");
    let after = time + LEASE;
    assert!(host.take(after, 5), "it grants itself its share");
    let next = host.ask(after).expect("due");
    assert_eq!((next.sequence, next.held, next.spent), (ask.sequence + 1, 0, 6));
    assert!(!host.install(
        late,
        after,
        Answer {
            sequence: ask.sequence,
            ..answer
        }
    ));
    let answer = store.answer(0, next, after).expect("answers");
    assert!(answer.granted > 0);
    assert!(host.install(after, after, answer));
    assert!(host.take(after, 1));
}

#[test]
fn a_host_whose_account_is_another_s_goes_on_as_another() {
    let mut host = Host::new(leased(&backlog(6000, 600), Outage::SpendOut), 1000);
    let mut store = Store::new(6000, 600);
    let time = 3600 * SECOND;
    store.level_at = time;
    host.take(time, 10);
    let first = host.ask(time).expect("due");
    let answer = store.answer(0, first, time).expect("answers");
    host.install(time, time, answer);
    assert!(host.take(time, 3));
    host.take(time, 600);
    let second = host.ask(time).expect("due");
    assert_eq!((second.identity, second.sequence, second.spent), (0, 2, 3));
    host.fail_by(time, second.sequence, stale(77));
    assert!(!host.take(time, 1), "what it had leased may be another's");
    let next = host.ask(time).expect("due at once");
    assert_eq!((next.identity, next.sequence, next.held), (77, 1, 0));
    assert_eq!(next.spent, 3, "what was not reported is charged");
    let answer = store.answer(77, next, time).expect("answers");
    host.install(time, time, answer);
    assert!(host.take(time, 1));
    let later = host.ask(time + LEASE).expect("due");
    assert_eq!((later.identity, later.sequence, later.spent), (77, 2, 4));
}

#[test]
fn places_are_kept_as_long_as_they_are_held_and_leased() {
    let mut host = Host::new(
        leased(
            &Rule::Concurrency(Concurrency::new(8).expect("valid")),
            Outage::SpendOut,
        ),
        1000,
    );
    let time = 3600 * SECOND;
    assert!(!host.take(time, 1));
    let ask = host.ask(time).expect("due");
    assert_eq!((ask.held, ask.spent), (0, 0));
    assert!(ask.wanted >= 1);
    host.install(time, time, answered(ask, 1, 1));
    assert!(host.take(time, 1));
    assert!(!host.take(time, 1), "one place was granted");
    let ask = host.ask(time + MILLISECOND).expect("more is wanted");
    assert_eq!(ask.held, 1, "what is in use is kept");
    host.install(time, time + MILLISECOND, answered(ask, ask.wanted, 1));
    assert!(host.take(time + MILLISECOND, 1));
    // Without a renewal nothing can be taken, and what is held has no lease.
    assert!(!host.take(time + 2 * LEASE, 1));
    let ask = host.ask(time + 2 * LEASE).expect("due");
    assert_eq!(ask.held, 0);
    assert!(ask.wanted >= 2);
}

#[test]
fn a_place_is_wanted_of_the_store_where_the_limit_has_one_and_the_lease_has_not() {
    let capacity = 2;
    let rule = leased(
        &Rule::Concurrency(Concurrency::new(capacity).expect("valid")),
        Outage::SpendOut,
    );
    let mut host = Host::new(rule, 1000);
    let time = 3600 * SECOND;
    let wants_lease = |host: &Host| {
        let mark = rule.mark(host.limit.words.as_slice(), host.now(time));
        host.leased().shortage_of(mark).is_some()
    };
    let was_answered = |host: &Host| host.leased().was_answered(host.limit.words.as_slice());
    for number in 1..=capacity {
        assert!(!host.take(time, 1));
        assert!(wants_lease(&host), "{} of {capacity} are in use", number - 1);
        assert_eq!(was_answered(&host), number > 1);
        let ask = host.ask(time).expect("due");
        assert!(host.install(time, time, answered(ask, 1, number)));
        assert!(host.take(time, 1));
    }
    assert!(!host.take(time, 1));
    assert!(!wants_lease(&host), "all are in use");
}

#[test]
fn only_what_takes_places_has_a_fencing_number_of_its_own() {
    let rule = leased(
        &Rule::Concurrency(Concurrency::new(8).expect("valid")),
        Outage::SpendOut,
    );
    let mut host = Host::new(rule, 1000);
    let time = 3600 * SECOND;
    assert!(!host.take(time, 4));
    let ask = host.ask(time).expect("due");
    assert!(host.install(time, time, answered(ask, ask.wanted, 7)));
    let mut number_of = |cost| {
        let now = host.now(time);
        let mark = rule.take(host.limit.words.as_mut_slice(), now, cost);
        host.leased().fencing_number_of(mark.expect("leased"))
    };
    let first = number_of(1);
    assert_eq!(first, Some((7 << 32) + 1));
    assert_eq!(number_of(0), first, "takes nothing");
    assert_eq!(number_of(2), Some((7 << 32) + 2));
}
