//! A segment file as bytes, by the offsets in `words`, without the library: to damage it, to take its locks, and to
//! make it look older than it is.
// Each test file uses a part of it.
#![allow(dead_code)]

mod lock;
pub mod words;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub use lock::RawLock;
use words::{
    LINE, bucket, control, control_start, counters, definition_checksum, entry, header, header_checksum,
    hold, journal, order, participant, ticket,
};

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
    pub fn word(&self, position: usize) -> u64 {
        let mut bytes = [0; 8];
        self.file
            .read_exact_at(&mut bytes, 8 * position as u64)
            .expect("a word of the file");
        u64::from_ne_bytes(bytes)
    }

    /// A word that counts something, or says where something lies.
    fn number(&self, position: usize) -> usize {
        usize::try_from(self.word(position)).expect("a size in memory")
    }

    pub fn set_word(&self, position: usize, value: u64) {
        self.set_bytes(8 * position as u64, &value.to_ne_bytes());
    }

    pub fn set_bytes(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).expect("room in the file");
    }

    /// Makes the header's checksum match again.
    pub fn seal_header(&self) {
        self.set_word(header::CHECKSUM, header_checksum(|position| self.word(position)));
    }

    /// The position of a word of the directory's first entry.
    pub fn entry_word(&self, word: usize) -> usize {
        self.number(header::DIRECTORY_OFFSET) / 8 + word
    }

    /// The value of a word of the directory's first entry.
    fn entry(&self, word: usize) -> usize {
        self.number(self.entry_word(word))
    }

    /// The position of a word of a participant's record.
    pub fn participant_word(&self, slot: usize, word: usize) -> usize {
        self.number(header::PARTICIPANTS_OFFSET) / 8 + slot * participant::SIZE + word
    }

    /// The definition text of the first set.
    pub fn definition(&self) -> String {
        let mut bytes = vec![0; self.entry(entry::DEFINITION_SIZE)];
        self.file
            .read_exact_at(&mut bytes, self.word(self.entry_word(entry::EXTENT_OFFSET)))
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
        self.set_bytes(self.word(self.entry_word(entry::EXTENT_OFFSET)), text);
        let position = self.entry_word(entry::DEFINITION_CHECKSUM);
        self.set_word(position, definition_checksum(0, text));
    }

    /// Leaves the segment as a process does that dies in `apply` before the text comes into force. The text comes from
    /// `written`, where a completed `apply` has put it into the first set's other place; it is put into the same place
    /// here.
    pub fn leave_unapplied(&self, written: &Self) {
        let other = (self.number(self.entry_word(entry::GENERATION)) + 1) & 1;
        for word in [entry::DEFINITION_SIZE, entry::DEFINITION_CHECKSUM] {
            self.set_word(
                self.entry_word(word + other),
                written.word(written.entry_word(word + other)),
            );
        }
        let room = self.entry(entry::DEFINITION_ROOM) / 8;
        let extent = self.entry(entry::EXTENT_OFFSET) / 8;
        for position in (extent + other * room.next_multiple_of(LINE)..).take(room) {
            self.set_word(position, written.word(position));
        }
    }

    /// The position of the control of the first shard of the first set.
    pub fn control(&self) -> usize {
        control_start(
            self.entry(entry::EXTENT_OFFSET),
            self.entry(entry::DEFINITION_ROOM),
        )
    }

    /// The position of the order among the keys of the first set: after its control, its journal, its counters and its
    /// overall states.
    pub fn order(&self) -> usize {
        let counters = counters::SIZE * self.entry(entry::LIMITS);
        let overall = self.entry(entry::OVERALL_WORDS).next_multiple_of(LINE);
        self.control() + control::SIZE + journal::SIZE + counters + overall
    }

    /// One if the first set has a limit of all keys, otherwise zero.
    fn orders(&self) -> usize {
        usize::from(self.entry(entry::OVERALL_WORDS) > 0)
    }

    /// The position of the first word of the tags of the first set, which follow the order.
    pub fn tags(&self) -> usize {
        let entries = order::ENTRY_SIZE * self.entry(entry::TICKETS);
        let size = (order::SIZE + entries).next_multiple_of(LINE);
        self.order() + self.orders() * size
    }

    /// The positions of the first set's tickets, which come last in the extent.
    fn tickets(&self) -> impl Iterator<Item = usize> {
        let size = ticket::HEAD_SIZE + ticket::LIMIT_SIZE * self.entry(entry::LIMITS);
        let stride = size.next_multiple_of(LINE);
        let end = (self.entry(entry::EXTENT_OFFSET) + self.entry(entry::EXTENT_SIZE)) / 8;
        (end - self.entry(entry::TICKETS) * stride..end).step_by(stride)
    }

    /// The position of a word of a ticket of the first set.
    pub fn ticket_word(&self, index: usize, word: usize) -> usize {
        self.tickets().nth(index).expect("a ticket") + word
    }

    /// How often the waiter futexes of all the first set's tickets have been advanced together.
    pub fn futex_value(&self) -> u64 {
        self.tickets()
            .map(|start| self.word(start + ticket::WAITER_FUTEX))
            .sum()
    }

    /// The position of the lease states of the first set's only shard: the states of a row, and two lists of rows. The
    /// holds follow them.
    pub fn leases_of_shard(&self) -> usize {
        let rows = self.entry(entry::BUCKETS) * bucket::ROWS;
        let size = self.entry(entry::STATE_WORDS) + 2 * rows.div_ceil(64);
        self.hold_word(0, 0) - size.next_multiple_of(LINE)
    }

    /// The position of the word that names the first free hold of the first set.
    pub fn free_hold(&self) -> usize {
        self.control() + control::FREE_HOLD
    }

    /// The position of a word of a hold of the first set. The tickets follow the holds.
    pub fn hold_word(&self, index: u64, word: usize) -> usize {
        let of_order = self.orders() * order::HOLD_SIZE;
        let size = hold::HEAD_SIZE + self.entry(entry::HELD_AMOUNTS) + of_order;
        let stride = size.next_multiple_of(LINE);
        let end = self.tickets().next().expect("a ticket");
        let behind = self.entry(entry::HOLDS) - usize::try_from(index).expect("an index in memory");
        end - behind * stride + word
    }

    /// How often the process futexes of all participants have been advanced together.
    pub fn process_futex_value(&self) -> u64 {
        (0..self.number(header::PARTICIPANTS))
            .map(|slot| self.word(self.participant_word(slot, participant::PROCESS_FUTEX)))
            .sum()
    }

    /// Makes the file look as if it had last been used before the machine was booted again.
    pub fn set_another_boot(&self) {
        for half in [header::BOOT_ID, header::BOOT_ID + 1] {
            self.set_word(half, !self.word(half));
        }
    }

    /// Whether any process sleeps until the lock of the first set, a slot lock, is released.
    pub fn has_lock_waiters(&self) -> bool {
        self.word(self.control()) & lock::WAITERS != 0
    }

    /// Makes the participant in a slot the owner of the first set's slot lock, as if it had locked it.
    pub fn give_lock_to(&self, slot: u64, generation: u64) {
        assert_eq!(self.word(self.control()), 0, "the lock is free");
        self.set_word(self.control(), lock::slot_word(slot, generation));
    }

    /// The lock of the first set, for a process that takes it without the library.
    pub fn lock(&self) -> RawLock {
        RawLock::new(self, self.control())
    }
}
