//! Who is attached, and who is dead.
//!
//! A process owns its slot by the file lock on the slot's byte. The process table is a second opinion that rules
//! wherever it has one: it tells a dead process whose lock a stray child keeps, and a live one that lost its lock
//! because something closed its descriptors.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

use super::attach::{AttachLock, open_again};
use super::descriptor::{Descriptor, FileIdentity};
use super::file_lock::{ByteRange, is_locked_by_others, try_lock, unlock};
use super::fork_identity::IdentityPage;
use super::host::{ProcessOpinion, maps_file, own_image, own_name, own_start_time, process_opinion};
use super::layout::Participant;
use super::region::{OutOfRegion, Region, load_acquire};
use crate::error::Error;
use crate::shm::clock::utc_nanos;

const SLOT_BITS: u32 = 16;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// A slot in one of its lives: what every hold is owned by.
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

    /// The owner that a word names; `None` for a free hold or a word that names no slot.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let slot = (word & SLOT_MASK).checked_sub(1)?;
        Some(Self {
            slot,
            generation: word >> SLOT_BITS,
        })
    }
}

/// What a participant is doing with its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody's.
    Free,
    /// Being filled in.
    Joining,
    /// A process's.
    Live,
}

/// The state word of a participant: generation above, phase in the low two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParticipantState {
    pub(crate) generation: u64,
    pub(crate) phase: Phase,
}

impl ParticipantState {
    /// Generations wrap here, so that a generation fits an owner word.
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

/// A participant as its record says, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParticipantRecord {
    pub(crate) id: ParticipantId,
    pub(crate) phase: Phase,
    pub(crate) pid: u64,
    pub(crate) start_time: u64,
    pub(crate) joined_utc: u64,
    pub(crate) name: String,
}

/// The participants' table of a segment.
#[derive(Clone, Debug)]
pub(crate) struct ParticipantTable {
    pub(crate) region: Arc<Region>,
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

    /// The doorbell of a participant. Whoever has the slot now is rung, which does no more than make it look.
    pub(crate) fn doorbell(&self, id: ParticipantId) -> Option<&AtomicU64> {
        let record = self.records().ok()?.get(usize::try_from(id.slot).ok()?)?;
        Some(&record.doorbell)
    }

    /// The process of a participant, where the slot still is its own.
    pub(crate) fn pid_of(&self, id: ParticipantId) -> Option<u64> {
        let record = self.records().ok()?.get(usize::try_from(id.slot).ok()?)?;
        let state = ParticipantState::from_word(load_acquire(&record.state));
        let is_current = state.generation == id.generation && state.phase == Phase::Live;
        is_current.then(|| record.pid.load(Ordering::Relaxed))
    }

    /// The participant, whoever it is now, in a slot.
    pub(crate) fn read(&self, slot: u64) -> Option<ParticipantRecord> {
        let record = self.records().ok()?.get(usize::try_from(slot).ok()?)?;
        Some(read(slot, record))
    }

    /// Whether the owner of something is alive, by both opinions. `file` is any open file of the segment.
    pub(crate) fn is_alive(&self, id: ParticipantId, file: Option<BorrowedFd<'_>>) -> bool {
        let Some(record) = self.read(id.slot) else {
            return false;
        };
        if record.id.generation != id.generation || record.phase == Phase::Free {
            return false;
        }
        let opinion = match record.phase {
            Phase::Live => process_opinion(record.pid, record.start_time),
            // The process is not named yet.
            Phase::Free | Phase::Joining => ProcessOpinion::Unknown,
        };
        let holds_its_byte = || {
            // Nobody is taken for dead without evidence.
            file.is_none_or(|file| is_locked_by_others(file, ByteRange::participant(id.slot)) != Ok(false))
        };
        match opinion {
            ProcessOpinion::Alive => holds_its_byte() || still_maps(record.pid, file),
            ProcessOpinion::Dead => false,
            ProcessOpinion::Unknown => holds_its_byte(),
        }
    }

    /// As [`is_alive`](Self::is_alive), for a segment that may be of another boot or namespace: there the process
    /// table says nothing, and only the file lock counts.
    pub(crate) fn is_alive_at(&self, same_place: bool, id: ParticipantId, file: BorrowedFd<'_>) -> bool {
        if same_place {
            return self.is_alive(id, Some(file));
        }
        let is_current = self
            .read(id.slot)
            .is_some_and(|record| record.id == id && record.phase != Phase::Free);
        is_current && is_locked_by_others(file, ByteRange::participant(id.slot)) != Ok(false)
    }

    /// Makes every slot free in a new generation, so that whatever is owned is owned by the dead. Only while nobody
    /// is alive, under the attach lock.
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

    /// Takes a slot for this process: one whose byte is free and whose last owner is dead.
    fn join(&self, file: &File, utc: u64) -> Result<Option<ParticipantId>, Errno> {
        let start_time = own_start_time();
        self.free_former_images(start_time);
        for (slot, record) in (0..).zip(self.records().unwrap_or_default()) {
            let byte = ByteRange::participant(slot);
            if !try_lock(file.as_fd(), byte)? {
                continue;
            }
            let state = ParticipantState::from_word(load_acquire(&record.state));
            let pid = record.pid.load(Ordering::Relaxed);
            let has_lost_its_lock = state.phase == Phase::Live
                && process_opinion(pid, record.start_time.load(Ordering::Relaxed)) == ProcessOpinion::Alive
                && still_maps(pid, Some(file.as_fd()));
            if has_lost_its_lock {
                unlock(file.as_fd(), byte)?;
                continue;
            }
            let generation = state.next_generation();
            let joining = ParticipantState {
                generation,
                phase: Phase::Joining,
            };
            record.state.store(joining.to_word(), Ordering::Release);
            record.pid.store(u64::from(std::process::id()), Ordering::Relaxed);
            record.start_time.store(start_time, Ordering::Relaxed);
            record.image.store(own_image(), Ordering::Relaxed);
            record.joined_utc.store(utc, Ordering::Relaxed);
            store_name(record, &own_name());
            let live = ParticipantState {
                generation,
                phase: Phase::Live,
            };
            // Readers that see the phase see the fields stored before.
            record.state.store(live.to_word(), Ordering::Release);
            return Ok(Some(ParticipantId { slot, generation }));
        }
        Ok(None)
    }

    /// Frees what this very process had before it executed another program, or itself anew: an exec keeps the
    /// process, so nobody else would take it for dead while it maps the file again.
    fn free_former_images(&self, start_time: u64) {
        // Asked for once, and not for each of thousands of slots.
        let (pid, image) = (u64::from(std::process::id()), own_image());
        let own = |record: &&Participant| {
            record.pid.load(Ordering::Relaxed) == pid
                && record.start_time.load(Ordering::Relaxed) == start_time
                && record.image.load(Ordering::Relaxed) != image
        };
        for record in self.records().unwrap_or_default().iter().filter(own) {
            let state = ParticipantState::from_word(load_acquire(&record.state));
            if state.phase == Phase::Live {
                free(record, state);
            }
        }
    }
}

/// Whether a process that lost its byte has the segment mapped still: closing descriptors leaves a mapping in place,
/// executing another program does not. In doubt it has.
fn still_maps(pid: u64, file: Option<BorrowedFd<'_>>) -> bool {
    let inode = file
        .and_then(|file| FileIdentity::of(file).ok())
        .map(|identity| identity.inode);
    inode.and_then(|inode| maps_file(pid, inode)).unwrap_or(true)
}

/// Makes a slot free if it still is in `state`: whoever joins in it meanwhile moves its generation on.
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
        pid: record.pid.load(Ordering::Relaxed),
        start_time: record.start_time.load(Ordering::Relaxed),
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

/// This process's place among the participants, renewed in a forked child at its first use.
#[derive(Debug)]
pub(crate) struct Membership {
    table: ParticipantTable,
    path: PathBuf,
    page: IdentityPage,
    descriptor: Descriptor,
    /// The process that `owner` is the participant of.
    identity: AtomicU64,
    owner: AtomicU64,
    /// The process, by identity, one of whose threads is renewing the membership. A child may inherit a value of
    /// its parent's, and knows it for stale: no lock of the standard library could tell.
    renewing: AtomicU64,
}

impl Membership {
    /// Joins the participants of an open segment. The caller holds the attach lock.
    pub(crate) fn join(file: File, path: PathBuf, table: ParticipantTable) -> Result<Self, Error> {
        let page = IdentityPage::get().map_err(|errno| Error::Unsupported {
            what: "wipe a page on fork",
            source: errno.into(),
        })?;
        let id = join_or_explain(&table, &file, &path)?;
        let descriptor = Descriptor::adopt(file).map_err(|errno| failed("examine", &path, errno))?;
        Ok(Self {
            table,
            path,
            page,
            descriptor,
            identity: AtomicU64::new(page.current().as_u64()),
            owner: AtomicU64::new(id.to_word()),
            renewing: AtomicU64::new(0),
        })
    }

    /// The participant that this process is. In a child's first call it becomes one of its own.
    #[inline]
    pub(crate) fn owner(&self) -> Result<u64, Error> {
        match self.owner_so_far() {
            0 => self.renew(),
            owner => Ok(owner),
        }
    }

    /// The participant that this process is, or zero where it has not become one since its fork. Unlike
    /// [`owner`](Self::owner) it makes no system call.
    #[inline]
    pub(crate) fn owner_so_far(&self) -> u64 {
        if self.identity.load(Ordering::Acquire) == self.page.current().as_u64() {
            self.owner.load(Ordering::Relaxed)
        } else {
            0
        }
    }

    /// Whether `owner` is what this process is, without becoming a participant for the answer.
    #[inline]
    pub(crate) fn is_current(&self, owner: u64) -> bool {
        // No owner is zero.
        self.owner_so_far() == owner
    }

    /// Whether the owner of something is alive.
    pub(crate) fn is_alive(&self, id: ParticipantId) -> bool {
        // Until a forked child has an open file of its own, the one it has is its parent's, whose bytes it does not see.
        let file = self.descriptor.get().filter(|_| self.owner_so_far() != 0);
        self.is_current(id.to_word()) || self.table.is_alive(id, file)
    }

    /// The table this process is in.
    pub(crate) fn table(&self) -> &ParticipantTable {
        &self.table
    }

    /// Frees the slots of dead processes; answers how many. Joining does not need it.
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

    /// Makes sure that this process's slot is its own: takes its byte again if something closed the descriptor that
    /// held it, and joins anew if somebody has taken the slot meanwhile. What it held in a slot that is lost is given
    /// back by others. A failure is not reported here: it is tried again, and whoever needs the slot is told.
    pub(crate) fn keep_token(&self) {
        let Ok(owner) = self.owner() else { return };
        if !self.has_token(owner) {
            let current = self.start_renewing();
            let _ = self.restore_token(current, owner);
            self.renewing.store(0, Ordering::Release);
        }
    }

    /// Whether the slot still is this participant's.
    fn has_slot(&self, owner: u64) -> bool {
        ParticipantId::from_word(owner)
            .and_then(|id| self.table.read(id.slot).filter(|record| record.id == id))
            .is_some_and(|record| record.phase == Phase::Live)
    }

    /// Whether the slot is this participant's and its byte this open file's, which takes the byte if it is free.
    fn has_token(&self, owner: u64) -> bool {
        let (Some(id), Some(file)) = (ParticipantId::from_word(owner), self.descriptor.get()) else {
            return false;
        };
        // Taking a byte that this open file has already changes nothing.
        self.has_slot(owner) && try_lock(file, ByteRange::participant(id.slot)) == Ok(true)
    }

    fn restore_token(&self, current: u64, owner: u64) -> Result<(), Error> {
        if self.descriptor.get().is_none() {
            self.descriptor
                .replace(reopen(&self.path, self.descriptor.file())?);
        }
        // Where the byte is another's although the slot is ours, a child that was forked before the descriptor was
        // lost keeps it; the process table goes on saying that this process lives.
        if self.has_token(owner) || self.has_slot(owner) {
            return Ok(());
        }
        // Nobody may use the lost slot's word from here on, also if joining fails.
        self.identity.store(0, Ordering::Release);
        self.join_anew(current).map(drop)
    }

    /// Keeps other threads of this process from renewing; answers the process's identity.
    fn start_renewing(&self) -> u64 {
        let current = self.page.current().as_u64();
        loop {
            let renewing = self.renewing.load(Ordering::Relaxed);
            if renewing == current {
                std::thread::yield_now();
            } else if self
                .renewing
                .compare_exchange(renewing, current, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return current;
            }
        }
    }

    #[cold]
    fn renew(&self) -> Result<u64, Error> {
        let current = self.start_renewing();
        let outcome = if self.identity.load(Ordering::Acquire) == current {
            Ok(self.owner.load(Ordering::Relaxed))
        } else {
            self.join_anew(current)
        };
        self.renewing.store(0, Ordering::Release);
        outcome
    }

    fn join_anew(&self, current: u64) -> Result<u64, Error> {
        let file = reopen(&self.path, self.descriptor.file())?;
        let lock = AttachLock::take(&file, &self.path)?;
        let id = join_or_explain(&self.table, &file, &self.path)?;
        drop(lock);
        // An inherited descriptor shares the parent's open file: closing it is right, unlocking would be wrong.
        self.descriptor.replace(file);
        self.owner.store(id.to_word(), Ordering::Relaxed);
        self.identity.store(current, Ordering::Release);
        Ok(id.to_word())
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
            // If the slot was lost to another process, it is that one's.
            free(record, live);
        }
    }
}

fn join_or_explain(
    table: &ParticipantTable,
    file: &File,
    path: &std::path::Path,
) -> Result<ParticipantId, Error> {
    table
        .join(file, utc_nanos())
        .map_err(|errno| failed("lock", path, errno))?
        .ok_or_else(|| Error::TooManyParticipants {
            path: path.to_owned(),
            capacity: table.count,
        })
}

/// Opens the file again as an open file of its own, by its path or, where that leads elsewhere by now, not at all.
fn reopen(path: &std::path::Path, expected: FileIdentity) -> Result<File, Error> {
    open_again(path, expected)?.ok_or_else(|| Error::Retired {
        path: path.to_owned(),
    })
}

fn failed(action: &'static str, path: &std::path::Path, errno: Errno) -> Error {
    Error::Io {
        action,
        path: path.to_owned(),
        source: errno.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_owner_word_names_slot_and_generation_and_is_never_zero(
            slot in 0..4096_u64, generation in 0..1_u64 << 48,
        ) {
            let id = ParticipantId { slot, generation };
            prop_assert_ne!(id.to_word(), 0);
            prop_assert_eq!(ParticipantId::from_word(id.to_word()), Some(id));
        }

        #[test]
        fn any_state_word_is_read_as_some_state(word in any::<u64>()) {
            let state = ParticipantState::from_word(word);
            prop_assert_eq!(ParticipantState::from_word(state.to_word()), state);
            prop_assert!(state.next_generation() < 1 << 48);
        }
    }
}
