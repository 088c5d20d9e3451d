//! Segments opened for inspection only.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Owners, SegmentSnapshot, SnapshotSource, kernel_time};
use crate::api::segment::definitions::compiled_definitions::{compile_definitions, compile_one};
use crate::declaration::Declaration;
use crate::declaration::stored::StoredDeclaration;
use crate::engine::{Definitions, SetEngine, place_sets};
use crate::error::{Error, OpenError, RequestError, SegmentError};
use crate::shm::file::attach::{Observed, observe};
use crate::shm::file::segment_file::{damaged, is_segment};
use crate::shm::file::set_directory::{files, named_directory};
use crate::shm::layout::geometry::Geometry;
use crate::shm::process::participant::{ParticipantId, ParticipantTable};

/// A segment opened for inspection only. It is mapped read-only, nothing is locked, and this process does not become a
/// participant. For a [directory](crate::Segment#a-file-for-each-set), it shows the sets that were there when it was
/// opened.
#[derive(Debug)]
pub struct SegmentReader {
    path: PathBuf,
    directory: Option<PathBuf>,
    first: FileReader,
    others: Vec<FileReader>,
    declaration: Declaration,
}

/// One file of an inspected segment.
#[derive(Debug)]
pub(in crate::api) struct FileReader {
    pub(super) path: PathBuf,
    pub(super) observed: Observed,
    stored: StoredDeclaration,
    pub(super) declaration: Declaration,
    pub(super) sets: Vec<Arc<SetEngine>>,
}

impl SegmentReader {
    /// Opens a segment for inspection only. Read permission on the file is enough.
    ///
    /// # Errors
    ///
    /// See [`OpenOptions::open`](crate::OpenOptions::open).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let directory = named_directory(path)?;
        let mut opened = match &directory {
            Some(directory) => open_files(directory)?,
            None => vec![FileReader::open(path)?],
        }
        .into_iter();
        let Some(first) = opened.next() else {
            return Err(Error::Open(OpenError::NotFound {
                path: path.to_owned(),
            }));
        };
        let others: Vec<FileReader> = opened.collect();
        let all = std::iter::once(&first).chain(&others);
        let declaration = Declaration::joined(all.map(|file| &file.declaration));
        Ok(Self {
            path: path.to_owned(),
            directory,
            first,
            others,
            declaration,
        })
    }

    /// Whether the first bytes of a file are those of a segment, sound or damaged, of any format. Does not open it as
    /// one.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotFound`], [`OpenError::Denied`], and other errors of the system.
    pub fn is_segment(path: impl AsRef<Path>) -> Result<bool, Error> {
        is_segment(path.as_ref())
    }

    /// The files in a [directory](crate::Segment#a-file-for-each-set) that has a file for each set, sorted by name;
    /// `None` if the path is that of a single file. They are not opened as segments.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotFound`], [`OpenError::NotADirectory`], [`OpenError::Denied`], and other errors of the system.
    pub fn files_of_sets(path: impl AsRef<Path>) -> Result<Option<Vec<PathBuf>>, Error> {
        let directory = named_directory(path.as_ref())?;
        directory.map(|directory| files(&directory)).transpose()
    }

    pub(in crate::api) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    pub(in crate::api) fn is_directory(&self) -> bool {
        self.directory.is_some()
    }

    pub(in crate::api) fn first(&self) -> &FileReader {
        &self.first
    }

    pub(in crate::api) fn files(&self) -> impl Iterator<Item = &FileReader> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The file with that set.
    pub(super) fn file_with(&self, set: &str) -> Result<&FileReader, Error> {
        self.files().find(|file| file.has(set)).ok_or_else(|| {
            let sets = self.files().flat_map(|file| &file.sets);
            Error::Request(RequestError::UnknownSet {
                name: set.to_owned(),
                known: sets.map(|set| set.name.clone()).collect(),
            })
        })
    }

    /// The path, as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The declaration in force when this was opened, without path and mode.
    pub fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    /// Copies everything.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`] if there is no memory for the copy.
    pub fn snapshot(&self) -> Result<SegmentSnapshot, Error> {
        let others = self.others.iter().map(FileReader::snapshot);
        Ok(self.joined(self.first.snapshot()?, others.collect::<Result<_, _>>()?))
    }

    /// One snapshot of all files.
    pub(super) fn joined(&self, first: SegmentSnapshot, others: Vec<SegmentSnapshot>) -> SegmentSnapshot {
        match self.directory {
            Some(_) => first.joined_by(&self.path, others),
            None => first,
        }
    }
}

/// The sets of a directory. A set that is removed in the meantime is left out.
fn open_files(directory: &Path) -> Result<Vec<FileReader>, Error> {
    let mut opened = Vec::new();
    for path in files(directory)? {
        match FileReader::open(&path) {
            Ok(file) => {
                file.declaration.ensure_of_file(&path)?;
                opened.push(file);
            }
            Err(Error::Open(OpenError::NotFound { .. }) | Error::Segment(SegmentError::Removed { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(opened)
}

impl FileReader {
    fn open(path: &Path) -> Result<Self, Error> {
        // Any owner is trusted: merely looking at a file does no harm, whoever owns it.
        let observed = observe(path, true)?;
        let (stored, plans) = compile_definitions(&observed.verified, path)?;
        let verified = &observed.verified;
        let sets = place_sets(&verified.region, verified.geometry.sets.clone(), plans)
            .map_err(|place| damaged(path, place))?;
        let mut reader = Self {
            path: path.to_owned(),
            observed,
            declaration: stored.to_declaration(),
            stored,
            sets: Vec::new(),
        };
        reader.sets = sets
            .into_iter()
            .map(|set| Arc::new(reader.definitions().with_previous(set)))
            .collect();
        Ok(reader)
    }

    pub(in crate::api) fn has(&self, set: &str) -> bool {
        self.sets.iter().any(|it| it.name == set)
    }

    pub(super) fn definitions(&self) -> Definitions<'_> {
        Definitions {
            path: &self.path,
            region: &self.observed.verified.region,
            compile: compile_one,
        }
    }

    pub(super) fn is_alive(&self, table: &ParticipantTable, id: ParticipantId) -> bool {
        self.observed.is_alive(table, id)
    }

    /// Where everything lies.
    pub(in crate::api) fn geometry(&self) -> &Geometry {
        &self.observed.verified.geometry
    }

    /// The declaration in force when this was opened.
    pub(in crate::api) fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    /// The definitions in force when this was opened, set by set.
    pub(in crate::api) fn stored(&self) -> &StoredDeclaration {
        &self.stored
    }

    /// How many bytes are reserved for the definition of each set.
    pub(in crate::api) fn definition_rooms(&self) -> impl Iterator<Item = u64> {
        self.sets.iter().map(|set| set.geometry.shape.definition_room)
    }

    fn snapshot(&self) -> Result<SegmentSnapshot, Error> {
        self.look(|source| source.take())
    }

    pub(super) fn look<T>(
        &self,
        look: impl FnOnce(&SnapshotSource<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let table = self.observed.verified.participants();
        let header = self.observed.header(&self.path)?;
        look(&SnapshotSource {
            path: &self.path,
            region: &self.observed.verified.region,
            sets: &self.sets,
            definitions: self.definitions(),
            declaration: &self.declaration,
            table: &table,
            owners: Owners::new(&|id| self.is_alive(&table, id)),
            now: kernel_time(header),
            same_place: self.observed.same_place,
        })
    }
}
