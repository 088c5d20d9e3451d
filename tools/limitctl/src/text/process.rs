//! Processes as they are shown: by their ids, and the PID namespaces that these are of where a segment's processes may be of
//! several.

use shmlimit::fleet::DutySnapshot;
use shmlimit::{HoldSnapshot, ParticipantSnapshot, ProcessId, SegmentSnapshot, TicketSnapshot};

use super::sanitise;

/// An attached process.
pub fn attached(participant: &ParticipantSnapshot) -> ProcessId {
    ProcessId {
        pid: participant.pid,
        namespace: participant.pid_namespace,
    }
}

/// The process that holds something, where it is known.
pub fn of_hold(hold: &HoldSnapshot) -> Option<ProcessId> {
    owner(hold.owner_pid, hold.owner_namespace)
}

/// The process that waits, where it is known.
pub fn of_ticket(ticket: &TicketSnapshot) -> Option<ProcessId> {
    owner(ticket.owner_pid, ticket.owner_namespace)
}

/// The process that asks a store for leases, where it is known.
pub fn of_duty(duty: &DutySnapshot) -> Option<ProcessId> {
    owner(duty.pid, duty.pid_namespace)
}

fn owner(pid: Option<u64>, namespace: Option<u64>) -> Option<ProcessId> {
    pid.map(|pid| ProcessId { pid, namespace })
}

/// By its id, and by its name where it is attached.
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

/// In a column of a table.
pub fn cell(process: Option<ProcessId>) -> String {
    process.map_or_else(|| "?".to_owned(), |process| process.to_string())
}
