//! What is true in any state, whatever was declared. None of the invariants knows how a limit counts.

use std::collections::HashMap;
use std::time::Duration;

use shmlimit::declare::{Kind, Scope};
use shmlimit::snapshot::SegmentSnapshot;
use shmlimit::{Declaration, Limit};

use super::actor::{Actor, Subject};
use super::declarations::SET;

pub type Found = Result<(), String>;

/// Features of a declaration that rule an invariant out, or weaken it.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    pub has_credit: bool,
    pub has_lease: bool,
    pub has_adaptive: bool,
}

impl Traits {
    pub fn of(declaration: &Declaration) -> Self {
        let text = declaration.to_toml().expect("valid");
        Self {
            has_credit: text.contains("credit"),
            has_lease: text.contains("lease = "),
            has_adaptive: text.contains("adaptive"),
        }
    }
}

/// A hold exists only for a permit, a batch or a granted ticket, and a ticket only for a waiter.
pub fn holds_are_permits_that_are_out(actor: &Actor, traits: Traits, snapshot: &SegmentSnapshot) -> Found {
    let set = &snapshot.sets[0];
    if set.poisoned || set.torn {
        return Err(format!("poisoned: {}, torn: {}", set.poisoned, set.torn));
    }
    if set.tickets.len() > actor.waiting.len() {
        return Err(format!(
            "{} tickets of {} that wait: {:?}",
            set.tickets.len(),
            actor.waiting.len(),
            set.tickets
        ));
    }
    if traits.has_credit {
        return Ok(());
    }
    let granted = set.tickets.iter().filter(|ticket| ticket.granted).count() as u64;
    let with_a_hold = || {
        actor
            .held
            .iter()
            .filter(|held| held.permit.fencing_number().is_some())
    };
    let out = with_a_hold().filter(|held| !held.permit.reclaimed()).count() as u64;
    // If the lease of one of several limits has run out, the rest is still held.
    let most = if traits.has_lease {
        with_a_hold().count() as u64
    } else {
        out
    };
    // A hold whose lease has run out counts as one of the dead, and is taken back by anyone who needs it.
    let (in_use, of_dead) = if traits.has_lease {
        (set.active + set.of_dead, 0)
    } else {
        (set.active, set.of_dead)
    };
    if (out..=most + granted).contains(&in_use) && of_dead == 0 {
        return Ok(());
    }
    Err(format!(
        "{} holds in use, {} of the dead; {out} to {most} permits hold something, {granted} tickets are granted",
        set.active, set.of_dead
    ))
}

/// Nothing needs repair if no process died.
pub fn recovery_finds_nothing(actor: &Actor) -> Found {
    let report = actor.segment(0).recover().map_err(|error| error.to_string())?;
    let set = &report.sets[0];
    if set.repairs.is_some() || set.problem.is_some() || set.reclaimed > 0 {
        return Err(format!("recovery found {report:?}"));
    }
    Ok(())
}

/// What is spendable of each limit, and what was counted.
pub struct Account {
    spendable: HashMap<String, u64>,
    /// What was taken, what was refunded, and the overdraft.
    counted: HashMap<String, [u64; 3]>,
}

impl Account {
    pub fn of(actor: &Actor, attacher: u8, key: u8) -> Result<Self, String> {
        let set = actor.set(attacher).map_err(|error| error.to_string())?;
        let forecast = Subject::of(&set, key).and_then(|subject| subject.forecast());
        let forecast = forecast.map_err(|error| error.to_string())?;
        let snapshot = actor
            .segment(attacher)
            .snapshot()
            .map_err(|error| error.to_string())?;
        let limits = snapshot.sets[0].limits.iter();
        Ok(Self {
            spendable: forecast
                .into_iter()
                .map(|(name, units, _)| (name, units))
                .collect(),
            counted: limits
                .map(|it| {
                    (
                        it.name.clone(),
                        [it.counts.taken, it.counts.refunded, it.counts.overdraft],
                    )
                })
                .collect(),
        })
    }

    /// Units are conserved: what was taken is no longer spendable, and has been counted, and so has what was refunded.
    pub fn became(&self, after: &Self, limit: &Limit, expected: [u64; 3], part: u64) -> Found {
        let name = limit.name();
        let (before_counts, after_counts) = (self.counted[name], after.counted[name]);
        let grown = [0, 1, 2].map(|index| after_counts[index].wrapping_sub(before_counts[index]));
        if grown != expected {
            return Err(format!(
                "{name}: taken, refunded and overdraft grew by {grown:?} and not by {expected:?}"
            ));
        }
        let [taken, refunded, overdraft] = expected;
        let (Some(before), Some(after)) = (self.spendable.get(name), after.spendable.get(name)) else {
            return Ok(());
        };
        let most = before.saturating_sub(taken + overdraft) + refunded;
        if *after > most + part {
            return Err(format!(
                "{name}: {after} spendable, of {before}, where at most {} can be left",
                most + part
            ));
        }
        if refunded + part == 0 && *after != most && limit.kind() != Kind::Budget {
            return Err(format!(
                "{name}: {after} spendable, of {before}, where {most} should be left"
            ));
        }
        Ok(())
    }
}

/// Fencing numbers only rise, even when the segment starts from another boot or from a checkpoint.
#[derive(Default)]
pub struct Fencing(HashMap<u8, u64>);

impl Fencing {
    pub fn note(&mut self, key: u8, number: u64) -> Found {
        let last = self.0.insert(key, number).unwrap_or(0);
        if number > last {
            return Ok(());
        }
        Err(format!("fencing number {number} after {last} for key {key}"))
    }
}

/// Whether all keys have the limit together.
fn is_overall(limit: &Limit) -> bool {
    limit.options().scope() == Scope::AllKeys
}

/// At an admission, no more of a concurrency limit is held than the capacity by which it was admitted.
pub fn concurrency_is_within_capacity(
    actor: &Actor,
    limits: &[Limit],
    is_shadow: impl Fn(&str) -> bool,
) -> Found {
    let Some(newest) = actor.held.last() else {
        return Ok(());
    };
    for limit in limits.iter().filter(|limit| limit.kind() == Kind::Concurrency) {
        let of = |held: &super::actor::Held| {
            let taken = held.permit.taken().find(|(name, _)| *name == limit.name());
            // A permit that was throttled has given back what it held.
            taken
                .filter(|_| held.permit.fencing_number().is_some())
                .map_or(0, |(_, units)| units)
        };
        if of(newest) == 0 || is_shadow(limit.name()) || newest.permit.reclaimed() {
            continue;
        }
        let verdict = newest
            .permit
            .verdicts()
            .find(|verdict| verdict.limit == limit.name());
        let Some(capacity) = verdict.map(|verdict| verdict.burst) else {
            continue;
        };
        let others = actor
            .held
            .iter()
            .filter(|it| it.key == newest.key || is_overall(limit))
            .filter(|it| !it.permit.reclaimed());
        let out: u64 = others.map(of).sum();
        if out > capacity {
            return Err(format!("{out} of {} are held, of {capacity}", limit.name()));
        }
    }
    Ok(())
}

/// What each limit with a bound has admitted, for as long as nothing but requests happened to it.
#[derive(Default)]
pub struct Admitted {
    log: HashMap<(u8, String), Vec<(Duration, u64)>>,
    pub is_over: bool,
}

impl Admitted {
    pub fn note(&mut self, now: Duration, key: u8, limit: &Limit, units: u64) -> Found {
        let Some(bound) = limit.bound() else { return Ok(()) };
        if self.is_over || bound.per_process > 0 || units == 0 {
            return Ok(());
        }
        let key = if is_overall(limit) { 0 } else { key };
        let log = self.log.entry((key, limit.name().to_owned())).or_default();
        log.push((now, units));
        let from = now.checked_sub(bound.span);
        let of_window = log.iter().filter(|(at, _)| from.is_none_or(|from| *at > from));
        let sum: u64 = of_window.map(|(_, units)| units).sum();
        if sum > bound.units {
            return Err(format!("{sum} of {} were admitted: {bound}", limit.name()));
        }
        Ok(())
    }
}

/// All attachers, however old, know the same limits by the same names, and count by the same rules.
pub fn attachers_agree(actor: &Actor, key: u8) -> Found {
    let seen = |attacher: usize| -> Result<String, shmlimit::Error> {
        let segment = &actor.attachers[attacher];
        let set = segment.set(SET)?;
        let subject = Subject::of(&set, key)?;
        let names: Vec<&str> = set.limits().collect();
        let rules = segment.declaration_in_force()?.to_toml()?;
        if !actor.waiting.is_empty() {
            // Waiters are served by a thread in the meantime.
            return Ok(format!("{names:?}\n{rules}"));
        }
        Ok(format!(
            "{names:?} {:?} {:?}\n{rules}",
            subject.peek(&set.request()).ok(),
            subject.forecast()?
        ))
    };
    let mut all =
        (0..actor.attachers.len()).map(|attacher| seen(attacher).map_err(|error| error.to_string()));
    let Some(first) = all.next().transpose()? else {
        return Ok(());
    };
    for other in all {
        let other = other?;
        if other != first {
            return Err(format!("attachers disagree:\n{first}\n{other}"));
        }
    }
    Ok(())
}
