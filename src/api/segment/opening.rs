//! Opening and creating the files of segments.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use once_cell::race::OnceBox;

use super::checkpoint::{replace_by_checkpoint, restored_from_checkpoint, start};
use super::definitions::bring_into_force::{bring_into_force, stored_declaration};
use super::definitions::compiled_definitions::{compile_definitions, compile_one, read_definitions};
use super::mismatch::{Author, Mismatch, needs_another_file};
use super::open_options::OpenOptions;
use super::shared_segment::SharedSegment;
use crate::api::request_events::{Observer, RequestEvents};
use crate::api::segment_memory::SegmentPlan;
use crate::api::wait::unused_batches::note_handle;
use crate::declaration::Declaration;
use crate::engine::{EngineOptions, LockWait, SegmentEngine};
use crate::error::{Difference, Error, OpenError, RemovalCause, SegmentError};
use crate::shm::file::attach::{Admission, Candidate, attach};
use crate::shm::file::creation::create::{Blueprint, create, ensure_free};
use crate::shm::file::remove::finish_removal;
use crate::shm::file::segment_file::open_for_writing;
use crate::shm::file::verified::Verified;
use crate::shm::layout::records::{LEASES, SYSTEM_CLOCK};
use crate::shm::process::fork_identity::ProcessMutex;
use crate::shm::time::segment_clock::SegmentClock;

/// How many times an attempt to open may find that others have created or removed the segment meanwhile.
pub(super) const OPENING_ATTEMPTS: usize = 100;

impl OpenOptions {
    pub(super) fn open_file(&self, path: &Path) -> Result<Arc<SharedSegment>, Error> {
        let mut answer = self.open_absolute(path, None);
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
            answer = self.open_absolute(path, None);
        }
        answer
    }

    pub(super) fn create_and_open_file(
        &self,
        path: &Path,
        declaration: &Declaration,
    ) -> Result<Arc<SharedSegment>, Error> {
        self.create_file(path, declaration)?;
        let shared = self.open_absolute(path, None)?;
        start(&shared, declaration);
        Ok(shared)
    }

    /// Opens or creates a file. The declaration has been validated.
    pub(super) fn open_or_create_file(
        &self,
        path: &Path,
        declaration: &Declaration,
    ) -> Result<Arc<SharedSegment>, Error> {
        let mut last = Error::Open(OpenError::NotFound {
            path: path.to_owned(),
        });
        for _ in 0..OPENING_ATTEMPTS {
            match self.open_absolute(path, Some(declaration)) {
                Ok(shared) => {
                    start(&shared, declaration);
                    return Ok(shared);
                }
                Err(Error::Open(OpenError::NotFound { .. })) => {}
                Err(Error::Segment(SegmentError::Removed { .. })) => {
                    match finish_removal(path, self.trust_any_owner) {
                        Ok(()) | Err(Error::Open(OpenError::NotFound { .. })) => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(
                    error @ (Error::Segment(SegmentError::Damaged { .. })
                    | Error::Open(OpenError::WrongSize { .. })),
                ) => match replace_by_checkpoint(path, declaration, self) {
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
            match self.create_file(path, declaration) {
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
            None => with_blueprint(declaration, self.is_for_directory, |blueprint| {
                create(path, blueprint)
            }),
        }
    }

    /// Opens the segment. With `declared`, only under that declaration or whatever `on_mismatch` makes of it.
    fn open_absolute(
        &self,
        path: &Path,
        declared: Option<&Declaration>,
    ) -> Result<Arc<SharedSegment>, Error> {
        self.open_opened(open_for_writing(path)?, path, declared)
    }

    /// Like [`open_absolute`](Self::open_absolute), with the file already opened from that path.
    pub(super) fn open_opened(
        &self,
        file: File,
        path: &Path,
        declared: Option<&Declaration>,
    ) -> Result<Arc<SharedSegment>, Error> {
        let understand = |verified: &Verified| compile_definitions(verified, path);
        let mut mode = None;
        let tell = |what: &str| {
            if let Some(observer) = &self.wait_observer {
                (observer.0)(what);
            }
        };
        let admit = |candidate: &Candidate<'_>| {
            let Some(declared) = declared else {
                return Ok(Admission::Join);
            };
            mode = Some(candidate.mode()?);
            let definitions = candidate.definitions()?;
            let stored = read_definitions(&definitions, candidate.creation_options(), path)?;
            self.on_mismatch
                .admission(path, &stored, declared, || candidate.other_processes())
        };
        let (attached, (stored, plans)) = attach(file, path, self.trust_any_owner, &tell, understand, admit)?;
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
            // A set that cannot be locked now returns an error when it is used.
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
        Ok(shared)
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

impl SharedSegment {
    /// Opens what is at the path now, with the same options.
    pub(crate) fn open_path_again(&self) -> Result<Arc<Self>, Error> {
        self.options.open_absolute(self.engine.path(), None)
    }
}

pub(super) fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|source| {
        Error::Open(OpenError::Io {
            action: "find",
            path: path.to_owned(),
            source,
        })
    })
}

/// Makes something from the blueprint of a declaration.
pub(super) fn with_blueprint<T>(
    declaration: &Declaration,
    is_of_directory: bool,
    make: impl FnOnce(&Blueprint<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let plan = SegmentPlan::of(declaration)?;
    let options = declaration.segment().creation_options();
    make(&Blueprint {
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
        is_of_directory,
    })
}
