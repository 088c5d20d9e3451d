//! `limitctl inspect`.

use std::rc::Rc;

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use shmlimit::declare::{Amount, LockKind};
use shmlimit::snapshot::{
    LimitSnapshot, ParticipantSnapshot, ProcessId, SegmentReader, SegmentSnapshot, SetCounts, SetSnapshot,
};
use shmlimit::{Declaration, Limit, SetDeclaration};

use crate::arguments::{Looking, Report};
use crate::diagnosis::Stopped;
use crate::exit::{ExitCode, Failure};
use crate::live::usage::is_by_key;
use crate::output;
use crate::reveal::Reveal;
use crate::snapshot_with_bounds;
use crate::state::{self, State};
use crate::text::amounts::{amount, amounts};
use crate::text::facts::Facts;
use crate::text::human::{self, count, counted};
use crate::text::table::{Cell, Table};
use crate::text::users::{self, User};
use crate::text::{declared, fleet, key, process, sanitise, style};

/// Show everything a segment holds
///
/// That is: processes, sets, limits, holds with their owners, counters, and who has which lock; in JSON, also the
/// declaration. Maps the file read-only, takes no lock and waits for nobody, so it works whatever state the segment is
/// in, and permission to read the file is enough.
#[derive(Args, Debug)]
pub struct Inspect {
    #[command(flatten)]
    reveal: Reveal,

    /// Print only the declaration in force, as TOML
    ///
    /// With every default written out, for `limitctl create` and `limitctl apply`. This is how to get a declaration that
    /// a program has made, or that was edited.
    #[arg(long, conflicts_with_all = ["json", "reveal"])]
    toml: bool,

    #[command(flatten)]
    looking: Looking,
}

/// A segment's state and declaration.
#[derive(Debug, Serialize)]
struct Inspection {
    /// The snapshot, with each limit's bound.
    #[serde(flatten)]
    described: Value,
    declaration: Declaration,
    #[serde(skip)]
    snapshot: SegmentSnapshot,
    /// The PID namespace of the process ids, if it is not that of this process.
    #[serde(skip)]
    namespace: Option<u64>,
    #[serde(skip)]
    stopped: Stopped,
}

impl Inspect {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let path = &self.looking.segment.path;
        let reader = SegmentReader::open(path)?;
        if self.toml {
            output::print_toml(&reader.declaration().to_toml()?)?;
            return Ok(ExitCode::DONE);
        }
        let mut snapshot = reader.snapshot()?;
        snapshot.path = human::as_text(path);
        self.reveal.users(&mut snapshot);
        let place = reader.place()?;
        let is_another = !place.any_pid_namespace && place.pid_namespace != place.own_pid_namespace;
        let declaration = reader.declaration().clone();
        let stopped = Stopped::among(&reader, &snapshot, &Rc::default())?;
        self.looking.form.print(&Inspection {
            described: snapshot_with_bounds(&snapshot, &declaration).map_err(output::not_json)?,
            declaration,
            snapshot,
            namespace: is_another.then_some(place.pid_namespace),
            stopped,
        })
    }
}

impl Report for Inspection {
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
}

impl Inspection {
    fn head(&self) -> String {
        let snapshot = &self.snapshot;
        let state = State::of(snapshot);
        let words = match state {
            State::Elsewhere => {
                "in use elsewhere, such as in a container: here it can only be looked at; limitctl doctor says from where it can be \
                 used"
            }
            State::Cold => {
                "cold: of another boot or namespace, or a copy; the next process to open it voids its locks and owners"
            }
            usual => usual.words(),
        };
        let size = format!("{}, format {}", human::bytes(snapshot.size), snapshot.format);
        let part = snapshot.fleet.as_ref();
        let duty = part.map(|part| format!("{}, host {}", fleet::duty(snapshot, part), fleet::host(part)));
        let locks = Some(snapshot.lock_kind).filter(|kind| *kind != LockKind::default());
        let cold_starts = Some(snapshot.cold_starts).filter(|number| *number > 0);
        let facts = Facts::default()
            .fact("state", style::paint(state.style(), words))
            .fact("size", size)
            .fact("created", human::instant(snapshot.created_utc))
            .fact("locks", locks.map(|kind| kind.to_string()))
            .fact("cold starts", cold_starts.map(count))
            .fact("store", part.map(|part| fleet::store(snapshot, part)))
            .fact("duty", duty);
        format!(
            "{}\n{}",
            style::title(&human::path(&snapshot.path)),
            facts.render()
        )
    }

    fn processes(&self) -> String {
        let snapshot = &self.snapshot;
        let ids = self
            .namespace
            .map(|namespace| format!(", with their ids in PID namespace {namespace}"));
        let mut text = format!(
            "\n{} {} of {}{}\n",
            style::title("processes"),
            count(snapshot.participants.len() as u64),
            count(snapshot.participant_capacity),
            ids.unwrap_or_default(),
        );
        if !snapshot.participants.is_empty() {
            let table = Table::of(&snapshot.participants)
                .right("PID", |it| process::attached(it).to_string())
                .left("NAME", |it| sanitise::line(&it.name))
                .left("STATE", |it| self.state_of(it))
                .left("ATTACHED", |it| human::instant(it.joined_utc));
            text.push_str(&table.render(2));
        }
        text
    }

    fn set(&self, set: &SetSnapshot, declared: &SetDeclaration) -> String {
        let metadata = set.metadata.iter();
        let metadata: Vec<String> = metadata
            .map(|(key, value)| sanitise::line(&format!("{key}={value}")))
            .collect();
        let waiting = set.tickets.iter().filter(|ticket| !ticket.granted).count() as u64;
        let queued = (waiting > 0 || set.counts.queued_high_water > 0).then(|| {
            format!(
                "{} of {}, at most {} at once",
                count(waiting),
                count(set.waiter_capacity),
                count(set.counts.queued_high_water)
            )
        });
        let facts = Facts::default()
            .fact(
                "metadata",
                Some(metadata.join(", ")).filter(|pairs| !pairs.is_empty()),
            )
            .fact("declared", provenance(set))
            .fact("lock", self.lock(set))
            .fact("state", irregularity(set))
            .fact("permits", (set.hold_capacity > 0).then(|| permits(set)))
            .fact("queued", queued)
            .fact("keys", set.keys.as_ref().map(key::occupancy))
            .fact("counted", decisions(&set.counts));
        let mut text = format!(
            "{} {}\n{}",
            style::title("set"),
            style::title(&sanitise::line(&set.name)),
            facts.render()
        );
        let holds = set.holds.iter().map(User::from);
        let holds: Vec<User<'_>> = holds.map(|user| self.stopped.mark(user)).collect();
        let tickets = set.tickets.iter().map(User::from);
        let tickets: Vec<User<'_>> = tickets.map(|user| self.stopped.mark(user)).collect();
        let tables = [
            Some(limits(set, declared)),
            (!declared.tiers().is_empty()).then(|| tiers(declared)),
            set.limits
                .iter()
                .any(|limit| limit.lease.is_some())
                .then(|| leases(set)),
            (!holds.is_empty()).then(|| self.users(set, &holds, ["HOLD", "HELD FOR", "HOLDS"])),
            (!tickets.is_empty()).then(|| self.users(set, &tickets, ["TICKET", "QUEUED FOR", "ASKS FOR"])),
        ];
        for table in tables.into_iter().flatten() {
            text.push('\n');
            text.push_str(&table);
        }
        text
    }

    fn lock(&self, set: &SetSnapshot) -> String {
        if state::is_void(&self.snapshot) {
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

    fn state_of(&self, participant: &ParticipantSnapshot) -> Cell {
        let is_stopped = self.stopped.has(process::attached(participant));
        match (participant.alive, is_stopped) {
            (false, _) => Cell::styled("dead", style::BAD),
            (true, true) => Cell::styled("stopped", style::WARNING),
            (true, false) => Cell::styled("alive", style::GOOD),
        }
    }

    fn users(&self, set: &SetSnapshot, users: &[User<'_>], headings: [&str; 3]) -> String {
        users::table(
            users,
            headings,
            |user| self.name(user),
            |units| amounts(set, units),
        )
    }

    fn name(&self, user: &User<'_>) -> String {
        let mut participants = self.snapshot.participants.iter();
        participants
            .find(|it| Some(it.slot) == user.slot && Some(process::attached(it)) == user.process)
            .map_or_else(String::new, |it| sanitise::line(&it.name))
    }
}

/// The leases of limits that hosts share.
fn leases(set: &SetSnapshot) -> String {
    let limits = set.limits.iter();
    let shared: Vec<_> = limits
        .filter_map(|limit| Some((limit, limit.lease.as_ref()?)))
        .collect();
    Table::of(&shared)
        .left("SHARED AS", |(_, lease)| sanitise::line(&lease.key))
        .right("LEFT", |(limit, lease)| fleet::left(limit, lease))
        .right("FOR", |(_, lease)| fleet::valid_for(lease))
        .right("SHARE", |(limit, lease)| fleet::share(limit, lease))
        .left("STORE", |(_, lease)| fleet::answer(lease))
        .left("OUTAGE", |(_, lease)| lease.outage.as_str())
        .right("GRANTS", |(_, lease)| lease.counts.grants)
        .right("FAILURES", |(_, lease)| lease.counts.failures)
        .right("EXPIRED", |(limit, lease)| {
            amount(limit, lease.counts.expired_units)
        })
        .render(2)
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

fn decisions(counts: &SetCounts) -> String {
    let mut text = format!(
        "{} admitted, {} refused",
        count(counts.admitted),
        count(counts.refused())
    );
    let reasons = counted(&[
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
    let others = counted(&[
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

fn limits(set: &SetSnapshot, declaration: &SetDeclaration) -> String {
    let limits: Vec<(&LimitSnapshot, &Limit)> = set.limits.iter().zip(declaration.limits()).collect();
    Table::of(&limits)
        .left("LIMIT", |(limit, _)| sanitise::line(&limit.name))
        .left("KIND", |(limit, _)| limit.kind)
        .left("DECLARED", |(_, declared)| {
            sanitise::line(&declared::limit(declared))
        })
        .right("REMAINING", |(limit, declared)| {
            remaining(is_by_key(set, limit), limit, declared)
        })
        .right("FULL IN", |(limit, _)| {
            if is_by_key(set, limit) {
                String::new()
            } else {
                human::duration(limit.reset_after)
            }
        })
        .right("ADMITTED", |(limit, _)| count(limit.counts.admitted))
        .right("TAKEN", |(limit, _)| amount(limit, limit.counts.taken))
        .right("REFUSED", |(limit, _)| count(limit.counts.refused))
        .left("ALSO", |(limit, _)| also(limit, is_by_key(set, limit)))
        .render(2)
}

/// The limits of the other tiers.
fn tiers(declaration: &SetDeclaration) -> String {
    let mut rows: Vec<[String; 3]> = Vec::new();
    for tier in declaration.tiers() {
        let limits = declaration.limits_of_tier(tier.name()).unwrap_or_default();
        let mut name = sanitise::line(tier.name());
        if let Some(weight @ 2..) = declaration.weight_of_tier(tier.name()) {
            let share = format!("weight {weight}");
            rows.push([std::mem::take(&mut name), String::new(), share]);
        }
        for (limit, default) in limits.iter().zip(declaration.limits()) {
            let changed = declared::limit(limit);
            if changed != declared::limit(default) {
                let (limit, changed) = (sanitise::line(limit.name()), sanitise::line(&changed));
                rows.push([std::mem::take(&mut name), limit, changed]);
            }
        }
        if !name.is_empty() {
            rows.push([name, String::new(), "as default".to_owned()]);
        }
    }
    Table::of(&rows)
        .left("TIER", |[tier, ..]| tier)
        .left("LIMIT", |[_, limit, _]| limit)
        .left("DECLARED", |[.., declared]| declared)
        .render(2)
}

fn remaining(is_by_key: bool, limit: &LimitSnapshot, declared: &Limit) -> Cell {
    match (declared.capacity(), limit.remaining) {
        (Amount::Unlimited, _) => "unlimited".into(),
        // Each key has its own answer.
        _ if is_by_key => "by key".into(),
        (_, 0) => Cell::styled("0", style::WARNING),
        (_, remaining) => amount(limit, remaining).into(),
    }
}

fn also(limit: &LimitSnapshot, is_by_key: bool) -> String {
    let counts = &limit.counts;
    let found = limit.found_capacity.filter(|_| !is_by_key).unwrap_or(0);
    let units = |units: u64| amount(limit, units);
    let figures = [
        ("at once for now", found, units(found)),
        ("of dead processes", limit.of_dead, units(limit.of_dead)),
        ("settled", counts.settled, count(counts.settled)),
        ("refunded", counts.refunded, units(counts.refunded)),
        ("overdraft", counts.overdraft, units(counts.overdraft)),
        ("unsettled", counts.unsettled, count(counts.unsettled)),
        ("reclaimed", counts.reclaimed, units(counts.reclaimed)),
        ("held at most", counts.high_water, units(counts.high_water)),
        ("near the limit", counts.near, count(counts.near)),
        (
            "would have been refused",
            counts.would_refuse,
            count(counts.would_refuse),
        ),
        ("failed", counts.failed, count(counts.failed)),
    ];
    let figures = figures.iter().filter(|(_, number, _)| *number > 0);
    let figures = figures.map(|(what, _, shown)| format!("{shown} {what}"));
    figures.collect::<Vec<String>>().join(", ")
}
