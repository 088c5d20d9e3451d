//! `limitctl checkpoint`.

use std::path::{Path, PathBuf};

use clap::Args;
use shmlimit::Declaration;

use super::declared::{for_all, segment_of};
use crate::arguments::Access;
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::text::human;
use crate::uninterrupted::Uninterrupted;

/// Write the state of a segment into a checkpoint file
///
/// If the file of a segment that declares `checkpoint` is gone, as after a reboot, the segment is created from its checkpoint. Programs that declare one take checkpoints by themselves; this takes one at once, for example before a reboot. If another process is writing to the file, the exit code is 1.
///
/// With --all, it does so for all segments of a host that declare one, each into the file that it declares:
///
///     limitctl checkpoint --all /etc/shmlimit /run/shmlimit
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Checkpoint {
    #[command(flatten)]
    access: Access,

    /// A directory with declarations, each of a segment: the files in it that end in .toml
    ///
    /// If NAME.toml declares no path, its segment is SEGMENT/NAME.limits, as with `limitctl create`. Those that declare no
    /// checkpoint are skipped. A failure is reported and does not stop the others; the exit code is that of the first.
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "checkpoint")]
    all: Option<PathBuf>,

    /// The segment; with --all, the directory for those that have no path
    ///
    /// A file made by `limitctl create` or a program, or a directory with one per set. Symbolic links are not followed.
    #[arg(value_name = "SEGMENT", required_unless_present = "all")]
    path: Option<PathBuf>,

    /// The checkpoint file
    ///
    /// Created if it does not exist, twice as large as the segment. The previous checkpoint stays in it.
    #[arg(value_name = "CHECKPOINT", required_unless_present = "all")]
    checkpoint: Option<PathBuf>,
}

impl Checkpoint {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match (&self.all, &self.path, &self.checkpoint) {
            (Some(directory), ..) => for_all(directory, |file| self.take_one_of_all(file)),
            (None, Some(path), Some(checkpoint)) => {
                let taken = self.take(path, checkpoint)?;
                Ok(if taken { ExitCode::DONE } else { ExitCode::PROBLEM })
            }
            // The parser requires both.
            (None, ..) => Err(Failure::usage("name a segment and a checkpoint file")),
        }
    }

    fn take_one_of_all(&self, file: &Path) -> Result<(), Failure> {
        let declaration = Declaration::from_toml_file(file)?;
        let path = segment_of(file, &declaration, self.path.as_deref())?;
        if let Some(checkpoint) = declaration.segment().checkpoint() {
            // If another process is writing to the file, it is writing a current checkpoint, too.
            self.take(&path, checkpoint.path())?;
        }
        Ok(())
    }

    /// Takes a checkpoint. Returns false if another process is writing to the file.
    fn take(&self, path: &Path, checkpoint: &Path) -> Result<bool, Failure> {
        let segment = self.access.options().open(path)?;
        let uninterrupted = Uninterrupted::begin()?;
        let taken = segment.checkpoint(checkpoint)?;
        drop(uninterrupted);
        let (path, checkpoint) = (human::path(path), human::path(checkpoint));
        output::print(&if taken {
            format!("{checkpoint}: has the state of {path}\n")
        } else {
            format!("{checkpoint}: another process is writing to it\n")
        })?;
        Ok(taken)
    }
}
