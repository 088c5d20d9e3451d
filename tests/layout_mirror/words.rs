//! Where things lie in a segment file, as `shm-layout.md` documents it, independently of the library: what tests know
//! of the format is written here, once. Positions and sizes are in words of eight bytes, from the start of each record.
// Each test uses a part of it.
#![allow(dead_code)]

/// The number of the format that is described here.
pub const FORMAT: u64 = 4;

/// The words of a cache line; records are aligned to cache lines.
pub const LINE: usize = 8;

pub mod header {
    pub const MAGIC: usize = 0;
    pub const FORMAT: usize = 1;
    pub const FINGERPRINT: usize = 2;
    pub const INCOMPATIBLE_FEATURES: usize = 3;
    pub const COMPATIBLE_FEATURES: usize = 4;
    pub const HEADER_SIZE: usize = 5;
    pub const TOTAL_SIZE: usize = 6;
    pub const BYTE_ORDER: usize = 7;
    pub const WORD_SIZE: usize = 8;
    pub const C_LIBRARY: usize = 9;
    pub const LOCK_KIND: usize = 10;
    pub const CLOCK_ID: usize = 11;
    pub const CREATED_UTC: usize = 12;
    pub const CREATED_AT: usize = 13;
    pub const HASH_KEY: usize = 14;
    pub const PARTICIPANTS: usize = 16;
    pub const PARTICIPANTS_OFFSET: usize = 17;
    pub const SETS: usize = 18;
    pub const DIRECTORY_OFFSET: usize = 19;
    pub const CHECKSUM: usize = 20;
    pub const BOOT_ID: usize = 21;
    pub const CLOCK_OFFSET: usize = 27;
    pub const PID_NAMESPACE: usize = 23;
    pub const TIME_NAMESPACE: usize = 24;
    pub const RETIRED: usize = 29;
    pub const DIRECTORY_NUMBER: usize = 30;

    /// What the checksum covers, which it follows.
    pub const CHECKED: std::ops::Range<usize> = FORMAT..CHECKSUM;
    /// What processes change while they use the segment, or start it cold.
    pub const CHANGING: std::ops::Range<usize> = BOOT_ID..DIRECTORY_NUMBER + 1;

    /// The sizes of the record and of its page, the rest of which is reserved.
    pub const RECORD: usize = 64;
    pub const SIZE: usize = 4096 / 8;
}

/// Where the lock word lies within `pthread_mutex_t`, in units of four bytes.
pub const LOCK_WORD_INDEX: usize = if cfg!(target_env = "musl") { 1 } else { 0 };

pub mod lock_kind {
    pub const ROBUST_MUTEX: u64 = 1;
    pub const SLOT: u64 = 2;
}

pub mod participant {
    pub const STATE: usize = 0;
    pub const PID: usize = 1;
    pub const START_TIME: usize = 2;
    pub const PROCESS_FUTEX: usize = 8;
    pub const PID_NAMESPACE: usize = 11;
    pub const JOINING: u64 = 1;
    pub const LIVE: u64 = 2;
    pub const SIZE: usize = 48;
}

/// An entry of the directory: a set.
pub mod entry {
    pub const EXTENT_OFFSET: usize = 0;
    pub const EXTENT_SIZE: usize = 1;
    pub const DEFINITION_ROOM: usize = 2;
    pub const LIMITS: usize = 3;
    pub const STATE_WORDS: usize = 4;
    pub const HOLDS: usize = 5;
    pub const HELD_AMOUNTS: usize = 6;
    pub const TICKETS: usize = 7;
    pub const SHARDS: usize = 8;
    pub const BUCKETS: usize = 9;
    pub const NAME_WORDS: usize = 10;
    /// Which definition is in force.
    pub const GENERATION: usize = 11;
    /// The size of the first definition, which is in force until another is applied.
    pub const DEFINITION_SIZE: usize = 12;
    pub const DEFINITION_CHECKSUM: usize = 14;
    pub const LABELS: usize = 16;
    pub const LEASE_LISTS: usize = 17;
    pub const OVERALL_WORDS: usize = 18;
    pub const SIZE: usize = 24;
}

/// The control record of a shard, which begins with its lock.
pub mod control {
    pub const LOCK_SIZE: usize = 8;
    pub const JOURNAL: usize = 8;
    pub const LAST_SEEN: usize = 9;
    pub const POISONED: usize = 10;
    pub const FREE_HOLD: usize = 12;
    pub const HOLD_SERIAL: usize = 14;
    pub const ACTIVE: usize = 15;
    pub const ADMITTED: usize = 16;
    pub const REFUSED_RATE: usize = 17;
    pub const SETTLED: usize = 21;
    pub const RECOVERIES: usize = 23;
    pub const UNKNOWN_NAMES: usize = 25;
    pub const LAST_RECOVERER: usize = 27;
    pub const RESET_INSTANT: usize = 28;
    pub const RESET_SCOPE: usize = 29;
    pub const WAITED: usize = 31;
    pub const UNTOUCHED_TICKET: usize = 34;
    pub const MARKS: usize = 40;
    pub const GENERATION: usize = 42;
    pub const MIGRATED: usize = 43;
    pub const RESET_ROW: usize = 45;
    pub const KEYS: usize = 46;
    pub const LOCK_WAITS: usize = 50;
    pub const WAIT_TIMES: usize = 55;
    pub const WAIT_TIME: usize = 87;
    pub const LAPSED: usize = 88;
    pub const LAPSE_AT: usize = 89;
    pub const SIZE: usize = 96;

    /// Counts for people, and high-water marks, which are not journalled. The longest queue is not among them: it is
    /// journalled.
    pub const COUNTED: [std::ops::Range<usize>; 8] = [
        ADMITTED..RECOVERIES,
        26..27,
        30..32,
        38..40,
        41..42,
        48..50,
        51..LAPSED + 1,
        90..92,
    ];
}

/// Two words for each entry: the index of a word within the shard, and its old value.
pub mod journal {
    pub const ENTRIES: usize = 160;
    pub const SIZE: usize = 2 * ENTRIES;
}

/// The counters of a limit.
pub mod counters {
    pub const ADMITTED: usize = 0;
    pub const TAKEN: usize = 1;
    pub const UNSETTLED: usize = 6;
    /// When the limit was reset; not a count.
    pub const RESET_AT: usize = 9;
    pub const SIZE: usize = 16;
}

/// A bucket of a table of keys: how many rows it has, how many tags a word has, and how many words of tags a bucket
/// has.
pub mod bucket {
    pub const ROWS: usize = 32;
    pub const WORD_TAGS: usize = 4;
    pub const TAG_WORDS: usize = 8;
}

/// A row of a keyed table.
pub mod row {
    pub const FINGERPRINT: usize = 0;
    pub const USED_AT: usize = 3;
    pub const COUNTS: usize = 4;
    pub const ROW_REFERENCES: usize = 5;
    pub const HEAD_SIZE: usize = 6;
}

/// The record of a lease.
pub mod lease {
    /// The size of the record, which follows the words of the limit's algorithm.
    pub const SIZE: usize = 56;
    pub const SPENT: usize = 0;
    pub const ALLOWANCE: usize = 1;
    pub const VALID_UNTIL: usize = 2;
    pub const REFUNDED: usize = 8;
    pub const ASKED: usize = 11;
    /// Hints, which are not journalled.
    pub const ALERTED: usize = 5;
    pub const UNMET: usize = 17;
    pub const DRAINING: usize = 27;
    /// In the record of a shard of keys, these two say when its lists of rows are looked at.
    pub const USED_AT: usize = 42;
    pub const PACED_UNTIL: usize = 44;
    /// How many of the last words of a segment's first record say who asks the store, and what it found.
    pub const OF_DUTY: usize = 8;
}

/// A hold: the amounts that are held follow its head.
pub mod hold {
    pub const OWNER: usize = 0;
    pub const SERIAL: usize = 1;
    pub const RENEWED_AT: usize = 3;
    pub const NEXT: usize = 4;
    pub const RETURNED: usize = 5;
    pub const ROW: usize = 6;
    pub const HEAD_SIZE: usize = 7;
}

/// The order among the keys of a shard, which exists only if the set has a limit of all keys, and is never journalled:
/// its record, an entry of its heap for each ticket, and what rows keep for it after their states and holds after their
/// amounts.
pub mod order {
    pub const VIRTUAL_TIME: usize = 0;
    pub const LATEST_TAG: usize = 1;
    pub const HEAP_LENGTH: usize = 3;
    pub const NEWCOMERS: usize = 4;
    pub const SIZE: usize = 8;
    pub const ENTRY_SIZE: usize = 2;

    pub const ROW_TAG: usize = 0;
    pub const ROW_PLACE: usize = 2;
    pub const ROW_SIZE: usize = 5;

    pub const HOLD_SIZE: usize = 3;
}

/// The label of a hold.
pub mod label {
    pub const STAMP: usize = 0;
    pub const TEXT: usize = 1;
    pub const SIZE: usize = 9;
}

/// A ticket, and what it says about each limit, which follows its head.
pub mod ticket {
    pub const OWNER: usize = 0;
    pub const STATE: usize = 1;
    pub const WAITER_FUTEX: usize = 2;
    pub const ENQUEUED_AT: usize = 5;
    pub const GRANTED_AT: usize = 6;
    pub const HOLD: usize = 7;
    pub const HOLD_SERIAL: usize = 8;
    pub const REQUEST: usize = 9;
    pub const ROW: usize = 10;
    pub const DEADLINE: usize = 11;
    pub const LOOKED_AT: usize = 12;
    pub const HEAD_SIZE: usize = 13;
    pub const COST: usize = 0;
    pub const LIMIT_SIZE: usize = 3;

    /// The bits of the state that say what happens to the ticket; the others are its number.
    pub const PHASE: u64 = 0b11;
    pub const WAITING: u64 = 1;
    pub const GRANTED: u64 = 2;
    pub const PASSED_OVER: u64 = 3;
}

/// Where the control of a set's first shard lies, after the room for two definitions.
pub fn control_start(extent_offset: usize, definition_room: usize) -> usize {
    extent_offset / 8 + 2 * definition_room.div_ceil(8).next_multiple_of(LINE)
}

/// The header's checksum: FNV-1a over its words.
pub fn header_checksum(word: impl Fn(usize) -> u64) -> u64 {
    header::CHECKED.fold(SEED, |sum, position| hash(sum, word(position)))
}

/// The checksum of a definition: FNV-1a over its generation, its length and its bytes, each as a word.
pub fn definition_checksum(generation: u64, text: &[u8]) -> u64 {
    let length = hash(hash(SEED, generation), text.len() as u64);
    text.iter().fold(length, |sum, byte| hash(sum, u64::from(*byte)))
}

const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// One step of FNV-1a over the bytes of a word, low byte first.
fn hash(sum: u64, word: u64) -> u64 {
    word.to_le_bytes().into_iter().fold(sum, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
