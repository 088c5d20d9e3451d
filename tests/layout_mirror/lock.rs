//! A set's lock, taken without the library: by pthread calls, or in the name of a participant that joins by itself.
#![allow(unsafe_code, reason = "takes the locks of a segment beside the library")]

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memmap2::MmapRaw;
use nix::sys::signal::{Signal, raise};

use super::RawSegment;
use super::words::{header, lock_kind, participant};

/// The byte of participant slot 0.
const FIRST_PARTICIPANT_BYTE: i64 = 1 << 40;

/// In a slot lock word: the owner is to wake a waiter when it releases the lock.
pub(super) const WAITERS: u64 = 1 << 31;

#[derive(Debug)]
pub struct RawLock {
    map: MmapRaw,
    /// The offset of the lock area, in bytes.
    offset: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Mutex,
    /// The open file has a lock on the byte of a slot for as long as it is open.
    Slot {
        slot: usize,
        word: u64,
        _byte: File,
    },
}

impl RawLock {
    pub(super) fn new(segment: &RawSegment, control: usize) -> Self {
        let map = MmapRaw::map_raw(&segment.file).expect("a mapping");
        let kind = match segment.word(header::LOCK_KIND) {
            lock_kind::SLOT => join(segment),
            _ => Kind::Mutex,
        };
        Self {
            offset: 8 * control,
            map,
            kind,
        }
    }

    fn mutex(&self) -> *mut libc::pthread_mutex_t {
        // SAFETY: the offset comes from the directory of a segment that the library made, and lies in the mapping.
        unsafe { self.map.as_mut_ptr().add(self.offset).cast() }
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: as above; the area is aligned, and in a segment with slot locks every process uses it as an atomic.
        unsafe { &*self.mutex().cast::<AtomicU64>() }
    }

    pub fn take(&self) {
        match self.kind {
            // SAFETY: the library initialised a mutex there.
            Kind::Mutex => assert_eq!(unsafe { libc::pthread_mutex_lock(self.mutex()) }, 0),
            Kind::Slot { word, .. } => {
                while self
                    .word()
                    .compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed)
                    .is_err()
                {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        }
    }

    /// Lets a thread end while it holds the lock. The kernel finds the lock in the mapping.
    pub fn take_in_a_thread_that_ends(&self) {
        std::thread::scope(|scope| scope.spawn(|| self.take()).join()).expect("takes the lock and ends");
    }

    /// Takes the lock, stops this process, and releases the lock once the process is continued.
    pub fn take_and_stop(&self) {
        self.take();
        raise(Signal::SIGSTOP).expect("stops");
        self.let_go();
    }

    /// Makes this process, a child of the one that joined, the participant that takes the lock. The lock on the byte
    /// belongs to the open file, which both have.
    pub fn pass_to_this_process(&self, segment: &RawSegment) {
        if let Kind::Slot { slot, .. } = self.kind {
            record_this_process(segment, slot);
        }
    }

    /// Takes the lock for as long as the process lives.
    pub fn take_for_good(self) {
        self.take();
        std::mem::forget(self);
    }

    pub fn let_go(&self) {
        match self.kind {
            // SAFETY: this thread took it.
            Kind::Mutex => assert_eq!(unsafe { libc::pthread_mutex_unlock(self.mutex()) }, 0),
            Kind::Slot { .. } => {
                if self.word().swap(0, Ordering::AcqRel) & WAITERS != 0 {
                    // SAFETY: the kernel is given the address of a mapped word, and writes nothing to it.
                    unsafe { libc::syscall(libc::SYS_futex, self.word(), libc::FUTEX_WAKE, 1) };
                }
            }
        }
    }
}

/// Joins the participants, in the first slot whose byte is free.
fn join(segment: &RawSegment) -> Kind {
    let path = format!("/proc/self/fd/{}", segment.file.as_raw_fd());
    let file = File::options().read(true).write(true).open(path);
    let byte = file.expect("an open file of its own");
    let slots = segment.word(header::PARTICIPANTS);
    let slot = (0..slots)
        .find(|slot| has_locked(&byte, *slot))
        .expect("a free slot");
    let index = usize::try_from(slot).expect("small");
    let state = segment.participant_word(index, participant::STATE);
    let generation = (segment.word(state) >> 2) + 1;
    segment.set_word(state, generation << 2 | participant::JOINING);
    record_this_process(segment, index);
    segment.set_word(state, generation << 2 | participant::LIVE);
    Kind::Slot {
        slot: index,
        word: slot_word(slot, generation),
        _byte: byte,
    }
}

/// The word of a lock whose owner is the participant in a slot.
pub(super) fn slot_word(slot: u64, generation: u64) -> u64 {
    (generation >> 15) << 32 | (generation & 0x7fff) << 16 | (slot + 1)
}

fn record_this_process(segment: &RawSegment, slot: usize) {
    let namespace = fs::metadata("/proc/self/ns/pid").expect("a namespace").ino();
    let status = fs::read_to_string("/proc/self/stat").expect("a readable /proc");
    // The name, which ends with the last parenthesis, is field 2; the time at which the process started is field 22.
    let (_, fields) = status.rsplit_once(')').expect("a name");
    let started = fields.split_ascii_whitespace().nth(19).expect("a start");
    for (word, value) in [
        (participant::PID, std::process::id().into()),
        (participant::START_TIME, started.parse().expect("a number")),
        (participant::PID_NAMESPACE, namespace),
    ] {
        segment.set_word(segment.participant_word(slot, word), value);
    }
}

fn has_locked(file: &File, slot: u64) -> bool {
    let request = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: FIRST_PARTICIPANT_BYTE + i64::try_from(slot).expect("small"),
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the request is what the call expects.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) == 0 }
}
