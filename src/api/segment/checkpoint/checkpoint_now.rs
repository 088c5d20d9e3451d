//! Taking a checkpoint at once, and why one was not taken.

use std::path::Path;
use std::sync::Arc;

use crate::api::segment::opening::absolute;
use crate::api::segment::{Form, Segment};
use crate::error::Error;

impl Segment {
    /// Writes a checkpoint of the segment to a file now. After a reboot, a segment [declared with
    /// it](crate::declare::Checkpoint) is created from it. Returns false if another process is writing to the file.
    ///
    /// The checkpoint of a [directory](Self#a-file-for-each-set) is a directory, too, with a file for each set. It is
    /// created if its parent exists.
    ///
    /// It reads and writes as many bytes as the segment has, so do not call it while serving a request.
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned) and
    /// [`SegmentError::Removed`](crate::SegmentError::Removed); [`OpenError`](crate::OpenError) if the file cannot be
    /// written, has no room or is not a checkpoint file. The previous checkpoint is kept.
    pub fn checkpoint(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        let path = absolute(path.as_ref())?;
        match &self.form {
            Form::File(file) => file.take_checkpoint(&path, |_| true),
            Form::Directory(directory) => directory.checkpoint(&path),
        }
    }

    /// Why this process failed to take the last checkpoint that was due [as declared](crate::declare::Checkpoint);
    /// `None` if it was taken, here or by another process.
    pub fn checkpoint_failure(&self) -> Option<Arc<Error>> {
        self.files()
            .iter()
            .find_map(|file| file.checkpoint_failure.lock().ok()?.clone())
    }
}
