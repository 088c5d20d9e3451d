//! `limitctl remove`.

use clap::Args;
use shmlimit::Removal;

use crate::arguments::{SegmentPath, Trust};
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::text::human;

/// Remove a segment
///
/// Marks it as retired, so that processes attached to it get a clear error at once, and deletes its file; what they
/// hold is given back as ever. Layers and middlewares go on with the segment that is created in its place. Refuses
/// while live processes are attached (exit code 1), unless the segment was retired before. A file that is not a
/// segment is never deleted.
#[derive(Args, Debug)]
pub struct Remove {
    #[command(flatten)]
    trust: Trust,

    /// Remove it under attached processes, or though it is damaged
    ///
    /// Another format counts as damage. A damaged segment is not marked: processes attached to it find within a
    /// second that the file was deleted.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    segment: SegmentPath,
}

impl Remove {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let removal = if self.force {
            Removal::Forced
        } else {
            Removal::Unused
        };
        self.trust.options().remove(&self.segment.path, removal)?;
        output::print(&format!("removed {}\n", human::path(&self.segment.path)))?;
        Ok(ExitCode::DONE)
    }
}
