//! Leases of limits that hosts share: a store that does not answer, leases that run out unused, and a host whose
//! processes do not ask.

use shmlimit::fleet::{FleetSnapshot, LeaseSnapshot, StoreProblem};
use shmlimit::snapshot::{LimitSnapshot, SetSnapshot};

use super::finding::{Finding, Severity};
use super::look::Look;
use crate::text::{human, process, sanitise};

/// How many leases in a row must expire unused before they are reported.
const UNUSED_IN_A_ROW: u64 = 10;

pub fn findings(look: &Look) -> Vec<Finding> {
    let Some(fleet) = &look.snapshot.fleet else {
        return Vec::new();
    };
    let sets = look.snapshot.sets.iter();
    let mut shared = sets
        .flat_map(|set| set.limits.iter().map(move |limit| (set, limit)))
        .filter_map(|(set, limit)| Some((set, limit, limit.lease.as_ref()?)))
        .peekable();
    let is_shared = shared.peek().is_some();
    let mut found: Vec<Finding> = shared
        .flat_map(|(set, limit, lease)| {
            let of_store = store(set, limit, lease);
            of_store.into_iter().chain(unused(set, limit, lease))
        })
        .collect();
    if is_shared && !fleet.duty.as_ref().is_some_and(|duty| duty.alive) {
        found.push(without_duty(look, fleet));
    }
    found
}

fn named(limit: &LimitSnapshot) -> String {
    sanitise::line(&limit.name)
}

fn store(set: &SetSnapshot, limit: &LimitSnapshot, lease: &LeaseSnapshot) -> Option<Finding> {
    let problem = lease.problem?;
    let key = sanitise::line(&lease.key);
    let since = lease
        .out_for
        .map_or_else(String::new, |time| format!(", for {}", human::duration(time)));
    let (severity, kind, why, meaning) = match problem {
        StoreProblem::Unreachable => (
            Severity::Warning,
            "store_unreachable",
            "does not answer",
            "see whether it runs, and whether this host can reach it",
        ),
        StoreProblem::Denied => (
            Severity::Error,
            "store_denied",
            "refuses the client",
            "see SHMLIMIT_FLEET_USERNAME and SHMLIMIT_FLEET_PASSWORD_FILE, and what the user may do there",
        ),
        StoreProblem::Unsupported => (
            Severity::Error,
            "store_unsupported",
            "cannot run scripts",
            "it takes Redis or Valkey with scripting",
        ),
        StoreProblem::WrongKey => (
            Severity::Error,
            "store_wrong_key",
            "holds something else under the key",
            "declare another key, or remove what is there",
        ),
        StoreProblem::Mismatch => (
            Severity::Error,
            "store_mismatch",
            "has another declaration under the key",
            "declare the limit alike on every host, or give it another key",
        ),
        StoreProblem::Quarantine => (
            Severity::Note,
            "store_quarantine",
            "grants nothing for one lease length, because it may have lost what it had acknowledged",
            "it passes by itself",
        ),
        _ => (
            Severity::Error,
            "store_stale",
            "knows a later request of this host",
            "the segment was copied or restored: it goes on as another host by itself",
        ),
    };
    let finding = Finding::new(
        severity,
        kind,
        format!("the store {why} for limit {}, key {key}{since}", named(limit)),
        format!("the limit goes by its outage policy, {}; {meaning}", lease.outage),
    );
    Some(finding.of_set(&set.name).twice(problem.as_str()))
}

fn unused(set: &SetSnapshot, limit: &LimitSnapshot, lease: &LeaseSnapshot) -> Option<Finding> {
    (lease.unused_in_a_row >= UNUSED_IN_A_ROW).then(|| {
        let finding = Finding::new(
            Severity::Note,
            "lease_unused",
            format!(
                "the last {} leases of limit {} ran out before any unit was spent",
                lease.unused_in_a_row,
                named(limit)
            ),
            "other hosts could not have these units meanwhile: a shorter lease strands fewer",
        );
        finding.of_set(&set.name)
    })
}

fn without_duty(look: &Look, fleet: &FleetSnapshot) -> Finding {
    let owner = fleet.duty.as_ref().and_then(process::of_duty);
    let whose = match owner {
        Some(owner) => format!(
            "{}, which asked the store for leases, is dead",
            look.process(owner)
        ),
        None => "no process asks the store for leases".to_owned(),
    };
    let finding = Finding::new(
        Severity::Warning,
        "no_duty",
        whose,
        "what is leased is spent, and nothing more comes, until a process with the client of the store is started",
    );
    finding.of_process(owner.map(|owner| owner.pid)).twice("")
}
