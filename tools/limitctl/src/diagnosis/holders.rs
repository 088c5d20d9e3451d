//! Findings about the attached processes, and about what they hold.

use std::collections::BTreeMap;

use shmlimit::snapshot::{HoldSnapshot, ParticipantSnapshot, ProcessId, SetSnapshot};

use super::condition::Condition;
use super::finding::Finding;
use super::look::Look;
use super::remedy::Remedies;
use crate::text::{human, process};

pub fn findings(look: &Look, remedies: &Remedies) -> Vec<Finding> {
    let participants = &look.snapshot().participants;
    let dead = participants
        .iter()
        .filter(|it| !it.alive)
        .map(|it| dead(look, it, remedies));
    let of_sets = look
        .snapshot()
        .sets
        .iter()
        .flat_map(|set| of_set(look, set, remedies));
    let stopped = participants
        .iter()
        .filter(|it| it.alive)
        .filter_map(|it| stopped(look, it));
    dead.chain(no_room(look)).chain(stopped).chain(of_sets).collect()
}

fn dead(look: &Look, participant: &ParticipantSnapshot, remedies: &Remedies) -> Finding {
    let is_its = |slot: Option<u64>| slot == Some(participant.slot);
    let left_something = look.snapshot().sets.iter().any(|set| {
        set.holds.iter().any(|hold| is_its(hold.owner_slot))
            || set.tickets.iter().any(|ticket| is_its(ticket.owner_slot))
    });
    let what = format!(
        "process {} ({}) died attached",
        process::attached(participant),
        participant.name
    );
    // A worker that is ended by a signal, as when a service is stopped, closes nothing. That is no reason to wake
    // anyone.
    let finding = if left_something {
        Finding::warning(
            Condition::ParticipantDead,
            what,
            "what it held is given back to those who need it, and its place in the table is the next process's",
        )
    } else {
        Finding::note(
            Condition::ParticipantDead,
            what,
            "it has no permit and waits for none, as when a signal ends an idle worker; its place in the table is the next process's",
        )
    };
    finding
        .of_process(Some(participant.pid))
        .twice(format!("{} {}", participant.slot, participant.generation))
        .healed_by(remedies.recover())
}

fn no_room(look: &Look) -> Option<Finding> {
    let alive = look.snapshot().participants.iter().filter(|it| it.alive).count() as u64;
    let capacity = look.snapshot().participant_capacity;
    (alive >= capacity).then(|| {
        let finding = Finding::error(Condition::ParticipantsFull,
            format!("all {capacity} places for processes are taken by live ones"),
            "the next process that opens it is refused; a segment with more places is another file, with a declaration of its own",
        );
        finding
            .twice("")
            .healed_by(format!("limitctl create --participants {} NEW FILE", 2 * capacity))
    })
}

/// The finding for a process that is stopped while others may need what it holds.
fn stopped(look: &Look, participant: &ParticipantSnapshot) -> Option<Finding> {
    let (state, heal) = look.processes.standstill_of(process::attached(participant))?;
    let is_its = |slot: Option<u64>| slot == Some(participant.slot);
    let sets = || look.snapshot().sets.iter();
    let holds = sets()
        .flat_map(|set| &set.holds)
        .filter(|it| is_its(it.owner_slot))
        .count() as u64;
    if holds == 0 {
        return None;
    }
    let finding = Finding::warning(
        Condition::HolderStopped,
        format!(
            "{} is {state}, and holds {}",
            look.process(process::attached(participant)),
            human::quantity(holds, "permit", "permits")
        ),
        "what it holds stays taken until it goes on or dies, or a lease ends",
    );
    Some(finding.of_process(Some(participant.pid)).healed_by(heal))
}

/// Findings about holds that their processes will not give back themselves, grouped by process.
fn of_set(look: &Look, set: &SetSnapshot, remedies: &Remedies) -> Vec<Finding> {
    let mut found: BTreeMap<(Kind, Option<ProcessId>), Vec<&HoldSnapshot>> = BTreeMap::new();
    for hold in &set.holds {
        if let Some(kind) = Kind::of(hold) {
            found
                .entry((kind, process::of_hold(hold)))
                .or_default()
                .push(hold);
        }
    }
    found
        .into_iter()
        .map(|((kind, owner), holds)| {
            let whose = owner.map_or_else(
                || "a process that is gone".to_owned(),
                |owner| look.process(owner),
            );
            let finding = kind.finding(&holds, &whose);
            // The oldest hold identifies the finding.
            let first = holds.iter().map(|hold| hold.serial).min().unwrap_or(0);
            finding
                .of_set(&set.name)
                .of_process(owner.map(|owner| owner.pid))
                .twice(first.to_string())
                .healed_by(remedies.recover())
        })
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    OfDead,
    Returned,
    LeaseOver,
}

impl Kind {
    fn of(hold: &HoldSnapshot) -> Option<Self> {
        match hold {
            hold if hold.returned => Some(Self::Returned),
            hold if !hold.owner_alive => Some(Self::OfDead),
            hold if hold.lease_over_for.is_some() => Some(Self::LeaseOver),
            _ => None,
        }
    }

    fn finding(self, holds: &[&HoldSnapshot], owner: &str) -> Finding {
        let count = human::quantity(holds.len() as u64, "permit", "permits");
        match self {
            Self::OfDead => Finding::warning(
                Condition::HeldByTheDead,
                format!("{count} of {owner}, which is dead, are still held"),
                "they are given back to the next process that needs them, and count as free where limits are looked at",
            ),
            Self::Returned => Finding::warning(
                Condition::ReturnedUnfinished,
                format!(
                    "{count} of {owner} were given back while another process kept the lock, which nothing has finished yet"
                ),
                "they are free as soon as any process has the lock; see who keeps it",
            ),
            Self::LeaseOver => {
                let longest = holds
                    .iter()
                    .filter_map(|hold| hold.lease_over_for)
                    .max()
                    .unwrap_or_default();
                Finding::warning(
                    Condition::LeaseOver,
                    format!(
                        "{count} of {owner} are held for longer than their lease, by {} at most",
                        human::duration(longest)
                    ),
                    "the process hangs, or does not renew its leases; what they cover is given to the next request that needs it",
                )
            }
        }
    }
}
