//! Checkpoints as they are declared: a thread of the process takes them, and a segment that is gone is created from one.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::compiled_definitions::compile_definitions;
use super::open_options::OpenOptions;
use super::shared_segment::SharedSegment;
use crate::api::declaration::{Checkpoint, Declaration};
use crate::error::{Error, OpenError, SegmentError};
use crate::shm::file::attach::Admission;
use crate::shm::file::creation::checkpoint_file::{CheckpointFile, SavedImages, TakenAt};
use crate::shm::file::creation::create::{AtPath, restore};
use crate::shm::file::remove::{Replacement, replace_damaged};
use crate::shm::process::background_thread;
use crate::shm::process::participant::ChildJoined;

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
        let Some(mut file) = CheckpointFile::open(path, size, engine.path(), self.options.trust_any_owner)?
        else {
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

/// Starts the thread that takes the checkpoints of a segment if they are declared, in this process and, once they use it, in
/// forked children. Where it cannot be started, that is the failure to be asked for.
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
    // Kept with the segment: it ends with the last handle, and with it its threads.
    if shared.checkpoints.set(child).is_ok() {
        schedule.start();
    }
}

/// What is to be kept where, and how often.
#[derive(Debug)]
struct Schedule {
    shared: Weak<SharedSegment>,
    checkpoint: Checkpoint,
    /// Dropped, it ends the thread.
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
            // In doubt the thread ends at once: a child may have inherited the lock while another thread of its parent held it.
            Ok(()) => {
                if let Ok(mut stop) = self.stop.try_lock() {
                    // What a child finds there belongs to a thread of its parent. Not dropped: that takes a lock of the channel,
                    // which the thread may have held when the child was forked.
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

/// Takes checkpoints until the segment is not open any more.
fn run(shared: &Weak<SharedSegment>, checkpoint: &Checkpoint, stopped: &Receiver<()>) {
    let interval = checkpoint.interval();
    // Where another process has taken one before, that says when the next is due.
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
                // One of another life of the segment may be ahead of it: that is as good as none.
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
            tracing::warn!(path = %self.engine.path().display(), %failure, "no checkpoint was taken");
        }
        // In doubt it is lost: a child may have inherited the lock while another thread of its parent held it.
        if let Ok(mut last) = self.checkpoint_failure.try_lock() {
            *last = failure.map(Arc::new);
        }
    }
}

/// Creates the segment at `path` from the latest whole image of its checkpoint that a process with this declaration would join
/// as it is; answers whether there was one.
pub(super) fn create_from_checkpoint(
    (path, found): (&Path, AtPath),
    declaration: &Declaration,
    checkpoint: &Checkpoint,
    options: &OpenOptions,
) -> Result<bool, Error> {
    let Some(saved) = SavedImages::find(checkpoint.path(), options.trust_any_owner)? else {
        return Ok(false);
    };
    for nth in 0..saved.count() {
        let mode = declaration.segment().mode();
        let is_restored = restore((path, found), mode, &saved, nth, |verified| {
            compile_definitions(verified, path).is_ok_and(|(stored, _)| {
                let admission = options
                    .on_mismatch
                    .admission(path, &stored, declaration, Vec::new);
                matches!(admission, Ok(Admission::Join))
            })
        })?;
        if is_restored {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Creates the segment at `path` from its checkpoint where there is one and the file there, which no process uses, is refused
/// as damaged.
pub(super) fn replace_by_checkpoint(
    path: &Path,
    declaration: &Declaration,
    options: &OpenOptions,
) -> Result<Replacement, Error> {
    let Some(checkpoint) = declaration.segment().checkpoint() else {
        return Ok(Replacement::Not);
    };
    let replacement = replace_damaged(
        path,
        options.trust_any_owner,
        |verified| compile_definitions(verified, path).is_ok(),
        || create_from_checkpoint((path, AtPath::Damaged), declaration, checkpoint, options),
    )?;
    #[cfg(feature = "tracing")]
    if replacement == Replacement::Done {
        let checkpoint = checkpoint.path().display();
        tracing::warn!(path = %path.display(), %checkpoint, "a damaged segment was created anew from its checkpoint");
    }
    Ok(replacement)
}
