//! Queues that do not move: who waits behind the dead, behind a stopped process, or for nothing.

use std::collections::HashMap;

use shmlimit::{KeyLabel, SetSnapshot, TicketSnapshot};

use super::finding::{Finding, Severity};
use super::locks::NEVER_SO_LONG;
use super::process::{Activity, activity};
use super::remedy::{Remedies, go_on};
use super::segment::Look;
use crate::text::human;

pub fn findings(look: &Look, remedies: &Remedies) -> Vec<Finding> {
    let sets = look.snapshot.sets.iter();
    sets.flat_map(|set| {
        let mut found = left_behind(look, set, remedies);
        found.extend(standing(look, set, remedies));
        found
    })
    .collect()
}

/// Tickets without a process that waits.
fn left_behind(look: &Look, set: &SetSnapshot, remedies: &Remedies) -> Vec<Finding> {
    let tickets = set.tickets.iter();
    tickets
        .filter_map(|ticket| {
            let (kind, whose) = match (ticket.owner_slot, ticket.owner_pid) {
                (None, _) => (
                    "ticket_given_up",
                    "was given up while another process kept the lock".to_owned(),
                ),
                (Some(_), _) if ticket.owner_alive => return None,
                (Some(_), Some(pid)) => (
                    "ticket_of_the_dead",
                    format!("is that of {}, which is dead", look.process(pid)),
                ),
                (Some(_), None) => (
                    "ticket_of_the_dead",
                    "is that of a process that is gone".to_owned(),
                ),
            };
            let finding = Finding::new(
                Severity::Warning,
                kind,
                format!("place {} in the queue {whose}", ticket.number),
                "it is taken back by the process that waits behind it, or meets it at the head of the queue",
            );
            Some(
                finding
                    .of_set(&set.name)
                    .of_process(ticket.owner_pid)
                    .twice(ticket.number.to_string())
                    .healed_by(remedies.recover()),
            )
        })
        .collect()
}

/// Queues whose head is not served although it could be, or does not come for what it was granted.
fn standing(look: &Look, set: &SetSnapshot, remedies: &Remedies) -> Vec<Finding> {
    let mut queues: HashMap<Option<&KeyLabel>, Vec<&TicketSnapshot>> = HashMap::new();
    for ticket in set.tickets.iter().filter(|ticket| ticket.owner_alive) {
        queues.entry(ticket.key.as_ref()).or_default().push(ticket);
    }
    let mut found: Vec<Finding> = queues
        .into_values()
        .filter_map(|queue| {
            // In the order in which they came: the first, and what it was granted.
            let first = queue.first()?;
            let behind = queue.len() as u64 - 1;
            stopped_first(look, set, first, behind).or_else(|| unserved(look, set, first, behind, remedies))
        })
        .collect();
    found.sort_by_key(|finding| finding.pid);
    found
}

fn stopped_first(look: &Look, set: &SetSnapshot, first: &TicketSnapshot, behind: u64) -> Option<Finding> {
    let pid = first.owner_pid.filter(|_| look.diagnosis.place.same_pids())?;
    if activity(pid) != Some(Activity::Stopped) {
        return None;
    }
    let waiters = human::quantity(behind, "other waits", "others wait");
    let doing = if first.granted {
        "does not come for what it was granted"
    } else {
        "is first in the queue"
    };
    let (severity, meaning) = if behind > 0 {
        (
            Severity::Error,
            "no one overtakes a process that lives: those behind it wait until it goes on or dies",
        )
    } else {
        (
            Severity::Warning,
            "it keeps its place, and what it is granted, until it goes on or dies",
        )
    };
    let finding = Finding::new(
        severity,
        "queue_stopped",
        format!(
            "{} is stopped and {doing}; {waiters} behind it",
            look.process(pid)
        ),
        meaning,
    );
    Some(
        finding
            .of_set(&set.name)
            .of_process(Some(pid))
            .twice(first.number.to_string())
            .healed_by(go_on(pid)),
    )
}

/// The first could have what it asks for. The process that makes that possible serves it in the same step, so that lasts for no time
/// unless that process is dead; and the first itself looks once a second.
fn unserved(
    look: &Look,
    set: &SetSnapshot,
    first: &TicketSnapshot,
    behind: u64,
    remedies: &Remedies,
) -> Option<Finding> {
    let shards = look.diagnosis.shards.iter().filter(|shard| shard.set == set.name);
    let is_admissible = |number| {
        shards
            .clone()
            .any(|shard| shard.admissible_heads.contains(&number))
    };
    if first.granted || !is_admissible(first.number) {
        return None;
    }
    let finding = Finding::new(
        Severity::Error,
        "queue_stuck",
        format!(
            "what is first in the queue asks for could be had, and it has waited for {}; {} behind it",
            human::duration(first.waiting_for),
            human::quantity(behind, "other waits", "others wait")
        ),
        "the process that made room did not serve the queue, and its head did not look: it hangs, or is not scheduled",
    );
    Some(
        finding
            .of_set(&set.name)
            .of_process(first.owner_pid)
            .after(NEVER_SO_LONG, first.number.to_string())
            .healed_by(remedies.recover()),
    )
}
