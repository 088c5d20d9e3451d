//! `limitctl remove`.

use clap::Args;
use shmlimit::Removal;

use crate::arguments::{SegmentPath, Trust};
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::text::human;

/// Remove a segment
///
/// Marks it as retired, so that attached processes get a clear error at once, and deletes its file. They can still give
/// back what they hold. Layers and middlewares continue with the segment that is created in its place. Refuses to remove
/// a segment to which live processes are attached (exit code 1), unless it is retired already. A file that is not a
/// segment is never deleted.
#[derive(Args, Debug)]
pub struct Remove {
    #[command(flatten)]
    trust: Trust,

    /// Remove it even if processes are attached or it is damaged
    ///
    /// Another format counts as damage. A damaged segment is not marked: attached processes find out within a second that
    /// the file was deleted.
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
