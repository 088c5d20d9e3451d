//! Which processes are attached, and which are dead.
//!
//! A participant is one copy of the library in one image of one process. It owns its slot through the file lock on
//! the slot's byte, which lives exactly as long as the image. The process table is only consulted if the lock cannot
//! be, and only about processes of the same PID namespace.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use nix::errno::Errno;

use super::ending::is_past_its_end;
use super::fork_identity::{IdentityPage, ProcessIdentity, ProcessMutex};
use super::host::{ProcessOpinion, own_name, pid_namespace, process_opinion};
use super::process_identity::CopyIdentity;
use super::same_place::{current_place, ensure_same_namespaces};
use crate::choices::LockKind;
use crate::error::{Error, OpenError, ProcessId, RemovalCause, SegmentError};
use crate::shm::file::descriptor::{Descriptor, FileIdentity};
use crate::shm::file::file_lock::{ByteRange, FoundLock, lock_of_others, try_lock};
use crate::shm::file::lasting_locks::keep_participant;
use crate::shm::file::lock_owners::locked_by_reader;
use crate::shm::file::region::{Mapped, OutOfRegion, Region, load_acquire};
use crate::shm::file::removal::look_for_removal;
use crate::shm::file::segment_file::{AttachLock, damaged, io_error, open_again};
use crate::shm::layout::records::{Header, Participant};
use crate::shm::process::image_lock::ImageLock;
use crate::shm::time::clock::utc_nanos;
use crate::shm::wake::wake_list::WakeList;

const SLOT_BITS: u32 = 16;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// One life of a slot: the owner of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ParticipantId {
    pub(crate) slot: u64,
    pub(crate) generation: u64,
}

impl ParticipantId {
    /// Slot plus one in the low 16 bits, generation above: never zero.
    pub(crate) fn to_word(self) -> u64 {
        (self.generation << SLOT_BITS) | (self.slot + 1)
    }

    /// The owner named by a word; `None` for a free hold or a word that names no slot.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let slot = (word & SLOT_MASK).checked_sub(1)?;
        Some(Self {
            slot,
            generation: word >> SLOT_BITS,
        })
    }
}

/// The state of a participant's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody's.
    Free,
    /// Being filled in.
    Joining,
    /// Owned by a process.
    Live,
}

/// The state word of a participant: generation above, phase in the low two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParticipantState {
    pub(crate) generation: u64,
    pub(crate) phase: Phase,
}

impl ParticipantState {
    /// Generations wrap here, so that they fit an owner word.
    const GENERATION_MASK: u64 = (1 << (64 - SLOT_BITS)) - 1;

    pub(crate) fn from_word(word: u64) -> Self {
        let phase = match word & 3 {
            1 => Phase::Joining,
            2 => Phase::Live,
            _ => Phase::Free,
        };
        Self {
            generation: (word >> 2) & Self::GENERATION_MASK,
            phase,
        }
    }

    pub(crate) fn to_word(self) -> u64 {
        let phase = match self.phase {
            Phase::Free => 0,
            Phase::Joining => 1,
            Phase::Live => 2,
        };
        (self.generation << 2) | phase
    }

    pub(crate) fn next_generation(self) -> u64 {
        self.generation.wrapping_add(1) & Self::GENERATION_MASK
    }
}

/// A participant's record, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParticipantRecord {
    pub(crate) id: ParticipantId,
    pub(crate) phase: Phase,
    pub(crate) identity: CopyIdentity,
    pub(crate) joined_utc: u64,
    pub(crate) name: String,
}

/// The participants' table of a segment.
#[derive(Clone, Debug)]
pub(crate) struct ParticipantTable {
    pub(crate) region: Arc<Region>,
    /// How participants exclude each other.
    pub(crate) lock_kind: LockKind,
    pub(crate) offset: u64,
    pub(crate) count: u64,
}

impl ParticipantTable {
    fn records(&self) -> Result<&[Participant], OutOfRegion> {
        self.region.records(self.offset, self.count)
    }

    /// The participants whose records are not free.
    pub(crate) fn taken(&self) -> Vec<ParticipantRecord> {
        let records = self.records().unwrap_or_default();
        (0..)
            .zip(records)
            .map(|(slot, record)| read(slot, record))
            .filter(|it| it.phase != Phase::Free)
            .collect()
    }

    /// How many processes are named by the records that are not free. A process with several copies of the library is
    /// a participant for each of them.
    fn processes(&self) -> u64 {
        let identities = self.taken().into_iter().map(|record| record.identity);
        let processes: HashSet<_> = identities.map(CopyIdentity::process).collect();
        processes.len() as u64
    }

    /// The process futex of a participant. If another process has the slot now, advancing this only makes it look.
    pub(crate) fn process_futex(&self, id: ParticipantId) -> Option<&AtomicU64> {
        let record = self.records().ok()?.get(usize::try_from(id.slot).ok()?)?;
        Some(&record.process_futex)
    }

    /// When a grant of a participant last lapsed, on the segment clock. If another process has the slot now, its
    /// earlier tickets are passed over, which only makes it look.
    pub(crate) fn lapsed_at(&self, id: ParticipantId) -> Option<&AtomicU64> {
        let record = self.records().ok()?.get(usize::try_from(id.slot).ok()?)?;
        Some(&record.lapsed_at)
    }

    /// The tickets that a participant's process futex was advanced for.
    pub(crate) fn wake_list(&self, id: ParticipantId) -> Option<WakeList<'_>> {
        let record = self.records().ok()?.get(usize::try_from(id.slot).ok()?)?;
        Some(WakeList::new(&record.wake_count, &record.wake_list))
    }

    /// The process futex of a participant, for a caller that may outlive the table.
    pub(crate) fn mapped_process_futex(&self, id: ParticipantId) -> Result<Mapped<AtomicU64>, OutOfRegion> {
        let record = id.slot.saturating_mul(size_of::<Participant>() as u64);
        let offset = record.saturating_add(offset_of!(Participant, process_futex) as u64);
        self.region.mapped_words(self.offset.saturating_add(offset), 1)
    }

    /// The process of a participant, if the slot still belongs to it.
    pub(crate) fn identity_of(&self, id: ParticipantId) -> Option<CopyIdentity> {
        let record = self.read(id.slot)?;
        let is_current = record.id == id && record.phase == Phase::Live;
        is_current.then_some(record.identity)
    }

    /// A process, as it is named to people: with its PID namespace if that is not the caller's.
    pub(crate) fn shown(&self, process: CopyIdentity) -> ProcessId {
        let is_of_another = || process.pid_namespace != pid_namespace().unwrap_or(0);
        ProcessId {
            pid: process.pid,
            namespace: (!self.lock_kind.is_of_one_namespace() && is_of_another())
                .then_some(process.pid_namespace),
        }
    }

    /// The participant that is now in a slot.
    pub(crate) fn read(&self, slot: u64) -> Option<ParticipantRecord> {
        let record = self.records().ok()?.get(usize::try_from(slot).ok()?)?;
        Some(read(slot, record))
    }

    /// Whether an owner is alive. `is_locked` says whether any open file has a byte locked, or that it cannot tell:
    /// then the process table decides, as far as it knows.
    pub(crate) fn is_alive(
        &self,
        id: ParticipantId,
        is_locked: impl FnOnce(ByteRange) -> Option<bool>,
    ) -> bool {
        let Some(record) = self.read(id.slot) else {
            return false;
        };
        if record.id.generation != id.generation || record.phase == Phase::Free {
            return false;
        }
        is_locked(ByteRange::participant(id.slot)).unwrap_or_else(|| {
            // Until it is live, the record names no process. A pid of another namespace means another process here.
            let process = record.identity;
            record.phase != Phase::Live
                || !process.is_of_namespace(pid_namespace().unwrap_or(0))
                || process_opinion(process.pid, process.start_time) != ProcessOpinion::Dead
        })
    }

    /// Frees every slot in a new generation, so that whatever is owned is owned by the dead. Only while no process is
    /// alive, under the attach lock.
    pub(crate) fn clear(&self) -> Result<(), OutOfRegion> {
        for record in self.records()? {
            let state = ParticipantState::from_word(record.state.load(Ordering::Relaxed));
            let next = ParticipantState {
                generation: state.next_generation(),
                phase: Phase::Free,
            };
            record.state.store(next.to_word(), Ordering::Release);
        }
        Ok(())
    }

    /// Takes a slot for this copy of the library: one whose byte is not locked, so that its last owner is dead.
    /// Returns the lock on the byte, too. `file` has no other use; `witness`, another open file, is used to check
    /// that the lock is kept.
    fn join(
        &self,
        file: File,
        witness: &File,
        process: ProcessIdentity,
        path: &Path,
    ) -> Result<(ParticipantId, ImageLock), Error> {
        let mut records = (0..).zip(self.records().unwrap_or_default());
        let (slot, record) = loop {
            let Some((slot, record)) = records.next() else {
                return Err(self.no_slot(&file, path));
            };
            let byte = ByteRange::participant(slot);
            if try_lock(file.as_fd(), byte).map_err(|errno| failed("lock", path, errno))? {
                break (slot, record);
            }
        };
        let lock = keep_participant(file, ByteRange::participant(slot), process, witness, path)?;
        let state = ParticipantState::from_word(load_acquire(&record.state));
        let generation = state.next_generation();
        let joining = ParticipantState {
            generation,
            phase: Phase::Joining,
        };
        record.state.store(joining.to_word(), Ordering::Release);
        let own = CopyIdentity::own();
        record.pid.store(own.pid, Ordering::Relaxed);
        record.pid_namespace.store(own.pid_namespace, Ordering::Relaxed);
        record.start_time.store(own.start_time, Ordering::Relaxed);
        record.image.store(own.image, Ordering::Relaxed);
        record.copy.store(own.copy, Ordering::Relaxed);
        record.joined_utc.store(utc_nanos(), Ordering::Relaxed);
        store_name(record, &own_name());
        let live = ParticipantState {
            generation,
            phase: Phase::Live,
        };
        // Readers that see the phase also see the fields stored before it.
        record.state.store(live.to_word(), Ordering::Release);
        Ok((ParticipantId { slot, generation }, lock))
    }

    /// Why no slot was available.
    fn no_slot(&self, file: &File, path: &Path) -> Error {
        self.locked_by_reader(file, path).unwrap_or_else(|| {
            Error::Open(OpenError::TooManyParticipants {
                path: path.to_owned(),
                capacity: self.count,
                processes: self.processes(),
            })
        })
    }

    /// The error if no slot is available because a process has a read lock on the bytes of some of them. `file`
    /// is any open file of the segment.
    pub(crate) fn locked_by_reader(&self, file: &File, path: &Path) -> Option<Error> {
        let mut of_reader = None;
        for byte in (0..self.count).map(ByteRange::participant) {
            match lock_of_others(file.as_fd(), byte) {
                Ok(Some(FoundLock {
                    is_exclusive: true, ..
                })) => {}
                Ok(Some(_)) => of_reader = of_reader.or(Some(byte)),
                Ok(None) | Err(_) => return None,
            }
        }
        locked_by_reader(file, of_reader?, path)
    }
}

/// Frees a slot if it is still in `state`: a process that joins in it meanwhile advances its generation.
fn free(record: &Participant, state: ParticipantState) -> bool {
    let free = ParticipantState {
        phase: Phase::Free,
        ..state
    };
    record
        .state
        .compare_exchange(
            state.to_word(),
            free.to_word(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_ok()
}

fn read(slot: u64, record: &Participant) -> ParticipantRecord {
    let state = ParticipantState::from_word(load_acquire(&record.state));
    ParticipantRecord {
        id: ParticipantId {
            slot,
            generation: state.generation,
        },
        phase: state.phase,
        identity: CopyIdentity {
            pid: record.pid.load(Ordering::Relaxed),
            pid_namespace: record.pid_namespace.load(Ordering::Relaxed),
            start_time: record.start_time.load(Ordering::Relaxed),
            image: record.image.load(Ordering::Relaxed),
            copy: record.copy.load(Ordering::Relaxed),
        },
        joined_utc: record.joined_utc.load(Ordering::Relaxed),
        name: load_name(record),
    }
}

fn store_name(record: &Participant, name: &str) {
    let mut bytes = [0; 24];
    let length = name.len().min(bytes.len());
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    for (word, chunk) in record.name.iter().zip(bytes.as_chunks::<8>().0) {
        word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    }
}

fn load_name(record: &Participant) -> String {
    let bytes: Vec<u8> = record
        .name
        .iter()
        .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Where to find a process whose death somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watchable {
    /// It has that id in the PID namespace of this process.
    Here(u64),
    /// In another PID namespace, so its id means nothing to this process.
    Elsewhere,
    /// The slot is free or has a new life: the process that had it is gone.
    Gone,
}

/// This process's place among the participants. A forked child renews it on first use.
#[derive(Debug)]
pub(crate) struct Membership {
    table: ParticipantTable,
    path: PathBuf,
    page: IdentityPage,
    /// For asking who is alive. It has no locks of its own, so a forked child may continue to use it.
    descriptor: Descriptor,
    /// The lock on the slot's byte.
    lock: ImageLock,
    /// The process that is the participant `owner`.
    identity: AtomicU64,
    owner: AtomicU64,
    /// The PID namespace of this process; zero if `/proc` does not say.
    pid_namespace: AtomicU64,
    /// The identity of the process while one of its threads renews the membership. A child may inherit its parent's
    /// identity here, and recognises it as stale; a lock of the standard library could not do that.
    renewing: AtomicU64,
    /// Those to be notified when a forked child becomes a participant, as long as they exist. Any that another thread
    /// was just adding at the fork are missing in the child.
    children: ProcessMutex<Vec<Weak<dyn ChildJoined>>>,
}

/// Something that has work to do when a forked child becomes a participant.
pub(crate) trait ChildJoined: fmt::Debug + Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Called in the child: its parent's threads do not exist there.
    fn child_joined(&self);
}

impl Membership {
    /// Joins the participants of an open segment. `file` has no other use; `probe` is kept for asking who is alive.
    /// The caller must hold the attach lock.
    pub(crate) fn join(
        file: File,
        probe: File,
        path: PathBuf,
        table: ParticipantTable,
    ) -> Result<Self, Error> {
        let page = IdentityPage::get().map_err(|errno| {
            Error::Open(OpenError::Unsupported {
                what: "wipe a page on fork",
                source: errno.into(),
            })
        })?;
        let process = page.current();
        let (id, lock) = table.join(file, &probe, process, &path)?;
        let descriptor = Descriptor::adopt(probe).map_err(|errno| {
            // Nothing else would release the lock before the process ends.
            lock.release(process);
            failed("examine", &path, errno)
        })?;
        Ok(Self {
            table,
            path,
            page,
            descriptor,
            lock,
            identity: AtomicU64::new(process.as_u64()),
            owner: AtomicU64::new(id.to_word()),
            pid_namespace: AtomicU64::new(pid_namespace().unwrap_or(0)),
            renewing: AtomicU64::new(0),
            children: ProcessMutex::default(),
        })
    }

    /// The participant that this process is. The first call in a forked child makes the child a participant of its
    /// own.
    #[inline]
    pub(crate) fn owner(&self) -> Result<u64, Error> {
        match self.owner_so_far() {
            0 => self.renew(),
            owner => Ok(owner),
        }
    }

    /// The participant that this process is, or zero if it has not become one since it was forked. Unlike
    /// [`owner`](Self::owner), this makes no system call.
    #[inline]
    pub(crate) fn owner_so_far(&self) -> u64 {
        if self.identity.load(Ordering::Acquire) == self.page.current().as_u64() {
            self.owner.load(Ordering::Relaxed)
        } else {
            0
        }
    }

    /// Whether `owner` is this process. Does not make it a participant to find out.
    #[inline]
    pub(crate) fn is_current(&self, owner: u64) -> bool {
        // No owner is zero.
        self.owner_so_far() == owner
    }

    /// Whether an owner is alive.
    pub(crate) fn is_alive(&self, id: ParticipantId) -> bool {
        self.is_current(id.to_word()) || self.table.is_alive(id, |byte| self.is_locked(byte))
    }

    /// Whether a participant's process will run no more code, although its byte may still be locked. False for a
    /// process of another PID namespace, of which this is unknown.
    pub(super) fn is_past_its_end(&self, id: ParticipantId) -> bool {
        let own = self.pid_namespace.load(Ordering::Relaxed);
        self.table.identity_of(id).is_some_and(|process| {
            process.is_of_namespace(own) && is_past_its_end(process.pid, process.start_time)
        })
    }

    /// How this process can be notified of an owner's death.
    pub(crate) fn watchable(&self, id: ParticipantId) -> Watchable {
        let Some(process) = self.table.identity_of(id) else {
            return Watchable::Gone;
        };
        let own = self.pid_namespace.load(Ordering::Relaxed);
        if self.table.lock_kind.is_of_one_namespace() || process.is_of_namespace(own) {
            Watchable::Here(process.pid)
        } else {
            Watchable::Elsewhere
        }
    }

    /// Whether any open file has a lock in the range; `None` if that cannot be determined.
    fn is_locked(&self, range: ByteRange) -> Option<bool> {
        self.descriptor.is_locked_by_others(range).or_else(|| {
            // Something closed the descriptor. If the path leads elsewhere by now, there is no other way in.
            self.descriptor.replace(self.open_again().ok()?);
            self.descriptor.is_locked_by_others(range)
        })
    }

    /// Whether this is a membership of the segment in that file.
    pub(crate) fn is_of(&self, file: FileIdentity) -> bool {
        self.descriptor.file() == file
    }

    /// Whether the file has a name, at any path; `None` if that cannot be known. If it has one, keeps it from looking
    /// unused.
    pub(in crate::shm) fn file_has_name(&self) -> Option<bool> {
        self.descriptor.look()
    }

    /// The segment's file.
    pub(crate) fn file(&self) -> FileIdentity {
        self.descriptor.file()
    }

    /// The mapped segment.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.table.region
    }

    /// The table this process is in.
    pub(crate) fn table(&self) -> &ParticipantTable {
        &self.table
    }

    /// Frees the slots of dead processes and returns how many. Joining does not depend on it.
    pub(crate) fn free_dead_participants(&self) -> usize {
        let Ok(records) = self.table.records() else {
            return 0;
        };
        let dead = self
            .table
            .taken()
            .into_iter()
            .filter(|record| !self.is_alive(record.id));
        dead.filter(|dead| {
            let state = ParticipantState {
                generation: dead.id.generation,
                phase: dead.phase,
            };
            records
                .get(dead.id.slot as usize)
                .is_some_and(|record| free(record, state))
        })
        .count()
    }

    /// Keeps other threads of this process from renewing. Returns the process's identity.
    fn start_renewing(&self) -> ProcessIdentity {
        let current = self.page.current();
        loop {
            let renewing = self.renewing.load(Ordering::Relaxed);
            if renewing == current.as_u64() {
                std::thread::yield_now();
            } else if self
                .renewing
                .compare_exchange(renewing, current.as_u64(), Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return current;
            }
        }
    }

    #[cold]
    fn renew(&self) -> Result<u64, Error> {
        let current = self.start_renewing();
        let was_joined = self.identity.load(Ordering::Acquire) == current.as_u64();
        let outcome = if was_joined {
            Ok(self.owner.load(Ordering::Relaxed))
        } else {
            self.join_anew(current)
        };
        self.renewing.store(0, Ordering::Release);
        if outcome.is_ok() && !was_joined {
            let children = self.children.lock().map(|it| it.clone()).unwrap_or_default();
            for child in children.iter().filter_map(Weak::upgrade) {
                child.child_joined();
            }
        }
        outcome
    }

    /// Notifies `child` when a forked child has become a participant, as long as `child` exists.
    pub(crate) fn when_child_joins(&self, child: &Arc<dyn ChildJoined>) {
        // A membership only exists if the kernel can tell a child from its parent.
        if let Ok(mut children) = self.children.lock() {
            children.retain(|child| child.strong_count() > 0);
            children.push(Arc::downgrade(child));
        }
    }

    fn join_anew(&self, current: ProcessIdentity) -> Result<u64, Error> {
        let header = self
            .table
            .region
            .record(0)
            .map_err(|place| damaged(&self.path, place))?;
        let attach_file = self.reopen()?;
        let attach_lock = AttachLock::take(&attach_file, &self.path)?;
        // This process may have been forked into other namespaces, where its thread ids or its clock mean something
        // else. Compared while holding the byte, because a process of other namespaces could start the segment cold
        // before that.
        let place = current_place(&self.path)?;
        ensure_same_namespaces(header, self.table.lock_kind, place, &self.path)?;
        let (id, lock) = self
            .table
            .join(self.reopen()?, &attach_file, current, &self.path)?;
        drop(attach_lock);
        self.lock.replace(lock);
        self.owner.store(id.to_word(), Ordering::Relaxed);
        self.pid_namespace.store(place.pid_namespace, Ordering::Relaxed);
        self.identity.store(current.as_u64(), Ordering::Release);
        Ok(id.to_word())
    }

    /// What has become of the segment, which this process opened by `path`. If nothing has, this takes two system
    /// calls, and a third once a minute.
    pub(crate) fn look_for_removal(&self, path: &Path) -> Option<RemovalCause> {
        let header: &Header = self.region().record(0).ok()?;
        look_for_removal(header, || self.file_has_name(), self.file(), path)
    }

    /// Opens the file again as a new open file, for a child that wants to use the segment. Fails if the segment was
    /// removed.
    fn reopen(&self) -> Result<File, Error> {
        match self.look_for_removal(&self.path) {
            Some(cause) => Err(Error::Segment(SegmentError::Removed {
                path: self.path.clone(),
                cause,
            })),
            None => self.open_again(),
        }
    }

    fn open_again(&self) -> Result<File, Error> {
        open_again(self.descriptor.number(), &self.path, self.descriptor.file())
    }

    /// The permission bits of the file, wherever it is by now.
    pub(crate) fn file_mode(&self) -> Result<u32, Error> {
        if let Some(mode) = self.descriptor.mode() {
            return Ok(mode);
        }
        let metadata = self.open_again()?.metadata();
        let metadata = metadata.map_err(|source| io_error("examine", &self.path, source))?;
        Ok(metadata.mode() & 0o777)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let owner = self.owner.load(Ordering::Relaxed);
        if !self.is_current(owner) {
            return;
        }
        let Some(id) = ParticipantId::from_word(owner) else {
            return;
        };
        if let Some(record) = self
            .table
            .records()
            .ok()
            .and_then(|records| records.get(id.slot as usize))
        {
            let live = ParticipantState {
                generation: id.generation,
                phase: Phase::Live,
            };
            free(record, live);
        }
        self.lock.release(self.page.current());
    }
}

fn failed(action: &'static str, path: &Path, errno: Errno) -> Error {
    Error::Open(OpenError::Io {
        action,
        path: path.to_owned(),
        source: errno.into(),
    })
}
