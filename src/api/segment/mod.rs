//! A segment as its users hold it.

pub(crate) mod apply;
pub(crate) mod find_or_make_set;
pub(crate) mod mismatch;
pub(crate) mod recovery;
pub(crate) mod successor;

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::declaration::Declaration;
use super::declaration::stored::{StoredDeclaration, StoredSet};
use super::local_credit::note_handle;
use super::request_events::{Observer, RequestEvent, RequestEvents};
use super::set::limit_set::LimitSet;
use super::snapshot::{KeySnapshot, KeySource, Owners, SegmentSnapshot, SnapshotSource};
use crate::engine::definition::plan::SetPlan;
use crate::engine::{EngineOptions, LockWait, SegmentEngine};
use crate::error::{Error, RemovalCause};
use crate::shm::file::attach::{Admission, Verified, attach};
use crate::shm::file::create::{Blueprint, create};
use crate::shm::file::remove::{finish_removal, remove};
use crate::shm::layout::definition_text::Definition;
use crate::shm::layout::geometry::Geometry;
use crate::shm::time::virtual_clock::VirtualClock;
use apply::{bring_into_force, stored_declaration};
use find_or_make_set::find_or_make;
use mismatch::{Author, Mismatch, OnMismatch, needs_another_file};

/// How long an operation waits for the lock of a set before it says that the holder is stuck.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// How often an attempt to open may find the segment created and removed again by others.
const OPENING_ATTEMPTS: usize = 100;

/// What the handles of one attached segment share.
#[derive(Debug)]
pub(crate) struct SharedSegment {
    pub(crate) engine: SegmentEngine,
    pub(crate) declaration: Declaration,
    options: OpenOptions,
    mismatches: Vec<Mismatch>,
    pub(crate) request_events: Option<RequestEvents>,
    /// The unknown names that were warned about, by set and name.
    warned: Mutex<HashSet<(usize, String)>>,
}

impl SharedSegment {
    /// Whether this is the first time that this process meets the name. In doubt it is not: a child may have
    /// inherited the lock while another thread of its parent held it.
    pub(crate) fn is_first_warning(&self, set: usize, name: &str) -> bool {
        self.warned
            .try_lock()
            .is_ok_and(|mut warned| warned.insert((set, name.to_owned())))
    }

    /// What is at the path now, opened as this was.
    pub(crate) fn open_path_again(&self) -> Result<Segment, Error> {
        self.options.open_absolute(self.engine.path(), None)
    }
}

/// A segment that this process is attached to.
///
/// A handle is cheap to clone, may be used by any number of threads, and stays valid in forked children: a child
/// becomes a participant of its own at its first use. The process stays attached until the last handle, set and
/// [owned permit](crate::Permit::into_owned) is dropped.
///
/// Once the segment was removed (retired, its file deleted, or another put at its path), its handles answer
/// [`Error::Removed`] and admit nothing. [`successor`](Self::successor) is what is at the path then.
///
/// ```
/// use std::time::Duration;
/// use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("api.limits");
/// let declaration = Declaration::new().set(
///     SetDeclaration::new("api")
///         .limit(Limit::calls("requests", 100, Duration::from_secs(1)))
///         .limit(Limit::concurrency("in_flight", 8)),
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

/// How to open or create a segment.
///
/// ```no_run
/// # use std::time::Duration;
/// let segment = shmlimit::OpenOptions::new().lock_timeout(Duration::from_millis(500)).open("/dev/shm/api.limits")?;
/// # Ok::<(), shmlimit::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct OpenOptions {
    lock_timeout: Duration,
    trust_any_owner: bool,
    reclaim: bool,
    virtual_clock: Option<VirtualClock>,
    on_mismatch: OnMismatch,
    observer: Option<Observer>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            lock_timeout: LOCK_TIMEOUT,
            trust_any_owner: false,
            reclaim: true,
            virtual_clock: None,
            on_mismatch: OnMismatch::default(),
            observer: None,
        }
    }
}

impl OpenOptions {
    /// The defaults: wait 2 seconds for a lock, trust only files that no other process could have planted.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long an operation waits for the lock of a set before it answers [`Error::LockStuck`]; 2 seconds unless
    /// set. Locks are held for well under a microsecond, so only a stopped or dumping process is met.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// Whether to accept a file that any process may write, or that belongs to another user in a directory that others
    /// may write. The process that can write the file can bring every process that uses it down.
    pub fn trust_any_owner(mut self, trust: bool) -> Self {
        self.trust_any_owner = trust;
        self
    }

    /// Whether to give back at once what dead processes hold; yes unless set. Otherwise it is given back when a process
    /// needs it, or by [`Segment::recover`], which then can say what there was.
    pub fn reclaim(mut self, reclaim: bool) -> Self {
        self.reclaim = reclaim;
        self
    }

    /// What [`open_or_create`](Self::open_or_create) does where the segment exists with another declaration; that is an
    /// error unless set.
    ///
    /// ```
    /// use std::time::Duration;
    /// use shmlimit::{Declaration, Limit, OnMismatch, OpenOptions, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// let of = |version, capacity| {
    ///     let requests = Limit::calls("requests", capacity, Duration::from_secs(60));
    ///     Declaration::new().version(version).set(SetDeclaration::new("api").limit(requests))
    /// };
    /// let options = OpenOptions::new().on_mismatch(OnMismatch::Apply);
    /// let former = options.open_or_create(&path, &of(1, 10))?; // a worker of the former release
    /// let segment = options.open_or_create(&path, &of(2, 20))?; // one of the next release
    /// assert!(segment.mismatches()[0].to_string().contains("capacity: declared 20, in the segment 10"));
    /// // Both go by the same limits, and a worker of the former release that is started again does not change them.
    /// let restarted = options.open_or_create(&path, &of(1, 10))?;
    /// assert!(former.declaration_in_force()?.to_toml()?.contains("capacity = 20"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_mismatch(mut self, on_mismatch: OnMismatch) -> Self {
        self.on_mismatch = on_mismatch;
        self
    }

    /// Calls `observer` for each request that is refused and each that has waited, of all handles of what is opened here;
    /// of each kind and set at most 10 times a second. Nothing is called unless set.
    ///
    /// It is called by the thread that asked, outside of every lock, before the answer is given out. What it takes is time
    /// of the caller.
    ///
    /// ```
    /// # use std::sync::{Arc, Mutex};
    /// # use std::time::Duration;
    /// use shmlimit::{Declaration, Limit, OpenOptions, RequestEventKind, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// # let declaration = Declaration::new().set(SetDeclaration::new("mail")
    /// #     .limit(Limit::calls("sent", 1, Duration::from_secs(60))));
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let log = Arc::clone(&seen);
    /// let segment = OpenOptions::new()
    ///     .on_request_event(move |event| {
    ///         if let RequestEventKind::Denied { limit: Some(limit), .. } = event.what {
    ///             let line = format!("{} of {}: {}", event.label.unwrap_or("?"), event.set, limit);
    ///             log.lock().expect("not poisoned").push(line);
    ///         }
    ///     })
    ///     .open_or_create(&path, &declaration)?;
    /// let mail = segment.set("mail")?;
    /// let request = mail.request().label("newsletter");
    /// for _ in 0..2 {
    ///     let _ = mail.check(&request)?;
    /// }
    /// assert_eq!(*seen.lock().expect("not poisoned"), ["newsletter of mail: sent"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_request_event(mut self, observer: impl Fn(&RequestEvent<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Observer(Arc::new(observer)));
        self
    }

    /// As [`on_request_event`](Self::on_request_event), with events of `tracing` at the level of information:
    /// `request_denied` with the fields `set`, `label`, `limit`, `reason`, `retry_after_ms` and `left_out`, and
    /// `backpressure_wait` with `set`, `label`, `waited_ms`, `admitted` and `left_out`.
    #[cfg(feature = "tracing")]
    pub fn trace_requests(self) -> Self {
        self.on_request_event(super::request_events::trace)
    }

    /// Tells the time by `clock` instead of the kernel's clocks, in every decision of what is opened here: limits
    /// replenish, windows turn and leases run out as it is advanced.
    ///
    /// For simulations and tests, on a segment that no other process uses: other processes, and what else this one
    /// opens without the clock, go by the kernel's clocks and would not see it. What waits is not simulated: timeouts
    /// of [`acquire`](LimitSet::acquire), the instants of [reservations](crate::Reservation), heartbeats in the
    /// background and the terms of [batches](crate::Batch) go by the kernel's clocks.
    ///
    /// ```
    /// use std::time::Duration;
    /// use shmlimit::{Declaration, Limit, OpenOptions, SetDeclaration, VirtualClock};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// let second = Duration::from_secs(1);
    /// let declaration = Declaration::new()
    ///     .set(SetDeclaration::new("api").limit(Limit::calls("requests", 1, second)));
    /// let clock = VirtualClock::new(second);
    /// let segment = OpenOptions::new().virtual_clock(&clock).create(&path, &declaration)?;
    /// let api = segment.set("api")?;
    /// assert!(api.try_acquire(&api.request())?.into_result().is_ok());
    /// assert!(api.try_acquire(&api.request())?.into_result().is_err());
    /// clock.advance_to(clock.now() + second); // without waiting
    /// assert!(api.try_acquire(&api.request())?.into_result().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn virtual_clock(mut self, clock: &VirtualClock) -> Self {
        self.virtual_clock = Some(clock.clone());
        self
    }

    /// Opens a segment that exists.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], and whatever makes the file unusable: see the variants of [`Error`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Segment, Error> {
        let path = absolute(path.as_ref())?;
        let mut answer = self.open_absolute(&path, None);
        for _ in 1..OPENING_ATTEMPTS {
            // Deleted between finding and opening it: the path says what there is by now.
            if !matches!(
                answer,
                Err(Error::Removed {
                    cause: RemovalCause::Deleted,
                    ..
                })
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
    /// [`Error::AlreadyExists`], [`Error::NoSpace`], [`Error::Declaration`], and what the system says.
    pub fn create(&self, path: impl AsRef<Path>, declaration: &Declaration) -> Result<Segment, Error> {
        let path = absolute(path.as_ref())?;
        create_file(&path, declaration)?;
        self.open_absolute(&path, None)
    }

    /// Opens the segment, or creates it. Any number of processes may do so at once. One that was
    /// [retired](Segment::retire) is replaced by a new one; what becomes of one with another declaration,
    /// [`on_mismatch`](Self::on_mismatch) says.
    ///
    /// # Errors
    ///
    /// [`Error::ConfigMismatch`], which names each difference and what to do, and as
    /// [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(
        &self,
        path: impl AsRef<Path>,
        declaration: &Declaration,
    ) -> Result<Segment, Error> {
        let path = absolute(path.as_ref())?;
        declaration.validate()?;
        for _ in 0..OPENING_ATTEMPTS {
            match self.open_absolute(&path, Some(declaration)) {
                Ok(segment) => return Ok(segment),
                Err(Error::NotFound { .. }) => {}
                Err(Error::Removed { .. }) => match finish_removal(&path, self.trust_any_owner) {
                    Ok(()) | Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                },
                Err(error) => return Err(error),
            }
            match create_file(&path, declaration) {
                Ok(()) | Err(Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::NotFound { path })
    }

    /// Retires a segment and removes its file. This process need not be attached, and does not become so.
    ///
    /// Processes that are attached, or attach meanwhile, get [`Error::Removed`] from then on, and what they hold is given
    /// back as ever. A segment that is
    /// retired already is removed the process that is attached: no process can use it any more.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] where live processes are attached and `removal` is [`Removal::Unused`], and as
    /// [`open`](Self::open). What is not a segment is never removed.
    pub fn remove(&self, path: impl AsRef<Path>, removal: Removal) -> Result<(), Error> {
        let forced = removal == Removal::Forced;
        remove(&absolute(path.as_ref())?, self.trust_any_owner, forced)
    }

    /// Opens the segment; where it was `declared`, only with that declaration, or what comes of it.
    fn open_absolute(&self, path: &Path, declared: Option<&Declaration>) -> Result<Segment, Error> {
        let understand = |verified: &Verified| compile_definitions(verified, path);
        let mut mode = None;
        let (attached, (stored, plans)) = attach(path, self.trust_any_owner, understand, |candidate| {
            let Some(declared) = declared else {
                return Ok(Admission::Join);
            };
            mode = Some(candidate.mode()?);
            let definitions = candidate.definitions()?;
            let stored = read_definitions(&definitions, candidate.participants(), path)?;
            self.on_mismatch
                .admission(path, &stored, declared, || candidate.other_processes())
        })?;
        let options = EngineOptions {
            lock_timeout: self.lock_timeout,
            virtual_clock: self.virtual_clock.clone(),
            compile: compile_one,
        };
        let engine = SegmentEngine::new(path, attached, plans, options)?;
        for shard in engine.shards().filter(|_| self.reclaim) {
            // A set that cannot be locked now says so when it is used.
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
            request_events: self.observer.as_ref().map(events),
            engine,
            declaration,
            options: self.clone(),
            mismatches,
            warned: Mutex::default(),
        });
        note_handle(&shared);
        Ok(Segment { shared })
    }

    /// Brings what was declared into force, as far as it may be; answers what is in force then, and in what they
    /// differed.
    fn reconcile(
        &self,
        engine: &SegmentEngine,
        declared: &Declaration,
    ) -> Result<(Declaration, Vec<Mismatch>), Error> {
        let refused = |immutable: Vec<String>| match stored_declaration(engine) {
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

/// Under which circumstances [`OpenOptions::remove`] removes a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Only where no live process is attached.
    Unused,
    /// Also under attached processes, and where the file is damaged or of another format. In such a file nothing
    /// is marked: processes attached to it find out within a second that it has no name any more.
    Forced,
}

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

    /// Opens a segment that exists: [`OpenOptions::open`] with the defaults.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        OpenOptions::new().open(path)
    }

    /// Creates a segment and opens it: [`OpenOptions::create`] with the defaults.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::create`].
    pub fn create(path: impl AsRef<Path>, declaration: &Declaration) -> Result<Self, Error> {
        OpenOptions::new().create(path, declaration)
    }

    /// Opens the segment, or creates it: [`OpenOptions::open_or_create`] with the defaults.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open_or_create`].
    pub fn open_or_create(path: impl AsRef<Path>, declaration: &Declaration) -> Result<Self, Error> {
        OpenOptions::new().open_or_create(path, declaration)
    }

    /// The set of that name. Where it is not declared and the segment has [sets on demand](Declaration::sets_on_demand),
    /// the first process that asks for it makes it.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSet`], which names the sets there are; for a set on demand also [`Error::Declaration`], where it
    /// cannot be a name, [`Error::Removed`], [`Error::LockStuck`], [`Error::Damaged`].
    pub fn set(&self, name: &str) -> Result<LimitSet, Error> {
        match find_or_make(&self.shared.engine, name)? {
            Some(index) => Ok(LimitSet::new(Arc::clone(&self.shared), index)),
            None => Err(Error::UnknownSet {
                name: name.to_owned(),
                known: self.sets().map(|set| set.name().to_owned()).collect(),
            }),
        }
    }

    /// Every set, in the order of the declaration; then the [sets on demand](Declaration::sets_on_demand) that processes
    /// have asked for, in that order.
    pub fn sets(&self) -> impl Iterator<Item = LimitSet> + '_ {
        let engine = &self.shared.engine;
        let named = engine.definitions().named(engine.sets());
        named.map(|(index, _)| LimitSet::new(Arc::clone(&self.shared), index))
    }

    /// What was in force when this process opened the segment: see
    /// [`declaration_in_force`](Self::declaration_in_force). Path and mode are not part of it.
    pub fn declaration(&self) -> &Declaration {
        &self.shared.declaration
    }

    /// In what the segment differed from the declaration that it was opened with, and what became of that: see
    /// [`OpenOptions::on_mismatch`].
    pub fn mismatches(&self) -> &[Mismatch] {
        &self.shared.mismatches
    }

    /// The file, as an absolute path.
    pub fn path(&self) -> &Path {
        self.shared.engine.path()
    }

    /// A copy of everything, taken without a lock.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where there is no memory for the copy.
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

    /// Shows `visit` each key of a set that has a row, in no order, each as [`KeySnapshot`] says. Takes no lock, and no
    /// more memory for many keys than for one. Keys that come or go meanwhile may be shown or not.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSet`], [`Error::NotKeyed`].
    pub fn keys(&self, set: &str, visit: impl FnMut(&KeySnapshot)) -> Result<(), Error> {
        self.with_keys(|keys| keys.visit(set, visit))
    }

    /// One key of a set, taken without a lock; none where it has no row, which is as if it had never been used.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSet`], [`Error::NotKeyed`], [`Error::InvalidKey`], [`Error::AddressRequired`].
    pub fn key(&self, set: &str, key: impl AsRef<[u8]>) -> Result<Option<KeySnapshot>, Error> {
        self.with_keys(|keys| keys.find(set, key.as_ref()))
    }

    /// The networks that contain an address, as [`SegmentReader::address`](crate::SegmentReader::address).
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSet`], [`Error::NoPrefixes`].
    pub fn address(&self, set: &str, address: IpAddr) -> Result<Vec<KeySnapshot>, Error> {
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

    /// Marks the segment as no longer to be used: whatever is asked of it later, by any process, is answered
    /// [`Error::Removed`]; what permits hold is settled and given back as ever. The file stays.
    pub fn retire(&self) {
        self.shared.engine.retire();
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|source| Error::Io {
        action: "find",
        path: path.to_owned(),
        source,
    })
}

/// Creates the file and does not open it.
fn create_file(path: &Path, declaration: &Declaration) -> Result<(), Error> {
    declaration.validate()?;
    let stored = StoredDeclaration::of(declaration);
    let sets = stored.sets();
    let plans = sets
        .iter()
        .map(StoredSet::compile)
        .collect::<Result<Vec<_>, _>>()?;
    let definitions = sets
        .iter()
        .map(StoredSet::to_text)
        .collect::<Result<Vec<_>, _>>()?;
    let shapes = plans
        .iter()
        .zip(&definitions)
        .map(|(plan, text)| plan.shape(definition_room(text)));
    let participants = u64::from(declaration.segment().participants());
    let geometry = Geometry::new(participants, shapes).map_err(|_| Error::NoSpace {
        path: path.to_owned(),
        bytes: u64::MAX,
    })?;
    create(
        path,
        &Blueprint {
            geometry: &geometry,
            definitions: &definitions,
            mode: declaration.segment().mode(),
        },
    )
}

/// The room that is kept for each definition of a set whose first one is `text`: later ones may be longer.
fn definition_room(text: &str) -> u64 {
    const MIN_SPARE: usize = 512;
    (text.len() + (text.len() / 2).max(MIN_SPARE)).next_multiple_of(64) as u64
}

/// A set by its definition text; none where it does not define one set.
pub(crate) fn compile_one(text: &str) -> Option<SetPlan> {
    StoredSet::from_text(text).ok()?.compile().ok()
}

/// What definitions of all sets declare.
fn read_definitions(
    definitions: &[Definition],
    participants: u64,
    path: &Path,
) -> Result<StoredDeclaration, Error> {
    let texts = definitions.iter().map(|definition| definition.text.as_str());
    StoredDeclaration::read(participants as u32, texts, path)
}

/// The declaration that a segment holds, and its sets compiled, each with the generation of its definition, and compared
/// with the directory.
pub(crate) fn compile_definitions(
    verified: &Verified,
    path: &Path,
) -> Result<(StoredDeclaration, Vec<(u64, SetPlan)>), Error> {
    let damaged = |what: String| Error::Damaged {
        path: path.to_owned(),
        what,
    };
    let stored = read_definitions(&verified.definitions, verified.geometry.participants, path)?;
    // As a whole, in which no two sets have one name.
    stored
        .to_declaration()
        .compile()
        .map_err(|error| damaged(format!("the definitions do not fit: {error}")))?;
    let plans: Vec<SetPlan> = stored
        .sets()
        .iter()
        .map(StoredSet::compile)
        .collect::<Result<_, _>>()?;
    for (plan, geometry) in plans.iter().zip(&verified.geometry.sets) {
        if plan.shape(geometry.shape.definition_room) != geometry.shape {
            return Err(damaged(format!(
                "the directory entry of set `{}` does not fit its definition",
                plan.name
            )));
        }
    }
    let generations = verified
        .definitions
        .iter()
        .map(|definition| definition.generation);
    Ok((stored, generations.zip(plans).collect()))
}
