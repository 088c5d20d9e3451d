//! `limitctl show`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

use clap::Args;
use serde::Serialize;
use shmlimit::declare::Scope;
use shmlimit::snapshot::{
    HoldSnapshot, KeyLabel, KeyLimitSnapshot, KeySnapshot, LimitSnapshot, SegmentReader, TicketSnapshot,
};
use shmlimit::{Error, Limit, RequestError, SetDeclaration};

use crate::arguments::{Looking, Report};
use crate::diagnosis::Stopped;
use crate::exit::{ExitCode, Failure};
use crate::reveal::Reveal;
use crate::text::amounts::{amount, declared_amounts};
use crate::text::facts::Facts;
use crate::text::human::{self, count};
use crate::text::table::Table;
use crate::text::users::{self, User};
use crate::text::{declared, key, sanitise, style};

/// Show one key of a keyed set
///
/// That is: what it has left of each limit, what all keys have left together, how often it was admitted and refused, and which
/// processes hold or wait for its limits. Maps the file read-only and takes no lock. Works even if the segment stores no keys. In JSON, "rows"
/// is empty if the key has no row.
#[derive(Args, Debug)]
pub struct Show {
    #[command(flatten)]
    reveal: Reveal,

    #[command(flatten)]
    looking: Looking,

    /// The keyed set
    ///
    /// One of the names that `limitctl inspect` shows.
    set: String,

    /// The key, whole
    ///
    /// Exactly the bytes that programs use. If the limits of the set count networks, an address: each network that contains
    /// it is shown.
    key: OsString,
}

/// A key, and the processes that use it.
#[derive(Debug, Serialize)]
struct View {
    path: PathBuf,
    set: String,
    /// The key's row, if it has one, or the rows of the networks that contain the address, the largest first.
    rows: Vec<KeySnapshot>,
    holds: Vec<HoldSnapshot>,
    tickets: Vec<TicketSnapshot>,
    /// The limits that all keys have together. They may refuse a key that has enough left of its own limits.
    all_keys: Vec<LimitSnapshot>,
    #[serde(skip)]
    stopped: Stopped,
    /// How many requests wait for limits of all keys, whichever keys they are for.
    #[serde(skip)]
    waiting: u64,
    /// As much of the typed key as is shown.
    #[serde(skip)]
    key: String,
    /// The set's declaration.
    #[serde(skip)]
    declared: Option<SetDeclaration>,
}

impl Show {
    pub fn run(self) -> Result<ExitCode, Failure> {
        self.looking.form.print(&self.look()?)
    }

    fn look(&self) -> Result<View, Failure> {
        let reader = SegmentReader::open(&self.looking.segment.path)?;
        let rows = self.rows(&reader)?.into_iter().map(|row| self.reveal.row(row));
        let mut view = View {
            path: human::as_text(&self.looking.segment.path),
            set: self.set.clone(),
            rows: rows.collect(),
            holds: Vec::new(),
            tickets: Vec::new(),
            all_keys: Vec::new(),
            stopped: Stopped::default(),
            waiting: 0,
            key: self.reveal.typed(self.key.as_bytes()),
            declared: self.declared(&reader),
        };
        let is_used = |row: &KeySnapshot| row.held > 0 || row.of_dead > 0 || row.queued > 0;
        let mut declared = view.declared.iter().flat_map(SetDeclaration::limits);
        let have_some_together = declared.any(|limit| limit.options().scope() == Scope::AllKeys);
        if have_some_together || view.rows.iter().any(is_used) {
            let mut snapshot = reader.snapshot()?;
            self.reveal.users(&mut snapshot);
            view.stopped = Stopped::among(&reader, &snapshot, &Rc::default())?;
            let sets = snapshot.sets;
            for set in sets.into_iter().filter(|set| set.name == self.set) {
                let is_its =
                    |key: &Option<KeyLabel>| view.rows.iter().any(|row| Some(&row.key) == key.as_ref());
                // A request that waits for its own key's limits holds up no other key.
                let waits_for_them = |ticket: &&TicketSnapshot| !ticket.granted && ticket.in_order.is_some();
                view.waiting = set.tickets.iter().filter(waits_for_them).count() as u64;
                let together = set
                    .limits
                    .into_iter()
                    .filter(|limit| limit.scope == Scope::AllKeys);
                view.all_keys.extend(together);
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
}

impl Report for View {
    fn text(&self) -> String {
        let mut text = format!(
            "{} of set {}\n",
            style::title(&format!("key {}", self.key)),
            sanitise::line(&self.set)
        );
        if self.rows.is_empty() {
            text.push_str("  has no row: it has used nothing, or all of it is replenished and the row went to another key\n");
        }
        let rows: Vec<String> = self
            .rows
            .iter()
            .map(|row| row_text(row, self.declared.as_ref()))
            .collect();
        text.push_str(&rows.join("\n"));
        if !self.all_keys.is_empty() {
            text.push('\n');
            text.push_str(&self.together());
        }
        if !self.holds.is_empty() || !self.tickets.is_empty() {
            text.push('\n');
            text.push_str(&self.users());
        }
        text
    }
}

fn row_text(row: &KeySnapshot, declared: Option<&SetDeclaration>) -> String {
    let has_tiers = declared.is_some_and(|set| !set.tiers().is_empty());
    let tier = row.tier.as_deref().unwrap_or("default");
    let limits_of_tier = declared.and_then(|set| set.limits_of_tier(tier));
    let is_idle = row.replenished && row.held == 0 && row.of_dead == 0 && row.queued == 0;
    let state = match (row.torn, is_idle) {
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
    let counted = format!(
        "{} admitted, {} refused",
        count(row.admitted.into()),
        count(row.refused.into())
    );
    let how = if row.tier_assigned { ", assigned" } else { "" };
    let throttled = (!row.throttled_for.is_zero()).then(|| {
        let until = format!("nothing is admitted for {}", human::duration(row.throttled_for));
        style::paint(style::WARNING, until)
    });
    let facts = Facts::default()
        .fact("row", key::key(&row.key))
        .fact("fingerprint", row.key.fingerprint.to_string())
        .fact("tier", has_tiers.then(|| sanitise::line(&format!("{tier}{how}"))))
        .fact("state", state)
        .fact("last used", format!("{} ago", human::duration(row.unused_for)))
        .fact("counted", counted)
        .fact("held", held)
        .fact("queued", human::quantity(row.queued, "request", "requests"))
        .fact("share", row.in_order.map(|_| key::share(row.in_order)))
        .fact(
            "lead",
            Some(key::lead(row.in_order)).filter(|lead| !lead.is_empty()),
        )
        .fact("throttled", throttled);
    let declared_as = |limit: &KeyLimitSnapshot| {
        let mut limits = limits_of_tier.iter().flatten();
        limits.find(|declared| declared.name() == limit.name)
    };
    if row.limits.is_empty() {
        return facts.render(); // it only uses limits of all keys
    }
    let limits = Table::of(&row.limits)
        .left("LIMIT", |limit| sanitise::line(&limit.name))
        .left("KIND", |limit| limit.kind)
        .left("DECLARED", |limit| declared_for(limit, declared_as(limit)))
        .left("LEFT", key::left);
    format!("{}\n{}", facts.render(), limits.render(2))
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

impl View {
    /// What all keys have together.
    fn together(&self) -> String {
        let declared = |limit: &LimitSnapshot| {
            let mut limits = self.declared.iter().flat_map(SetDeclaration::limits);
            let declared = limits.find(|declared| declared.name() == limit.name);
            declared.map_or_else(String::new, |declared| sanitise::line(&declared::limit(declared)))
        };
        let left = |limit: &LimitSnapshot| {
            key::left_of(
                limit.found_capacity.or(limit.capacity),
                limit.remaining,
                |units| amount(limit, units),
                "",
                limit.reset_after,
            )
        };
        let mut text = Table::of(&self.all_keys)
            .left("LIMIT", |limit| sanitise::line(&limit.name))
            .left("KIND", |limit| limit.kind)
            .left("DECLARED", declared)
            .left("LEFT", left)
            .render(2);
        if self.waiting > 0 {
            let requests = human::quantity(
                self.waiting,
                "request of all keys waits",
                "requests of all keys wait",
            );
            text.push_str(&format!(
                "  {requests}: until they are served, those that do not wait are refused\n"
            ));
        }
        text
    }

    /// The holds and the waiters of the key.
    fn users(&self) -> String {
        let holds = self.holds.iter().map(User::from);
        let users: Vec<User<'_>> = holds
            .chain(self.tickets.iter().map(User::from))
            // The view shows a single key, and all its requests have that key's share.
            .map(|user| User {
                key: None,
                in_order: None,
                ..user
            })
            .map(|user| self.stopped.mark(user))
            .collect();
        users::table(
            &users,
            ["", "FOR", "WHAT"],
            |_| String::new(),
            |units| declared_amounts(self.declared.as_ref(), units),
        )
    }
}
