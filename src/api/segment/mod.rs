//! Segments, as programs use them.

mod checkpoint;
pub(crate) mod definitions;
pub(crate) mod mismatch;
pub(crate) mod open_options;
pub(crate) mod recovery;
pub(crate) mod shared_segment;
pub(crate) mod successor;

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use once_cell::race::OnceBox;

use super::declaration::Declaration;
use super::request_events::{Observer, RequestEvents};
use super::segment_memory::SegmentPlan;
use super::set::limit_set::LimitSet;
use super::snapshot::{KeySnapshot, KeySource, Owners, SegmentSnapshot, SnapshotSource};
use super::wait::unused_batches::note_handle;
use crate::engine::{EngineOptions, LockWait, SegmentEngine};
use crate::error::{Difference, Error, OpenError, RemovalCause, RequestError, SegmentError};
use crate::shm::file::attach::{Admission, attach};
use crate::shm::file::creation::create::{Blueprint, create, ensure_free};
use crate::shm::file::remove::{finish_removal, remove};
use crate::shm::file::verified::Verified;
use crate::shm::layout::records::{LEASES, SYSTEM_CLOCK};
use crate::shm::process::fork_identity::ProcessMutex;
use crate::shm::time::segment_clock::SegmentClock;
use crate::words::words;
use checkpoint::{replace_by_checkpoint, restored_from_checkpoint};
use definitions::bring_into_force::{bring_into_force, stored_declaration};
use definitions::compiled_definitions::{compile_definitions, compile_one, read_definitions};
use mismatch::{Author, Mismatch, needs_another_file};
use open_options::OpenOptions;
use shared_segment::SharedSegment;

/// How often an attempt to open may find the segment created and removed again by others.
const OPENING_ATTEMPTS: usize = 100;

/// A segment that this process is attached to.
///
/// A handle is cheap to clone, can be used by any number of threads, and stays valid in forked children: a child
/// becomes a participant of its own at its first use. The process stays attached until the last handle, set and
/// [owned permit](crate::Permit::into_owned) is dropped.
///
/// Once the segment is removed (retired, its file deleted, or another put at its path), its handles return
/// [`SegmentError::Removed`] and admit nothing. [`successor`](Self::successor) then gives the segment that took its
/// place.
///
/// ```
/// use std::time::Duration;
/// use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("api.limits");
/// let declaration = Declaration::new().add_set(
///     SetDeclaration::new("api")
///         .add_limit(Limit::calls("requests", 100, Duration::from_secs(1)))
///         .add_limit(Limit::concurrency("in_flight", 8)),
/// );
/// let segment = Segment::open_or_create(&path, &declaration)?; // any number of processes at once
/// let api = segment.set("api")?;
/// let permit = api.try_acquire(&api.request())?.into_result().expect("no other process took anything");
/// drop(permit); // gives the concurrency back
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Segment {
    shared: Arc<SharedSegment>,
}

impl OpenOptions {
    /// Opens an existing segment.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotFound`], and whatever makes the file unusable: see the variants of [`Error`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Segment, Error> {
        let path = absolute(path.as_ref())?;
        let mut answer = self.open_absolute(&path, None);
        for _ in 1..OPENING_ATTEMPTS {
            // The file was deleted between finding and opening it: look at the path again.
            if !matches!(
                answer,
                Err(Error::Segment(SegmentError::Removed {
                    cause: RemovalCause::Deleted,
                    ..
                }))
            ) {
                break;
            }
            answer = self.open_absolute(&path, None);
        }
        answer
    }

    /// Creates a segment and opens it. Its space is allocated in full.
    ///
    /// # Errors
    ///
    /// [`OpenError::AlreadyExists`], [`OpenError::NoSpace`], [`Error::Declaration`], and other errors of the system.
    pub fn create(&self, path: impl AsRef<Path>, declaration: &Declaration) -> Result<Segment, Error> {
        let path = absolute(path.as_ref())?;
        self.create_file(&path, declaration)?;
        let segment = self.open_absolute(&path, None)?;
        checkpoint::start(&segment.shared, declaration);
        Ok(segment)
    }

    /// Opens the segment, or creates it. Any number of processes may do so at once. A [retired](Segment::retire)
    /// segment is replaced by a new one. So is a damaged one that no process uses, if its state can be restored from
    /// its [checkpoint](crate::declare::Checkpoint). If the segment has another declaration,
    /// [`on_mismatch`](Self::on_mismatch) decides.
    ///
    /// # Errors
    ///
    /// [`OpenError::ConfigMismatch`], which names each difference and what to do, and the errors of
    /// [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(
        &self,
        path: impl AsRef<Path>,
        declaration: &Declaration,
    ) -> Result<Segment, Error> {
        let path = absolute(path.as_ref())?;
        declaration.validate()?;
        let mut last = Error::Open(OpenError::NotFound { path: path.clone() });
        for _ in 0..OPENING_ATTEMPTS {
            match self.open_absolute(&path, Some(declaration)) {
                Ok(segment) => {
                    checkpoint::start(&segment.shared, declaration);
                    return Ok(segment);
                }
                Err(Error::Open(OpenError::NotFound { .. })) => {}
                Err(Error::Segment(SegmentError::Removed { .. })) => {
                    match finish_removal(&path, self.trust_any_owner) {
                        Ok(()) | Err(Error::Open(OpenError::NotFound { .. })) => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(
                    error @ (Error::Segment(SegmentError::Damaged { .. })
                    | Error::Open(OpenError::WrongSize { .. })),
                ) => match replace_by_checkpoint(&path, declaration, self) {
                    Ok(true) => {
                        last = error;
                        continue;
                    }
                    // It may be sound in a moment.
                    Err(
                        stuck @ Error::Open(
                            OpenError::AttachStuck { .. }
                            | OpenError::LockedByReader { .. }
                            | OpenError::LocksNotKept { .. },
                        ),
                    ) => return Err(stuck),
                    // The damage is more informative than why the file could not be replaced.
                    Ok(false) | Err(_) => return Err(error),
                },
                Err(error) => return Err(error),
            }
            match self.create_file(&path, declaration) {
                Ok(()) | Err(Error::Open(OpenError::AlreadyExists { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Creates the file, from its checkpoint if there is one, and does not open it.
    fn create_file(&self, path: &Path, declaration: &Declaration) -> Result<(), Error> {
        declaration.validate()?;
        ensure_free(path)?;
        match restored_from_checkpoint(path, declaration, self)? {
            Some(restored) => restored.publish(path),
            None => create_file(path, declaration),
        }
    }

    /// Retires a segment and removes its file. This process need not be attached, and does not become so.
    ///
    /// Processes that are attached, or attach in the meantime, get [`SegmentError::Removed`] from then on; what they
    /// hold is given back as usual. A segment that is retired already is removed even if processes are attached,
    /// because none of them can use it any more.
    ///
    /// # Errors
    ///
    /// [`OpenError::InUse`] if live processes are attached and `removal` is [`Removal::Unused`], and the errors of
    /// [`open`](Self::open). A file that is not a segment is never removed.
    pub fn remove(&self, path: impl AsRef<Path>, removal: Removal) -> Result<(), Error> {
        let forced = removal == Removal::Forced;
        remove(&absolute(path.as_ref())?, self.trust_any_owner, forced)
    }

    /// Opens the segment. With `declared`, only under that declaration or whatever `on_mismatch` makes of it.
    fn open_absolute(&self, path: &Path, declared: Option<&Declaration>) -> Result<Segment, Error> {
        let understand = |verified: &Verified| compile_definitions(verified, path);
        let mut mode = None;
        let tell = |what: &str| {
            if let Some(observer) = &self.wait_observer {
                (observer.0)(what);
            }
        };
        let (attached, (stored, plans)) =
            attach(path, self.trust_any_owner, &tell, understand, |candidate| {
                let Some(declared) = declared else {
                    return Ok(Admission::Join);
                };
                mode = Some(candidate.mode()?);
                let definitions = candidate.definitions()?;
                let stored = read_definitions(&definitions, candidate.creation_options(), path)?;
                self.on_mismatch
                    .admission(path, &stored, declared, || candidate.other_processes())
            })?;
        let options = EngineOptions {
            lock_timeout: self.lock_timeout,
            clock: match &self.virtual_clock {
                Some(clock) => SegmentClock::Virtual(clock.clone()),
                None if attached.verified.creation_options.uses_system_clock => SegmentClock::System,
                None => SegmentClock::fastest(),
            },
            compile: compile_one,
        };
        let engine = SegmentEngine::new(path, attached, plans, options)?;
        for shard in engine.shards().filter(|_| self.reclaim) {
            // A set that cannot be locked now will say so when it is used.
            let _ = engine.reclaim(shard, LockWait::Briefly);
        }
        let (declaration, mismatches) = match declared {
            None => (stored.to_declaration(), Vec::new()),
            Some(declared) => {
                let (declaration, mut mismatches) = self.reconcile(&engine, declared)?;
                let mode = declared.segment().declared_mode().zip(mode);
                mismatches
                    .extend(mode.and_then(|(declared, found)| Mismatch::of_modes(path, declared, found)));
                (declaration, mismatches)
            }
        };
        for mismatch in &mismatches {
            mismatch.report(path);
        }
        let sets = engine.sets().len();
        let events = |observer: &Observer| RequestEvents::new(observer.clone(), sets);
        let shared = Arc::new(SharedSegment {
            number: SharedSegment::next_number(),
            request_events: self.observer.as_ref().map(events),
            engine,
            declaration,
            options: self.clone(),
            mismatches,
            warned: ProcessMutex::default(),
            checkpoint_failure: ProcessMutex::default(),
            checkpoints: OnceBox::new(),
        });
        note_handle(&shared);
        Ok(Segment { shared })
    }

    /// Puts the declaration into force as far as allowed. Returns what is in force afterwards, and how the two
    /// differed.
    fn reconcile(
        &self,
        engine: &SegmentEngine,
        declared: &Declaration,
    ) -> Result<(Declaration, Vec<Mismatch>), Error> {
        let refused = |immutable: Vec<Difference>| match stored_declaration(engine) {
            Ok(stored) => needs_another_file(engine.path(), &stored, declared, &immutable),
            Err(error) => error,
        };
        let mismatches = bring_into_force(
            engine,
            declared,
            Author::Program,
            |step| self.on_mismatch.permits(step),
            refused,
        )?;
        Ok((stored_declaration(engine)?.to_declaration(), mismatches))
    }
}

/// When [`OpenOptions::remove`] may remove a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Removal {
    /// Only if no live process is attached.
    Unused,
    /// Even if processes are attached, or the file is damaged or of another format. Such a file is not marked as
    /// retired: attached processes find out within a second that it is no longer at its path.
    Forced,
}

words!(Removal, "a circumstance of removals", {
    Unused = "unused",
    Forced = "forced",
});

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}

impl Segment {
    pub(crate) fn of(shared: Arc<SharedSegment>) -> Self {
        Self { shared }
    }

    pub(crate) fn shared(&self) -> &Arc<SharedSegment> {
        &self.shared
    }

    /// Opens an existing segment: [`OpenOptions::open`] with the defaults.
    ///
    /// # Errors
    ///
    /// See [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        OpenOptions::new().open(path)
    }

    /// Creates a segment and opens it: [`OpenOptions::create`] with the defaults.
    ///
    /// # Errors
    ///
    /// See [`OpenOptions::create`].
    pub fn create(path: impl AsRef<Path>, declaration: &Declaration) -> Result<Self, Error> {
        OpenOptions::new().create(path, declaration)
    }

    /// Opens the segment, or creates it: [`OpenOptions::open_or_create`] with the defaults.
    ///
    /// # Errors
    ///
    /// See [`OpenOptions::open_or_create`].
    pub fn open_or_create(path: impl AsRef<Path>, declaration: &Declaration) -> Result<Self, Error> {
        OpenOptions::new().open_or_create(path, declaration)
    }

    /// The set of that name.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSet`], which names the sets there are.
    pub fn set(&self, name: &str) -> Result<LimitSet, Error> {
        let position = self.shared.engine.sets().iter().position(|set| set.name == name);
        let set = position.and_then(|position| LimitSet::new(Arc::clone(&self.shared), position));
        set.ok_or_else(|| {
            Error::Request(RequestError::UnknownSet {
                name: name.to_owned(),
                known: self.sets().map(|set| set.name().to_owned()).collect(),
            })
        })
    }

    /// Every set, in the order of the declaration.
    pub fn sets(&self) -> impl Iterator<Item = LimitSet> + '_ {
        let positions = 0..self.shared.engine.sets().len();
        positions.filter_map(|position| LimitSet::new(Arc::clone(&self.shared), position))
    }

    /// The declaration in force when this process opened the segment, without path and mode. See
    /// [`declaration_in_force`](Self::declaration_in_force) for the current one.
    pub fn declaration(&self) -> &Declaration {
        &self.shared.declaration
    }

    /// How the segment differed from the declaration that it was opened with, and what was done about it: see
    /// [`OpenOptions::on_mismatch`].
    pub fn mismatches(&self) -> &[Mismatch] {
        &self.shared.mismatches
    }

    /// The path of the file, made absolute.
    pub fn path(&self) -> &Path {
        self.shared.engine.path()
    }

    /// A copy of everything, taken without a lock.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`] if there is no memory for the copy.
    pub fn snapshot(&self) -> Result<SegmentSnapshot, Error> {
        let engine = &self.shared.engine;
        SnapshotSource {
            path: engine.path(),
            region: engine.region(),
            sets: engine.sets(),
            definitions: engine.definitions(),
            declaration: &self.shared.declaration,
            table: engine.membership.table(),
            owners: Owners::new(&|id| engine.membership.is_alive(id)),
            now: engine.read_clocks(true),
            same_place: true,
        }
        .take()
    }

    /// Calls `visit` for each key of a set that has a row, in no particular order. Takes no lock, and uses no more
    /// memory for many keys than for one. Keys that come or go in the meantime may or may not be shown.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSet`], [`RequestError::NotKeyed`].
    pub fn key_snapshots(&self, set: &str, visit: impl FnMut(&KeySnapshot)) -> Result<(), Error> {
        self.with_keys(|keys| keys.visit(set, visit))
    }

    /// One key of a set, read without a lock; `None` if it has no row, which is as if it had never been used.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSet`], [`RequestError::NotKeyed`], [`RequestError::InvalidKey`],
    /// [`RequestError::AddressRequired`].
    pub fn key_snapshot(&self, set: &str, key: impl AsRef<[u8]>) -> Result<Option<KeySnapshot>, Error> {
        self.with_keys(|keys| keys.find(set, key.as_ref()))
    }

    /// The networks that contain an address: see
    /// [`SegmentReader::address_snapshots`](crate::snapshot::SegmentReader::address_snapshots).
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSet`], [`RequestError::NoPrefixes`].
    pub fn address_snapshots(&self, set: &str, address: IpAddr) -> Result<Vec<KeySnapshot>, Error> {
        self.with_keys(|keys| keys.find_networks(set, address))
    }

    fn with_keys<T>(&self, look: impl FnOnce(&KeySource<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let engine = &self.shared.engine;
        look(&KeySource {
            sets: engine.sets(),
            definitions: engine.definitions(),
            owners: Owners::new(&|id| engine.membership.is_alive(id)),
            now: engine.read_clocks(true),
        })
    }

    /// Marks the segment as no longer usable: from now on any request in any process returns
    /// [`SegmentError::Removed`]. What permits hold can still be settled and given back. The file stays.
    pub fn retire(&self) {
        self.shared.engine.retire();
    }
}

impl SharedSegment {
    /// Opens what is at the path now, with the same options.
    pub(crate) fn open_path_again(&self) -> Result<Segment, Error> {
        self.options.open_absolute(self.engine.path(), None)
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|source| {
        Error::Open(OpenError::Io {
            action: "find",
            path: path.to_owned(),
            source,
        })
    })
}

/// Creates the file as declared, and does not open it.
fn create_file(path: &Path, declaration: &Declaration) -> Result<(), Error> {
    let plan = SegmentPlan::of(declaration)?;
    let options = declaration.segment().creation_options();
    create(
        path,
        &Blueprint {
            geometry: &plan.geometry,
            definitions: &plan.definitions,
            mode: declaration.segment().mode(),
            incompatible_features: if declaration.fleet_options().is_some() {
                LEASES
            } else {
                0
            },
            features: if options.uses_system_clock {
                SYSTEM_CLOCK
            } else {
                0
            },
            lock_kind: options.lock_kind,
        },
    )
}
