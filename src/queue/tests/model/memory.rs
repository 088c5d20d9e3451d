//! The words of a set, only as many as the model needs, and the undo journal over them.

use crate::queue::{Queue, QueueEnd, TableWord, TicketWord};

const QUEUE_WORDS: u8 = 7;
const ENTRIES: u8 = 16;
const TICKET_WORDS: u8 = 10;
const HOLD_WORDS: u8 = 4;

/// The units of the limit in use.
pub(super) const IN_USE: u8 = QUEUE_WORDS;
pub(super) const ACTIVE: u8 = IN_USE + 1;
pub(super) const UNTOUCHED_HOLD: u8 = IN_USE + 2;
pub(super) const FREE_HOLD: u8 = IN_USE + 3;
pub(super) const HOLD_SERIAL: u8 = IN_USE + 4;
/// Zero, a number of entries, or [`REBUILD_MARKER`].
pub(super) const JOURNAL: u8 = IN_USE + 5;
const FIRST_ENTRY: u8 = JOURNAL + 1;
const FIRST_TICKET: u8 = FIRST_ENTRY + 2 * ENTRIES;

pub(super) const REBUILD_MARKER: u8 = 254;

/// An instant that never comes.
pub(super) const NEVER: u8 = u8::MAX;

/// Words of a ticket that the queue itself knows nothing about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestWord {
    WaiterFutex = 4,
    Cost = 5,
    /// The granted hold, plus one; its serial number follows.
    Hold = 6,
    HoldSerial = 7,
    /// From this instant on it is not granted; [`NEVER`] if it waits without limit.
    Deadline = 8,
    /// Not zero: it was granted, and the time for which a grant is kept for its owner while others wait is over.
    Overdue = 9,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldWord {
    Owner = 0,
    Serial = 1,
    Amount = 2,
    NextFree = 3,
}

/// The memory the processes share. A word is a byte: the explored runs are short.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Memory {
    words: Vec<u8>,
    tickets: u8,
    holds: u8,
}

impl Memory {
    pub(super) fn new(tickets: u8, holds: u8) -> Self {
        let size = FIRST_TICKET + tickets * TICKET_WORDS + holds * HOLD_WORDS;
        Self {
            words: vec![0; usize::from(size)],
            tickets,
            holds,
        }
    }

    pub(super) fn load(&self, place: u8) -> u8 {
        self.words[usize::from(place)]
    }

    pub(super) fn store(&mut self, place: u8, value: u8) {
        self.words[usize::from(place)] = value;
        if place == JOURNAL && value == 0 {
            // Entries beyond the count are never read. Clearing them makes states that differ in nothing else equal.
            self.words[usize::from(FIRST_ENTRY)..usize::from(FIRST_TICKET)].fill(0);
        }
    }

    pub(super) fn end_place(end: QueueEnd) -> u8 {
        end as u8
    }

    pub(super) fn queue_place(word: TableWord) -> u8 {
        2 + word as u8
    }

    pub(super) fn ticket_place(index: u64, word: TicketWord) -> u8 {
        FIRST_TICKET + small(index) * TICKET_WORDS + word as u8
    }

    pub(super) fn request_place(index: u64, word: RequestWord) -> u8 {
        FIRST_TICKET + small(index) * TICKET_WORDS + word as u8
    }

    pub(super) fn hold_place(&self, index: u8, word: HoldWord) -> u8 {
        FIRST_TICKET + self.tickets * TICKET_WORDS + index * HOLD_WORDS + word as u8
    }

    /// What a word is for.
    pub(super) fn describe(&self, place: u8) -> String {
        const QUEUE: [&str; 7] = [
            "head",
            "tail",
            "free",
            "untouched",
            "serial",
            "length",
            "longest length",
        ];
        const COUNTS: [&str; 6] = [
            "in use",
            "active",
            "untouched hold",
            "free hold",
            "hold serial",
            "journal",
        ];
        const TICKET: [&str; 10] = [
            "owner",
            "state",
            "next",
            "previous",
            "waiter futex",
            "cost",
            "hold",
            "hold serial",
            "deadline",
            "overdue",
        ];
        const HOLD: [&str; 4] = ["owner", "serial", "amount", "next free"];
        let first_hold = self.hold_place(0, HoldWord::Owner);
        let shard = |first: u8, size: u8| {
            (
                usize::from((place - first) / size),
                usize::from((place - first) % size),
            )
        };
        if place < IN_USE {
            QUEUE[usize::from(place)].to_owned()
        } else if place <= JOURNAL {
            COUNTS[usize::from(place - IN_USE)].to_owned()
        } else if place < FIRST_TICKET {
            let (number, word) = shard(FIRST_ENTRY, 2);
            format!("entry {number}'s {}", ["place", "old value"][word])
        } else if place < first_hold {
            let (number, word) = shard(FIRST_TICKET, TICKET_WORDS);
            format!("ticket {number}'s {}", TICKET[word])
        } else {
            let (number, word) = shard(first_hold, HOLD_WORDS);
            format!("hold {number}'s {}", HOLD[word])
        }
    }

    /// Where entry `number` keeps the place and the old value of a word.
    pub(super) fn entry_places(number: u8) -> (u8, u8) {
        assert!(
            number < ENTRIES,
            "an operation of the model overflows its journal"
        );
        (FIRST_ENTRY + 2 * number, FIRST_ENTRY + 2 * number + 1)
    }

    pub(super) fn request(&self, index: u64, word: RequestWord) -> u8 {
        self.load(Self::request_place(index, word))
    }

    pub(super) fn hold(&self, index: u8, word: HoldWord) -> u8 {
        self.load(self.hold_place(index, word))
    }

    pub(super) fn tickets(&self) -> impl Iterator<Item = u64> + use<> {
        0..u64::from(self.tickets)
    }

    pub(super) fn holds(&self) -> impl Iterator<Item = u8> + use<> {
        0..self.holds
    }

    pub(super) fn taken_holds(&self) -> impl Iterator<Item = u8> {
        self.holds().filter(|hold| self.hold(*hold, HoldWord::Owner) != 0)
    }

    /// Whether the counts and the list of free holds agree with the holds.
    pub(super) fn holds_are_consistent(&self, counts_use: bool) -> bool {
        let touched = self.load(UNTOUCHED_HOLD);
        let taken: Vec<u8> = self.taken_holds().collect();
        let mut free = 0;
        let mut next = self.load(FREE_HOLD);
        while let Some(index) = next.checked_sub(1) {
            free += 1;
            if index >= touched || free > touched || taken.contains(&index) {
                return false;
            }
            next = self.hold(index, HoldWord::NextFree);
        }
        let held: u8 = taken
            .iter()
            .map(|index| self.hold(*index, HoldWord::Amount))
            .sum();
        let active = taken.len() as u8;
        self.load(ACTIVE) == active && active + free == touched && (!counts_use || self.load(IN_USE) == held)
    }
}

pub(super) fn small(value: u64) -> u8 {
    u8::try_from(value).expect("the explored runs are short")
}

impl Queue for Memory {
    fn capacity(&self) -> u64 {
        u64::from(self.tickets)
    }

    fn queues(&self) -> u64 {
        1
    }

    fn queue_of(&self, _: u64) -> u64 {
        0
    }

    fn load_end(&self, _: u64, end: QueueEnd) -> u64 {
        u64::from(self.load(Self::end_place(end)))
    }

    fn load(&self, word: TableWord) -> u64 {
        u64::from(self.load(Self::queue_place(word)))
    }

    fn load_ticket(&self, index: u64, word: TicketWord) -> u64 {
        if index < u64::from(self.tickets) {
            u64::from(self.load(Self::ticket_place(index, word)))
        } else {
            0
        }
    }
}
