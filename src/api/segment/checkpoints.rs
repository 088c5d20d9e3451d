//! Checkpoints as they are declared: a thread of the process takes them, and a segment that is gone is created from one.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use super::compiled_definitions::compile_definitions;
use super::shared_segment::SharedSegment;
use crate::api::declaration::{Checkpoint, Declaration};
use crate::error::{Error, OpenError};
use crate::shm::file::checkpoint_file::{CheckpointFile, SavedImages, TakenAt};
use crate::shm::file::create::restore;
use crate::shm::process::background_thread;

/// How long a thread that could not take a checkpoint waits before it tries again, at most.
const RETRY: Duration = Duration::from_secs(5);

impl SharedSegment {
    /// Takes a checkpoint if it is due by the latest one in the file.
    pub(super) fn take_checkpoint(
        &self,
        path: &Path,
        is_due: impl FnOnce(Option<TakenAt>) -> bool,
    ) -> Result<bool, Error> {
        let engine = &self.engine;
        let size = engine.region().size();
        let Some(mut file) = CheckpointFile::open(path, size, engine.path())? else {
            return Ok(false);
        };
        if !is_due(file.latest()) {
            return Ok(false);
        }
        let writer = file.begin(size, engine.taken_at());
        engine.copy_image(|offset, bytes| writer.write(offset, bytes))?;
        writer.finish()?;
        Ok(true)
    }
}

/// Starts the thread that takes the checkpoints of a segment if they are declared, in this process and, once they use it, in forked children. Where it
/// cannot be started, that is the failure to be asked for.
pub(super) fn start(shared: &Arc<SharedSegment>, declaration: &Declaration) {
    let Some(checkpoint) = declaration.segment().checkpoint() else {
        return;
    };
    let schedule = Schedule {
        shared: Arc::downgrade(shared),
        checkpoint: checkpoint.clone(),
    };
    shared.engine.membership.when_child_joins({
        let schedule = schedule.clone();
        move || schedule.clone().start()
    });
    schedule.start();
}

/// What is to be kept where, and how often.
#[derive(Clone, Debug)]
struct Schedule {
    shared: Weak<SharedSegment>,
    checkpoint: Checkpoint,
}

impl Schedule {
    fn start(self) {
        let shared = Weak::clone(&self.shared);
        let started = background_thread::start("shmlimit-checkpoint", move || self.run());
        if let (Err(source), Some(shared)) = (started, shared.upgrade()) {
            shared.note_failure(Some(Error::Open(OpenError::Io {
                action: "start a thread for the checkpoints of",
                path: shared.engine.path().to_owned(),
                source,
            })));
        }
    }

    /// Until the segment is not open any more: then it ends with the next time that one is due.
    fn run(self) {
        let interval = self.checkpoint.interval();
        let mut pause = interval;
        loop {
            thread::sleep(pause);
            let Some(shared) = self.shared.upgrade() else {
                return;
            };
            let now = shared.engine.taken_at().segment;
            let mut age = None;
            let taken = shared.take_checkpoint(self.checkpoint.path(), |latest| {
                // One of another life of the segment may be ahead of it: that is as good as none.
                age = latest
                    .and_then(|latest| now.checked_sub(latest.segment))
                    .map(Duration::from_nanos);
                age.is_none_or(|age| age >= interval)
            });
            pause = match (&taken, age) {
                (Ok(false), Some(age)) => interval.saturating_sub(age).max(Duration::from_millis(1)),
                (Ok(_), _) => interval,
                (Err(_), _) => interval.min(RETRY),
            };
            shared.note_failure(taken.err());
        }
    }
}

impl SharedSegment {
    fn note_failure(&self, failure: Option<Error>) {
        #[cfg(feature = "tracing")]
        if let Some(failure) = &failure {
            tracing::warn!(path = %self.engine.path().display(), %failure, "no checkpoint was taken");
        }
        // In doubt it is lost: a child may have inherited the lock while another thread of its parent held it.
        if let Ok(mut last) = self.checkpoint_failure.try_lock() {
            *last = failure.map(Arc::new);
        }
    }
}

/// Creates the segment at `path` from the latest whole image of its checkpoint that is of the same declaration; answers
/// whether there was one.
pub(super) fn create_from_checkpoint(
    path: &Path,
    declaration: &Declaration,
    checkpoint: &Checkpoint,
) -> Result<bool, Error> {
    let Some(saved) = SavedImages::find(checkpoint.path())? else {
        return Ok(false);
    };
    for nth in 0..saved.count() {
        let mode = declaration.segment().mode();
        let is_restored = restore(path, mode, &saved, nth, |verified| {
            compile_definitions(verified, path)
                .is_ok_and(|(stored, _)| declaration.differences(&stored.to_declaration()).is_empty())
        })?;
        if is_restored {
            return Ok(true);
        }
    }
    Ok(false)
}
