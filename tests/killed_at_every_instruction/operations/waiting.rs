//! Operations to kill, on the queue: taking a ticket, waiting, being served and serving, leaving, and taking back what
//! the dead waited for or were granted.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shmlimit::request::AcquireFuture;
use shmlimit::{Limit, LimitSet, Outcome, Permit, Request, ReserveOutcome, SetDeclaration};

use crate::beside::bystanders::{MAX_WAITERS, TIMEOUT};
use crate::beside::clock;
use crate::operations::subject::Subject;
use crate::operations::{Operation, PLACES, SET, Victim, YEAR, admitted, everything, operation};

/// Long enough to take a ticket, and no longer.
const AT_ONCE: Duration = Duration::from_nanos(1);

/// Longer than a waiter sleeps before it checks on those ahead of it, even while it is stepped.
const LONGER_THAN_A_SLICE: Duration = Duration::from_millis(130);

/// The place comes first, so that a look that finds none has not changed anything yet.
pub fn places_and_rates() -> SetDeclaration {
    set_with(Limit::concurrency("in_flight", PLACES))
}

fn leased_places_and_rates() -> SetDeclaration {
    set_with(Limit::concurrency("in_flight", PLACES).lease(Duration::from_secs(60)))
}

fn set_with(places: Limit) -> SetDeclaration {
    SetDeclaration::new(SET)
        .waiters(u32::try_from(MAX_WAITERS).expect("few") + 2)
        .holds(12)
        .add_limit(places)
        .add_limit(Limit::calls("requests", 100, YEAR))
        .add_limit(Limit::rate("tokens", 10_000, YEAR))
}

fn places(set: &LimitSet, count: u64) -> Request<'_> {
    everything(set, 1).with("in_flight", count).expect("declared")
}

/// The set, after something of each rate was used for good, so that what is refunded and taken again does not depend on
/// a clock.
pub fn used_set(victim: &Victim) -> LimitSet {
    let set = victim.set();
    let mut permit = admitted(&set, &everything(&set, 5));
    let _ = permit.settle([("tokens", 5)]).expect("works");
    drop(permit);
    set
}

/// Takes all places, with one of them in the second permit so that it can be given back.
pub fn all_places<'a>(set: &'a LimitSet) -> [Permit<'a>; 2] {
    all_places_for(set, &Subject::of(set))
}

fn all_places_for<'a>(set: &'a LimitSet, holder: &Subject) -> [Permit<'a>; 2] {
    [PLACES - 1, 1].map(|count| {
        let outcome = holder.try_acquire(&places(set, count)).expect("works");
        outcome.into_result().expect("admitted")
    })
}

fn try_acquire_behind(victim: &Victim) {
    let set = used_set(victim);
    let request = everything(&set, 1);
    let _held = all_places(&set);
    victim.lets_others_come();
    victim.is_refused(&set, &request);
}

fn wait_in_vain(victim: &Victim, others: bool, timeout: Duration) {
    let set = used_set(victim);
    let request = everything(&set, 1);
    let _held = all_places(&set);
    if others {
        victim.lets_others_come();
    }
    let subject = Subject::of(&set);
    victim.begins();
    let outcome = subject.acquire(&request, timeout);
    victim.ends();
    victim.expects(!outcome.expect("works").is_admitted());
}

pub fn enqueue_and_leave(victim: &Victim) {
    wait_in_vain(victim, true, AT_ONCE);
}

fn enqueue_first_and_leave(victim: &Victim) {
    wait_in_vain(victim, false, AT_ONCE);
}

fn look_and_leave(victim: &Victim) {
    wait_in_vain(victim, true, LONGER_THAN_A_SLICE);
}

pub fn wait_until_served(victim: &Victim) {
    let set = used_set(victim);
    let request = everything(&set, 1);
    victim.lets_others_come();
    let subject = Subject::of(&set);
    victim.begins();
    let outcome = subject.acquire(&request, TIMEOUT);
    victim.ends();
    victim.expects(outcome.expect("works").is_admitted());
}

pub fn release_to_the_first(victim: &Victim) {
    let set = used_set(victim);
    let [_others, mut permit] = all_places(&set);
    victim.lets_others_come();
    victim.begins();
    let released = permit.release();
    victim.ends();
    released.expect("works");
}

fn settle_for_the_first(victim: &Victim) {
    let set = used_set(victim);
    let all_tokens = everything(&set, 1).with("tokens", 10_000 - 5).expect("declared");
    let mut permit = admitted(&set, &all_tokens);
    let tokens = set.limit_index("tokens").expect("declared");
    victim.lets_others_come();
    victim.begins();
    let settled = permit.settle([(tokens, 5)]).is_ok();
    victim.ends();
    assert!(settled);
}

fn reset_for_the_first(victim: &Victim) {
    let set = used_set(victim);
    let _held = take_all_tokens(&set);
    victim.lets_others_come();
    victim.begins();
    let reset = set.reset().limits(["tokens"]).run();
    victim.ends();
    reset.expect("works");
}

/// The first waiter has been granted what it waits for, and is dead.
fn recover_after_a_grant(victim: &Victim) {
    let set = used_set(victim);
    let [_others, mut permit] = all_places(&set);
    victim.lets_others_come();
    permit.release().expect("works");
    victim.lets_others_die();
    recover(victim);
}

/// The first waiters are dead.
fn recover_in_line(victim: &Victim) {
    let set = used_set(victim);
    let _held = all_places(&set);
    victim.lets_others_come();
    victim.lets_others_die();
    recover(victim);
}

fn expire(victim: &Victim) {
    let set = used_set(victim);
    let _held = all_places(&set);
    victim.lets_others_come();
    recover(victim);
}

fn recover(victim: &Victim) {
    victim.begins();
    let report = victim.recover();
    victim.ends();
    report.expect("works");
}

/// A future's first look, which takes a ticket.
pub fn begin_to_wait<'a>(set: &'a LimitSet, request: &Request<'a>) -> Pin<Box<AcquireFuture<'a>>> {
    let mut future = Box::pin(Subject::of(set).acquire_async(request, clock::patience()));
    assert!(look(&mut future).is_none());
    future
}

pub fn look<'a>(future: &mut Pin<Box<AcquireFuture<'a>>>) -> Option<Outcome<'a>> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome.expect("works")),
        Poll::Pending => None,
    }
}

fn wait_as_a_future(victim: &Victim) {
    let set = used_set(victim);
    let request = everything(&set, 1);
    let _held = all_places(&set);
    victim.lets_others_come();
    let mut future = Box::pin(Subject::of(&set).acquire_async(&request, TIMEOUT));
    victim.begins();
    let outcome = look(&mut future);
    victim.ends();
    victim.expects(outcome.is_none());
}

fn cancel_a_wait(victim: &Victim) {
    let set = used_set(victim);
    let request = everything(&set, 1);
    let _held = all_places(&set);
    let future = begin_to_wait(&set, &request);
    victim.lets_others_come();
    victim.begins();
    drop(future);
    victim.ends();
}

pub fn cancel_a_grant(victim: &Victim) {
    cancel_what_was_held_by(&Subject::of(&victim.set()), victim);
}

pub fn cancel_what_was_held_by(holder: &Subject, victim: &Victim) {
    let set = used_set(victim);
    let request = everything(&set, 1);
    let [_others, mut permit] = all_places_for(&set, holder);
    let future = begin_to_wait(&set, &request);
    victim.lets_others_come();
    permit.release().expect("works");
    victim.begins();
    drop(future);
    victim.ends();
}

/// Two places are given back: one goes to the victim, and the victim grants the other to the next waiter.
pub fn claim_a_grant(victim: &Victim) {
    let set = used_set(victim);
    let request = everything(&set, 1);
    let _others = admitted(&set, &places(&set, PLACES - 2));
    let mut permit = admitted(&set, &places(&set, 2));
    let mut future = begin_to_wait(&set, &request);
    victim.lets_others_come();
    permit.release().expect("works");
    victim.begins();
    let outcome = look(&mut future);
    victim.ends();
    victim.expects(outcome.expect("granted").is_admitted());
}

fn heartbeat(victim: &Victim) {
    let set = used_set(victim);
    let [_others, permit] = all_places(&set);
    victim.begins();
    let renewed = permit.heartbeat();
    victim.ends();
    renewed.expect("works");
}

fn release_what_ran_out(victim: &Victim) {
    let set = used_set(victim);
    let [_others, permit] = all_places(&set);
    victim.begins();
    let reclaimed = victim.recover().is_ok() && permit.reclaimed();
    victim.ends();
    victim.expects(reclaimed);
}

/// No places: they cannot be reserved.
fn rates_only() -> SetDeclaration {
    SetDeclaration::new(SET)
        .waiters(2)
        .add_limit(Limit::calls("requests", 100, YEAR))
        .add_limit(Limit::rate("tokens", 10_000, YEAR))
}

/// Reserves a token that will be there in an hour.
fn reserved(set: &LimitSet) -> Result<ReserveOutcome<'_>, shmlimit::Error> {
    everything(set, 1).reserve(Duration::from_secs(24 * 3600))
}

fn take_all_tokens(set: &LimitSet) -> Permit<'_> {
    let all_tokens = everything(set, 1).with("tokens", 10_000 - 5).expect("declared");
    admitted(set, &all_tokens)
}

fn reserve(victim: &Victim) {
    let set = used_set(victim);
    let _held = take_all_tokens(&set);
    victim.begins();
    let outcome = reserved(&set);
    victim.ends();
    victim.expects(outcome.expect("works").into_result().is_ok());
}

fn cancel_a_reservation(victim: &Victim) {
    let set = used_set(victim);
    let _held = take_all_tokens(&set);
    let mut reservation = reserved(&set).expect("works").into_result().expect("soon enough");
    victim.begins();
    let cancelled = reservation.cancel();
    victim.ends();
    victim.expects(cancelled.expect("works"));
}

const fn of_a_rate(operation: Operation) -> Operation {
    Operation {
        waits_for_a_rate: true,
        ..operation
    }
}

const fn beside(waiters: usize, name: &'static str, transactions: usize, run: fn(&Victim)) -> Operation {
    Operation {
        waiters,
        ..operation(name, places_and_rates, transactions, run)
    }
}

const fn after_deaths(dying: usize, operation: Operation) -> Operation {
    Operation { dying, ..operation }
}

pub const fn served(operation: Operation) -> Operation {
    Operation {
        is_served: true,
        // Each place that the server gives back, and what is granted because of that, unless it comes while the victim
        // is asleep.
        more_transactions: 2 * operation.waiters + 1,
        ..operation
    }
}

const fn leased(operation: Operation) -> Operation {
    Operation {
        set: leased_places_and_rates,
        ..operation
    }
}

const fn after_leases(operation: Operation) -> Operation {
    Operation {
        has_leases_run_out: true,
        ..leased(operation)
    }
}

pub const WAITING_OPERATIONS: &[Operation] = &[
    beside(1, "refused behind 1", 0, try_acquire_behind),
    beside(3, "refused behind 3", 0, try_acquire_behind),
    // The ticket, and leaving after the refusal.
    beside(0, "wait in vain, the first", 2, enqueue_first_and_leave),
    beside(1, "wait in vain behind 1", 2, enqueue_and_leave),
    beside(3, "wait in vain behind 3", 2, enqueue_and_leave),
    beside(1, "wait, look and leave, behind 1", 2, look_and_leave),
    served(beside(0, "wait and be served, the first", 3, wait_until_served)),
    served(beside(1, "wait and be served behind 1", 3, wait_until_served)),
    served(beside(3, "wait and be served behind 3", 3, wait_until_served)),
    beside(1, "wait as a future behind 1", 1, wait_as_a_future),
    beside(1, "cancel a wait, 1 behind", 1, cancel_a_wait),
    beside(3, "cancel a wait, 3 behind", 1, cancel_a_wait),
    beside(1, "cancel a grant, 1 behind", 2, cancel_a_grant),
    beside(3, "cancel a grant, 3 behind", 2, cancel_a_grant),
    beside(1, "claim a grant, 1 behind", 2, claim_a_grant),
    beside(3, "claim a grant, 3 behind", 2, claim_a_grant),
    beside(1, "release to 1 waiting", 2, release_to_the_first),
    beside(3, "release to 3 waiting", 2, release_to_the_first),
    of_a_rate(beside(
        1,
        "settle, refunding to 1 waiting",
        2,
        settle_for_the_first,
    )),
    of_a_rate(beside(
        3,
        "settle, refunding to 3 waiting",
        2,
        settle_for_the_first,
    )),
    of_a_rate(beside(1, "reset, 1 waiting", 2, reset_for_the_first)),
    of_a_rate(beside(3, "reset, 3 waiting", 2, reset_for_the_first)),
    after_deaths(
        1,
        beside(2, "recover a dead grant, 1 waiting", 2, recover_after_a_grant),
    ),
    Operation {
        // Depending on the order in which the owners are met, what comes back may first be granted to the dead, one
        // after the other.
        more_transactions: 2,
        ..after_deaths(
            3,
            beside(6, "recover a dead grant, 3 waiting", 4, recover_after_a_grant),
        )
    },
    after_deaths(
        1,
        beside(2, "recover a dead waiter, 1 waiting", 1, recover_in_line),
    ),
    after_deaths(
        3,
        beside(6, "recover 3 dead waiters, 3 waiting", 3, recover_in_line),
    ),
    operation("reserve", rates_only, 1, reserve),
    operation("cancel a reservation", rates_only, 1, cancel_a_reservation),
    leased(beside(0, "heartbeat", 0, heartbeat)),
    after_leases(beside(0, "leases run out", 2, release_what_ran_out)),
    after_leases(beside(1, "leases run out, 1 waiting", 3, expire)),
    after_leases(beside(3, "leases run out, 3 waiting", 3, expire)),
];
