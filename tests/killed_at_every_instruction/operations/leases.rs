//! What is killed of limits that hosts share: asking a store for a lease, bringing its answer into force, and between them;
//! and taking places back that are leased no more.

use std::time::Duration;

use shmlimit::declare::FleetLease;
use shmlimit::fleet::{Asked, Duty, LeaseReply, LeaseRequest};
use shmlimit::{Limit, LimitSet, Permit, SetDeclaration};

use crate::operations::subject::Subject;
use crate::operations::{Operation, SET, Victim, YEAR, admitted, everything, operation};

/// Longer than any run takes.
const LEASE: Duration = Duration::from_secs(3600);

/// Units of the first grant, and of what is spent of it before the second is asked for.
const FIRST: u64 = 10;
const SPENT: u64 = 9;

/// Of a concurrency limit.
const PLACES: u64 = 3;

/// Units of the second.
const SECOND: u64 = 3;

/// What must be left once the second is in force, by whichever process it was asked for and brought into force, and the number
/// of its request.
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

/// What a store answers: the same to the same request.
pub fn answer(request: &LeaseRequest) -> LeaseReply {
    let granted = if request.sequence == 1 { FIRST } else { SECOND };
    LeaseReply {
        sequence: request.sequence,
        granted: granted.min(request.wanted),
        remaining: LEASE,
        share: FIRST,
        grant_number: request.sequence,
        drained_in: Duration::ZERO,
        ceiling: u64::MAX,
        hosts: 1,
        quarantine: Duration::ZERO,
        available: 0,
        free_in: Duration::ZERO,
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

/// Has duty, and has spent nearly all of the first grant; more was asked for than is left.
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

/// As [`operation`], of a limit that hosts share.
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
];
