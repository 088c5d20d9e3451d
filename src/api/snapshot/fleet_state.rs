//! What a segment knows about its fleet.

use std::sync::Arc;
use std::time::Duration;

use crate::api::fleet::{DutySnapshot, FleetSnapshot};
use crate::declaration::Declaration;
use crate::engine::{SetEngine, directory_number, duty_of, host_number};
use crate::limit::Now;
use crate::shm::layout::records::Header;
use crate::shm::process::participant::{ParticipantId, ParticipantTable};

/// The fleet and the process of this host that has duty; `None` if the segment was declared without one.
pub(super) fn fleet_state(
    declaration: &Declaration,
    sets: &[Arc<SetEngine>],
    header: &Header,
    table: &ParticipantTable,
    now: Now,
    is_alive: impl FnOnce(u64) -> bool,
) -> Option<FleetSnapshot> {
    let options = declaration.fleet_options()?;
    let seen = duty_of(sets).unwrap_or_default();
    let overdue = now.monotonic.checked_sub(seen.until);
    let duty = ParticipantId::from_word(seen.owner).map(|id| {
        let process = table.process_of(id);
        DutySnapshot {
            slot: id.slot,
            pid: process.map(|process| process.pid),
            pid_namespace: process.and_then(|process| process.namespace),
            alive: is_alive(seen.owner),
            overdue_for: overdue.map(Duration::from_nanos),
        }
    });
    Some(FleetSnapshot {
        url: options.url().to_owned(),
        host_name: options.host().map(str::to_owned),
        host: host_number(header),
        duty,
        takeovers: seen.takeovers,
        evicts: seen.evicts,
        directory_number: directory_number(header),
    })
}
