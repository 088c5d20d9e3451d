//! `limitctl fleet`.

mod drain;
mod part;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use shmlimit::fleet::LeaseSnapshot;
use shmlimit::snapshot::{SegmentReader, SegmentSnapshot};

use crate::command::{aligned, shown};
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::text::human::{self, count};
use crate::text::table::{Cell, Side, Table};
use crate::text::{fleet, sanitise, style};
use drain::Drain;
use part::{Part, Shared};

/// Show what is leased of the limits that hosts share
///
/// That is: where the store is, which process of this host asks it, what is leased of each limit and for how long, what the
/// store answered last or why it did not, and what was counted. Maps the file read-only, takes no lock and asks no store,
/// so no one waits for it, and it needs no more than permission to read the file. Ends with exit code 64 where the segment
/// was declared without a fleet.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Fleet {
    #[command(subcommand)]
    action: Option<Action>,

    /// Print JSON
    ///
    /// Amounts are in the units that the limits count in, times in seconds.
    #[arg(long)]
    json: bool,

    /// The segment
    ///
    /// A file made by `limitctl create` or a program. Symbolic links are not followed.
    #[arg(required = true)]
    segment: Option<PathBuf>,
}

/// What can be done besides showing it.
#[derive(Debug, Subcommand)]
enum Action {
    Drain(Drain),
}

impl Fleet {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if let Some(Action::Drain(drain)) = self.action {
            return drain.run();
        }
        let path = self.segment.unwrap_or_default();
        let snapshot = SegmentReader::open(&path)?.snapshot()?;
        let part = Part::of(&path, &snapshot)?;
        if self.json {
            output::print_json(&part)?;
        } else {
            output::print(&text(&part, &snapshot))?;
        }
        Ok(ExitCode::Done)
    }
}

fn text(part: &Part<'_>, snapshot: &SegmentSnapshot) -> String {
    let Part {
        path,
        fleet: part,
        limits,
    } = part;
    let mut host = format!("{:016x}", part.host);
    if let Some(name) = &part.host_name {
        host.push_str(&format!(", named {}", sanitise::line(name)));
    }
    let facts = [
        ("store", sanitise::line(&part.url)),
        ("host", host),
        ("duty", fleet::duty(snapshot, part)),
    ];
    let mut text = format!("{}\n{}", style::paint(style::TITLE, shown(path)), aligned(&facts));
    text.push('\n');
    if limits.is_empty() {
        text.push_str("  no limit is shared\n");
        return text;
    }
    text.push_str(&leases(limits).render(2));
    text.push('\n');
    text.push_str(&counts(limits).render(2));
    text
}

/// What is leased, and the store's answers.
fn leases(limits: &[Shared<'_>]) -> Table {
    let mut table = Table::new(&[
        ("SET", Side::Left),
        ("LIMIT", Side::Left),
        ("SHARED AS", Side::Left),
        ("OUTAGE", Side::Left),
        ("LEFT", Side::Right),
        ("FOR", Side::Right),
        ("SHARE", Side::Right),
        ("STORE", Side::Left),
        ("ANSWERED", Side::Right),
    ]);
    for Shared {
        set, limit, lease, ..
    } in limits
    {
        let answered = match lease.answered_ago {
            Some(time) => format!("{} ago", human::duration(time)),
            None => "never".to_owned(),
        };
        table.row(vec![
            sanitise::line(set).into(),
            sanitise::line(limit).into(),
            sanitise::line(&lease.key).into(),
            lease.outage.as_str().into(),
            left(lease),
            human::duration(lease.valid_for).into(),
            count(lease.share).into(),
            fleet::answer(lease),
            answered.into(),
        ]);
    }
    table
}

fn left(lease: &LeaseSnapshot) -> Cell {
    match lease.left {
        0 => Cell::styled("0", style::WARNING),
        left => count(left).into(),
    }
}

fn counts(limits: &[Shared<'_>]) -> Table {
    let mut table = Table::new(&[
        ("SET", Side::Left),
        ("LIMIT", Side::Left),
        ("REQUESTS", Side::Right),
        ("GRANTS", Side::Right),
        ("FAILURES", Side::Right),
        ("UNITS EXPIRED", Side::Right),
        ("UNUSED IN A ROW", Side::Right),
        ("", Side::Left),
    ]);
    for Shared {
        set, limit, lease, ..
    } in limits
    {
        let counts = lease.counts;
        table.row(vec![
            sanitise::line(set).into(),
            sanitise::line(limit).into(),
            count(counts.requests).into(),
            count(counts.grants).into(),
            count(counts.failures).into(),
            count(counts.expired_units).into(),
            count(lease.unused_in_a_row).into(),
            if lease.asking {
                format!("request {} is not answered yet", count(lease.sequence)).into()
            } else {
                "".into()
            },
        ]);
    }
    table
}
