//! Lists of names, differences or processes in messages.

use super::difference::Difference;
use super::process_id::ProcessId;

pub(super) fn join(items: &[String]) -> String {
    items.join(", ")
}

pub(super) fn joined(differences: &[Difference]) -> String {
    let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
    join(&differences)
}

/// The first items, as many as fit on a line, and how many more there are.
pub(super) fn some_of(items: &[String]) -> String {
    const MAX: usize = 10;
    match items.get(..MAX) {
        Some(first) if items.len() > MAX => format!("{} and {} more", join(first), items.len() - MAX),
        _ => join(items),
    }
}

pub(crate) fn processes(processes: &[ProcessId]) -> String {
    let noun = if processes.len() == 1 {
        "process"
    } else {
        "processes"
    };
    let ids: Vec<String> = processes.iter().map(ProcessId::to_string).collect();
    format!("{noun} {}", join(&ids))
}

pub(super) fn live_processes(count: u64) -> String {
    match count {
        1 => "one live process".to_owned(),
        count => format!("{count} live processes"),
    }
}
