//! Operations to kill, on grants that nobody claims: they lapse, and the other tickets of their process are passed
//! over, and go back to their places when the process looks. Time stands still, except when the victim lets it pass.

use std::pin::Pin;
use std::time::Duration;

use shmlimit::request::AcquireFuture;
use shmlimit::{LimitSet, Permit};

use crate::beside::bystanders::pause_for_a_moment;
use crate::beside::room::KEPT;
use crate::operations::keys;
use crate::operations::subject::Subject;
use crate::operations::waiting::{all_places, begin_to_wait, look, places_and_rates, used_set};
use crate::operations::{Operation, Victim, everything, operation};

/// After this time, a grant that was not claimed has lapsed.
const LONG_ENOUGH: Duration = KEPT.saturating_add(Duration::from_secs(1));

/// The time limit of a request, which is over before that.
const SHORT: Duration = Duration::from_secs(60);

type Waits<'a> = Pin<Box<AcquireFuture<'a>>>;

/// This many requests of the victim wait before those of others, and a place is given back: the first is granted it,
/// whichever process that belongs to.
struct Granted<'a> {
    waits: Vec<Waits<'a>>,
    /// All other places.
    held: Permit<'a>,
}

fn grant<'a>(victim: &Victim, set: &'a LimitSet, own: usize) -> Granted<'a> {
    let request = everything(set, 1);
    let [held, mut permit] = all_places(set);
    let waits = (0..own).map(|_| begin_to_wait(set, &request)).collect();
    victim.lets_others_come();
    permit.release().expect("works");
    Granted { waits, held }
}

/// The grant is undone, and what becomes free goes to the next waiter.
fn lapse(victim: &Victim, own: usize) {
    let set = used_set(victim);
    let _granted = grant(victim, &set, own);
    victim.begins();
    victim.passes(LONG_ENOUGH);
    let report = victim.recover();
    victim.ends();
    report.expect("works");
}

fn lapse_of_its_own(victim: &Victim) {
    lapse(victim, 1);
}

/// The other tickets of the same process are passed over.
fn lapse_and_pass_over(victim: &Victim) {
    lapse(victim, 3);
}

/// The place was granted to another process, which is stopped.
fn lapse_of_another(victim: &Victim) {
    lapse(victim, 0);
}

/// The grant lapses for a process that wants what was granted.
fn lapse_for_who_asks(victim: &Victim) {
    let set = used_set(victim);
    let _granted = grant(victim, &set, 0);
    let request = everything(&set, 1);
    victim.begins();
    victim.passes(LONG_ENOUGH);
    let outcome = Subject::of(&set).try_acquire(&request);
    victim.ends();
    drop(outcome.expect("works"));
}

/// Waits for less time than it takes a grant to lapse, with others behind.
fn wait_shortly<'a>(victim: &Victim, set: &'a LimitSet) -> Waits<'a> {
    let request = everything(set, 1);
    let mut future = Box::pin(Subject::of(set).acquire_async(&request, SHORT));
    assert!(look(&mut future).is_none());
    victim.lets_others_come();
    future
}

/// By then, the time of the request is over, so it is not put back into the queue.
fn lapse_at_its_deadline(victim: &Victim) {
    let set = used_set(victim);
    let [_held, mut permit] = all_places(&set);
    let _wait = wait_shortly(victim, &set);
    permit.release().expect("works");
    victim.begins();
    victim.passes(LONG_ENOUGH);
    let report = victim.recover();
    victim.ends();
    report.expect("works");
}

/// The time of the first in the queue is over when its turn comes.
fn release_after_the_deadline(victim: &Victim) {
    let set = used_set(victim);
    let [_held, mut permit] = all_places(&set);
    let _wait = wait_shortly(victim, &set);
    victim.begins();
    victim.passes(LONG_ENOUGH);
    let released = permit.release();
    victim.ends();
    released.expect("works");
}

/// What was granted to the victim has lapsed, and the next waiter has it.
fn passed_over<'a>(victim: &Victim, set: &'a LimitSet) -> Granted<'a> {
    let granted = grant(victim, set, 2);
    victim.passes(LONG_ENOUGH);
    victim.recover().expect("works");
    // The thread that sleeps for the futures was notified, and has nothing to do.
    pause_for_a_moment();
    granted
}

/// The owner looks. That is what is killed.
fn look_measured(victim: &Victim, wait: &mut Waits<'_>) {
    victim.begins();
    let outcome = look(wait);
    victim.ends();
    drop(outcome);
}

/// The ticket goes back to its place.
fn look_after_a_lapse(victim: &Victim) {
    let set = used_set(victim);
    let mut granted = passed_over(victim, &set);
    let wait = granted.waits.first_mut().expect("waits");
    look_measured(victim, wait);
}

/// The ticket goes back to its place, the last one. The first one, ahead of it, is still out of the queue.
fn look_with_the_last(victim: &Victim) {
    let set = used_set(victim);
    let mut granted = passed_over(victim, &set);
    let wait = granted.waits.last_mut().expect("waits");
    look_measured(victim, wait);
}

/// The ticket goes back to its place, and is granted what there is.
fn look_and_have_it(victim: &Victim) {
    let set = used_set(victim);
    let mut granted = passed_over(victim, &set);
    granted.held.release().expect("works");
    let wait = granted.waits.first_mut().expect("waits");
    look_measured(victim, wait);
}

fn cancel_after_a_lapse(victim: &Victim) {
    let set = used_set(victim);
    let mut granted = passed_over(victim, &set);
    let wait = granted.waits.pop();
    victim.begins();
    drop(wait);
    victim.ends();
}

const fn beside(waiters: usize, name: &'static str, transactions: usize, run: fn(&Victim)) -> Operation {
    Operation {
        waiters,
        stands_still: true,
        ..operation(name, places_and_rates, transactions, run)
    }
}

/// The first of the waiters is stopped.
const fn silent(operation: Operation) -> Operation {
    Operation {
        silent: 1,
        ..operation
    }
}

const fn keyed(operation: Operation) -> Operation {
    Operation {
        set: keys::places_and_rates,
        is_keyed: true,
        ..operation
    }
}

pub const LAPSE_OPERATIONS: &[Operation] = &[
    beside(1, "lapse of a grant, 1 waiting", 2, lapse_of_its_own),
    beside(3, "lapse of a grant, 3 waiting", 2, lapse_of_its_own),
    // The first grant is undone, two tickets are passed over, and another waiter gets the grant.
    beside(1, "lapse, and 2 passed over", 4, lapse_and_pass_over),
    silent(beside(
        2,
        "lapse of another's grant, 1 waiting",
        2,
        lapse_of_another,
    )),
    silent(beside(
        4,
        "lapse of another's grant, 3 waiting",
        2,
        lapse_of_another,
    )),
    silent(beside(2, "lapse for who asks", 2, lapse_for_who_asks)),
    beside(1, "lapse at the deadline", 2, lapse_at_its_deadline),
    // The release, the ticket whose time is over, and the next one.
    beside(
        1,
        "release after the deadline of the first",
        3,
        release_after_the_deadline,
    ),
    beside(1, "look after a lapse, 1 waiting", 1, look_after_a_lapse),
    beside(3, "look after a lapse, 3 waiting", 1, look_after_a_lapse),
    beside(1, "look after a lapse, with the last", 1, look_with_the_last),
    beside(1, "look after a lapse, and have it", 3, look_and_have_it),
    beside(1, "cancel after a lapse", 1, cancel_after_a_lapse),
    keyed(beside(1, "key, lapse of a grant", 2, lapse_of_its_own)),
    keyed(beside(1, "key, lapse, and 2 passed over", 4, lapse_and_pass_over)),
    keyed(beside(1, "key, look after a lapse", 1, look_after_a_lapse)),
];
