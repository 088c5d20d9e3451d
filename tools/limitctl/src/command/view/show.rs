//! `limitctl show`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use shmlimit::snapshot::{
    HoldSnapshot, KeyLabel, KeyLimitSnapshot, KeySnapshot, ProcessId, SegmentReader, TicketSnapshot,
};
use shmlimit::{Error, Limit, RequestError, SetDeclaration};

use crate::command::{aligned, amounts, as_text, label, label_heading};
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::reveal::Reveal;
use crate::text::human::{self, count};
use crate::text::table::{Side, Table};
use crate::text::{declared, key, process, sanitise, style};

/// Show one key of a keyed set
///
/// That is what is left to it of each limit, how often it was admitted and refused, and which processes hold or wait for something of it. Maps the file read-only and takes no lock. Works also where nothing is kept of keys.
#[derive(Args, Debug)]
pub struct Show {
    /// Print JSON
    ///
    /// Amounts are in the units that the limits count in, times in seconds. "rows" is empty where the key has none.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    reveal: Reveal,

    /// The segment
    ///
    /// A file made by `limitctl create` or a program, or a directory with one per set. Symbolic links are not followed.
    segment: PathBuf,

    /// The keyed set
    ///
    /// One of the names that `limitctl inspect` shows.
    set: String,

    /// The key, whole
    ///
    /// Exactly the bytes that programs use; or an address, where the limits of the set count networks: then each network that contains it is shown.
    key: OsString,
}

/// A key, and the processes that use it.
#[derive(Debug, Serialize)]
struct View {
    path: PathBuf,
    set: String,
    /// The key's row, if it has one; or the rows of the networks that contain the address, the largest first.
    rows: Vec<KeySnapshot>,
    holds: Vec<HoldSnapshot>,
    tickets: Vec<TicketSnapshot>,
    /// The set's declaration.
    #[serde(skip)]
    declared: Option<SetDeclaration>,
}

impl Show {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let view = self.look()?;
        if self.json {
            output::print_json(&view)?;
        } else {
            output::print(&self.shown(&view))?;
        }
        Ok(ExitCode::Done)
    }

    fn look(&self) -> Result<View, Failure> {
        let reader = SegmentReader::open(&self.segment)?;
        let rows = self.rows(&reader)?.into_iter().map(|row| self.reveal.row(row));
        let mut view = View {
            path: as_text(&self.segment),
            set: self.set.clone(),
            rows: rows.collect(),
            holds: Vec::new(),
            tickets: Vec::new(),
            declared: self.declared(&reader),
        };
        if view
            .rows
            .iter()
            .any(|row| row.held > 0 || row.of_dead > 0 || row.waiting > 0)
        {
            let mut snapshot = reader.snapshot()?;
            self.reveal.users(&mut snapshot);
            let sets = snapshot.sets;
            for set in sets.into_iter().filter(|set| set.name == self.set) {
                let is_its =
                    |key: &Option<KeyLabel>| view.rows.iter().any(|row| Some(&row.key) == key.as_ref());
                view.holds
                    .extend(set.holds.into_iter().filter(|hold| is_its(&hold.key)));
                view.tickets
                    .extend(set.tickets.into_iter().filter(|ticket| is_its(&ticket.key)));
            }
        }
        Ok(view)
    }

    fn declared(&self, reader: &SegmentReader) -> Option<SetDeclaration> {
        let sets = reader.declaration().sets();
        sets.iter().find(|set| set.name() == self.set).cloned()
    }

    /// The key's row, or the rows of the networks that contain an address, as far as they exist.
    fn rows(&self, reader: &SegmentReader) -> Result<Vec<KeySnapshot>, Failure> {
        match reader.key_snapshot(&self.set, self.key.as_bytes()) {
            Err(error @ Error::Request(RequestError::AddressRequired { .. })) => {
                match key::address(&self.key) {
                    Some(address) => Ok(reader.address_snapshots(&self.set, address)?),
                    None => Err(error.into()),
                }
            }
            row => Ok(row?.into_iter().collect()),
        }
    }

    fn shown(&self, view: &View) -> String {
        let mut text = format!(
            "{} of set {}\n",
            style::paint(
                style::TITLE,
                format!("key {}", self.reveal.typed(self.key.as_bytes()))
            ),
            sanitise::line(&view.set)
        );
        if view.rows.is_empty() {
            text.push_str("  has no row: it has used nothing, or all of it is replenished and the row went to another key\n");
        }
        for (position, row) in view.rows.iter().enumerate() {
            if position > 0 {
                text.push('\n');
            }
            text.push_str(&row_text(row, view.declared.as_ref()));
        }
        if !view.holds.is_empty() || !view.tickets.is_empty() {
            text.push('\n');
            text.push_str(&users(view).render(2));
        }
        text
    }
}

fn row_text(row: &KeySnapshot, declared: Option<&SetDeclaration>) -> String {
    let has_tiers = declared.is_some_and(|set| !set.tiers().is_empty());
    let tier = row.tier.as_deref().unwrap_or("default");
    let limits_of_tier = declared.and_then(|set| set.limits_of_tier(tier));
    let state = match (row.torn, row.replenished) {
        (true, _) => style::paint(
            style::WARNING,
            "changed while it was looked at: the values may be from different moments",
        ),
        (false, true) => "replenished".to_owned(),
        (false, false) => "in use".to_owned(),
    };
    let mut held = human::quantity(row.held, "permit", "permits");
    if row.of_dead > 0 {
        held.push_str(&format!(", and {} by dead processes", count(row.of_dead)));
    }
    let mut facts = vec![
        ("row", key::key(&row.key)),
        ("fingerprint", row.key.fingerprint.to_string()),
        ("state", state),
        ("last used", format!("{} ago", human::duration(row.unused_for))),
        (
            "counted",
            format!(
                "{} admitted, {} refused",
                count(row.admitted.into()),
                count(row.refused.into())
            ),
        ),
        ("held", held),
        ("queued", human::quantity(row.waiting, "request", "requests")),
    ];
    if !row.throttled_for.is_zero() {
        let until = format!("nothing is admitted for {}", human::duration(row.throttled_for));
        facts.push(("throttled", style::paint(style::WARNING, until)));
    }
    if has_tiers {
        let how = if row.tier_assigned { ", assigned" } else { "" };
        facts.insert(2, ("tier", sanitise::line(&format!("{tier}{how}"))));
    }
    let limits = limits(row, &limits_of_tier.unwrap_or_default());
    format!("{}\n{}", aligned(&facts), limits.render(2))
}

fn limits(row: &KeySnapshot, declared: &[Limit]) -> Table {
    let mut table = Table::new(&[
        ("LIMIT", Side::Left),
        ("KIND", Side::Left),
        ("DECLARED", Side::Left),
        ("LEFT", Side::Left),
    ]);
    for limit in &row.limits {
        let declaration = declared.iter().find(|declared| declared.name() == limit.name);
        table.row(vec![
            sanitise::line(&limit.name).into(),
            limit.kind.to_string().into(),
            declared_for(limit, declaration).into(),
            key::standing(limit),
        ]);
    }
    table
}

/// The limit declared for a key's tier, or the override that replaces it.
fn declared_for(limit: &KeyLimitSnapshot, declaration: Option<&Limit>) -> String {
    let text = match (declaration, limit.override_capacity) {
        (None, _) => String::new(),
        (Some(declaration), None) => declared::limit(declaration),
        (Some(declaration), Some(own)) => format!(
            "{}; its own, in place of {}",
            declared::limit(&declaration.with_override(own)),
            declared::limit(declaration)
        ),
    };
    sanitise::line(&text)
}

/// The holds and the waiters of the key.
fn users(view: &View) -> Table {
    let mut table = Table::new(&[
        ("PID", Side::Right),
        ("STATE", Side::Left),
        ("FOR", Side::Right),
        ("WHAT", Side::Left),
        (label_heading(&view.holds), Side::Left),
    ]);
    let mut user = |process: Option<ProcessId>,
                    is_alive: bool,
                    state: &str,
                    length: Duration,
                    what: &BTreeMap<String, u64>,
                    label: String| {
        table.row(vec![
            process::cell(process).into(),
            if is_alive { state } else { "dead" }.into(),
            human::duration(length).into(),
            amounts(what).into(),
            label.into(),
        ]);
    };
    for hold in &view.holds {
        user(
            process::of_hold(hold),
            hold.owner_alive,
            if hold.returned { "returned it" } else { "holds" },
            hold.held_for,
            &hold.amounts,
            label(hold),
        );
    }
    for ticket in &view.tickets {
        let state = if ticket.granted { "was served" } else { "waits" };
        user(
            process::of_ticket(ticket),
            ticket.owner_alive,
            state,
            ticket.waiting_for,
            &ticket.costs,
            String::new(),
        );
    }
    table
}
