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
/// Counters of requests by result, permits in use, queues, waits, and what was reclaimed, recovered and evicted, labelled
/// with segment, set and limit, never with a key. Maps the files read-only and takes no lock, so nobody waits for it, and
/// permission to read them is enough. If a segment cannot be read, the others are exported all the same, and the exit
/// code says so.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("format").required(true).args(["prometheus", "openmetrics"]))]
pub struct Export {
    /// In the text format of Prometheus
    ///
    /// This is also what `limitctl serve` answers at /metrics, and what node exporter's textfile collector reads.
    #[arg(long)]
    prometheus: bool,

    /// In the text format of OpenMetrics
    ///
    /// The same figures. `limitctl serve` answers in this format on request.
    #[arg(long)]
    openmetrics: bool,

    /// Write to this file instead of standard output
    ///
    /// The file is replaced in one step: a reader finds either all of the old figures or all of the new ones. A device, a
    /// pipe or the target of a link is written to directly. A segment or a checkpoint is never overwritten. Node
    /// exporter's textfile collector reads files whose names end in .prom.
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
