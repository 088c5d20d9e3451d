//! How fleet limits are shown: which process asks the store, and what the store answers.

use shmlimit::fleet::{FleetSnapshot, LeaseSnapshot};
use shmlimit::snapshot::SegmentSnapshot;

use super::table::Cell;
use super::{human, process, sanitise, style};

/// Which process asks the store for leases, and how often duty was taken over.
pub fn duty(snapshot: &SegmentSnapshot, fleet: &FleetSnapshot) -> String {
    let who = match &fleet.duty {
        None => "no process".to_owned(),
        Some(duty) => match (process::of_duty(duty), duty.alive) {
            (Some(process), true) => process::named(snapshot, process),
            (Some(process), false) => style::paint(style::BAD, format!("process {process}, which is dead")),
            (None, _) => style::paint(style::BAD, "a process that is gone"),
        },
    };
    format!("{who}, taken over {} times", human::count(fleet.takeovers))
}

/// The store's last answer for a limit, or why there is none.
pub fn answer(lease: &LeaseSnapshot) -> Cell {
    let named = match &lease.problem_names {
        Some(name) => format!(" ({})", sanitise::line(name)),
        None => String::new(),
    };
    match (lease.problem, lease.out_for) {
        (Some(problem), Some(time)) => Cell::styled(
            format!("{problem}{named} for {}", human::duration(time)),
            style::BAD,
        ),
        (Some(problem), None) if lease.refusing => Cell::styled(format!("{problem}{named}"), style::BAD),
        (Some(problem), None) => Cell::styled(format!("{problem}{named}"), style::WARNING),
        (None, _) if lease.given_back => Cell::styled("given back".to_owned(), style::WARNING),
        (None, _) if lease.draining => Cell::styled("giving back".to_owned(), style::WARNING),
        (None, _) if lease.answered_ago.is_none() => "not asked yet".into(),
        (None, _) => Cell::styled("answers".to_owned(), style::GOOD),
    }
}
