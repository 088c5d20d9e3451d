//! The declared checkpoint, from which a segment's state is restored after a reboot.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::declaration::limit::window::Window;
use crate::error::DeclarationError;
use crate::shm::file::set_directory::file_of;

/// The default time between checkpoints.
const EVERY: Duration = Duration::from_secs(30);

/// The shortest time between two checkpoints.
const MIN_EVERY: Duration = Duration::from_secs(1);

/// Where the state of a segment is saved so that it survives a reboot: the `checkpoint` of a `[segment]`.
///
/// Processes that open the segment with this declaration save its state to a file at intervals, one of them at a
/// time, in a thread of its own and never as part of a request. If the segment has to be recreated, because
/// `/dev/shm` is empty after a boot or because its file is rejected as damaged and no process uses it, it is created
/// from the last complete checkpoint, provided that a process with this declaration would join such a segment (see
/// [`OnMismatch`](crate::declare::OnMismatch)). What limits have counted is restored, taking into account the time that
/// has passed since then by the wall clock. Holds and waiters are not.
///
/// What was admitted after the last checkpoint may be admitted again after a reboot, and no more than that: with a
/// checkpoint every 30 seconds, the requests of 30 seconds. A segment that exists and is sound is never overwritten.
/// Checkpoints are for segments in memory; one on a disk survives a reboot by itself.
///
/// The file is twice as large as the segment, and each checkpoint writes the whole segment. While a shard is copied
/// in memory, its lock is held, for about 0.2 ms per MiB. Each segment needs a file of its own; if the segment is a
/// [directory](crate::Segment#a-file-for-each-set), so is the checkpoint, with a file for each set, and each set has a
/// thread of its own. To start from nothing, [`remove`](crate::OpenOptions::remove) the segment and then the checkpoint.
///
/// ```
/// use std::time::Duration;
/// use shmlimit::declare::Checkpoint;
/// use shmlimit::{Declaration, Limit, OpenOptions, Removal, Segment, SetDeclaration};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("limits");
/// # let kept = directory.path().join("limits.checkpoint");
/// let declaration = Declaration::new()
///     .checkpoint(Checkpoint::new(&kept).every(Duration::from_secs(10)))
///     .add_set(SetDeclaration::new("api").add_limit(Limit::calls("requests", 2, Duration::from_secs(3600))));
/// let segment = Segment::open_or_create(&path, &declaration)?;
/// let api = segment.set("api")?;
/// assert!(api.request().check()?.is_admitted());
/// segment.checkpoint(&kept)?; // at once, besides every ten seconds
/// # drop((api, segment));
/// std::fs::remove_file(&path)?; // a reboot does this to files in memory
///
/// let api = Segment::open_or_create(&path, &declaration)?.set("api")?;
/// assert!(api.request().check()?.is_admitted());
/// assert!(!api.request().check()?.is_admitted()); // two in an hour
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use]
pub struct Checkpoint {
    path: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    every: Option<Window>,
}

impl Checkpoint {
    /// A checkpoint every 30 seconds in the file at `path`, on a disk, in an existing directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            every: None,
        }
    }

    /// The time between two checkpoints, at least one second; 30 seconds by default.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = Some(Window::Span(interval));
        self
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The time between two checkpoints.
    pub fn interval(&self) -> Duration {
        match self.every {
            Some(Window::Span(interval)) => interval,
            _ => EVERY,
        }
    }

    /// The checkpoint of one set, where each has a file of its own.
    pub(crate) fn in_directory(self, set: &str) -> Self {
        Self {
            path: file_of(&self.path, set),
            ..self
        }
    }

    pub(crate) fn check(&self) -> Result<(), DeclarationError> {
        let invalid = |field: &str, given: String, problem: &str| DeclarationError::Value {
            place: format!("segment / checkpoint / {field}"),
            given,
            problem: problem.to_owned(),
        };
        if self.path.as_os_str().is_empty() {
            return Err(invalid(
                "path",
                "\"\"".to_owned(),
                "names no file: write where the checkpoint is to be",
            ));
        }
        match self.every {
            Some(every) if every.is_calendar() || self.interval() < MIN_EVERY => Err(invalid(
                "every",
                format!("\"{every}\""),
                "is not a time between two checkpoints: write a length of at least \"1s\"",
            )),
            _ => Ok(()),
        }
    }
}
