//! The records of a segment, byte by byte. `shm-layout.md` is the specification; a test keeps the two in step.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::sync::atomic::AtomicU64;

use crate::units::{BUCKET_ROWS, BUCKET_TAG_WORDS};

/// The first eight bytes of a published segment: `SHMLIMIT` in the byte order of the host.
pub(crate) const MAGIC: u64 = u64::from_ne_bytes(*b"SHMLIMIT");

/// The number of this format. It has nothing to do with the version of the crate.
pub(crate) const FORMAT: u64 = 4;

/// A feature that a reader may ignore: everybody tells the time by the system's clock, nobody by the processor's
/// counter.
pub(crate) const SYSTEM_CLOCK: u64 = 1;

/// The features known to this build that a reader may ignore.
pub(crate) const COMPATIBLE_FEATURES: u64 = SYSTEM_CLOCK;

/// A feature that a reader must know: the limits of sets without keys have room for leases.
pub(crate) const LEASES: u64 = 1;

/// The features known to this build without which a reader must not touch the segment.
pub(crate) const INCOMPATIBLE_FEATURES: u64 = LEASES;

/// Reads differently on a host with the other byte order.
pub(crate) const BYTE_ORDER: u64 = 0x0102_0304_0506_0708;

/// Bytes of a machine word; the size of `pthread_mutex_t` depends on it.
pub(crate) const WORD_SIZE: u64 = size_of::<usize>() as u64;

/// The C library whose `pthread_mutex_t` is in the segment.
pub(crate) const C_LIBRARY: u64 = if cfg!(target_env = "musl") { 2 } else { 1 };

/// The process-shared robust mutex.
pub(crate) const LOCK_KIND_ROBUST_MUTEX: u64 = 1;

/// The word that names a participant.
pub(crate) const LOCK_KIND_SLOT: u64 = 2;

/// `CLOCK_BOOTTIME`.
pub(crate) const CLOCK_BOOT_TIME: u64 = libc::CLOCK_BOOTTIME as u64;

/// Records, tables and extents start at multiples of a cache line.
pub(crate) const ALIGNMENT: u64 = 64;

/// Bytes reserved for the header, so that the tables start on a page of their own.
pub(crate) const HEADER_SPACE: u64 = 4096;

/// The most participants a segment may be declared with.
pub(crate) const MAX_PARTICIPANTS: u64 = 4096;

/// The most limits a set may have.
pub(crate) const MAX_LIMITS: usize = 16;

/// The most sets a segment may have.
pub(crate) const MAX_SETS: u64 = 1024;

/// In a set's `poisoned` word: nobody has looked at the set since a cold start voided its lock.
pub(crate) const SET_UNCHECKED: u64 = 3;

/// In a set's `poisoned` word: a process took the lock from a dead one and released it before it had recovered the
/// set.
pub(crate) const SET_UNRECOVERED: u64 = 4;

/// Whether a set's `poisoned` word says that the set cannot be used, and not only that it has to be looked at first.
pub(crate) fn is_poison(word: u64) -> bool {
    !matches!(word, 0 | SET_UNCHECKED | SET_UNRECOVERED)
}

/// Marks a segment that was retired; any value but zero does.
pub(crate) const RETIRED: u64 = 1;

/// Marks a segment whose file was found to have no name any more.
pub(crate) const RETIRED_AS_DELETED: u64 = 2;

/// Entries of the list of tickets that a participant was woken for.
pub(crate) const WAKE_LIST: usize = 32;

/// Words of the text of a label: 64 bytes.
pub(crate) const LABEL_WORDS: usize = 8;

/// Buckets of the histogram of waiting times.
pub(crate) const WAIT_BUCKETS: usize = 32;

/// How many words one operation may change and journal. A change of a key's tier or capacities may use all of them:
/// see [`MAX_MIGRATED_WORDS`](crate::engine::terms::plan::MAX_MIGRATED_WORDS). The count must stay below
/// [`CHANGE_MARKER`](crate::shm::lock::journal::CHANGE_MARKER).
pub(crate) const JOURNAL_ENTRIES: usize = 160;

/// One field of a record: its name, offset and size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// A type that consists of atomics.
///
/// # Safety
///
/// Every byte of the type must belong to an atomic, so that there is no padding and any bytes are a valid value.
unsafe trait OfAtomics {}

// SAFETY: it is an atomic itself, and nothing else.
unsafe impl OfAtomics for AtomicU64 {}

// SAFETY: an array is its elements, one after another, with nothing between them.
unsafe impl<T: OfAtomics, const N: usize> OfAtomics for [T; N] {}

/// The size of a type that consists of atomics.
const fn size_of_atomics<T: OfAtomics>() -> usize {
    size_of::<T>()
}

/// A record that may lie in shared memory.
///
/// # Safety
///
/// Every byte of the type must belong to an atomic, and the alignment must be at most [`ALIGNMENT`].
pub(crate) unsafe trait SharedRecord: Sync + 'static {
    const NAME: &'static str;
    const FIELDS: &'static [Field];
}

macro_rules! shared_records {
    ($($(#[$record_doc:meta])* struct $record:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$record_doc])*
            #[derive(Debug)]
            #[cfg_attr(test, derive(zerocopy::FromBytes, zerocopy::IntoBytes))]
            #[repr(C)]
            pub(crate) struct $record { $($(#[$field_doc])* pub(crate) $field: $type,)* }

            // There is nothing between the fields or after the last, and each consists of atomics. In tests, `zerocopy`
            // confirms it.
            const _: () = assert!(size_of::<$record>() == 0 $(+ size_of_atomics::<$type>())*);

            // SAFETY: it consists of its fields and nothing else, and they consist of atomics, as asserted above.
            unsafe impl OfAtomics for $record {}

            // SAFETY: it consists of atomics, none of which is aligned to more than eight bytes.
            unsafe impl SharedRecord for $record {
                const NAME: &'static str = stringify!($record);
                const FIELDS: &'static [Field] = &[$(Field {
                    name: stringify!($field),
                    offset: offset_of!($record, $field),
                    size: size_of::<$type>(),
                },)*];
            }
        )*

        /// Every record of the format, in the order of the document.
        pub(crate) const RECORDS: &[(&str, usize, &[Field])] =
            &[$(($record::NAME, size_of::<$record>(), $record::FIELDS),)*];
    };
}

shared_records! {
    /// The head of the file.
    struct Header {
        /// [`MAGIC`], stored last, with release.
        magic: AtomicU64,
        /// [`FORMAT`].
        format: AtomicU64,
        /// [`fingerprint`] of the records that this file was made with.
        fingerprint: AtomicU64,
        incompatible_features: AtomicU64,
        compatible_features: AtomicU64,
        header_size: AtomicU64,
        total_size: AtomicU64,
        byte_order: AtomicU64,
        word_size: AtomicU64,
        c_library: AtomicU64,
        lock_kind: AtomicU64,
        clock_id: AtomicU64,
        /// Nanoseconds since the Unix epoch at creation.
        created_utc: AtomicU64,
        /// The segment clock at that moment: the other half of the wall-clock anchor.
        created_at: AtomicU64,
        /// From the system's random source; seeds the hash of keyed tables.
        hash_key: [AtomicU64; 2],
        participants: AtomicU64,
        participants_offset: AtomicU64,
        sets: AtomicU64,
        directory_offset: AtomicU64,
        /// Of every word from `format` to here.
        checksum: AtomicU64,
        /// The boot whose processes may be alive. A cold start stores it last.
        boot_id: [AtomicU64; 2],
        pid_namespace: AtomicU64,
        time_namespace: AtomicU64,
        /// Device and inode of the file itself: a copy has others.
        device: AtomicU64,
        inode: AtomicU64,
        /// Added to the boot-time clock, wrapping, this gives the segment clock.
        clock_offset: AtomicU64,
        cold_starts: AtomicU64,
        /// Not zero: attached processes must stop using the segment. See [`RETIRED`].
        retired: AtomicU64,
        /// Tells the directory that is the segment from other directories, if this is the file of one of its sets;
        /// zero otherwise.
        directory_number: AtomicU64,
        reserved: [AtomicU64; 33],
    }

    /// One attached copy of the library. The holder of the file lock on the slot's byte owns the record.
    struct Participant {
        /// Generation and phase; see [`ParticipantState`](crate::shm::process::participant::ParticipantState).
        state: AtomicU64,
        pid: AtomicU64,
        /// Clock ticks from boot to the start of the process, as in `/proc/PID/stat`.
        start_time: AtomicU64,
        /// Nanoseconds since the Unix epoch.
        joined_utc: AtomicU64,
        /// Up to 24 bytes of the process's name, padded with zeros.
        name: [AtomicU64; 3],
        /// Identifies the program image: an exec keeps the process and its start time, but not this.
        image: AtomicU64,
        /// Advanced when a ticket whose owner waits on it was granted or has to look again.
        process_futex: AtomicU64,
        /// A random number of this copy of the library: a process may contain several.
        copy: AtomicU64,
        /// How many tickets were written into `wake_list`.
        wake_count: AtomicU64,
        /// The inode of the PID namespace of `pid`; zero if the process could not tell.
        pid_namespace: AtomicU64,
        /// When a grant of the process last lapsed, on the segment clock.
        lapsed_at: AtomicU64,
        reserved: [AtomicU64; 3],
        /// The tickets that the process futex was advanced for: see [`wake_list`](crate::shm::wake::wake_list).
        wake_list: [AtomicU64; WAKE_LIST],
    }

    /// Where a set lies. The parts that follow from the definition are compared with it at attach.
    struct DirectoryEntry {
        extent_offset: AtomicU64,
        extent_size: AtomicU64,
        /// Bytes reserved for each of the two definition texts.
        definition_room: AtomicU64,
        limits: AtomicU64,
        state_words: AtomicU64,
        /// Per shard.
        holds: AtomicU64,
        held_amounts: AtomicU64,
        /// Per shard.
        tickets: AtomicU64,
        /// Shards with a lock of their own: more than one only if the set is keyed.
        shards: AtomicU64,
        /// Buckets of each shard's table of keys; zero if the set is not keyed.
        buckets: AtomicU64,
        /// Words per key that hold its name, for people to read.
        name_words: AtomicU64,
        /// Counts the definitions that have been in force; its lowest bit says which text is.
        generation: AtomicU64,
        definition_sizes: [AtomicU64; 2],
        /// Each checksum starts with its text's generation.
        definition_checksums: [AtomicU64; 2],
        /// Per shard: as many as holds, or none.
        labels: AtomicU64,
        /// One if hosts share limits that each key has of its own: each shard then has states of its own and lists of
        /// rows.
        lease_lists: AtomicU64,
        /// Words of state of the limits that all keys share; zero unless the set is keyed.
        overall_words: AtomicU64,
        reserved: [AtomicU64; 5],
    }

    /// Room for one lock of either kind: a process-shared robust mutex, whatever it looks like in the C library, or
    /// one word.
    struct LockArea {
        words: [AtomicU64; 8],
    }

    /// The changing state of one part of a set.
    struct SetControl {
        lock: LockArea,
        /// Sequence number and count of journalled words, packed.
        journal: AtomicU64,
        /// The latest instant at which the set was changed, on the segment clock.
        last_seen: AtomicU64,
        /// Not zero: recovery could not restore the set's invariants.
        poisoned: AtomicU64,
        /// The ticket to be served next, plus one; zero if nobody waits.
        queue_head: AtomicU64,
        /// The head of the free list of holds, plus one; zero if the list is empty.
        free_hold: AtomicU64,
        /// Holds from here on have never been taken.
        untouched_hold: AtomicU64,
        /// The serial number of the latest hold.
        hold_serial: AtomicU64,
        /// Live permits that hold something.
        active: AtomicU64,
        admitted: AtomicU64,
        refused_rate: AtomicU64,
        refused_concurrency: AtomicU64,
        refused_budget: AtomicU64,
        /// Refused because no hold was free.
        refused_holds_full: AtomicU64,
        settled: AtomicU64,
        /// Holds taken back from dead processes.
        reclaimed: AtomicU64,
        /// Times the lock was found with a dead owner.
        recoveries: AtomicU64,
        /// Times recovery had to rebuild from the holds.
        rebuilds: AtomicU64,
        /// Requests that named limits the set does not have.
        unknown_names: AtomicU64,
        active_high_water: AtomicU64,
        /// The participant that last recovered the lock, packed as in a hold.
        last_recoverer: AtomicU64,
        /// The segment time of the latest reset, stored before its marker.
        reset_instant: AtomicU64,
        /// Which limits a reset in progress covers: bit i is limit i, bit 63 the counters.
        reset_scope: AtomicU64,
        /// Refused because no ticket was free.
        refused_queue_full: AtomicU64,
        /// Requests admitted after waiting.
        waited: AtomicU64,
        /// The ticket that came last, plus one.
        queue_tail: AtomicU64,
        /// The head of the free list of tickets, plus one; zero if the list is empty.
        free_ticket: AtomicU64,
        /// Tickets from here on have never been used.
        untouched_ticket: AtomicU64,
        /// The number of the latest ticket.
        ticket_serial: AtomicU64,
        /// Tickets in the queue.
        queued: AtomicU64,
        queued_high_water: AtomicU64,
        /// Requests that waited and were refused when their time was up.
        timed_out: AtomicU64,
        /// Requests that were given up while they waited, or before their grant was collected.
        cancelled: AtomicU64,
        /// Whether holds and tickets were given back without the lock, and where to search for them, packed. The
        /// lowest bit is set without the lock. Never journalled.
        marks: AtomicU64,
        /// Amounts taken back because their lease had run out.
        expired: AtomicU64,
        /// The generation of the definition that the shard's states and counts belong to.
        generation: AtomicU64,
        /// While they are being migrated to the next one: how many limits are done, row by row.
        migrated: AtomicU64,
        /// When the latest definition came into force here, on the segment clock.
        applied_at: AtomicU64,
        /// The row that a reset in progress covers, plus one; zero if it covers all.
        reset_row: AtomicU64,
        /// Rows in use in the table of keys.
        keys: AtomicU64,
        /// In a set without keys: until when nothing is admitted, on the segment clock.
        throttled_until: AtomicU64,
        /// Replenished rows that were given to another key.
        evicted_unused: AtomicU64,
        /// Rows that were given to another key without being replenished: what their keys had used is forgotten.
        evicted_in_use: AtomicU64,
        /// Times a process found the lock taken and had to wait for it; counted without the lock.
        lock_waits: AtomicU64,
        /// Tickets taken back from dead processes, or found given up.
        reclaimed_tickets: AtomicU64,
        /// Requests refused because no row was left for their key.
        refused_table_full: AtomicU64,
        /// Requests refused because the set, or their key, was throttled.
        refused_throttled: AtomicU64,
        /// Requests refused because the store had no more of a limit that hosts share.
        refused_lease: AtomicU64,
        /// How long admitted requests had waited: bucket i counts waits of less than 2^i microseconds that do not
        /// belong in bucket i - 1, and the last one all longer waits.
        wait_times: [AtomicU64; WAIT_BUCKETS],
        /// The sum of their waiting times, in nanoseconds.
        wait_time: AtomicU64,
        /// Grants that were undone because they were not collected in time.
        lapsed: AtomicU64,
        /// No grant lapses before this instant, on the segment clock; zero if no such instant is known. Never
        /// journalled.
        lapse_at: AtomicU64,
        /// Requests refused because nothing of a limit that hosts share was leased yet.
        refused_lease_pending: AtomicU64,
        /// Requests refused because there was an outage of the store of a limit that hosts share.
        refused_store_out: AtomicU64,
        reserved: [AtomicU64; 4],
    }

    /// One word as it was before the operation in progress.
    struct JournalEntry {
        /// Index of the word within the shard.
        index: AtomicU64,
        old: AtomicU64,
    }

    /// The counters of one limit.
    struct LimitCounters {
        /// Requests admitted that named or implied the limit.
        admitted: AtomicU64,
        /// Units taken by them.
        taken: AtomicU64,
        /// Requests that this limit refused.
        refused: AtomicU64,
        settled: AtomicU64,
        /// Units given back at settle.
        refunded: AtomicU64,
        /// Units used beyond what was reserved.
        overdraft: AtomicU64,
        /// Permits dropped without being settled; counted without the lock.
        unsettled: AtomicU64,
        /// Units given back for dead holders.
        reclaimed: AtomicU64,
        /// The most units held at once.
        high_water: AtomicU64,
        /// The segment time of the latest reset: what was reserved before it is not refunded.
        reset_at: AtomicU64,
        /// Requests that were admitted and left the limit near its capacity.
        near: AtomicU64,
        /// Requests that a shadow limit would have refused.
        would_refuse: AtomicU64,
        /// Permits returned with the report that the work had failed.
        failed: AtomicU64,
        reserved: [AtomicU64; 3],
    }

    /// The head of a key's row in a keyed table; the states of its limits follow.
    struct KeyRow {
        /// The key's fingerprint under the segment's seed; zero if the row was never used.
        fingerprint: [AtomicU64; 2],
        /// Advanced when the row is given to another key, and when it is reset.
        generation: AtomicU64,
        /// When a decision was last made on it, on the segment clock.
        used_at: AtomicU64,
        /// Requests admitted and refused, packed.
        counts: AtomicU64,
        /// What keeps the row from being given to another key: its queue and its holds, packed.
        row_references: AtomicU64,
    }

    /// The head of a hold; the amounts held follow, one word for each limit that gives back.
    struct Hold {
        /// Participant slot and generation, packed; zero if the hold is free.
        owner: AtomicU64,
        serial: AtomicU64,
        /// On the segment clock.
        taken_at: AtomicU64,
        /// When it was taken or last renewed, on the segment clock: its leases run from here. Never journalled.
        renewed_at: AtomicU64,
        /// In use: bit i says that the lease of limit i has run out and its amount was given back. Free: the next
        /// free hold, plus one.
        expired_or_next: AtomicU64,
        /// Twice the serial number of the latest permit that was given back here without the lock, plus one if its
        /// work had failed. Never journalled.
        returned: AtomicU64,
        /// The row whose limits are held.
        row: AtomicU64,
    }

    /// The label of the request that a hold was taken for. Never journalled.
    struct HoldLabel {
        /// Which hold the label belongs to and how long it is, packed; zero while it is being written. See
        /// [`label`](super::label).
        stamp: AtomicU64,
        /// Up to 64 bytes of UTF-8, padded with zeros.
        text: [AtomicU64; LABEL_WORDS],
    }

    /// The order in which the keys of a shard are served from the limits that they share; the entries of its heap
    /// follow. Never journalled. See [`order`](crate::order).
    struct Order {
        /// How far all keys that wait have been served.
        virtual_time: AtomicU64,
        /// The greatest tag that any key has had since the instant in `contention`.
        latest_tag: AtomicU64,
        /// Twice the instant at which the order was last joined while it was empty, plus one if the key served last was a
        /// newcomer.
        contention: AtomicU64,
        /// Entries in use.
        heap_length: AtomicU64,
        /// The first newcomer's row, plus one, and the last one's, packed.
        newcomers: AtomicU64,
        /// The sum of the weights of all keys in the order.
        weight: AtomicU64,
        /// How many entries were put into the heap.
        sequence: AtomicU64,
        reserved: AtomicU64,
    }

    /// An entry of the heap.
    struct OrderEntry {
        tag: AtomicU64,
        /// The key's row, plus one, and the sequence of the entry, packed.
        key: AtomicU64,
    }

    /// How far a key was served and where it is in the order. Lies behind the states of its row. Never journalled.
    struct RowOrder {
        tag: AtomicU64,
        /// Corrections do not bring the tag below this.
        floor: AtomicU64,
        /// Where it is in the order and with which weight, packed; zero if it is not in it.
        place: AtomicU64,
        /// The rows of the newcomers before and behind it, each plus one, packed.
        neighbours: AtomicU64,
        /// How long its holds are held, on average, in nanoseconds; zero if that is not known.
        mean_held: AtomicU64,
    }

    /// What a key was charged in the order for a hold that was granted in the queue. Lies behind the amounts. Never
    /// journalled.
    struct HoldOrder {
        /// The serial number of that hold.
        serial: AtomicU64,
        charged: AtomicU64,
        /// What was used of limits that are not held, as far as is known.
        used: AtomicU64,
    }

    /// A place in the queue of waiters; what it asks of each limit follows.
    struct Ticket {
        /// Participant slot and generation, packed; zero if the ticket is free or was given up.
        owner: AtomicU64,
        /// Number and phase, packed.
        state: AtomicU64,
        /// Advanced when the ticket was granted or has to look again.
        waiter_futex: AtomicU64,
        /// The ticket behind, plus one; for a free ticket, the next free one.
        next: AtomicU64,
        /// The ticket in front, plus one.
        previous: AtomicU64,
        /// On the segment clock.
        enqueued_at: AtomicU64,
        /// When it was granted, on the segment clock.
        granted_at: AtomicU64,
        /// The granted hold, plus one; zero if nothing is held.
        hold: AtomicU64,
        hold_serial: AtomicU64,
        /// Which limits it asks for, and which futex its owner waits on.
        request: AtomicU64,
        /// The row in whose queue it is.
        row: AtomicU64,
        /// On the segment clock: from here on it is not granted. The end of time if it waits without limit.
        deadline: AtomicU64,
        /// When its owner last looked at it, on the segment clock.
        looked_at: AtomicU64,
    }

    /// What a ticket asks of one limit.
    struct TicketLimit {
        cost: AtomicU64,
        /// How the limit stood just after the grant, in two words whose meaning depends on the limit.
        mark: [AtomicU64; 2],
    }
}

/// The words of the header that never change once it is published: `format` up to, but not including, `checksum`.
pub(crate) const CHECKED_HEADER_WORDS: std::ops::Range<usize> =
    offset_of!(Header, format) / 8..offset_of!(Header, checksum) / 8;

/// FNV-1a (Fowler, Noll, Vo) over words. That is enough against damage; malice is out of scope for a file whose
/// writers share one trust domain.
pub(crate) const fn checksum_step(hash: u64, value: u64) -> u64 {
    let mut hash = hash;
    let bytes = value.to_le_bytes();
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        index += 1;
    }
    hash
}

/// Where a checksum starts.
pub(crate) const CHECKSUM_SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// A number that changes with every offset, size and alignment of the format, so that builds that disagree refuse
/// each other. What depends only on the C library's mutex is left out if the locks are of another kind.
pub(crate) const fn fingerprint(has_mutexes: bool) -> u64 {
    let mut hash = CHECKSUM_SEED;
    let mut record = 0;
    while record < RECORDS.len() {
        let (_, size, fields) = RECORDS[record];
        hash = checksum_step(hash, size as u64);
        let mut field = 0;
        while field < fields.len() {
            hash = checksum_step(hash, fields[field].offset as u64);
            hash = checksum_step(hash, fields[field].size as u64);
            field += 1;
        }
        record += 1;
    }
    hash = checksum_step(hash, ALIGNMENT);
    hash = checksum_step(hash, HEADER_SPACE);
    hash = checksum_step(hash, JOURNAL_ENTRIES as u64);
    hash = checksum_step(hash, BUCKET_ROWS);
    hash = checksum_step(hash, BUCKET_TAG_WORDS);
    if !has_mutexes {
        return hash;
    }
    hash = checksum_step(hash, size_of::<libc::pthread_mutex_t>() as u64);
    checksum_step(hash, align_of::<libc::pthread_mutex_t>() as u64)
}

const _: () = {
    assert!(size_of::<Header>() == 512);
    assert!(size_of::<Participant>() == 384);
    assert!(size_of::<DirectoryEntry>() == 192);
    assert!(size_of::<SetControl>() == 768);
    assert!(size_of::<KeyRow>() == 48);
    assert!(size_of::<LimitCounters>() == 128);
    assert!(size_of::<HoldLabel>() == 72);
    assert!(size_of::<Order>() == 64);
    assert!(size_of::<RowOrder>() == 40);
    assert!(size_of::<libc::pthread_mutex_t>() <= size_of::<LockArea>());
    assert!((ALIGNMENT as usize).is_multiple_of(align_of::<libc::pthread_mutex_t>()));
};
