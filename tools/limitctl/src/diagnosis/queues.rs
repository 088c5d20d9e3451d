//! Findings about queues that do not move: their waiters are behind a dead or stopped process, or wait without a
//! reason.

use std::collections::{BTreeMap, HashMap};

use shmlimit::snapshot::{KeyLabel, ProcessId, SetSnapshot, TicketSnapshot};

use super::condition::{Condition, Severity};
use super::finding::Finding;
use super::locks::NEVER_SO_LONG;
use super::look::Look;
use super::remedy::Remedies;
use crate::text::{human, process};

pub fn findings(look: &Look, remedies: &Remedies) -> Vec<Finding> {
    let sets = look.snapshot().sets.iter();
    sets.flat_map(|set| {
        let mut found = left_behind(look, set, remedies);
        found.extend(stuck(look, set, remedies));
        found.extend(silent(look, set));
        found
    })
    .collect()
}

/// Findings about tickets whose process no longer waits.
fn left_behind(look: &Look, set: &SetSnapshot, remedies: &Remedies) -> Vec<Finding> {
    let tickets = set.tickets.iter();
    tickets
        .filter_map(|ticket| {
            let (kind, whose) = match (ticket.owner_slot, process::of_ticket(ticket)) {
                (None, _) => (
                    Condition::TicketGivenUp,
                    "was given up while another process kept the lock".to_owned(),
                ),
                (Some(_), _) if ticket.owner_alive => return None,
                (Some(_), Some(owner)) => (
                    Condition::TicketOfTheDead,
                    format!("belongs to {}, which is dead", look.process(owner)),
                ),
                (Some(_), None) => (
                    Condition::TicketOfTheDead,
                    "belongs to a process that is gone".to_owned(),
                ),
            };
            let finding = Finding::warning(
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

/// Findings about processes that did not collect their grants, because they are stopped, or have futures on a blocked
/// event loop.
fn silent(look: &Look, set: &SetSnapshot) -> Vec<Finding> {
    let mut processes: BTreeMap<ProcessId, Vec<u64>> = BTreeMap::new();
    for ticket in set.tickets.iter().filter(|it| it.passed_over && it.owner_alive) {
        if let Some(owner) = process::of_ticket(ticket) {
            processes.entry(owner).or_default().push(ticket.number);
        }
    }
    processes
        .into_iter()
        .map(|(owner, tickets)| {
            let count = human::quantity(tickets.len() as u64, "request", "requests");
            let first = tickets.iter().min().copied().unwrap_or(0);
            Finding::warning(Condition::GrantNotCollected,
                format!(
                    "{} did not collect what it was granted; {count} of it passed over",
                    look.process(owner)
                ),
                "it is stopped, or a future is not polled: its event loop is blocked, idle or closed; the requests keep their \
                 places until it looks",
            )
            .of_set(&set.name)
            .of_process(Some(owner.pid))
            .twice(first.to_string())
        })
        .collect()
}

/// Findings about queues whose head is not served although it could be, or does not collect its grant.
fn stuck(look: &Look, set: &SetSnapshot, remedies: &Remedies) -> Vec<Finding> {
    let mut queues: HashMap<Option<&KeyLabel>, Vec<&TicketSnapshot>> = HashMap::new();
    let in_queue = |ticket: &&TicketSnapshot| ticket.owner_alive && !ticket.passed_over;
    for ticket in set.tickets.iter().filter(in_queue) {
        queues.entry(ticket.key.as_ref()).or_default().push(ticket);
    }
    let mut found = Vec::new();
    for queue in queues.into_values() {
        // The tickets are in order of arrival. A granted one has left the queue, but its process has not collected the
        // grant yet.
        let head = queue.iter().position(|ticket| !ticket.granted);
        let granted = queue.iter().filter(|ticket| ticket.granted);
        let behind = (queue.len() - head.map_or(queue.len(), |head| head + 1)) as u64;
        found.extend(granted.filter_map(|ticket| stopped(look, set, ticket, behind)));
        let Some(head) = head.and_then(|head| queue.get(head)) else {
            continue;
        };
        let at_head =
            stopped(look, set, head, behind).or_else(|| unserved(look, set, head, behind, remedies));
        found.extend(at_head);
    }
    found.sort_by_key(|finding| finding.pid);
    found
}

fn stopped(look: &Look, set: &SetSnapshot, ticket: &TicketSnapshot, behind: u64) -> Option<Finding> {
    let owner = process::of_ticket(ticket)?;
    let (state, heal) = look.processes.standstill_of(owner)?;
    let waiters = human::quantity(behind, "other waits", "others wait");
    let doing = if ticket.granted {
        "does not collect what it was granted"
    } else {
        "is first in the queue"
    };
    let (severity, meaning) = if behind > 0 {
        (
            Severity::Error,
            "those behind it wait until its grant is taken back: collect_within after it, a second unless declared",
        )
    } else {
        (
            Severity::Warning,
            "it keeps its place, and what it is granted, until others wait or it dies",
        )
    };
    let finding = Finding::new(
        severity,
        Condition::QueueStopped,
        format!(
            "{} is {state} and {doing}; {waiters} behind it",
            look.process(owner)
        ),
        meaning,
    );
    Some(
        finding
            .of_set(&set.name)
            .of_process(Some(owner.pid))
            .twice(ticket.number.to_string())
            .healed_by(heal),
    )
}

/// The finding if the first waiter could have what it asks for. A process that makes this possible serves the waiter in
/// the same step, and if only the passing of time does, the waiter serves itself. So the state does not last, unless
/// that process is dead or the waiter does not run.
fn unserved(
    look: &Look,
    set: &SetSnapshot,
    head: &TicketSnapshot,
    behind: u64,
    remedies: &Remedies,
) -> Option<Finding> {
    let shards = look.diagnosis.shards.iter().filter(|shard| shard.set == set.name);
    let is_admissible = |number| {
        shards
            .clone()
            .any(|shard| shard.admissible_heads.contains(&number))
    };
    if !is_admissible(head.number) {
        return None;
    }
    let finding = Finding::error(
        Condition::QueueStuck,
        format!(
            "what {} waits for is available, and it has been first in the queue for some time; {} behind it",
            process::of_ticket(head).map_or_else(|| "a process".to_owned(), |owner| look.process(owner)),
            human::quantity(behind, "other waits", "others wait")
        ),
        "the process at the head does not run: it is not scheduled, or frozen with a cgroup that cannot be seen from here; those behind it wait, too",
    );
    Some(
        finding
            .of_set(&set.name)
            .of_process(head.owner_pid)
            .after(NEVER_SO_LONG, head.number.to_string())
            .healed_by(remedies.recover()),
    )
}
