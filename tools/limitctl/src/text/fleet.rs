//! How fleet limits are shown: which process asks the store, and what the store answers.

use shmlimit::fleet::{FleetSnapshot, LeaseSnapshot};
use shmlimit::snapshot::{LimitSnapshot, SegmentSnapshot};

use super::amounts::amount;
use super::table::Cell;
use super::{human, process, sanitise, style};

/// Which process asks the store for leases, and how often the duty was taken over.
pub fn duty(snapshot: &SegmentSnapshot, fleet: &FleetSnapshot) -> String {
    let who = by_file(snapshot, fleet, |fleet| who(snapshot, fleet));
    format!("{who}, taken over {} times", human::count(fleet.takeovers))
}

/// Where the store is.
pub fn store(snapshot: &SegmentSnapshot, fleet: &FleetSnapshot) -> String {
    by_file(snapshot, fleet, |fleet| sanitise::line(&fleet.url))
}

/// The number by which the store knows this host. The numbers of the files of a directory have the first half in
/// common.
pub fn host(fleet: &FleetSnapshot) -> String {
    match fleet.host & u64::from(u32::MAX) {
        0 => format!("{:08x}", fleet.host >> 32),
        _ => format!("{:016x}", fleet.host),
    }
}

/// What `say` says about a segment. If that differs between the files of a directory, says which sets it is for.
fn by_file(
    snapshot: &SegmentSnapshot,
    fleet: &FleetSnapshot,
    say: impl Fn(&FleetSnapshot) -> String,
) -> String {
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    for set in &snapshot.sets {
        let Some(of_file) = &set.fleet else { continue };
        let (text, name) = (say(of_file), sanitise::line(&set.name));
        match said.iter_mut().find(|(known, _)| *known == text) {
            Some((_, names)) => names.push(name),
            None => said.push((text, vec![name])),
        }
    }
    match said.as_slice() {
        [] | [_] => say(fleet),
        _ => {
            let of_sets = said
                .iter()
                .map(|(text, names)| format!("{text} for {}", names.join(", ")));
            of_sets.collect::<Vec<_>>().join("; ")
        }
    }
}

fn who(snapshot: &SegmentSnapshot, fleet: &FleetSnapshot) -> String {
    match &fleet.duty {
        None => "no process".to_owned(),
        Some(duty) => match (process::of_duty(duty), duty.alive) {
            (Some(process), true) => process::named(snapshot, process),
            (Some(process), false) => style::paint(style::BAD, format!("process {process}, which is dead")),
            (None, _) => style::paint(style::BAD, "a process that is gone"),
        },
    }
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

/// How much of a limit is leased and not spent, or how many keys have units leased or to report.
pub fn left(limit: &LimitSnapshot, lease: &LeaseSnapshot) -> Cell {
    match (lease.keys, lease.left) {
        (Some(keys), _) => human::quantity(keys, "key", "keys").into(),
        (None, 0) => Cell::styled("0", style::WARNING),
        (None, left) => amount(limit, left).into(),
    }
}

/// How much longer the lease lasts. Empty for limits by key, because the lease of each key ends at another time.
pub fn valid_for(lease: &LeaseSnapshot) -> String {
    match lease.keys {
        None => human::duration(lease.valid_for),
        Some(_) => String::new(),
    }
}

/// The last fair share.
pub fn share(limit: &LimitSnapshot, lease: &LeaseSnapshot) -> String {
    match lease.keys {
        None => amount(limit, lease.share),
        Some(_) => "by key".to_owned(),
    }
}

/// How many hosts want units of the limit. Empty for limits by key, because that is counted for each key.
pub fn hosts(lease: &LeaseSnapshot) -> String {
    match lease.keys {
        None => human::count(lease.hosts),
        Some(_) => String::new(),
    }
}
