//! The segments that took the place of removed ones at their paths, each opened once for all handles of a process
//! that ask for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::shared_segment::SharedSegment;
use super::{Form, Segment};
use crate::api::set::limit_set::LimitSet;
use crate::error::{Error, RemovalCause};
use crate::mutex::lock;
use crate::shm::process::fork_identity::PerProcess;
use crate::shm::time::clock::boot_nanos;

/// The first pause before a missing successor is looked for again, in nanoseconds. It doubles each time.
const FIRST_PAUSE: u64 = 10_000_000;

/// The longest pause between two attempts, in nanoseconds.
const LONGEST_PAUSE: u64 = 1_000_000_000;

/// The successor of a removed segment, or when to look for it.
#[derive(Debug)]
enum Successor {
    Missing {
        next_look: u64,
        pause: u64,
    },
    /// A thread is opening it, which may take long.
    BeingOpened,
    Open(Arc<SharedSegment>),
}

/// By the number of the removed segment. An entry lives as long as that segment.
#[derive(Debug, Default)]
struct Successors {
    known: Mutex<HashMap<u64, Successor>>,
}

/// Per process, because a child may have been forked while a thread of its parent held the lock.
static SUCCESSORS: PerProcess<Successors> = PerProcess::new();

impl Segment {
    /// How the segment was removed, as far as an operation of this process has found out; `None` while it is in use.
    pub fn removal(&self) -> Option<RemovalCause> {
        self.files().iter().find_map(|file| file.engine.removal())
    }

    /// The segment that took the place of this one, if this one was [removed](crate::SegmentError::Removed) and
    /// another is at its path.
    ///
    /// The first call opens it, with the same [options](crate::OpenOptions); all handles of this process that were
    /// opened together get the same segment. While there is none, the path is checked again after 10 ms and then less
    /// often, down to once a second, so this may be called for each request that meets the error. While one thread
    /// opens the successor, which may take ten seconds if another process is attaching, the others get `None`. It
    /// never creates a segment.
    ///
    /// `None` until an operation has met the error. In a [directory](Self#a-file-for-each-set), each set has a
    /// successor of its own: the segment returned has the successors that exist, and the other sets as they were.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Error, Limit, OpenOptions, Removal, Segment, SegmentError, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// # let requests = |n| Limit::calls("requests", n, Duration::from_secs(60));
    /// # let release = |n| Declaration::new().add_set(SetDeclaration::new("api").add_limit(requests(n)));
    /// let mut segment = Segment::open_or_create(&path, &release(10))?;
    /// let mut api = segment.set("api")?;
    /// OpenOptions::new().remove(&path, Removal::Forced)?; // `limitctl remove --force`
    /// Segment::create(&path, &release(20))?;
    /// assert!(matches!(api.request().try_acquire(), Err(Error::Segment(SegmentError::Removed { .. }))));
    /// if let Some(successor) = segment.successor() {
    ///     segment = successor;
    ///     api = segment.set("api")?;
    /// }
    /// assert!(api.request().try_acquire()?.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn successor(&self) -> Option<Self> {
        match &self.form {
            Form::File(file) => file.successor().map(Self::of),
            Form::Directory(directory) => directory.successor().map(Self::of_directory),
        }
    }
}

impl SharedSegment {
    /// See [`Segment::successor`].
    pub(super) fn successor(&self) -> Option<Arc<Self>> {
        self.engine.removal()?;
        let successors = SUCCESSORS.get().ok()?;
        let removed = self.number;
        let now = boot_nanos();
        let mut known = lock(&successors.known);
        let pause = match known.get(&removed) {
            Some(Successor::Open(file)) if file.engine.removal().is_none() => {
                return Some(Arc::clone(file));
            }
            Some(Successor::BeingOpened) => return None,
            Some(Successor::Missing { next_look, .. }) if now < *next_look => return None,
            Some(Successor::Missing { pause, .. }) => (2 * *pause).min(LONGEST_PAUSE),
            Some(Successor::Open(_)) | None => FIRST_PAUSE,
        };
        let former = known.insert(removed, Successor::BeingOpened);
        // Unlock first: dropping a segment takes this lock.
        drop(known);
        drop(former);
        let mut look = Look {
            successors,
            removed,
            pause,
            found: None,
        };
        let opened = self.open_path_again();
        report(self, &opened);
        look.found = opened.ok();
        look.found.clone()
    }
}

/// A search for a successor. However it ends, its result is recorded.
struct Look {
    successors: &'static Successors,
    removed: u64,
    pause: u64,
    found: Option<Arc<SharedSegment>>,
}

impl Drop for Look {
    fn drop(&mut self) {
        let successor = match self.found.take() {
            Some(file) => Successor::Open(file),
            None => Successor::Missing {
                next_look: boot_nanos().saturating_add(self.pause),
                pause: self.pause,
            },
        };
        let former = lock(&self.successors.known).insert(self.removed, successor);
        drop(former);
    }
}

impl LimitSet {
    /// The set of the same name in the [successor](Segment::successor) of its segment, if there is one.
    ///
    /// # Errors
    ///
    /// See [`Segment::set`].
    pub fn successor(&self) -> Option<Result<Self, Error>> {
        let segment = Segment::of(self.shared().successor()?);
        let set = segment.set(self.name());
        Some(set.map(|set| set.strict(self.is_strict())))
    }
}

impl Drop for SharedSegment {
    fn drop(&mut self) {
        if self.engine.removal().is_none() {
            return;
        }
        if let Ok(successors) = SUCCESSORS.get() {
            let successor = lock(&successors.known).remove(&self.number);
            // Dropped without the lock: it may be the last handle of a segment that itself has a successor.
            drop(successor);
        }
    }
}

/// Reports the result of a search for a successor to the program's `tracing` subscriber.
fn report(_removed: &SharedSegment, _opened: &Result<Arc<SharedSegment>, Error>) {
    #[cfg(feature = "tracing")]
    {
        use crate::error::{OpenError, SegmentError};

        let path = _removed.engine.path().display();
        match _opened {
            Ok(_) => tracing::info!(%path, "the successor of a removed segment was opened"),
            Err(Error::Open(OpenError::NotFound { .. }) | Error::Segment(SegmentError::Removed { .. })) => {}
            Err(error) => {
                tracing::warn!(%path, %error, "the successor of a removed segment could not be opened");
            }
        }
    }
}
