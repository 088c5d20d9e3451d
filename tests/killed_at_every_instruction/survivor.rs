//! What is asked of a segment in which somebody was killed.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shmlimit::{Error, Kind, LimitSet, OpenOptions, Request, Segment, SegmentSnapshot};

use crate::image::{Image, Layout, RawFile};
use crate::operations::{SET, everything};

/// Nobody else is running who could hold the lock, so a lock that is not to be had at once never will be.
const PATIENCE: Duration = Duration::from_millis(200);

/// What was found after a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Everything as it must be; what a user could see of the set once the lock had been recovered.
    Sound(Vec<u64>),
    Torn(String),
    Stuck(String),
}

/// An attached process: the harness itself.
#[derive(Debug)]
pub struct Survivor {
    segment: Segment,
    set: LimitSet,
    look: Request,
    take: Request,
    file: RawFile,
    layout: Layout,
}

impl Survivor {
    pub fn attach(path: &Path) -> Self {
        let segment = OpenOptions::new()
            .lock_timeout(PATIENCE)
            .open(path)
            .expect("the segment");
        let set = segment.set(SET).expect("declared");
        let file = RawFile::open(path);
        Self {
            look: everything(&set, 0),
            take: everything(&set, 1),
            layout: Layout::of(&file),
            segment,
            set,
            file,
        }
    }

    pub fn snapshot(&self) -> SegmentSnapshot {
        self.segment.snapshot().expect("memory for a copy")
    }

    /// Recovers a copy of `image`, in which everybody but this process is dead.
    pub fn judge_copy(
        &self,
        image: &[u64],
        is_legal: impl FnOnce(&Image) -> Result<(), String>,
    ) -> Judgement {
        self.file.become_copy_of(image);
        self.judge(is_legal)
    }

    /// Takes the lock of the segment as it is, which recovers it; asks `is_legal` about what is found then; takes
    /// back what the dead held; and uses the set.
    pub fn judge(&self, is_legal: impl FnOnce(&Image) -> Result<(), String>) -> Judgement {
        match self.judge_in_steps(is_legal) {
            Ok(seen) => Judgement::Sound(seen),
            Err(judgement) => judgement,
        }
    }

    fn judge_in_steps(
        &self,
        is_legal: impl FnOnce(&Image) -> Result<(), String>,
    ) -> Result<Vec<u64>, Judgement> {
        // A peek takes the lock and changes nothing that a user can see, so what it leaves is what recovery left.
        self.set
            .peek(&self.look)
            .map_err(|error| failure("peek", &error))?;
        let image = self.file.copy();
        let torn = |what: &str| Judgement::Torn(what.to_owned());
        is_legal(&image).map_err(Judgement::Torn)?;
        if self.layout.journal_count(&image) != 0 {
            return Err(torn("the journal is not empty"));
        }
        if self.layout.is_poisoned(&image) {
            return Err(torn("the set is poisoned"));
        }
        let lock = self.file.lock_word(&self.layout).load(Ordering::Relaxed);
        if lock != 0 {
            return Err(Judgement::Stuck(format!("the lock word was left at {lock:#x}")));
        }
        let report = self
            .segment
            .recover()
            .map_err(|error| failure("recover", &error))?;
        if report
            .sets
            .iter()
            .any(|set| set.problem.is_some() || set.repairs.is_some())
        {
            return Err(Judgement::Torn(format!("there was more to repair: {report:?}")));
        }
        let snapshot = self.snapshot();
        let set = &snapshot.sets[0];
        if set.torn || set.poisoned || set.words_in_flight != Some(0) {
            return Err(torn("the set is torn, poisoned or has words in flight"));
        }
        if set.active != 0 || !set.holds.is_empty() {
            return Err(Judgement::Torn(format!(
                "of the dead, {} permits are active and {} held",
                set.active,
                set.holds.len()
            )));
        }
        let half_empty = set
            .limits
            .iter()
            .find(|limit| limit.kind == Kind::Concurrency && Some(limit.remaining) != limit.most_at_once);
        if let Some(limit) = half_empty {
            return Err(Judgement::Torn(format!(
                "`{}` was not given back in full",
                limit.name
            )));
        }
        let outcome = self
            .set
            .try_acquire(&self.take)
            .map_err(|error| failure("try_acquire", &error))?;
        drop(outcome);
        let left = self.snapshot();
        if left.sets[0].active != 0 || left.sets[0].words_in_flight != Some(0) {
            return Err(torn("a permit of the survivor was not given back"));
        }
        Ok(self.layout.canonical(&image))
    }
}

fn failure(operation: &str, error: &Error) -> Judgement {
    let message = format!("{operation}: {error}");
    match error {
        Error::LockStuck { .. } | Error::LockLost { .. } => Judgement::Stuck(message),
        _ => Judgement::Torn(message),
    }
}
