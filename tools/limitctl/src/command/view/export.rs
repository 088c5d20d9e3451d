//! `limitctl export`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use shmlimit::snapshot::SegmentSnapshot;

use super::file_output;
use crate::exit::{ExitCode, Failure};
use crate::live::exposition::{Format, copy, exposition};
use crate::output;

/// Export the figures of segments to a monitoring system
///
/// Counters of requests by result, permits that are out, queues, waits, and what was reclaimed, recovered and evicted,
/// labelled with segment, set and limit, never with a key. Maps the files read-only and takes no lock, so no one waits
/// for it, and it needs no more than permission to read them. A segment that cannot be read does not keep the others
/// from being exported; the exit code says that there was one.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("format").required(true).args(["prometheus", "openmetrics"]))]
pub struct Export {
    /// In the text format of Prometheus
    ///
    /// Which is also what `limitctl serve` answers at /metrics, and what the textfile collector of node exporter reads.
    #[arg(long)]
    prometheus: bool,

    /// In the text format of OpenMetrics
    ///
    /// The same figures. `limitctl serve` answers them in it where it is asked for that.
    #[arg(long)]
    openmetrics: bool,

    /// Write to this file instead of standard output
    ///
    /// The file is replaced at once: its reader finds all of the former figures or all of the new ones. Into a device, into a pipe and through a link they are written directly. A segment or a checkpoint is never written over. Node exporter's textfile collector reads files whose names end in .prom.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// The segments
    ///
    /// Files that `limitctl create` or programs made. Symbolic links are not followed.
    #[arg(required = true)]
    segments: Vec<PathBuf>,
}

impl Export {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut copied: Vec<SegmentSnapshot> = Vec::new();
        let mut problem = None;
        let paths: BTreeSet<&PathBuf> = self.segments.iter().collect();
        for path in paths {
            match copy(path) {
                Ok(snapshot) => copied.push(snapshot),
                Err(error) => {
                    let failure = Failure::from(error);
                    // The last failure is reported at the end of the program.
                    if let Some(Failure { message, .. }) = problem.replace(failure) {
                        output::complain(&message);
                    }
                }
            }
        }
        let format = if self.openmetrics {
            Format::OpenMetrics
        } else {
            Format::Prometheus
        };
        let text = exposition(format, copied.iter());
        match &self.output {
            Some(file) => file_output::write(file, &text)?,
            None => output::print_bytes(text.as_bytes())?,
        }
        problem.map_or(Ok(ExitCode::DONE), Err)
    }
}
