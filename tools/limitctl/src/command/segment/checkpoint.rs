//! `limitctl checkpoint`.

use std::path::PathBuf;

use clap::Args;

use crate::arguments::Access;
use crate::command::shown;
use crate::exit::{ExitCode, Failure};
use crate::output;

/// Write the state of a segment into a checkpoint file
///
/// A segment that declares `checkpoint` is created from it where its own file is gone, as after a reboot. Programs that declare it
/// take checkpoints by themselves; this takes one at once, such as before a reboot. Ends with exit code 1 where another
/// process is writing to the file.
#[derive(Args, Debug)]
pub struct Checkpoint {
    #[command(flatten)]
    access: Access,

    /// The segment
    ///
    /// A file that `limitctl create` or a program made. Symbolic links are not followed.
    path: PathBuf,

    /// The checkpoint file
    ///
    /// It is made where it is not there, twice as large as the segment. The checkpoint before this one stays in it.
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
}

impl Checkpoint {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let segment = self.access.options().open(&self.path)?;
        let (path, checkpoint) = (shown(&self.path), shown(&self.checkpoint));
        if segment.checkpoint(&self.checkpoint)? {
            output::print(&format!("{checkpoint}: has the state of {path}\n"))?;
            Ok(ExitCode::Done)
        } else {
            output::print(&format!("{checkpoint}: another process is writing to it\n"))?;
            Ok(ExitCode::Problem)
        }
    }
}
