//! Segments, as programs use them.

mod anonymous;
mod checkpoint;
pub(crate) mod definitions;
mod directory;
pub(crate) mod mismatch;
pub(crate) mod open_options;
mod opening;
pub(crate) mod recovery;
pub(crate) mod shared_segment;
pub(crate) mod successor;

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use super::set::limit_set::LimitSet;
use super::snapshot::{KeySnapshot, Owners, SegmentSnapshot, SnapshotSource};
use crate::declaration::Declaration;
use crate::error::{Error, RequestError};
#[cfg(doc)]
use crate::error::{OpenError, SegmentError};
use crate::shm::file::remove::remove;
use crate::shm::file::set_directory::named_directory;
use crate::words::words;
use directory::SegmentDirectory;
use mismatch::Mismatch;
use open_options::OpenOptions;
use opening::absolute;
use shared_segment::SharedSegment;

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
/// let permit = api.request().try_acquire()?.into_result().expect("no other process took anything");
/// drop(permit); // gives the concurrency back
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # A file for each set
///
/// If the path is that of a directory, each set has a file of its own in it, and each process opens the files of the
/// sets that it declares. So sets come and go with deployments: a process that declares another set creates its file,
/// and processes that do not know the set go on; nothing is lost and nothing restarts. A path names a directory if it
/// ends in `/` or in `.d`, or if a directory is there.
///
/// ```
/// # use std::time::Duration;
/// use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
///
/// # let root = tempfile::tempdir()?;
/// # let path = root.path().join("app.limits.d/");
/// let per_second = |set| SetDeclaration::new(set).add_limit(Limit::calls("requests", 100, Duration::from_secs(1)));
/// let former = Segment::open_or_create(&path, &Declaration::new().add_set(per_second("search")))?;
/// let both = Declaration::new().add_set(per_second("search")).add_set(per_second("mail"));
/// let segment = Segment::open_or_create(&path, &both)?; // a worker of the next release
/// assert_eq!(segment.sets().count(), 2);
/// assert!(former.set("mail").is_ok()); // opened as it is asked for
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// - The file of a set has the set's name, percent-encoded as in URLs (`openai%2Fgpt-4o`). It is a segment with that
///   one set, and its own path works wherever that of a segment does.
/// - The directory is created if its parent exists. Only its owner may write to it; a group that the declared
///   [mode](Declaration::mode) admits may enter it, and use the sets that the owner or root has created.
/// - A set that is no longer declared by any process keeps its file until that is [removed](OpenOptions::remove).
/// - A handle has the sets that it was opened with. [`set`](Self::set) opens any other set that exists.
/// - Sets are opened, created, changed and removed one after the other, not in one step.
/// - The directory is one host to the store of a [fleet](Declaration::fleet_url): see [`fleet`](Self::fleet). The file
///   of a set has room for leases if it was created with a limit that hosts share.
#[derive(Clone)]
pub struct Segment {
    form: Form,
}

/// One file, or a directory with a file for each set.
#[derive(Clone)]
enum Form {
    File(Arc<SharedSegment>),
    Directory(Arc<SegmentDirectory>),
}

impl OpenOptions {
    /// Opens an existing segment.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotFound`], and whatever makes the file unusable: see the variants of [`Error`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Segment, Error> {
        let path = absolute(path.as_ref())?;
        match named_directory(&path)? {
            Some(directory) => self.open_directory(&directory).map(Segment::of_directory),
            None => self.open_file(&path).map(Segment::of),
        }
    }

    /// Creates a segment and opens it. Its space is allocated in full.
    ///
    /// # Errors
    ///
    /// [`OpenError::AlreadyExists`], [`OpenError::NoSpace`], [`Error::Declaration`], and other errors of the system.
    pub fn create(&self, path: impl AsRef<Path>, declaration: &Declaration) -> Result<Segment, Error> {
        let path = absolute(path.as_ref())?;
        match named_directory(&path)? {
            Some(directory) => self
                .create_in_directory(&directory, declaration)
                .map(Segment::of_directory),
            None => self.create_and_open_file(&path, declaration).map(Segment::of),
        }
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
        match named_directory(&path)? {
            Some(directory) => self
                .open_or_create_directory(&directory, declaration)
                .map(Segment::of_directory),
            None => self.open_or_create_file(&path, declaration).map(Segment::of),
        }
    }

    /// Retires a segment and removes its file. This process need not be attached, and does not become attached.
    ///
    /// Processes that are attached, or attach in the meantime, get [`SegmentError::Removed`] from then on; what they
    /// hold is given back as usual. A segment that is already retired is removed even if processes are attached,
    /// because none of them can use it any longer. For a directory, all sets are removed, or none if one of them is in
    /// use; to remove a single set, give the path of its file.
    ///
    /// # Errors
    ///
    /// [`OpenError::InUse`] if live processes are attached and `removal` is [`Removal::Unused`], and the errors of
    /// [`open`](Self::open). A file that is not a segment is never removed.
    pub fn remove(&self, path: impl AsRef<Path>, removal: Removal) -> Result<(), Error> {
        let forced = removal == Removal::Forced;
        let path = absolute(path.as_ref())?;
        match named_directory(&path)? {
            Some(directory) => self.remove_directory(&directory, forced),
            None => remove(&path, self.trust_any_owner, forced),
        }
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
    pub(crate) fn of(file: Arc<SharedSegment>) -> Self {
        Self {
            form: Form::File(file),
        }
    }

    fn of_directory(directory: SegmentDirectory) -> Self {
        Self {
            form: Form::Directory(Arc::new(directory)),
        }
    }

    /// The file, or the first of a directory.
    pub(crate) fn shared(&self) -> &Arc<SharedSegment> {
        match &self.form {
            Form::File(file) => file,
            Form::Directory(directory) => directory.first(),
        }
    }

    /// Whether each set has a file of its own.
    pub(super) fn is_directory(&self) -> bool {
        matches!(self.form, Form::Directory(_))
    }

    /// Every file to ask leases for.
    pub(super) fn current_files(&self) -> Vec<Arc<SharedSegment>> {
        match &self.form {
            Form::File(file) => vec![Arc::clone(file)],
            Form::Directory(directory) => directory.current_files(),
        }
    }

    /// Every file that this handle has open.
    pub(super) fn files(&self) -> Vec<Arc<SharedSegment>> {
        match &self.form {
            Form::File(file) => vec![Arc::clone(file)],
            Form::Directory(directory) => directory.files(),
        }
    }

    /// The file to look for a set in. In a directory, it is opened if it is not open yet.
    fn file_with(&self, set: &str) -> Result<Arc<SharedSegment>, Error> {
        match &self.form {
            Form::File(file) => Ok(Arc::clone(file)),
            Form::Directory(directory) => directory.file_with(set),
        }
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

    /// Retires a segment and removes its file: [`OpenOptions::remove`] with the defaults. This process need not have it
    /// open. To retire one that it has open, see [`retire`](Self::retire).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Error, Limit, OpenError, Removal, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// # let set = SetDeclaration::new("api").add_limit(Limit::concurrency("in_flight", 8));
    /// let segment = Segment::create(&path, &Declaration::new().add_set(set))?;
    /// let in_use = Segment::remove(&path, Removal::Unused);
    /// assert!(matches!(in_use, Err(Error::Open(OpenError::InUse { .. }))));
    /// drop(segment);
    /// Segment::remove(&path, Removal::Unused)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`OpenOptions::remove`].
    pub fn remove(path: impl AsRef<Path>, removal: Removal) -> Result<(), Error> {
        OpenOptions::new().remove(path, removal)
    }

    /// The set of that name. In a [directory](Self#a-file-for-each-set), a set that this handle was not opened with is
    /// opened now, if it exists, with the definition in force.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSet`], which names the sets that exist. In a directory also the errors of
    /// [`OpenOptions::open`].
    pub fn set(&self, name: &str) -> Result<LimitSet, Error> {
        let file = self.file_with(name)?;
        let position = file.engine.sets().iter().position(|set| set.name == name);
        let set = position.and_then(|position| LimitSet::new(file, position));
        set.ok_or_else(|| {
            Error::Request(RequestError::UnknownSet {
                name: name.to_owned(),
                known: self.sets().map(|set| set.name().to_owned()).collect(),
            })
        })
    }

    /// Every set, in the order of the declaration. In a directory, those that this handle has opened.
    pub fn sets(&self) -> impl Iterator<Item = LimitSet> + '_ {
        self.files().into_iter().flat_map(|file| {
            let positions = 0..file.engine.sets().len();
            positions.filter_map(move |position| LimitSet::new(Arc::clone(&file), position))
        })
    }

    /// The declaration in force when this process opened the segment, without path and mode. See
    /// [`declaration_in_force`](Self::declaration_in_force) for the current one.
    pub fn declaration(&self) -> &Declaration {
        match &self.form {
            Form::File(file) => &file.declaration,
            Form::Directory(directory) => directory.declaration(),
        }
    }

    /// How the segment differed from the declaration that it was opened with, and what was done about it: see
    /// [`OpenOptions::on_mismatch`].
    pub fn mismatches(&self) -> &[Mismatch] {
        match &self.form {
            Form::File(file) => &file.mismatches,
            Form::Directory(directory) => directory.mismatches(),
        }
    }

    /// The path of the file or the directory, made absolute. For an [anonymous](Self::anonymous) segment, that of its
    /// descriptor.
    pub fn path(&self) -> &Path {
        match &self.form {
            Form::File(file) => file.engine.path(),
            Form::Directory(directory) => directory.path(),
        }
    }

    /// A copy of everything, taken without a lock. For a directory, a copy of the sets that this handle has opened.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`] if there is no memory for the copy.
    pub fn snapshot(&self) -> Result<SegmentSnapshot, Error> {
        match &self.form {
            Form::File(file) => file.snapshot(),
            Form::Directory(directory) => directory.snapshot(),
        }
    }

    /// Calls `visit` for each key of a set that has a row, in no particular order. Takes no lock, and uses no more
    /// memory for many keys than for one. Keys that come or go in the meantime may or may not be shown.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSet`], [`RequestError::NotKeyed`].
    pub fn key_snapshots(&self, set: &str, visit: impl FnMut(&KeySnapshot)) -> Result<(), Error> {
        self.file_with(set)?.look(|source| source.visit_keys(set, visit))
    }

    /// One key of a set, read without a lock; `None` if it has no row, which is as if it had never been used.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSet`], [`RequestError::NotKeyed`], [`RequestError::InvalidKey`],
    /// [`RequestError::AddressRequired`].
    pub fn key_snapshot(&self, set: &str, key: impl AsRef<[u8]>) -> Result<Option<KeySnapshot>, Error> {
        self.file_with(set)?
            .look(|source| source.find_key(set, key.as_ref()))
    }

    /// The networks that contain an address: see
    /// [`SegmentReader::address_snapshots`](crate::snapshot::SegmentReader::address_snapshots).
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSet`], [`RequestError::NoPrefixes`].
    pub fn address_snapshots(&self, set: &str, address: IpAddr) -> Result<Vec<KeySnapshot>, Error> {
        self.file_with(set)?
            .look(|source| source.find_networks(set, address))
    }

    /// Marks the segment as no longer usable: from now on any request in any process returns [`SegmentError::Removed`].
    /// What permits hold can still be settled and given back. The file stays. For a directory, this retires the sets
    /// that this handle has opened.
    pub fn retire(&self) {
        for file in self.files() {
            file.engine.retire();
        }
    }
}

impl SharedSegment {
    fn snapshot(&self) -> Result<SegmentSnapshot, Error> {
        self.look(|source| source.take())
    }

    fn look<T>(&self, look: impl FnOnce(&SnapshotSource<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let engine = &self.engine;
        look(&SnapshotSource {
            path: engine.path(),
            region: engine.region(),
            sets: engine.sets(),
            definitions: engine.definitions(),
            declaration: &self.declaration,
            table: engine.membership.table(),
            owners: Owners::new(&|id| engine.membership.is_alive(id)),
            now: engine.read_clocks(true),
            same_place: true,
        })
    }
}
