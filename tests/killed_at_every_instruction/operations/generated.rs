//! Operations to kill that nobody has thought of: the operations, their declarations, and some operations that come
//! before them are all generated. They are those of `tests/generated`, by seeds that are always the same.

use std::time::Duration;

use fastrand::Rng;
use shmlimit::{Declaration, Error, SetDeclaration};

use self::actor::Actor;
use self::declarations::{Lengths, declaration};
pub use self::operations::LABEL;
use self::operations::{Driver, Operation as Verb, Operations, Step};
use crate::operations::{Operation, Victim, operation};

#[path = "../../generated/actor.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod actor;
#[path = "../../generated/declarations.rs"]
mod declarations;
#[allow(dead_code, reason = "as of the actor")]
#[path = "../../generated/operations.rs"]
mod operations;

/// How many are tried, and how many if nothing is left out.
const SEEDS: u64 = 40;
const ALL_SEEDS: u64 = 400;

/// The most operations that come before the one that is killed.
const MAX_BEFORE: usize = 14;

struct Generated {
    declaration: Declaration,
    before: Vec<Step>,
    last: Step,
}

impl Generated {
    fn of(seed: u64) -> Self {
        let mut dice = Rng::with_seed(seed);
        let declaration = loop {
            let declaration = declaration(&mut dice, Lengths::Any);
            if is_tried(&declaration) {
                break declaration;
            }
        };
        let mut operations = Operations::of(&declaration, Driver::Alone);
        let count = dice.usize(..=MAX_BEFORE);
        let before = std::iter::repeat_with(|| operations.step(&mut dice)).take(count);
        let before = before.collect();
        let last = loop {
            let step = operations.step(&mut dice);
            if changes_something(&step.operation) {
                break step;
            }
        };
        Self {
            declaration,
            before,
            last,
        }
    }

    fn is_keyed(&self) -> bool {
        self.declaration.to_toml().expect("valid").contains("keyed")
    }

    fn set(&self) -> SetDeclaration {
        self.declaration.sets()[0].clone()
    }
}

/// Batches are spent without transactions, a capacity that is found changes by itself, and networks are not keys: the
/// listed operations take care of these.
fn is_tried(declaration: &Declaration) -> bool {
    let text = declaration.to_toml().expect("valid");
    !["credit", "adaptive", "prefix"]
        .iter()
        .any(|word| text.contains(word))
}

/// Whether killing the operation is of use. Reading a definition takes too long, and a rebuild is begun anew by the
/// next process.
fn changes_something(verb: &Verb) -> bool {
    !matches!(
        verb,
        Verb::Pass(_)
            | Verb::Neglect(_)
            | Verb::Reattach
            | Verb::Reboot
            | Verb::Restore
            | Verb::Rebuild
            | Verb::Apply(_)
            | Verb::Peek(_)
            | Verb::Forecast
    )
}

/// Whether no operation may end with this error.
fn must_not_be(error: &Error) -> bool {
    matches!(error, Error::Segment(_) | Error::Open(_))
}

fn check(step: &Step, result: Result<(), Error>) {
    if let Err(error) = result
        && must_not_be(&error)
    {
        panic!("{step:?}: {error}");
    }
}

/// Performs what a seed has generated; the last of it is the operation that is killed.
pub fn perform(seed: u64, victim: &Victim) {
    let generated = Generated::of(seed);
    let segment = victim.segment().clone();
    let mut actor = Actor::new(
        victim.path(),
        victim.options(),
        vec![segment],
        &generated.declaration,
    );
    for step in &generated.before {
        match &step.operation {
            Verb::Pass(micros) => victim.passes(Duration::from_micros(*micros)),
            Verb::Reboot | Verb::Restore => {}
            _ => {
                check(step, actor.perform(step).map(drop));
                check(step, actor.poll());
            }
        }
    }
    let last = &generated.last;
    victim.begins();
    let result = actor.perform(last).map(drop);
    victim.ends();
    check(last, result);
    // It dies with everything that it has.
    std::mem::forget(actor);
}

pub fn set(seed: u64) -> SetDeclaration {
    Generated::of(seed).set()
}

fn not_listed() -> SetDeclaration {
    unreachable!("the set of a generated operation is of its seed")
}

fn by_its_seed(victim: &Victim) {
    let _ = victim;
    unreachable!("a generated operation is of its seed");
}

/// The operations of all seeds, few enough to leak their names.
pub fn generated_operations(is_thorough: bool) -> Vec<Operation> {
    let seeds = if is_thorough { ALL_SEEDS } else { SEEDS };
    let named = (0..seeds).map(|seed| {
        let generated = Generated::of(seed);
        let verb = format!("{:?}", generated.last.operation);
        let verb = verb
            .split(|it: char| !it.is_alphanumeric())
            .next()
            .unwrap_or_default()
            .to_owned();
        let name: &'static str = format!("generated {seed}: {verb}").leak();
        Operation {
            seed: Some(seed),
            stands_still: true,
            is_keyed: generated.is_keyed(),
            ..operation(name, not_listed, 0, by_its_seed)
        }
    });
    named.collect()
}
