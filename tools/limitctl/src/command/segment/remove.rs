//! `limitctl remove`.

use std::path::PathBuf;

use clap::Args;
use shmlimit::Removal;

use crate::arguments::Trust;
use crate::command::shown;
use crate::exit::{ExitCode, Failure};
use crate::output;

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

    /// The segment
    ///
    /// A file made by `limitctl create` or a program, or a directory with one per set. Symbolic links are not followed.
    path: PathBuf,
}

impl Remove {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let removal = if self.force {
            Removal::Forced
        } else {
            Removal::Unused
        };
        self.trust.options().remove(&self.path, removal)?;
        output::print(&format!("removed {}\n", shown(&self.path)))?;
        Ok(ExitCode::Done)
    }
}
