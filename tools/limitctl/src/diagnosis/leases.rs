//! Findings about leases of limits that hosts share: a store that does not answer, leases that run out unused, and a
//! host whose processes do not ask.

use shmlimit::fleet::{FleetSnapshot, LeaseSnapshot, StoreProblem};
use shmlimit::snapshot::{LimitSnapshot, SetSnapshot};

use super::condition::{Condition, Severity};
use super::finding::Finding;
use super::look::Look;
use crate::text::amounts::amount;
use crate::text::{human, process, sanitise};

/// How many leases in a row must expire unused before they are reported.
const UNUSED_IN_A_ROW: u64 = 10;

pub fn findings(look: &Look) -> Vec<Finding> {
    let Some(fleet) = &look.snapshot().fleet else {
        return Vec::new();
    };
    let sets = look.snapshot().sets.iter();
    let mut shared = sets
        .flat_map(|set| set.limits.iter().map(move |limit| (set, limit)))
        .filter_map(|(set, limit)| Some((set, limit, limit.lease.as_ref()?)))
        .peekable();
    let is_shared = shared.peek().is_some();
    let mut found: Vec<Finding> = shared
        .flat_map(|(set, limit, lease)| {
            let of_store = store(set, limit, lease);
            let of_lease = unused(set, limit, lease)
                .into_iter()
                .chain(small_burst(set, limit, lease));
            of_store.into_iter().chain(of_lease)
        })
        .collect();
    if is_shared && fleet.evicts {
        found.push(Finding::warning(
            Condition::StoreEvicts,
            "the store evicts keys when its memory is used up",
            "a limit that is evicted starts over: set its maxmemory-policy to noeviction; it is looked at when a process \
             connects",
        ));
    }
    if is_shared && !fleet.duty.as_ref().is_some_and(|duty| duty.alive) {
        found.push(without_duty(look, fleet));
    }
    found
}

/// Whether the store is known to deny the processes of this host anything.
fn is_denied(look: &Look) -> bool {
    let limits = look.snapshot().sets.iter().flat_map(|set| &set.limits);
    let mut problems = limits.filter_map(|limit| limit.lease.as_ref()?.problem);
    problems.any(StoreProblem::is_denial)
}

fn name(limit: &LimitSnapshot) -> String {
    sanitise::line(&limit.name)
}

fn store(set: &SetSnapshot, limit: &LimitSnapshot, lease: &LeaseSnapshot) -> Option<Finding> {
    let problem = lease.problem?;
    let key = sanitise::line(&lease.key);
    let named = lease
        .problem_names
        .as_ref()
        .map_or_else(String::new, |name| format!(" ({})", sanitise::line(name)));
    let since = lease
        .out_for
        .map_or_else(String::new, |time| format!(", for {}", human::duration(time)));
    let severity = match problem {
        _ if lease.refusing => Severity::Error,
        StoreProblem::Quarantine | StoreProblem::Stale => Severity::Note,
        _ if problem.may_pass() => Severity::Warning,
        // The units that are leased, or the outage policy, bridge the problem, but only a person can end it.
        _ => Severity::Error,
    };
    let follows = if lease.refusing {
        "nothing can be spent now, so requests are refused".to_owned()
    } else {
        format!(
            "requests are still admitted, by what is leased or by the outage policy, {}",
            lease.outage
        )
    };
    let finding = Finding::new(
        severity,
        Condition::Store(problem),
        format!(
            "the store {}{named}, for limit {}, key {key}{since}",
            problem.description(),
            name(limit)
        ),
        format!("{follows}; {}", problem.advice()),
    );
    Some(finding.of_set(&set.name).twice(problem.as_str()))
}

fn unused(set: &SetSnapshot, limit: &LimitSnapshot, lease: &LeaseSnapshot) -> Option<Finding> {
    (lease.unused_in_a_row >= UNUSED_IN_A_ROW).then(|| {
        let finding = Finding::note(
            Condition::LeaseUnused,
            format!(
                "the last {} leases of limit {} ran out before any unit was spent",
                lease.unused_in_a_row,
                name(limit)
            ),
            "other hosts could not have these units meanwhile: a shorter lease strands fewer",
        );
        finding.of_set(&set.name)
    })
}

/// The finding for a burst that is used up before the store has answered.
fn small_burst(set: &SetSnapshot, limit: &LimitSnapshot, lease: &LeaseSnapshot) -> Option<Finding> {
    let percent = lease.usable_percent.filter(|percent| *percent < 95)?;
    let round_trip = lease.round_trip?;
    let finding = Finding::warning(
        Condition::LeaseShare,
        format!(
            "about {percent} % of the rate of limit {} can be used: the store's answers take {}, leases last for {}, and the \
             burst does not bridge that",
            name(limit),
            human::duration(round_trip),
            human::duration(lease.length)
        ),
        format!(
            "declare a burst of at least {}, or a store that is nearer",
            amount(limit, lease.sufficient_burst?)
        ),
    );
    Some(finding.of_set(&set.name))
}

fn without_duty(look: &Look, fleet: &FleetSnapshot) -> Finding {
    let owner = fleet.duty.as_ref().and_then(process::of_duty);
    if owner.is_none() && is_denied(look) {
        return Finding::note(
            Condition::NoDuty,
            "no process asks the store for leases at present",
            "one that the store denies something leaves that to others, and tries again after a second",
        );
    }
    if look.snapshot().participants.iter().all(|it| !it.alive) {
        return Finding::note(
            Condition::NoDuty,
            "no process uses the segment, so none asks the store for leases",
            "nobody is refused because of it; what is leased counts as spent once its lease ends, and places are free again",
        );
    }
    let whose = match owner {
        Some(owner) => format!(
            "{}, which asked the store for leases, is dead",
            look.process(owner)
        ),
        None => "no process asks the store for leases".to_owned(),
    };
    let finding = Finding::warning(
        Condition::NoDuty,
        whose,
        "what is leased is spent, and nothing more comes, until a process with the client of the store is started",
    );
    finding.of_process(owner.map(|owner| owner.pid)).twice("")
}
