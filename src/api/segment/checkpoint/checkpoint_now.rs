//! Taking a checkpoint at once, and why one was not taken.

use std::path::Path;
use std::sync::Arc;

use crate::api::segment::{Segment, absolute};
use crate::error::Error;

impl Segment {
    /// Writes the state of the segment into a checkpoint file now, from which a segment that is
    /// [declared so](crate::Checkpoint) is created after a reboot. Answers whether it did: not where another process is writing to the
    /// file.
    ///
    /// It reads and writes as many bytes as the segment has, so it is nothing for the time of a request.
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck), [`SegmentError::Poisoned`](crate::SegmentError::Poisoned) and
    /// [`SegmentError::Removed`](crate::SegmentError::Removed); [`OpenError`](crate::OpenError) where the file cannot be written, has
    /// no room or is none of checkpoints. The checkpoint before it stays.
    pub fn checkpoint(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        let path = absolute(path.as_ref())?;
        self.shared().take_checkpoint(&path, |_| true)
    }

    /// Why the last checkpoint that this process was to take [as declared](crate::Checkpoint) could not be; `None` where it was taken, or
    /// by another process.
    pub fn checkpoint_failure(&self) -> Option<Arc<Error>> {
        self.shared().checkpoint_failure.lock().ok()?.clone()
    }
}
