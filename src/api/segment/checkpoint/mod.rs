//! Declared checkpoints: a thread of the process takes them, and a segment that is gone is created again from one.

mod checkpoint_now;

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::definitions::compiled_definitions::compile_definitions;
use super::open_options::OpenOptions;
use super::shared_segment::SharedSegment;
#[cfg(feature = "tracing")]
use crate::callers_code::contained;
use crate::declaration::{Checkpoint, Declaration};
use crate::error::{Error, OpenError, SegmentError};
use crate::shm::file::attach::Admission;
use crate::shm::file::creation::checkpoint_file::{CheckpointFile, SavedImages, TakenAt};
use crate::shm::file::creation::create::{Restored, restore};
use crate::shm::file::remove::remove_damaged;
use crate::shm::process::background_thread;
use crate::shm::process::participant::ChildJoined;

/// The longest pause before a thread that could not take a checkpoint tries again.
const RETRY: Duration = Duration::from_secs(5);

impl SharedSegment {
    /// Takes a checkpoint if one is due, judging by the latest one in the file.
    pub(super) fn take_checkpoint(
        &self,
        path: &Path,
        is_due: impl FnOnce(Option<TakenAt>) -> bool,
    ) -> Result<bool, Error> {
        let engine = &self.engine;
        let size = engine.region().size();
        let mode = engine.membership.file_mode()?;
        let Some(mut file) = CheckpointFile::open(path, size, mode, self.options.trust_any_owner)? else {
            return Ok(false);
        };
        if !is_due(file.latest()) {
            return Ok(false);
        }
        let mut writer = file.begin(size, engine.taken_at());
        engine.copy_image(|offset, bytes| writer.write(offset, bytes))?;
        writer.finish()?;
        Ok(true)
    }
}

/// Starts the thread that takes the checkpoints of a segment, if any are declared, in this process and in forked
/// children once they use the segment. If it cannot be started, that is recorded as the checkpoint failure.
pub(super) fn start(shared: &Arc<SharedSegment>, declaration: &Declaration) {
    let Some(checkpoint) = declaration.segment().checkpoint() else {
        return;
    };
    let schedule = Arc::new(Schedule {
        shared: Arc::downgrade(shared),
        checkpoint: checkpoint.clone(),
        stop: Mutex::default(),
    });
    let child: Arc<dyn ChildJoined> = schedule.clone();
    shared.engine.membership.when_child_joins(&child);
    // Kept with the segment, so that it and its threads end with the last handle.
    if shared.checkpoints.set(Box::new(child)).is_ok() {
        schedule.start();
    }
}

/// What to save, where, and how often.
#[derive(Debug)]
struct Schedule {
    shared: Weak<SharedSegment>,
    checkpoint: Checkpoint,
    /// Dropping it ends the thread.
    stop: Mutex<Option<Sender<()>>>,
}

impl ChildJoined for Schedule {
    fn child_joined(&self) {
        self.start();
    }
}

impl Schedule {
    fn start(&self) {
        let (sender, stopped) = mpsc::channel();
        let (shared, checkpoint) = (Weak::clone(&self.shared), self.checkpoint.clone());
        let started = background_thread::start("shmlimit-checkpoint", move || {
            run(&shared, &checkpoint, &stopped);
        });
        match started {
            // If in doubt, the thread ends at once: a child may have inherited the lock while another thread of its
            // parent held it.
            Ok(()) => {
                if let Ok(mut stop) = self.stop.try_lock() {
                    // What a child finds here belongs to a thread of its parent. It is not dropped, because that
                    // takes a lock of the channel, which the thread may have held at the fork.
                    std::mem::forget(stop.replace(sender));
                }
            }
            Err(source) => {
                if let Some(shared) = self.shared.upgrade() {
                    shared.note_failure(Some(Error::Open(OpenError::Io {
                        action: "start a thread for the checkpoints of",
                        path: shared.engine.path().to_owned(),
                        source,
                    })));
                }
            }
        }
    }
}

/// Takes checkpoints until the segment is closed.
fn run(shared: &Weak<SharedSegment>, checkpoint: &Checkpoint, stopped: &Receiver<()>) {
    let interval = checkpoint.interval();
    // A checkpoint that another process has taken before determines when the next is due.
    let mut is_first = true;
    let mut pause = Duration::ZERO;
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let mut age = None;
        let path = checkpoint.path();
        let taken = if is_first && !path.exists() {
            Ok(true)
        } else {
            shared.take_checkpoint(path, |latest| {
                let now = shared.engine.taken_at().segment;
                // A checkpoint from another life of the segment may be ahead of this one's clock. It then does not
                // count.
                age = latest
                    .and_then(|latest| now.checked_sub(latest.segment))
                    .map(Duration::from_nanos);
                age.is_none_or(|age| age >= interval)
            })
        };
        is_first = false;
        pause = match (&taken, age) {
            (Ok(false), Some(age)) => interval.saturating_sub(age).max(Duration::from_millis(1)),
            (Ok(_), _) => interval,
            (Err(Error::Segment(SegmentError::Removed { .. })), _) => return,
            (Err(_), _) => interval.min(RETRY),
        };
        shared.note_failure(taken.err());
    }
}

impl SharedSegment {
    fn note_failure(&self, failure: Option<Error>) {
        #[cfg(feature = "tracing")]
        if let Some(failure) = &failure {
            contained(|| {
                tracing::warn!(path = %self.engine.path().display(), %failure, "no checkpoint was taken");
            });
        }
        if let Ok(mut last) = self.checkpoint_failure.lock() {
            *last = failure.map(Arc::new);
        }
    }
}

/// The segment to put at `path`: the latest complete image of its checkpoint that a process with this declaration
/// would join as it is; `None` if there is none.
pub(super) fn restored_from_checkpoint(
    path: &Path,
    declaration: &Declaration,
    options: &OpenOptions,
) -> Result<Option<Restored>, Error> {
    let Some(checkpoint) = declaration.segment().checkpoint() else {
        return Ok(None);
    };
    let Some(saved) = SavedImages::find(checkpoint.path(), options.trust_any_owner)? else {
        return Ok(None);
    };
    for nth in 0..saved.count() {
        let mode = declaration.segment().mode();
        let restored = restore(path, mode, &saved, nth, |verified| {
            compile_definitions(verified, path).is_ok_and(|(stored, _)| {
                let admission = options
                    .on_mismatch
                    .admission(path, &stored, declaration, Vec::new);
                matches!(admission, Ok(Admission::Join))
            })
        })?;
        if restored.is_some() {
            return Ok(restored);
        }
    }
    Ok(None)
}

/// Creates the segment at `path` from its checkpoint, if it has one, and if the file there is rejected as damaged and
/// no process uses it. Returns whether to open the path again, which is also the case if another process has done so.
pub(super) fn replace_by_checkpoint(
    path: &Path,
    declaration: &Declaration,
    options: &OpenOptions,
) -> Result<bool, Error> {
    if declaration.segment().checkpoint().is_none() {
        return Ok(false);
    }
    let successor = remove_damaged(path, options.trust_any_owner, || {
        restored_from_checkpoint(path, declaration, options)
    });
    match successor.and_then(|restored| restored.map(|it| it.publish(path)).transpose()) {
        Ok(published) => Ok(published.is_some()),
        Err(Error::Open(OpenError::NotFound { .. } | OpenError::AlreadyExists { .. })) => Ok(true),
        Err(error) => {
            #[cfg(feature = "tracing")]
            tracing::warn!(path = %path.display(), %error, "a damaged segment was not created anew from its checkpoint");
            Err(error)
        }
    }
}
