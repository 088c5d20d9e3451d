//! `limitctl fleet`.

mod drain;
mod part;

use clap::{Args, Subcommand};
use shmlimit::snapshot::SegmentReader;

use crate::arguments::{Form, Report, SegmentPath};
use crate::exit::{ExitCode, Failure};
use crate::text::amounts::amount;
use crate::text::facts::Facts;
use crate::text::human::{self, count};
use crate::text::table::Table;
use crate::text::{fleet, sanitise, style};
use drain::Drain;
use part::Part;

/// Show what is leased of the limits that hosts share
///
/// That is: where the store is, which process of this host asks it, what is leased of each limit and for how long, what
/// the store answered last or why it did not, and what was counted. Maps the file read-only, takes no lock and asks no
/// store, so nobody waits for it, and permission to read the file is enough. If the segment was declared without a fleet,
/// the exit code is 64.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Fleet {
    #[command(subcommand)]
    action: Option<Action>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    segment: Option<SegmentPath>,
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
        // The parser has made sure that there is one.
        let path = self.segment.map(|segment| segment.path).unwrap_or_default();
        let snapshot = SegmentReader::open(&path)?.snapshot()?;
        let part = Part::of(&path, &snapshot)?;
        self.form.print(&part)
    }
}

impl Report for Part<'_> {
    fn text(&self) -> String {
        let mut host = fleet::host(self.fleet);
        if let Some(name) = &self.fleet.host_name {
            host.push_str(&format!(", named {}", sanitise::line(name)));
        }
        let facts = Facts::default()
            .fact("store", self.store())
            .fact("host", host)
            .fact("duty", self.duty());
        let tables = if self.limits.is_empty() {
            "  no limit is shared\n".to_owned()
        } else {
            format!("{}\n{}", self.leases(), self.counts())
        };
        let path = style::title(&human::path(&self.path));
        format!("{path}\n{}\n{tables}", facts.render())
    }
}

impl Part<'_> {
    /// What is leased, and the store's answers.
    fn leases(&self) -> String {
        Table::of(&self.limits)
            .left("SET", |shared| sanitise::line(shared.set))
            .left("LIMIT", |shared| sanitise::line(shared.limit))
            .left("SHARED AS", |shared| sanitise::line(&shared.lease.key))
            .left("OUTAGE", |shared| shared.lease.outage.as_str())
            .right("LEFT", |shared| fleet::left(shared.snapshot, shared.lease))
            .right("FOR", |shared| fleet::valid_for(shared.lease))
            .right("SHARE", |shared| fleet::share(shared.snapshot, shared.lease))
            .left("STORE", |shared| fleet::answer(shared.lease))
            .right("ANSWERED", |shared| match shared.lease.answered_ago {
                Some(time) => format!("{} ago", human::duration(time)),
                None => "never".to_owned(),
            })
            .render(2)
    }

    fn counts(&self) -> String {
        Table::of(&self.limits)
            .left("SET", |shared| sanitise::line(shared.set))
            .left("LIMIT", |shared| sanitise::line(shared.limit))
            .right("LEASE", |shared| human::duration(shared.lease.length))
            .right("HOSTS", |shared| fleet::hosts(shared.lease))
            .right("REQUESTS", |shared| count(shared.lease.counts.requests))
            .right("GRANTS", |shared| count(shared.lease.counts.grants))
            .right("FAILURES", |shared| count(shared.lease.counts.failures))
            .right("UNITS EXPIRED", |shared| {
                amount(shared.snapshot, shared.lease.counts.expired_units)
            })
            .right("UNUSED IN A ROW", |shared| count(shared.lease.unused_in_a_row))
            .left("", |shared| match shared.lease.asking {
                true => format!("request {} is not answered yet", count(shared.lease.sequence)),
                false => String::new(),
            })
            .render(2)
    }
}
