//! A segment whose path is a directory: each set has a file of its own in it.
//!
//! Each file is a segment with one set, and is opened, created, changed and removed like any other. The code here only
//! decides which files an operation concerns. The files share nothing, and nothing is done to several at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::definitions::bring_into_force::cannot_apply;
use super::mismatch::Mismatch;
use super::open_options::OpenOptions;
use super::opening::OPENING_ATTEMPTS;
use super::shared_segment::SharedSegment;
use crate::api::snapshot::SegmentSnapshot;
use crate::declaration::Declaration;
use crate::error::{Difference, Error, OpenError, RequestError, SegmentError};
use crate::shm::file::creation::create::ensure_free;
use crate::shm::file::remove::{ensure_unused, remove};
use crate::shm::file::set_directory::{
    ensure_directory, ensure_trusted, file_of, files, remove_if_empty, set_of,
};
use crate::shm::process::fork_identity::ProcessMutex;
use crate::shm::time::clock::boot_nanos;
use crate::sorting::sort_by;
use crate::units::NANOS_PER_SECOND;

/// The state shared by the handles of a directory.
#[derive(Debug)]
pub(super) struct SegmentDirectory {
    path: PathBuf,
    options: OpenOptions,
    first: Arc<SharedSegment>,
    others: Vec<Arc<SharedSegment>>,
    /// Sets that it was not opened with but that were asked for later.
    found: ProcessMutex<Vec<Arc<SharedSegment>>>,
    /// For a directory that was opened without a declaration: the files that were added after that.
    newcomers: Option<ProcessMutex<Newcomers>>,
    declaration: Declaration,
    mismatches: Vec<Mismatch>,
}

impl OpenOptions {
    /// Opens every set of a directory.
    pub(super) fn open_directory(&self, path: &Path) -> Result<SegmentDirectory, Error> {
        ensure_trusted(path, self.trust_any_owner)?;
        let mut opened = Vec::new();
        for file in files(path)? {
            match self.open_file_of_set(&file) {
                Ok(file) => opened.push(file),
                // It was removed in the meantime, or the process that was removing it was killed.
                Err(
                    Error::Open(OpenError::NotFound { .. }) | Error::Segment(SegmentError::Removed { .. }),
                ) => {}
                Err(error) => return Err(error),
            }
        }
        let mut directory = self.directory_of(path, opened)?;
        directory.newcomers = Some(ProcessMutex::default());
        Ok(directory)
    }

    /// Creates every declared set, none of which may exist.
    pub(super) fn create_in_directory(
        &self,
        path: &Path,
        declaration: &Declaration,
    ) -> Result<SegmentDirectory, Error> {
        declaration.validate()?;
        self.prepare(path, declaration)?;
        for set in declaration.sets() {
            ensure_free(&file_of(path, set.name()))?;
        }
        let options = self.for_directory();
        let opened = declaration.sets().iter().map(|set| {
            let file = file_of(path, set.name());
            options.create_and_open_file(&file, &declaration.in_directory(set.name()))
        });
        self.directory_of(path, opened.collect::<Result<_, _>>()?)
    }

    /// Opens or creates every declared set. Those that are not declared stay as they are.
    pub(super) fn open_or_create_directory(
        &self,
        path: &Path,
        declaration: &Declaration,
    ) -> Result<SegmentDirectory, Error> {
        let mut attempts = 1..OPENING_ATTEMPTS;
        let options = self.for_directory();
        loop {
            self.prepare(path, declaration)?;
            let opened = declaration.sets().iter().map(|set| {
                let file = file_of(path, set.name());
                options.open_or_create_file(&file, &declaration.in_directory(set.name()))
            });
            match opened.collect::<Result<_, _>>() {
                Ok(opened) => return self.directory_of(path, opened),
                // Another process has removed the directory in the meantime.
                Err(_) if !path.exists() && attempts.next().is_some() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn for_directory(&self) -> Self {
        Self {
            is_for_directory: true,
            ..self.clone()
        }
    }

    /// Makes the directory ready for the files of these sets.
    fn prepare(&self, path: &Path, declaration: &Declaration) -> Result<(), Error> {
        declaration.check_for_directory()?;
        let mode = declaration.segment().mode();
        ensure_directory(path, mode, self.trust_any_owner)?;
        if let Some(checkpoint) = declaration.segment().checkpoint() {
            ensure_directory(checkpoint.path(), mode, self.trust_any_owner)?;
        }
        Ok(())
    }

    /// Opens a file of a directory as it is.
    fn open_file_of_set(&self, path: &Path) -> Result<Arc<SharedSegment>, Error> {
        let file = self.open_file(path)?;
        file.declaration.ensure_of_file(path)?;
        Ok(file)
    }

    fn directory_of(&self, path: &Path, opened: Vec<Arc<SharedSegment>>) -> Result<SegmentDirectory, Error> {
        let mut opened = opened.into_iter();
        let Some(first) = opened.next() else {
            return Err(Error::Open(OpenError::NotFound {
                path: path.to_owned(),
            }));
        };
        Ok(SegmentDirectory::new(
            path,
            self,
            first,
            opened.collect(),
            Vec::new(),
        ))
    }

    /// Removes every set of a directory, and the directory if nothing is left in it. Unless `forced`, removes none if
    /// one of them is in use.
    pub(super) fn remove_directory(&self, path: &Path, forced: bool) -> Result<(), Error> {
        ensure_trusted(path, self.trust_any_owner)?;
        let files = files(path)?;
        if !forced {
            for file in &files {
                ensure_unused(file, self.trust_any_owner)?;
            }
        }
        for file in &files {
            match remove(file, self.trust_any_owner, forced) {
                Ok(()) | Err(Error::Open(OpenError::NotFound { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        remove_if_empty(path)
    }
}

impl SegmentDirectory {
    fn new(
        path: &Path,
        options: &OpenOptions,
        first: Arc<SharedSegment>,
        others: Vec<Arc<SharedSegment>>,
        found: Vec<Arc<SharedSegment>>,
    ) -> Self {
        let all = || std::iter::once(&first).chain(&others);
        let declaration = Declaration::joined(all().map(|file| &file.declaration));
        let mismatches = all().flat_map(|file| file.mismatches.iter().cloned()).collect();
        let directory = Self {
            path: path.to_owned(),
            options: options.for_directory(),
            first,
            others,
            found: ProcessMutex::default(),
            newcomers: None,
            declaration,
            mismatches,
        };
        for file in found {
            directory.keep(file);
        }
        directory
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn first(&self) -> &Arc<SharedSegment> {
        &self.first
    }

    pub(super) fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    pub(super) fn mismatches(&self) -> &[Mismatch] {
        &self.mismatches
    }

    /// Every open file: those that it was opened with, then those that were found later.
    pub(super) fn files(&self) -> Vec<Arc<SharedSegment>> {
        let mut files = vec![Arc::clone(&self.first)];
        files.extend(self.others.iter().cloned());
        files.extend(self.found());
        files
    }

    fn found(&self) -> Vec<Arc<SharedSegment>> {
        self.found.lock().map(|found| found.clone()).unwrap_or_default()
    }

    /// The open file of a set. One that is not open yet is opened.
    pub(super) fn file_with(&self, set: &str) -> Result<Arc<SharedSegment>, Error> {
        if let Some(file) = self.open_file_with(set) {
            return Ok(file);
        }
        match self.options.open_file_of_set(&file_of(&self.path, set)) {
            Ok(file) => Ok(self.keep(file)),
            Err(Error::Open(OpenError::NotFound { .. }) | Error::Segment(SegmentError::Removed { .. })) => {
                let known = files(&self.path)?;
                let known = known.iter().filter_map(|file| set_of(file.file_name()?));
                Err(Error::Request(RequestError::UnknownSet {
                    name: set.to_owned(),
                    known: known.collect(),
                }))
            }
            Err(error) => Err(error),
        }
    }

    fn open_file_with(&self, set: &str) -> Option<Arc<SharedSegment>> {
        self.files().into_iter().find(|file| has_set(file, set))
    }

    /// Keeps a file that was opened, unless another thread has opened it in the meantime. Returns the one that is kept.
    fn keep(&self, opened: Arc<SharedSegment>) -> Arc<SharedSegment> {
        let Ok(mut found) = self.found.lock() else {
            return opened;
        };
        let is_same = |file: &&Arc<SharedSegment>| file.engine.path() == opened.engine.path();
        if let Some(file) = found.iter().find(is_same) {
            return Arc::clone(file);
        }
        found.push(Arc::clone(&opened));
        opened
    }

    pub(super) fn snapshot(&self) -> Result<SegmentSnapshot, Error> {
        let first = self.first.snapshot()?;
        let mut others = Vec::new();
        for file in self.files().iter().skip(1) {
            others.push(file.snapshot()?);
        }
        Ok(first.joined_by(&self.path, others))
    }

    /// See [`Segment::apply`](super::Segment::apply).
    pub(super) fn apply(&self, declaration: &Declaration) -> Result<Vec<Difference>, Error> {
        declaration.check_for_directory()?;
        let mut refused = Vec::new();
        let mut steps = Vec::new();
        for set in declaration.sets() {
            let alone = declaration.in_directory(set.name());
            let file = match self.file_with(set.name()) {
                Ok(file) => Some(file),
                Err(Error::Request(RequestError::UnknownSet { .. })) => None,
                Err(error) => return Err(error),
            };
            if let Some(Err(differences)) = file.as_ref().map(|file| file.compare(&alone)).transpose()? {
                refused.extend(differences);
            }
            steps.push((set.name(), alone, file));
        }
        if !refused.is_empty() {
            return Err(cannot_apply(&self.path, refused));
        }
        let mut changes = Vec::new();
        for (set, alone, file) in steps {
            match file {
                Some(file) => changes.extend(file.apply(&alone)?),
                None => {
                    let path = file_of(&self.path, set);
                    self.keep(self.options.open_or_create_file(&path, &alone)?);
                    changes.push(Difference::of_new_set(set));
                }
            }
        }
        Ok(changes)
    }

    /// See [`Segment::checkpoint`](super::Segment::checkpoint).
    pub(super) fn checkpoint(&self, path: &Path) -> Result<bool, Error> {
        let mode = self.first.engine.membership.file_mode()?;
        ensure_directory(path, mode, self.options.trust_any_owner)?;
        let mut all_taken = true;
        for file in self.files() {
            for set in file.engine.sets() {
                all_taken &= file.take_checkpoint(&file_of(path, &set.name), |_| true)?;
            }
        }
        Ok(all_taken)
    }

    /// See [`Segment::successor`](super::Segment::successor).
    pub(super) fn successor(&self) -> Option<Self> {
        let mut is_another = false;
        let mut current = |file: &Arc<SharedSegment>| match file.successor() {
            Some(successor) => {
                is_another = true;
                successor
            }
            None => Arc::clone(file),
        };
        let first = current(&self.first);
        let others = self.others.iter().map(&mut current).collect();
        let found = self.found().iter().map(&mut current).collect();
        is_another.then(|| Self {
            newcomers: self.newcomers.as_ref().map(|_| ProcessMutex::default()),
            ..Self::new(&self.path, &self.options, first, others, found)
        })
    }
}

impl SegmentDirectory {
    /// Every file to ask leases for, in the order of the paths: those that are open (for a removed one, the file that
    /// is at its path now) and, if the directory was opened without a declaration, those that were added since.
    pub(in crate::api) fn current_files(&self) -> Vec<Arc<SharedSegment>> {
        let mut files: Vec<_> = self.files().iter().filter_map(current).collect();
        if let Some(Ok(mut newcomers)) = self.newcomers.as_ref().map(ProcessMutex::lock) {
            newcomers.look(self, &files);
            files.extend(newcomers.files.iter().cloned());
        }
        sort_by(&mut files, |one, other| one.engine.path() < other.engine.path());
        files
    }
}

/// The file, or what is at its path now if it was removed.
fn current(file: &Arc<SharedSegment>) -> Option<Arc<SharedSegment>> {
    file.engine.look_for_removal_if_due();
    match file.engine.removal() {
        None => Some(Arc::clone(file)),
        Some(_) => file.successor(),
    }
}

/// Files that were added after a directory was opened.
#[derive(Clone, Debug, Default)]
struct Newcomers {
    files: Vec<Arc<SharedSegment>>,
    /// When the directory was last listed, on the boot-time clock.
    listed_at: u64,
    /// When the directory had last been modified by then.
    modified: Option<SystemTime>,
}

impl Newcomers {
    /// The shortest time between two listings of a directory, in nanoseconds.
    const PAUSE: u64 = NANOS_PER_SECOND;

    /// Opens the files in the directory that are not yet known. A file that cannot be opened is left out.
    fn look(&mut self, directory: &SegmentDirectory, known: &[Arc<SharedSegment>]) {
        self.files = self.files.iter().filter_map(current).collect();
        let now = boot_nanos();
        if now < self.listed_at.saturating_add(Self::PAUSE) {
            return;
        }
        self.listed_at = now;
        let modified = directory
            .path
            .metadata()
            .and_then(|metadata| metadata.modified())
            .ok();
        // Modification times are coarse: another change may have followed within the same tick.
        let is_old = modified.is_some_and(|modified| modified.elapsed().is_ok_and(|age| age.as_secs() > 2));
        if is_old && modified == self.modified {
            return;
        }
        self.modified = modified;
        for path in files(&directory.path).unwrap_or_default() {
            let is_known = |file: &Arc<SharedSegment>| file.engine.path() == path;
            if !known.iter().chain(&self.files).any(is_known) {
                self.files.extend(directory.options.open_file_of_set(&path).ok());
            }
        }
    }
}

fn has_set(file: &SharedSegment, set: &str) -> bool {
    file.engine.sets().iter().any(|it| it.name == set)
}
