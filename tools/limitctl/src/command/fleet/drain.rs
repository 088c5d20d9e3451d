//! `limitctl fleet drain`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use shmlimit::Segment;

use super::part::{Part, Shared};
use crate::arguments::{Access, duration};
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::store;
use crate::text::human::{self, count};
use crate::text::sanitise;

/// The pause between two checks whether everything is given back.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Give back everything that is leased, before a host leaves
///
/// From now on, this host leases nothing: requests for limits that it shares with other hosts are refused for want of a
/// lease, including those of programs that start later, until `--end`. The process that asks the store for this host
/// gives back what is leased and reports what was spent; places of a concurrency limit are given back as they are
/// released. limitctl waits for that. If no process asks the store, limitctl does, with the user and password in
/// SHMLIMIT_FLEET_USERNAME and SHMLIMIT_FLEET_PASSWORD or SHMLIMIT_FLEET_PASSWORD_FILE. What is not given back counts
/// as spent one lease later.
///
/// If not everything was given back in time, says what was not, and ends with exit code 1.
#[derive(Args, Debug)]
pub struct Drain {
    #[command(flatten)]
    access: Access,

    /// Ask for leases again instead
    ///
    /// For a host that is to stay after all.
    #[arg(long, conflicts_with = "timeout")]
    end: bool,

    /// How long to wait until everything is given back, such as 500ms or 30s
    ///
    /// With 0, limitctl does not wait; what it began continues all the same.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    timeout: Duration,

    /// The segment
    ///
    /// A file made by `limitctl create` or a program. Symbolic links are not followed.
    segment: PathBuf,
}

impl Drain {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let segment = self.access.options().open(&self.segment)?;
        Part::of(&self.segment, &segment.snapshot()?)?;
        segment.fleet().set_draining(!self.end)?;
        if self.end {
            let path = human::path(&self.segment);
            output::print(&format!("{path}: asks for leases again\n"))?;
            return Ok(ExitCode::DONE);
        }
        let begun = Instant::now();
        if !self.timeout.is_zero() {
            store::ask_while_running(&segment);
        }
        loop {
            let left = self.left(&segment)?;
            if left.is_empty() {
                let path = human::path(&self.segment);
                output::print(&format!("{path}: everything is given back\n"))?;
                return Ok(ExitCode::DONE);
            }
            if begun.elapsed() >= self.timeout {
                return Err(Failure::problem(left));
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// What is not given back yet and why, one limit a line. Empty if everything is given back.
    fn left(&self, segment: &Segment) -> Result<String, Failure> {
        let snapshot = segment.snapshot()?;
        let part = Part::of(&self.segment, &snapshot)?;
        let limits = part.limits.iter().filter(|shared| !shared.lease.given_back);
        let mut text = limits.fold(String::new(), |mut text, shared| {
            let _ = writeln!(text, "{}", not_given_back(shared));
            text
        });
        if !text.is_empty() {
            let _ = write!(text, "duty: {}", part.duty());
        }
        Ok(text)
    }
}

fn not_given_back(shared: &Shared<'_>) -> String {
    let lease = shared.lease;
    let name = sanitise::line(&format!("{} {}", shared.set, shared.limit));
    match lease.problem {
        Some(problem) => format!("{name} is not given back: the store, {problem}"),
        None if lease.asking => {
            let request = count(lease.sequence);
            format!("{name} is not given back: request {request} is not answered yet")
        }
        None => format!("{name} is not given back: nothing was reported to the store since"),
    }
}
