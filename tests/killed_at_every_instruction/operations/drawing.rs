//! Operations to kill, on sets with credit: batches are drawn, spent from and drawn anew, and permits from them are
//! settled.

use shmlimit::declare::Credit;
use shmlimit::{Keyed, Limit, LimitSet, SetDeclaration};

use crate::operations::subject::Subject;
use crate::operations::{Operation, SET, Victim, YEAR, admitted, everything, operation};

/// Units of a batch. A request that costs as much is charged to the limit itself.
pub const BATCH: u64 = 8;

fn one_limit() -> SetDeclaration {
    let limit = Limit::rate("tokens", 100, YEAR).credit(Credit::batch(BATCH));
    SetDeclaration::new(SET).waiters(2).holds(4).add_limit(limit)
}

/// A batch is as large as a declared one at first, and smaller later: a request that costs as much is charged to the
/// limit itself.
fn one_automatic_limit() -> SetDeclaration {
    automatic_limit(16 * BATCH)
}

fn another_automatic_limit() -> SetDeclaration {
    automatic_limit(32 * BATCH)
}

fn automatic_limit(capacity: u64) -> SetDeclaration {
    let limit = Limit::rate("tokens", capacity, YEAR).credit(Credit::auto());
    SetDeclaration::new(SET).waiters(2).holds(4).add_limit(limit)
}

fn one_limit_by_key() -> SetDeclaration {
    one_limit().keyed(Keyed::new(20))
}

/// Takes units of the process's first batch, which starts the background worker that is notified of batches.
fn take(set: &LimitSet, cost: u64) {
    std::mem::forget(admitted(set, &everything(set, cost)));
}

fn ask(victim: &Victim, set: &LimitSet, cost: u64) {
    let request = everything(set, cost);
    let subject = Subject::of(set);
    victim.begins();
    let outcome = subject.try_acquire(&request);
    victim.ends();
    let outcome = outcome.expect("works");
    assert!(outcome.is_admitted());
    std::mem::forget(outcome);
}

/// The previous batch is used up, and its hold records the next one.
fn draw(victim: &Victim) {
    let set = victim.set();
    take(&set, BATCH - 1);
    take(&set, 1);
    ask(victim, &set, 3);
}

/// What is left of the previous batch is taken back first.
fn draw_anew(victim: &Victim) {
    let set = victim.set();
    take(&set, BATCH - 2);
    ask(victim, &set, 5);
}

fn spend(victim: &Victim) {
    let set = victim.set();
    take(&set, 1);
    ask(victim, &set, 3);
}

/// Another key has a batch already.
fn draw_by_key(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 1);
    let other = Subject::key("other").try_acquire(&request);
    std::mem::forget(other.expect("works"));
    ask(victim, &set, 3);
}

/// Takes the batch back, then migrates the limit, then notes the definition. Nothing is left of the batch.
fn change_automatic(victim: &Victim) {
    let set = victim.set();
    take(&set, BATCH - 1);
    take(&set, 1);
    victim.apply(another_automatic_limit());
}

/// As [`change_automatic`], with units that are left of the batch.
fn change_with_units_left(victim: &Victim) {
    let set = victim.set();
    take(&set, 3);
    victim.apply(another_automatic_limit());
}

/// Settles a permit from a batch, of which `more` is taken first.
fn settle_after(victim: &Victim, more: &[u64]) {
    let set = victim.set();
    let mut permit = admitted(&set, &everything(&set, 6));
    for cost in more {
        take(&set, *cost);
    }
    let tokens = set.limit_index("tokens").expect("declared");
    victim.begins();
    let settled = permit.settle([(tokens, 2)]).is_ok();
    victim.ends();
    assert!(settled);
    std::mem::forget(permit);
}

fn settle_into_its_batch(victim: &Victim) {
    settle_after(victim, &[]);
}

fn settle_after_its_batch(victim: &Victim) {
    settle_after(victim, &[2, 3]);
}

/// An operation of a process that draws.
const fn drawing(operation: Operation) -> Operation {
    Operation {
        draws: true,
        ..operation
    }
}

pub const DRAWING_OPERATIONS: &[Operation] = &[
    drawing(operation("batch, draw", one_limit, 1, draw)),
    // First what is taken back, then the draw.
    drawing(operation("batch, draw anew", one_limit, 2, draw_anew)),
    drawing(operation("batch, spend", one_limit, 0, spend)),
    drawing(operation("automatic batch, draw", one_automatic_limit, 1, draw)),
    drawing(operation(
        "automatic batch, draw anew",
        one_automatic_limit,
        2,
        draw_anew,
    )),
    drawing(operation("automatic batch, spend", one_automatic_limit, 0, spend)),
    Operation {
        applies: true,
        // The limit, and then the generation: what is counted is not journalled.
        ..drawing(operation(
            "automatic batch, change",
            one_automatic_limit,
            2,
            change_automatic,
        ))
    },
    Operation {
        applies: true,
        // Before these, what is left goes back.
        ..drawing(operation(
            "automatic batch, change with units left",
            one_automatic_limit,
            3,
            change_with_units_left,
        ))
    },
    drawing(operation(
        "batch, settle into it",
        one_limit,
        1,
        settle_into_its_batch,
    )),
    drawing(operation(
        "batch, settle after it",
        one_limit,
        1,
        settle_after_its_batch,
    )),
    Operation {
        is_keyed: true,
        // First the row, then the draw.
        ..drawing(operation("batch, draw by key", one_limit_by_key, 2, draw_by_key))
    },
];
