//! Operations to kill, on limits that hosts share: asking a store for a lease, bringing its answer into force, and both
//! in turn; and taking back places whose lease is over. If each key has such a limit: also spending what is not leased,
//! and the joining and leaving of the lists of rows that have something to report.

use std::time::Duration;

use shmlimit::declare::FleetLease;
use shmlimit::fleet::{Asked, Duty, LeaseReply, LeaseRequest};
use shmlimit::{Keyed, Limit, LimitSet, Permit, SetDeclaration};

use crate::operations::subject::Subject;
use crate::operations::{Operation, SET, Victim, YEAR, admitted, everything, operation};

/// Longer than any run takes.
pub const LEASE: Duration = Duration::from_secs(3600);

/// Units of the first grant, and how much of it is spent before the second is asked for.
const FIRST: u64 = 10;
const SPENT: u64 = 9;

/// Places of a concurrency limit.
const PLACES: u64 = 3;

/// Units of the second grant.
const SECOND: u64 = 3;

/// What must be left once the second grant is in force, whichever processes asked for it and brought it into force, and
/// the number of its request.
pub const LEFT: u64 = FIRST - SPENT + SECOND;
pub const SEQUENCE: u64 = 2;

fn shared() -> SetDeclaration {
    // So slow that what is wanted depends on what was refused, and not on how long the run takes.
    let limit = Limit::calls("requests", 1_000, YEAR);
    let limit = limit.fleet(
        FleetLease::new("org/requests")
            .lease(LEASE)
            .cold_wait(Duration::ZERO),
    );
    SetDeclaration::new(SET).waiters(2).add_limit(limit)
}

/// What a store answers: always the same to the same request.
pub fn answer(request: &LeaseRequest) -> LeaseReply {
    let granted = if request.sequence == 1 { FIRST } else { SECOND };
    LeaseReply {
        share: FIRST,
        grant_number: request.sequence,
        ..LeaseReply::granting(request, granted.min(request.wanted), LEASE)
    }
}

fn refused(set: &LimitSet, cost: u64) {
    let outcome = Subject::of(set).try_acquire(&everything(set, cost));
    assert!(!outcome.expect("works").is_admitted());
}

fn install(duty: &Duty, asked: &[Asked]) {
    for asked in asked {
        duty.install(asked, &answer(asked.request())).expect("works");
    }
}

/// Takes the duty, and spends nearly all of the first grant. More was asked for than is left.
fn nearly_spent(victim: &Victim) -> Duty {
    let set = victim.set();
    refused(&set, FIRST);
    let duty = victim.fleet().try_take_duty().expect("works").expect("free");
    install(&duty, &duty.ask().expect("works"));
    drop(admitted(&set, &everything(&set, SPENT)));
    refused(&set, FIRST - SPENT + SECOND);
    duty
}

fn ask(victim: &Victim) {
    let duty = nearly_spent(victim);
    victim.begins();
    let asked = duty.ask();
    victim.ends();
    assert_eq!(asked.expect("works").len(), 1);
}

fn bring_into_force(victim: &Victim) {
    let duty = nearly_spent(victim);
    let asked = duty.ask().expect("works");
    victim.begins();
    install(&duty, &asked);
    victim.ends();
}

fn ask_and_bring_into_force(victim: &Victim) {
    let duty = nearly_spent(victim);
    victim.begins();
    let asked = duty.ask();
    install(&duty, asked.as_deref().unwrap_or_default());
    victim.ends();
    assert_eq!(asked.expect("works").len(), 1);
}

fn shared_places() -> SetDeclaration {
    let limit = Limit::concurrency("places", PLACES).fleet(
        FleetLease::new("org/places")
            .lease(LEASE)
            .cold_wait(Duration::ZERO),
    );
    SetDeclaration::new(SET)
        .waiters(2)
        .holds(PLACES as u32)
        .add_limit(limit)
}

/// Takes back the places of two permits whose lease is over, the younger first.
fn lose_places(victim: &Victim) {
    let set = victim.set();
    refused(&set, 2);
    let duty = victim.fleet().try_take_duty().expect("works").expect("free");
    let asked = duty.ask().expect("works").remove(0);
    let reply = LeaseReply {
        granted: 2,
        remaining: Duration::from_millis(200),
        ..answer(asked.request())
    };
    duty.install(&asked, &reply).expect("works");
    let request = everything(&set, 1);
    let permits = [admitted(&set, &request), admitted(&set, &request)];
    while !permits.iter().all(Permit::reclaimed) {
        std::hint::spin_loop();
    }
    victim.begins();
    let outcome = Subject::of(&set).try_acquire(&request);
    victim.ends();
    assert!(!outcome.expect("works").is_admitted());
}

/// Keys in a table of one bucket. Time stands still, so what is wanted depends only on what was refused.
fn shared_by_key() -> SetDeclaration {
    let limit = Limit::calls("requests", 1_000, YEAR);
    let fleet = FleetLease::new("org/requests").lease(LEASE);
    SetDeclaration::new(SET)
        .waiters(2)
        .keyed(Keyed::new(20))
        .add_limit(limit.fleet(fleet.cold_wait(Duration::ZERO)))
}

/// What a store answers for a key: whatever is wanted, so nothing is leased of a key that only has something to report.
pub fn answer_for_key(request: &LeaseRequest) -> LeaseReply {
    LeaseReply {
        granted: request.wanted,
        ..answer(request)
    }
}

fn install_for_keys(duty: &Duty, asked: &[Asked]) {
    for asked in asked {
        duty.install(asked, &answer_for_key(asked.request()))
            .expect("works");
    }
}

/// After this time, the process on duty looks at keys that have something to report.
const GATHERED: Duration = Duration::from_millis(600);

fn has_duty(victim: &Victim) -> Duty {
    victim.fleet().try_take_duty().expect("works").expect("free")
}

/// What is spent is reported and answered, all rows leave the lists, and the next request may be made at once.
fn all_is_said(victim: &Victim, duty: &Duty) {
    victim.passes(GATHERED);
    install_for_keys(duty, &duty.ask().expect("works"));
    victim.passes(LEASE);
    assert!(duty.ask().expect("works").is_empty());
}

/// The first unit of a key is spent without being leased, and more was asked for than may be spent unleased.
fn wants_more(victim: &Victim) -> Duty {
    let set = victim.set();
    drop(admitted(&set, &everything(&set, 1)));
    refused(&set, SECOND);
    has_duty(victim)
}

/// Spends before the process on duty looks at the key.
fn spend_for_a_key(victim: &Victim) {
    let set = victim.set();
    victim.is_admitted(&set, &everything(&set, 1));
}

fn spend_a_second_for_a_key(victim: &Victim) {
    let set = victim.set();
    let duty = has_duty(victim);
    drop(admitted(&set, &everything(&set, 1)));
    all_is_said(victim, &duty);
    victim.is_admitted(&set, &everything(&set, 1));
}

/// Wants what was refused, without the lock.
fn want_for_a_key(victim: &Victim) {
    let set = victim.set();
    drop(admitted(&set, &everything(&set, 1)));
    victim.is_refused(&set, &everything(&set, SECOND));
}

fn ask_for_a_key(victim: &Victim) {
    let duty = wants_more(victim);
    victim.begins();
    let asked = duty.ask();
    victim.ends();
    assert_eq!(asked.expect("works").len(), 1);
}

fn report_for_keys(victim: &Victim) {
    let set = victim.set();
    let duty = has_duty(victim);
    for key in ["one", "another"] {
        let outcome = Subject::key(key).try_acquire(&everything(&set, 1));
        assert!(outcome.expect("works").is_admitted());
    }
    victim.passes(GATHERED);
    victim.begins();
    let asked = duty.ask();
    install_for_keys(&duty, asked.as_deref().unwrap_or_default());
    victim.ends();
    assert_eq!(asked.expect("works").len(), 2);
}

fn bring_into_force_for_a_key(victim: &Victim) {
    let duty = wants_more(victim);
    let asked = duty.ask().expect("works");
    victim.begins();
    install_for_keys(&duty, &asked);
    victim.ends();
}

fn ask_and_bring_into_force_for_a_key(victim: &Victim) {
    let duty = wants_more(victim);
    victim.begins();
    let asked = duty.ask();
    install_for_keys(&duty, asked.as_deref().unwrap_or_default());
    victim.ends();
    assert_eq!(asked.expect("works").len(), 1);
}

/// Nothing more is due, so the row leaves the lists.
fn leave_the_lists(victim: &Victim) {
    let set = victim.set();
    let duty = has_duty(victim);
    drop(admitted(&set, &everything(&set, 1)));
    victim.passes(GATHERED);
    install_for_keys(&duty, &duty.ask().expect("works"));
    victim.passes(GATHERED);
    victim.begins();
    let asked = duty.ask();
    victim.ends();
    assert!(asked.expect("works").is_empty());
}

/// The permit is settled after its row has left the lists.
fn settle_for_a_key(victim: &Victim) {
    let set = victim.set();
    let duty = has_duty(victim);
    let mut permit = admitted(&set, &everything(&set, 1));
    all_is_said(victim, &duty);
    victim.begins();
    let settled = permit.settle([("requests", 5)]).is_ok();
    victim.ends();
    assert!(settled);
}

/// All rows are in use and have nothing left to report, and one of them is given to another key.
fn give_a_row_to_another_key(victim: &Victim) {
    const BUCKET_ROWS: usize = 32;
    let set = victim.set();
    let duty = has_duty(victim);
    for number in 0..BUCKET_ROWS {
        let outcome = Subject::key(&format!("other {number}")).try_acquire(&everything(&set, 1));
        assert!(outcome.expect("works").is_admitted());
    }
    assert_eq!(victim.keys(), BUCKET_ROWS as u64, "no row is unused");
    all_is_said(victim, &duty);
    victim.is_admitted(&set, &everything(&set, 1));
}

/// Places that each key has for itself.
fn shared_places_by_key() -> SetDeclaration {
    let limit = Limit::concurrency("places", PLACES);
    let fleet = FleetLease::new("org/places").lease(LEASE);
    SetDeclaration::new(SET)
        .waiters(2)
        .holds(PLACES as u32)
        .keyed(Keyed::new(20))
        .add_limit(limit.fleet(fleet.cold_wait(Duration::ZERO)))
}

/// Takes the duty, and has two places of the key leased for this long.
fn places_are_leased(victim: &Victim, remaining: Duration) -> Duty {
    refused(&victim.set(), 2);
    let duty = has_duty(victim);
    let asked = duty.ask().expect("works").remove(0);
    let reply = LeaseReply {
        granted: 2,
        remaining,
        ..answer(asked.request())
    };
    duty.install(&asked, &reply).expect("works");
    duty
}

fn ask_for_places_of_a_key(victim: &Victim) {
    refused(&victim.set(), 2);
    let duty = has_duty(victim);
    victim.begins();
    let asked = duty.ask();
    install_for_keys(&duty, asked.as_deref().unwrap_or_default());
    victim.ends();
    assert_eq!(asked.expect("works").len(), 1);
}

fn take_a_place_of_a_key(victim: &Victim) {
    let set = victim.set();
    let _duty = places_are_leased(victim, LEASE);
    victim.is_admitted(&set, &everything(&set, 1));
}

fn renew_places_of_a_key(victim: &Victim) {
    let set = victim.set();
    let duty = places_are_leased(victim, LEASE);
    let _permit = admitted(&set, &everything(&set, 1));
    victim.passes(LEASE / 2);
    victim.begins();
    let asked = duty.ask();
    install_for_keys(&duty, asked.as_deref().unwrap_or_default());
    victim.ends();
    assert_eq!(asked.expect("works").len(), 1);
}

/// The next process that looks for what to ask takes back the places of two permits whose lease is over, the younger
/// first.
fn lose_places_of_a_key(victim: &Victim) {
    let set = victim.set();
    let duty = places_are_leased(victim, GATHERED);
    let request = everything(&set, 1);
    let permits = [admitted(&set, &request), admitted(&set, &request)];
    victim.passes(2 * GATHERED);
    assert!(permits.iter().all(Permit::reclaimed));
    victim.begins();
    let asked = duty.ask();
    victim.ends();
    assert!(asked.is_ok());
}

/// As [`leased_by_key`], for places.
const fn places_by_key(name: &'static str, transactions: usize, run: fn(&Victim)) -> Operation {
    Operation {
        set: shared_places_by_key,
        ..leased_by_key(name, transactions, run)
    }
}

/// As [`leased`], for a limit that each key has for itself.
const fn leased_by_key(name: &'static str, transactions: usize, run: fn(&Victim)) -> Operation {
    Operation {
        is_leased: true,
        is_keyed: true,
        stands_still: true,
        ..operation(name, shared_by_key, transactions, run)
    }
}

/// As [`operation`], for a limit that hosts share.
const fn leased(name: &'static str, transactions: usize, run: fn(&Victim)) -> Operation {
    Operation {
        is_leased: true,
        ..operation(name, shared, transactions, run)
    }
}

pub const LEASE_OPERATIONS: &[Operation] = &[
    leased("lease, ask", 1, ask),
    leased("lease, bring into force", 1, bring_into_force),
    leased("lease, ask and bring into force", 2, ask_and_bring_into_force),
    Operation {
        is_leased: true,
        ..operation("lease, lose places", shared_places, 2, lose_places)
    },
    // The record of the row begins, the key gets the row, and the unit is spent.
    leased_by_key("lease of a key, spend the first unit", 3, spend_for_a_key),
    leased_by_key(
        "lease of a key, spend the second unit",
        1,
        spend_a_second_for_a_key,
    ),
    leased_by_key("lease of a key, want more", 0, want_for_a_key),
    leased_by_key("lease of a key, ask", 1, ask_for_a_key),
    leased_by_key("lease of a key, bring into force", 1, bring_into_force_for_a_key),
    leased_by_key(
        "lease of a key, ask and answer",
        2,
        ask_and_bring_into_force_for_a_key,
    ),
    leased_by_key("lease of keys, report", 4, report_for_keys),
    leased_by_key("lease of a key, leave the lists", 1, leave_the_lists),
    leased_by_key("lease of a key, settle", 1, settle_for_a_key),
    leased_by_key("lease of a key, give its row away", 3, give_a_row_to_another_key),
    places_by_key("places of a key, ask and answer", 2, ask_for_places_of_a_key),
    places_by_key("places of a key, take one", 1, take_a_place_of_a_key),
    places_by_key("places of a key, renew", 2, renew_places_of_a_key),
    places_by_key("places of a key, lose", 4, lose_places_of_a_key),
];
