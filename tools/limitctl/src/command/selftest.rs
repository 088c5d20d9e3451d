//! `limitctl selftest`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::{as_text, shown};
use crate::diagnosis::{Host, Space};
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::selftest::{Check, Stage};
use crate::text::table::{Cell, Side, Table};
use crate::text::{sanitise, style};

/// Try out whether limits work on this file system and this kernel
///
/// Creates segments in a directory of its own, with processes of its own, which it stops and kills: whether a lock is taken
/// over, who is taken for dead, how long a waiter takes to go on, whether the processor's counter tells the time. Takes some
/// seconds, and removes everything that it made. Ends with exit code 1 where something does not work.
#[derive(Args, Debug)]
pub struct Selftest {
    /// Print JSON
    ///
    /// It says the same as the text, with what was measured as numbers; times are in seconds.
    #[arg(long)]
    json: bool,

    /// Where segments are to be
    ///
    /// Its file system is the one that is tried out.
    #[arg(default_value = "/dev/shm")]
    directory: PathBuf,
}

/// The checks that were made, and where.
#[derive(Debug, Serialize)]
struct Report {
    directory: PathBuf,
    #[serde(flatten)]
    space: Option<Space>,
    host: Host,
    passed: bool,
    checks: Vec<Check>,
}

impl Selftest {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let report = Report::of(&self.directory)?;
        if self.json {
            output::print_json(&report)?;
        } else {
            output::print(&report.text())?;
        }
        Ok(if report.passed {
            ExitCode::Done
        } else {
            ExitCode::Problem
        })
    }
}

impl Report {
    fn of(directory: &Path) -> Result<Self, Failure> {
        let (host, _) = Host::examine(&[]);
        let stage = Stage::new(directory)?;
        let checks = stage.perform();
        let closed = stage.close();
        let checks = checks?;
        closed?;
        Ok(Self {
            directory: as_text(directory),
            space: Space::under(directory),
            host,
            passed: checks.iter().all(|check| check.passed),
            checks,
        })
    }

    fn text(&self) -> String {
        let place = self
            .space
            .as_ref()
            .map_or("?", |space| space.file_system.as_str());
        let title = format!(
            "{} on {place}, Linux {}, {}",
            shown(&self.directory),
            self.host.kernel,
            self.host.c_library
        );
        let mut table = Table::new(&[
            ("CHECK", Side::Left),
            ("", Side::Left),
            ("WHAT WAS SEEN", Side::Left),
        ]);
        for check in &self.checks {
            let outcome = if check.passed {
                Cell::styled("ok", style::GOOD)
            } else {
                Cell::styled("failed", style::BAD)
            };
            table.row(vec![
                check.check.into(),
                outcome,
                sanitise::line(&check.what).into(),
            ]);
        }
        let verdict = if self.passed {
            style::paint(style::GOOD, "limits work here")
        } else {
            style::paint(style::BAD, "limits do not work here")
        };
        let title = style::paint(style::TITLE, sanitise::line(&title));
        format!("{title}\n{}{verdict}\n", table.render(2))
    }
}
