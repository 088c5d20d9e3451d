//! `limitctl inspect`.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;
use shmlimit::declare::{Amount, LockKind};
use shmlimit::snapshot::{LimitSnapshot, ProcessId, SegmentReader, SegmentSnapshot, SetCounts, SetSnapshot};
use shmlimit::{Declaration, Limit, SetDeclaration};

use crate::command::{aligned, amounts, as_text, label, label_heading, occupancy, shown};
use crate::exit::{ExitCode, Failure};
use crate::reveal::Reveal;
use crate::text::human::{self, count};
use crate::text::table::{Cell, Side, Table};
use crate::text::{declared, fleet, key, process, sanitise, style};
use crate::whereabouts::Whereabouts;
use crate::{output, snapshot_with_bounds};

/// Show everything a segment holds
///
/// That is: processes, sets, limits, holds with their owners, counters, who has which lock. Maps the file read-only,
/// takes no lock and waits for no one, so it works whatever state the segment is in, and needs no more than permission
/// to read the file.
#[derive(Args, Debug)]
pub struct Inspect {
    /// Print JSON
    ///
    /// It also has the declaration. Amounts are in the units that the limits count in, times in seconds.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    reveal: Reveal,

    /// The segment
    ///
    /// A file made by `limitctl create` or a program, or a directory with one per set. Symbolic links are not followed.
    path: PathBuf,
}

/// A segment's state and declaration.
#[derive(Debug)]
struct Inspection {
    snapshot: SegmentSnapshot,
    declaration: Declaration,
    /// The PID namespace of the process ids, if it is not this process's.
    namespace: Option<u64>,
}

impl Inspect {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let reader = SegmentReader::open(&self.path)?;
        let mut snapshot = reader.snapshot()?;
        snapshot.path = as_text(&self.path);
        self.reveal.users(&mut snapshot);
        let place = reader.diagnose()?.place;
        let is_another = !place.any_pid_namespace && place.pid_namespace != place.own_pid_namespace;
        let inspection = Inspection {
            snapshot,
            declaration: reader.declaration().clone(),
            namespace: is_another.then_some(place.pid_namespace),
        };
        if self.json {
            output::print_json(&inspection.json()?)?;
        } else {
            output::print(&inspection.text())?;
        }
        Ok(ExitCode::Done)
    }
}

impl Inspection {
    fn json(&self) -> Result<Value, Failure> {
        let described = || {
            let mut described = snapshot_with_bounds(&self.snapshot, &self.declaration)?;
            described["declaration"] = serde_json::to_value(&self.declaration)?;
            Ok(described)
        };
        described().map_err(|error: serde_json::Error| Failure::new(ExitCode::Problem, error.to_string()))
    }

    fn text(&self) -> String {
        let mut text = self.head();
        text.push_str(&self.processes());
        for set in &self.snapshot.sets {
            let Some(declared) = self.declaration.sets().iter().find(|it| it.name() == set.name) else {
                continue;
            };
            text.push('\n');
            text.push_str(&self.set(set, declared));
        }
        text
    }

    fn head(&self) -> String {
        let snapshot = &self.snapshot;
        let state = if snapshot.retired {
            style::paint(
                style::WARNING,
                "retired: attached processes must open its successor",
            )
        } else {
            match Whereabouts::of(snapshot) {
                Whereabouts::Here => style::paint(style::GOOD, "ok"),
                Whereabouts::Elsewhere => style::paint(
                    style::WARNING,
                    "in use elsewhere, such as in a container: here it can only be looked at; limitctl doctor says from where it \
                     can be used",
                ),
                Whereabouts::Nowhere => style::paint(
                    style::WARNING,
                    "cold: of another boot or namespace, or a copy; the next process to open it voids its locks and owners",
                ),
            }
        };
        let mut facts = vec![
            ("state", state),
            (
                "size",
                format!("{}, format {}", human::bytes(snapshot.size), snapshot.format),
            ),
            ("created", human::instant(snapshot.created_utc)),
        ];
        if snapshot.lock_kind != LockKind::default() {
            facts.push(("locks", snapshot.lock_kind.to_string()));
        }
        if snapshot.cold_starts > 0 {
            facts.push(("cold starts", count(snapshot.cold_starts)));
        }
        if let Some(part) = &snapshot.fleet {
            facts.push(("store", sanitise::line(&part.url)));
            facts.push((
                "duty",
                format!("{}, host {:016x}", fleet::duty(snapshot, part), part.host),
            ));
        }
        let path = style::paint(style::TITLE, shown(&snapshot.path));
        format!("{path}\n{}", aligned(&facts))
    }

    fn processes(&self) -> String {
        let snapshot = &self.snapshot;
        let ids = self
            .namespace
            .map(|namespace| format!(", with their ids in PID namespace {namespace}"));
        let mut text = format!(
            "\n{} {} of {}{}\n",
            style::paint(style::TITLE, "processes"),
            count(snapshot.participants.len() as u64),
            count(snapshot.participant_capacity),
            ids.unwrap_or_default(),
        );
        if snapshot.participants.is_empty() {
            return text;
        }
        let mut table = Table::new(&[
            ("PID", Side::Right),
            ("NAME", Side::Left),
            ("STATE", Side::Left),
            ("ATTACHED", Side::Left),
        ]);
        for participant in &snapshot.participants {
            let state = if participant.alive {
                Cell::styled("alive", style::GOOD)
            } else {
                Cell::styled("dead", style::BAD)
            };
            table.row(vec![
                process::attached(participant).to_string().into(),
                sanitise::line(&participant.name).into(),
                state,
                human::instant(participant.joined_utc).into(),
            ]);
        }
        text.push_str(&table.render(2));
        text
    }

    fn set(&self, set: &SetSnapshot, declared: &SetDeclaration) -> String {
        let name = sanitise::line(&set.name);
        let mut text = format!(
            "{} {}\n",
            style::paint(style::TITLE, "set"),
            style::paint(style::TITLE, name)
        );
        let mut facts = Vec::new();
        if !set.metadata.is_empty() {
            let pairs: Vec<String> = set
                .metadata
                .iter()
                .map(|(key, value)| sanitise::line(&format!("{key}={value}")))
                .collect();
            facts.push(("metadata", pairs.join(", ")));
        }
        if let Some(declared) = provenance(set) {
            facts.push(("declared", declared));
        }
        facts.push(("lock", self.lock(set)));
        if let Some(state) = irregularity(set) {
            facts.push(("state", state));
        }
        if set.hold_capacity > 0 {
            facts.push(("permits", permits(set)));
        }
        let waiting = set.tickets.iter().filter(|ticket| !ticket.granted).count() as u64;
        if waiting > 0 || set.counts.queued_high_water > 0 {
            facts.push((
                "queued",
                format!(
                    "{} of {}, at most {} at once",
                    count(waiting),
                    count(set.waiter_capacity),
                    count(set.counts.queued_high_water)
                ),
            ));
        }
        if let Some(keys) = &set.keys {
            facts.push(("keys", occupancy(keys)));
        }
        facts.push(("counted", counted(&set.counts)));
        text.push_str(&aligned(&facts));
        text.push('\n');
        text.push_str(&limits(set, declared));
        if set.limits.iter().any(|limit| limit.lease.is_some()) {
            text.push('\n');
            text.push_str(&leases(set));
        }
        if !set.holds.is_empty() {
            text.push('\n');
            text.push_str(&self.holds(set));
        }
        if !set.tickets.is_empty() {
            text.push('\n');
            text.push_str(&self.tickets(set));
        }
        text
    }

    fn lock(&self, set: &SetSnapshot) -> String {
        if Whereabouts::of(&self.snapshot) == Whereabouts::Nowhere {
            return "void".to_owned();
        }
        let lock = &set.lock;
        if lock.owner_died {
            return style::paint(
                style::BAD,
                "its owner died; the next process to take it recovers it",
            );
        }
        let holder = match (lock.holder_pid, lock.holder_thread) {
            (Some(pid), _) => format!(
                "held by {}",
                process::named(
                    &self.snapshot,
                    ProcessId {
                        pid: pid.into(),
                        namespace: lock.holder_namespace,
                    }
                )
            ),
            (None, Some(thread)) => format!("held by thread {thread}, whose process cannot be named"),
            (None, None) => return "free".to_owned(),
        };
        style::paint(style::WARNING, holder)
    }

    fn holds(&self, set: &SetSnapshot) -> String {
        let mut table = Table::new(&[
            ("HOLD", Side::Right),
            ("PID", Side::Right),
            ("NAME", Side::Left),
            ("STATE", Side::Left),
            ("HELD FOR", Side::Right),
            ("HOLDS", Side::Left),
            (key_heading(set), Side::Left),
            (label_heading(&set.holds), Side::Left),
        ]);
        for hold in &set.holds {
            let state = match (hold.returned, hold.owner_alive) {
                (true, _) => Cell::styled("returned", style::GOOD),
                (false, true) => Cell::styled("alive", style::GOOD),
                (false, false) => Cell::styled("dead", style::BAD),
            };
            table.row(vec![
                hold.serial.into(),
                process::cell(process::of_hold(hold)).into(),
                self.owner_name(hold.owner_slot, process::of_hold(hold)).into(),
                state,
                human::duration(hold.held_for).into(),
                amounts(&hold.amounts).into(),
                hold.key.as_ref().map(key::key).unwrap_or_default().into(),
                label(hold).into(),
            ]);
        }
        table.render(2)
    }

    fn tickets(&self, set: &SetSnapshot) -> String {
        let mut table = Table::new(&[
            ("TICKET", Side::Right),
            ("PID", Side::Right),
            ("NAME", Side::Left),
            ("STATE", Side::Left),
            ("QUEUED FOR", Side::Right),
            ("ASKS FOR", Side::Left),
            (key_heading(set), Side::Left),
        ]);
        for ticket in &set.tickets {
            let state = match (ticket.owner_alive, ticket.granted) {
                (true, false) => Cell::styled("waits", style::GOOD),
                (true, true) => Cell::styled("was served", style::GOOD),
                (false, _) => Cell::styled("dead", style::BAD),
            };
            table.row(vec![
                ticket.number.into(),
                process::cell(process::of_ticket(ticket)).into(),
                self.owner_name(ticket.owner_slot, process::of_ticket(ticket))
                    .into(),
                state,
                human::duration(ticket.waiting_for).into(),
                amounts(&ticket.costs).into(),
                ticket.key.as_ref().map(key::key).unwrap_or_default().into(),
            ]);
        }
        table.render(2)
    }

    fn owner_name(&self, slot: Option<u64>, process: Option<ProcessId>) -> String {
        let participants = &self.snapshot.participants;
        participants
            .iter()
            .find(|it| Some(it.slot) == slot && Some(process::attached(it)) == process)
            .map_or_else(String::new, |it| sanitise::line(&it.name))
    }
}

/// The leases of limits that hosts share.
fn leases(set: &SetSnapshot) -> String {
    let mut table = Table::new(&[
        ("SHARED AS", Side::Left),
        ("LEFT", Side::Right),
        ("FOR", Side::Right),
        ("SHARE", Side::Right),
        ("STORE", Side::Left),
        ("OUTAGE", Side::Left),
        ("GRANTS", Side::Right),
        ("FAILURES", Side::Right),
        ("EXPIRED", Side::Right),
    ]);
    let shared = set.limits.iter().filter_map(|limit| limit.lease.as_ref());
    for lease in shared {
        table.row(vec![
            sanitise::line(&lease.key).into(),
            lease.left.into(),
            human::duration(lease.valid_for).into(),
            lease.share.into(),
            fleet::answer(lease),
            lease.outage.as_str().into(),
            lease.counts.grants.into(),
            lease.counts.failures.into(),
            lease.counts.expired_units.into(),
        ]);
    }
    table.render(2)
}

fn key_heading(set: &SetSnapshot) -> &'static str {
    if set.keys.is_some() { "KEY" } else { "" }
}

/// Where the definition comes from, if that is worth mentioning.
fn provenance(set: &SetSnapshot) -> Option<String> {
    let version = set.version.map(|version| format!("version {version}"));
    let edited = set.edited.then(|| "edited by an operator".to_owned());
    let words: Vec<String> = version.into_iter().chain(edited).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn irregularity(set: &SetSnapshot) -> Option<String> {
    if set.poisoned {
        return Some(style::paint(
            style::BAD,
            "poisoned: run limitctl recover, then limitctl reset",
        ));
    }
    let state = match (set.torn, set.words_in_flight) {
        (false, _) if !set.throttled_for.is_zero() => {
            let wait = human::duration(set.throttled_for);
            format!("throttled: nothing is admitted for {wait}")
        }
        (false, _) => return None,
        (true, Some(0)) => "changed while it was copied: the values may be from different moments".to_owned(),
        (true, Some(words)) => format!(
            "an operation in progress has changed {}: the values may be from different moments",
            human::quantity(words as u64, "word", "words")
        ),
        (true, None) => "a reset is in progress: the values may be from different moments".to_owned(),
    };
    Some(style::paint(style::WARNING, state))
}

fn counted(counts: &SetCounts) -> String {
    let refused = counts
        .refused_rate
        .saturating_add(counts.refused_concurrency)
        .saturating_add(counts.refused_budget)
        .saturating_add(counts.refused_table_full)
        .saturating_add(counts.refused_holds_full)
        .saturating_add(counts.refused_queue_full)
        .saturating_add(counts.refused_throttled)
        .saturating_add(counts.refused_lease)
        .saturating_add(counts.refused_lease_pending)
        .saturating_add(counts.refused_store_out);
    let mut text = format!("{} admitted, {} refused", count(counts.admitted), count(refused));
    let reasons = some_of(&[
        ("by rate", counts.refused_rate),
        ("by concurrency", counts.refused_concurrency),
        ("by budget", counts.refused_budget),
        ("for want of a row", counts.refused_table_full),
        ("for want of a hold", counts.refused_holds_full),
        ("for want of room in the queue", counts.refused_queue_full),
        ("while throttled", counts.refused_throttled),
        ("for want of a lease", counts.refused_lease),
        ("before the first lease", counts.refused_lease_pending),
        ("while the store was out", counts.refused_store_out),
    ]);
    if !reasons.is_empty() {
        text.push_str(&format!(" ({reasons})"));
    }
    let others = some_of(&[
        ("after a wait", counts.waited),
        ("timed out", counts.timed_out),
        ("given up", counts.cancelled),
        ("granted and not collected", counts.lapsed),
        ("settled", counts.settled),
        ("reclaimed from the dead", counts.reclaimed),
        ("places in the queue of the dead", counts.reclaimed_tickets),
        ("leases run out", counts.expired),
        ("recoveries", counts.recoveries),
        ("rebuilds", counts.rebuilds),
        ("unknown names", counts.unknown_names),
        ("waits for a lock", counts.lock_waits),
    ]);
    if !others.is_empty() {
        text.push_str(&format!(", {others}"));
    }
    text
}

/// How many permits hold something.
fn permits(set: &SetSnapshot) -> String {
    let mut text = format!(
        "{} of {} hold something, at most {} at once",
        count(set.active),
        count(set.hold_capacity),
        count(set.counts.active_high_water)
    );
    if set.of_dead > 0 {
        text.push_str(&format!("; {} more of dead processes", count(set.of_dead)));
    }
    text
}

/// The counts that are not zero.
fn some_of(counts: &[(&str, u64)]) -> String {
    let texts: Vec<String> = counts
        .iter()
        .filter(|(_, number)| *number > 0)
        .map(|(name, number)| format!("{} {name}", count(*number)))
        .collect();
    texts.join(", ")
}

fn limits(set: &SetSnapshot, declaration: &SetDeclaration) -> String {
    let mut table = Table::new(&[
        ("LIMIT", Side::Left),
        ("KIND", Side::Left),
        ("DECLARED", Side::Left),
        ("REMAINING", Side::Right),
        ("FULL IN", Side::Right),
        ("ADMITTED", Side::Right),
        ("TAKEN", Side::Right),
        ("REFUSED", Side::Right),
        ("ALSO", Side::Left),
    ]);
    for (limit, declaration) in set.limits.iter().zip(declaration.limits()) {
        table.row(vec![
            sanitise::line(&limit.name).into(),
            limit.kind.to_string().into(),
            sanitise::line(&declared::limit(declaration)).into(),
            remaining(set, limit, declaration),
            if set.keys.is_some() {
                "".into()
            } else {
                human::duration(limit.reset_after).into()
            },
            count(limit.counts.admitted).into(),
            count(limit.counts.taken).into(),
            count(limit.counts.refused).into(),
            also(limit, set.keys.is_some()).into(),
        ]);
    }
    let mut text = table.render(2);
    if !declaration.tiers().is_empty() {
        text.push('\n');
        text.push_str(&tiers(declaration).render(2));
    }
    text
}

/// The limits of the other tiers.
fn tiers(declaration: &SetDeclaration) -> Table {
    let mut table = Table::new(&[
        ("TIER", Side::Left),
        ("LIMIT", Side::Left),
        ("DECLARED", Side::Left),
    ]);
    for tier in declaration.tiers() {
        let limits = declaration.limits_of_tier(tier.name()).unwrap_or_default();
        let described: Vec<(&Limit, String)> = limits
            .iter()
            .zip(declaration.limits())
            .map(|(limit, default)| (limit, declared::limit(limit), declared::limit(default)))
            .filter(|(_, changed, default)| changed != default)
            .map(|(limit, changed, _)| (limit, changed))
            .collect();
        let mut name = sanitise::line(tier.name());
        for (limit, changed) in described {
            let limit = sanitise::line(limit.name());
            table.row(vec![
                std::mem::take(&mut name).into(),
                limit.into(),
                sanitise::line(&changed).into(),
            ]);
        }
        if !name.is_empty() {
            table.row(vec![name.into(), "".into(), "as default".into()]);
        }
    }
    table
}

fn remaining(set: &SetSnapshot, limit: &LimitSnapshot, declared: &Limit) -> Cell {
    match (declared.capacity(), limit.remaining) {
        (Amount::Unlimited, _) => "unlimited".into(),
        // There is one answer per key.
        _ if set.keys.is_some() => "by key".into(),
        (_, 0) => Cell::styled("0", style::WARNING),
        (_, remaining) => count(remaining).into(),
    }
}

fn also(limit: &LimitSnapshot, is_keyed: bool) -> String {
    let found = limit.found_capacity.filter(|_| !is_keyed).unwrap_or(0);
    some_of(&[
        ("at once for now", found),
        ("of dead processes", limit.of_dead),
        ("settled", limit.counts.settled),
        ("refunded", limit.counts.refunded),
        ("overdraft", limit.counts.overdraft),
        ("unsettled", limit.counts.unsettled),
        ("reclaimed", limit.counts.reclaimed),
        ("held at most", limit.counts.high_water),
        ("near the limit", limit.counts.near),
        ("would have been refused", limit.counts.would_refuse),
        ("failed", limit.counts.failed),
    ])
}
