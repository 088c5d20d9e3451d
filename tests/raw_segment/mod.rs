//! A segment file as bytes, by the offsets that `shm-layout.md` documents, without the library: to damage it, to
//! take its locks, and to make it look older than it is.
#![allow(unsafe_code, reason = "takes the locks of a segment beside the library")]
// Each test file uses a part of it.
#![allow(dead_code)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use memmap2::MmapRaw;

/// Words of the header, by their position in the file.
pub const MAGIC: u64 = 0;
pub const FORMAT: u64 = 1;
pub const FINGERPRINT: u64 = 2;
pub const INCOMPATIBLE_FEATURES: u64 = 3;
pub const COMPATIBLE_FEATURES: u64 = 4;
pub const HEADER_SIZE: u64 = 5;
pub const TOTAL_SIZE: u64 = 6;
pub const BYTE_ORDER: u64 = 7;
pub const WORD_SIZE: u64 = 8;
pub const C_LIBRARY: u64 = 9;
pub const LOCK_KIND: u64 = 10;
pub const CLOCK_ID: u64 = 11;
pub const CREATED_UTC: u64 = 12;
pub const CREATED_AT: u64 = 13;
pub const HASH_KEY: u64 = 14;
pub const PARTICIPANTS: u64 = 16;
pub const PARTICIPANTS_OFFSET: u64 = 17;
pub const SETS: u64 = 18;
pub const DIRECTORY_OFFSET: u64 = 19;
pub const CHECKSUM: u64 = 20;
pub const BOOT_ID: u64 = 21;
pub const PID_NAMESPACE: u64 = 23;
pub const TIME_NAMESPACE: u64 = 24;
pub const RETIRED: u64 = 29;

/// Words of a participant, by their position in it.
pub const PARTICIPANT_PID: u64 = 1;
pub const PARTICIPANT_START_TIME: u64 = 2;
pub const PARTICIPANT_DOORBELL: u64 = 8;

/// Words of a hold, by their position in it.
pub const HOLD_OWNER: u64 = 0;
pub const HOLD_NEXT: u64 = 4;

/// Words of a directory entry, by their position in it.
pub const EXTENT_OFFSET: u64 = 0;
pub const EXTENT_SIZE: u64 = 1;
pub const DEFINITION_ROOM: u64 = 2;
pub const LIMITS: u64 = 3;
pub const STATE_WORDS: u64 = 4;
pub const HOLDS: u64 = 5;
pub const HELD_AMOUNTS: u64 = 6;
pub const TICKETS: u64 = 7;
pub const SHARDS: u64 = 8;
pub const BUCKETS: u64 = 9;
pub const NAME_WORDS: u64 = 10;
pub const GENERATION: u64 = 11;
/// Of the first definition, which is in force as long as none has been applied.
pub const DEFINITION_SIZE: u64 = 12;
pub const DEFINITION_CHECKSUM: u64 = 14;
pub const LABELS: u64 = 16;

const PARTICIPANT_BYTES: u64 = 384;
const ENTRY_BYTES: u64 = 192;
const HOLD_BYTES: u64 = 56;
const TICKET_BYTES: u64 = 88;
const TICKET_LIMIT_BYTES: u64 = 24;

/// The bytes of a segment file.
#[derive(Debug)]
pub struct RawSegment {
    file: File,
}

impl RawSegment {
    pub fn open(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(path);
        Self {
            file: file.expect("a segment file"),
        }
    }

    /// The word at a position of the file counted in words.
    pub fn word(&self, position: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file
            .read_exact_at(&mut bytes, position * 8)
            .expect("a word of the file");
        u64::from_ne_bytes(bytes)
    }

    pub fn set_word(&self, position: u64, value: u64) {
        self.set_bytes(position * 8, &value.to_ne_bytes());
    }

    pub fn set_bytes(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).expect("room in the file");
    }

    /// Makes the header's checksum match again.
    pub fn seal_header(&self) {
        let words = (FORMAT..CHECKSUM).map(|position| self.word(position));
        self.set_word(CHECKSUM, words.fold(SEED, hash));
    }

    /// The position of a word of the directory's first entry.
    pub fn entry_word(&self, word: u64) -> u64 {
        self.word(DIRECTORY_OFFSET) / 8 + word
    }

    /// The position of a word of a participant's record.
    pub fn participant_word(&self, slot: u64, word: u64) -> u64 {
        (self.word(PARTICIPANTS_OFFSET) + slot * PARTICIPANT_BYTES) / 8 + word
    }

    /// The definition text of the first set.
    pub fn definition(&self) -> String {
        let size = self.word(self.entry_word(DEFINITION_SIZE));
        let mut bytes = vec![0; usize::try_from(size).expect("a size in memory")];
        self.file
            .read_exact_at(&mut bytes, self.word(self.entry_word(EXTENT_OFFSET)))
            .expect("a definition");
        String::from_utf8(bytes).expect("text")
    }

    /// Writes another text of the same length over the first set's definition, and its checksum.
    pub fn set_definition(&self, text: &[u8]) {
        assert_eq!(
            text.len(),
            self.definition().len(),
            "a definition cannot change its length"
        );
        self.set_bytes(self.word(self.entry_word(EXTENT_OFFSET)), text);
        let length = hash(SEED, text.len() as u64);
        let sum = text.iter().fold(length, |sum, byte| hash(sum, u64::from(*byte)));
        self.set_word(self.entry_word(DEFINITION_CHECKSUM), sum);
    }

    /// Where the lock of a set lies: at the start of its control, which follows the room for two definitions.
    pub fn lock_offset(&self, set: u64) -> u64 {
        let entry = (self.word(DIRECTORY_OFFSET) + set * ENTRY_BYTES) / 8;
        self.word(entry + EXTENT_OFFSET) + 2 * self.word(entry + DEFINITION_ROOM).next_multiple_of(64)
    }

    /// The position of the first word of the tags of the first set, which has one shard: behind its control, its
    /// journal and its counters.
    pub fn tags(&self) -> u64 {
        const CONTROL_AND_JOURNAL: u64 = 704 + 160 * 16;
        const COUNTERS: u64 = 128;
        (self.lock_offset(0) + CONTROL_AND_JOURNAL + COUNTERS * self.word(self.entry_word(LIMITS))) / 8
    }

    /// How often the bells of the first set's tickets have been rung, all of them together.
    pub fn futex_value(&self) -> u64 {
        const BELL: u64 = 2;
        let bytes = TICKET_BYTES + TICKET_LIMIT_BYTES * self.word(self.entry_word(LIMITS));
        let stride = bytes.next_multiple_of(64);
        let tickets = self.word(self.entry_word(TICKETS));
        // They come last in the extent.
        let end = self.word(self.entry_word(EXTENT_OFFSET)) + self.word(self.entry_word(EXTENT_SIZE));
        let first = end - tickets * stride;
        (0..tickets)
            .map(|index| self.word((first + index * stride) / 8 + BELL))
            .sum()
    }

    /// The position of the word that names the first free hold of the first set.
    pub fn free_hold(&self) -> u64 {
        (self.lock_offset(0) + 96) / 8
    }

    /// The position of a word of a hold of the first set, which has one shard. The tickets follow the holds.
    pub fn hold_word(&self, index: u64, word: u64) -> u64 {
        let stride = |bytes: u64| bytes.next_multiple_of(64);
        let hold = stride(HOLD_BYTES + 8 * self.word(self.entry_word(HELD_AMOUNTS)));
        let ticket = stride(TICKET_BYTES + TICKET_LIMIT_BYTES * self.word(self.entry_word(LIMITS)));
        let end = self.word(self.entry_word(EXTENT_OFFSET)) + self.word(self.entry_word(EXTENT_SIZE));
        let tickets = end - self.word(self.entry_word(TICKETS)) * ticket;
        let holds = tickets - self.word(self.entry_word(HOLDS)) * hold;
        (holds + index * hold) / 8 + word
    }

    /// How often the doorbells of all participants have been rung, all of them together.
    pub fn doorbell_rings(&self) -> u64 {
        (0..self.word(PARTICIPANTS))
            .map(|slot| self.word(self.participant_word(slot, PARTICIPANT_DOORBELL)))
            .sum()
    }

    /// Makes the file look as if a machine that has booted again since had used it.
    pub fn set_another_boot(&self) {
        for half in [BOOT_ID, BOOT_ID + 1] {
            self.set_word(half, !self.word(half));
        }
    }

    /// The lock of the first set, for a process that takes it without the library.
    pub fn lock(&self) -> RawLock {
        RawLock {
            offset: usize::try_from(self.lock_offset(0)).expect("an offset in memory"),
            map: MmapRaw::map_raw(&self.file).expect("a mapping"),
        }
    }
}

const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// One step of FNV-1a over the bytes of a word.
fn hash(sum: u64, word: u64) -> u64 {
    word.to_le_bytes().iter().fold(sum, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A set's lock, as pthread sees it.
#[derive(Debug)]
pub struct RawLock {
    map: MmapRaw,
    offset: usize,
}

impl RawLock {
    fn mutex(&self) -> *mut libc::pthread_mutex_t {
        // SAFETY: the offset comes from the directory of a segment that the library made, and lies in the mapping.
        unsafe { self.map.as_mut_ptr().add(self.offset).cast() }
    }

    pub fn take(&self) {
        // SAFETY: the library initialised a mutex there.
        assert_eq!(unsafe { libc::pthread_mutex_lock(self.mutex()) }, 0);
    }

    pub fn let_go(&self) {
        // SAFETY: this thread took it.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(self.mutex()) }, 0);
    }
}
