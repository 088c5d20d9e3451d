//! `limitctl selftest`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::arguments::{Form, Report};
use crate::diagnosis::{Host, Space};
use crate::exit::{ExitCode, Failure};
use crate::selftest::{Check, Stage};
use crate::text::table::{Cell, Table};
use crate::text::{human, sanitise, style};

/// Try out whether limits work on this file system and this kernel
///
/// Creates segments in a directory of its own, with processes of its own that it stops and kills. It checks whether a lock
/// is taken over, who is taken for dead, how long it takes to wake a waiter, and whether the processor's counter tells the
/// time. Takes some seconds, and removes everything that it created. If something does not work, the exit code is 1. In
/// JSON, measurements are numbers.
#[derive(Args, Debug)]
pub struct Selftest {
    #[command(flatten)]
    form: Form,

    /// Where segments will be
    ///
    /// The file system of this directory is tested.
    #[arg(default_value = "/dev/shm")]
    directory: PathBuf,
}

/// The checks that were made, and where.
#[derive(Debug, Serialize)]
struct Outcome {
    directory: PathBuf,
    #[serde(flatten)]
    space: Option<Space>,
    host: Host,
    passed: bool,
    checks: Vec<Check>,
}

impl Selftest {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let report = Outcome::of(&self.directory)?;
        self.form.print(&report)?;
        Ok(if report.passed {
            ExitCode::DONE
        } else {
            ExitCode::PROBLEM
        })
    }
}

impl Outcome {
    fn of(directory: &Path) -> Result<Self, Failure> {
        let (host, _) = Host::examine(&[]);
        let stage = Stage::new(directory)?;
        let checks = stage.perform();
        let closed = stage.close();
        let checks = checks?;
        closed?;
        Ok(Self {
            directory: human::as_text(directory),
            space: Space::under(directory),
            host,
            passed: checks.iter().all(|check| check.passed),
            checks,
        })
    }
}

impl Report for Outcome {
    fn text(&self) -> String {
        let place = self
            .space
            .as_ref()
            .map_or("?", |space| space.file_system.as_str());
        let title = format!(
            "{} on {place}, Linux {}, {}",
            human::path(&self.directory),
            self.host.kernel,
            self.host.c_library
        );
        let table = Table::of(&self.checks)
            .left("CHECK", |check| check.check)
            .left("", |check| match check.passed {
                true => Cell::styled("ok", style::GOOD),
                false => Cell::styled("failed", style::BAD),
            })
            .left("WHAT WAS SEEN", |check| sanitise::line(&check.what));
        let verdict = if self.passed {
            style::paint(style::GOOD, "limits work here")
        } else {
            style::paint(style::BAD, "limits do not work here")
        };
        let title = style::title(&sanitise::line(&title));
        format!("{title}\n{}{verdict}\n", table.render(2))
    }
}
