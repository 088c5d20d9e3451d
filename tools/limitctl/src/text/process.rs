//! How processes are shown: by id, with the id's PID namespace if that is not the one of this process.

use shmlimit::fleet::DutySnapshot;
use shmlimit::snapshot::{HoldSnapshot, ParticipantSnapshot, ProcessId, SegmentSnapshot, TicketSnapshot};

use super::sanitise;

/// An attached process.
pub fn attached(participant: &ParticipantSnapshot) -> ProcessId {
    ProcessId {
        pid: participant.pid,
        namespace: participant.pid_namespace,
    }
}

/// The process of a hold, if known.
pub fn of_hold(hold: &HoldSnapshot) -> Option<ProcessId> {
    owner(hold.owner_pid, hold.owner_namespace)
}

/// The process of a ticket, if known.
pub fn of_ticket(ticket: &TicketSnapshot) -> Option<ProcessId> {
    owner(ticket.owner_pid, ticket.owner_namespace)
}

/// The process that asks a store for leases, if known.
pub fn of_duty(duty: &DutySnapshot) -> Option<ProcessId> {
    owner(duty.pid, duty.pid_namespace)
}

fn owner(pid: Option<u64>, namespace: Option<u64>) -> Option<ProcessId> {
    pid.map(|pid| ProcessId { pid, namespace })
}

/// A process's id and, if it is attached, its name.
pub fn named(snapshot: &SegmentSnapshot, process: ProcessId) -> String {
    let known = snapshot
        .participants
        .iter()
        .find(|participant| attached(participant) == process && participant.alive);
    match known {
        Some(participant) => format!("process {process} ({})", sanitise::line(&participant.name)),
        None => format!("process {process}"),
    }
}

/// A process in a column of a table.
pub fn cell(process: Option<ProcessId>) -> String {
    process.map_or_else(|| "?".to_owned(), |process| process.to_string())
}
