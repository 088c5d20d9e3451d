//! Operations to kill, on giving back without the lock: leaving a mark on what a permit held, giving up a ticket, and
//! finishing either. The victim keeps the lock from itself, as another process that is stopped would: so everything
//! that others find was done without it.
#![allow(unsafe_code, reason = "takes the lock of a segment beside the library")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::libc;
use shmlimit::request::AcquireFuture;
use shmlimit::{Limit, LimitSet, Permit, SetDeclaration};

use crate::beside::bystanders::TIMEOUT;
use crate::operations::subject::Subject;
use crate::operations::{Operation, SET, Victim, YEAR, admitted, everything, operation};
use crate::state::image::{Layout, RawFile};
use crate::stepping::tracee::address_in;

const PLACES: u64 = 3;

fn places_and_rates() -> SetDeclaration {
    with_places(Limit::concurrency("in_flight", PLACES).lease(Duration::from_secs(24 * 3600)))
}

/// For a victim that is first in a queue. If a lease could run out for it, the process that recovers the lock would
/// wake it, unless it had woken another a moment ago, and would take back everything that it held once it is found
/// dead: a third state, depending on chance.
fn places_without_leases_and_rates() -> SetDeclaration {
    with_places(Limit::concurrency("in_flight", PLACES))
}

fn with_places(places: Limit) -> SetDeclaration {
    SetDeclaration::new(SET)
        .waiters(2)
        .holds(4)
        .add_limit(places)
        .add_limit(Limit::calls("requests", 100, YEAR))
        .add_limit(Limit::rate("tokens", 10_000, YEAR))
}

/// The lock of the victim's set, in any mapping of it: the library may use it in another.
struct OwnLock {
    mutex: *mut libc::pthread_mutex_t,
    /// The word of its holder, if it is a slot lock.
    slot: Option<u64>,
}

impl OwnLock {
    fn of(victim: &Victim) -> Self {
        let path = victim.path();
        let file = RawFile::open(path);
        let layout = Layout::of(&file);
        let slot = layout.own_slot_lock(std::process::id(), &file);
        // This mapping is only temporary, so it must be gone before a lasting one is looked for.
        drop(file);
        let address = usize::try_from(address_in("self", path)).expect("64 bits") + layout.lock_offset();
        Self {
            mutex: std::ptr::with_exposed_provenance_mut(address),
            slot,
        }
    }

    fn keep_from_everybody(&self, act: impl FnOnce()) {
        if let Some(own) = self.slot {
            // SAFETY: the library has a word there, mapped for as long as the victim is attached, and uses it as an
            // atomic.
            let word = unsafe { &*self.mutex.cast::<AtomicU64>() };
            let taken = word.compare_exchange(0, own, Ordering::AcqRel, Ordering::Relaxed);
            assert_eq!(taken, Ok(0), "it is free");
            act();
            // A waiter that is asleep on it wakes up by itself to check again.
            word.store(0, Ordering::Release);
            return;
        }
        // SAFETY: the library has a mutex there, mapped for as long as the victim is attached.
        assert_eq!(unsafe { libc::pthread_mutex_lock(self.mutex) }, 0);
        act();
        // SAFETY: this thread took it above.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(self.mutex) }, 0);
    }
}

/// Gives back without the lock, and then looks at the set, which finishes what was begun.
fn give_back(victim: &Victim, set: &LimitSet, act: impl FnOnce()) {
    let lock = OwnLock::of(victim);
    let request = everything(set, 0);
    let subject = Subject::of(set);
    victim.begins();
    lock.keep_from_everybody(act);
    let verdicts = subject.peek(&request).map(|verdicts| verdicts.len());
    victim.ends();
    verdicts.expect("works");
}

fn settled(set: &LimitSet) -> Permit<'_> {
    let mut permit = admitted(set, &everything(set, 2));
    let _ = permit.settle([("tokens", 1)]).expect("works");
    permit
}

fn release_without_the_lock(victim: &Victim) {
    let set = victim.set();
    let mut permit = settled(&set);
    give_back(victim, &set, || permit.release().expect("never fails"));
}

/// What was reserved and not settled stays charged.
fn drop_without_the_lock(victim: &Victim) {
    let set = victim.set();
    let permit = admitted(&set, &everything(&set, 5));
    give_back(victim, &set, || drop(permit));
}

fn renew_without_the_lock(victim: &Victim) {
    let set = victim.set();
    let permit = settled(&set);
    give_back(victim, &set, || permit.heartbeat().expect("takes no lock"));
}

fn wait<'a>(set: &'a LimitSet, held: &Permit<'_>) -> std::pin::Pin<Box<AcquireFuture<'a>>> {
    use std::future::Future;
    use std::task::{Context, Waker};
    assert!(held.fencing_number().is_some());
    let mut future = Box::pin(Subject::of(set).acquire_async(&everything(set, 1), TIMEOUT));
    let answer = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(answer.is_pending());
    future
}

fn give_a_wait_up(victim: &Victim) {
    let set = victim.set();
    let all = admitted(
        &set,
        &everything(&set, 1).with("in_flight", PLACES).expect("declared"),
    );
    let future = wait(&set, &all);
    give_back(victim, &set, || drop(future));
}

fn give_a_grant_up(victim: &Victim) {
    let set = victim.set();
    let mut all = admitted(
        &set,
        &everything(&set, 1).with("in_flight", PLACES).expect("declared"),
    );
    let future = wait(&set, &all);
    all.release().expect("works");
    give_back(victim, &set, || drop(future));
}

pub const MARKING_OPERATIONS: &[Operation] = &[
    operation(
        "release without the lock",
        places_and_rates,
        1,
        release_without_the_lock,
    ),
    operation(
        "drop of a permit without the lock",
        places_and_rates,
        1,
        drop_without_the_lock,
    ),
    operation(
        "heartbeat without the lock",
        places_and_rates,
        0,
        renew_without_the_lock,
    ),
    operation(
        "give a wait up without the lock",
        places_without_leases_and_rates,
        1,
        give_a_wait_up,
    ),
    operation(
        "give a grant up without the lock",
        places_and_rates,
        1,
        give_a_grant_up,
    ),
];
