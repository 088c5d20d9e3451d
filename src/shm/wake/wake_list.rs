//! The tickets for which a process was woken. The thread that sleeps on the process futex reads this list, so that it
//! need not look at all tickets.
//!
//! The list is a ring of [`WAKE_LIST`] entries in the participant's record. Whoever advances the process futex for a
//! ticket first takes the next number, and then writes the ticket and the number into the entry for that number.
//! Several processes may do so at once, and each may die in between. From the numbers the reader can tell whether an
//! entry is the one it expects; if not, because it is late, will never come, or was overwritten, the reader looks at
//! everything. `src/weak_memory/wake_order.rs` explores what each side sees on processors that reorder loads and
//! stores; keep it in step with this file.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::shm::file::region::load_acquire;
use crate::shm::layout::records::WAKE_LIST;

const TICKET_BITS: u32 = 16;
const SHARD_BITS: u32 = 10;
const SET_BITS: u32 = 10;
const NUMBER_SHIFT: u32 = TICKET_BITS + SHARD_BITS + SET_BITS;

/// Where a ticket is. When read from the list, each field may hold anything that fits its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TicketPosition {
    /// The position of the set in its segment.
    pub(crate) set: u64,
    pub(crate) shard: u64,
    /// The index of the ticket in its shard.
    pub(crate) ticket: u64,
}

/// Whether the reader has seen everything written since it last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    All,
    /// Something is missing: look at everything.
    NotAll,
}

/// The list of one participant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakeList<'a> {
    /// How many numbers have been taken.
    count: &'a AtomicU64,
    entries: &'a [AtomicU64; WAKE_LIST],
}

impl<'a> WakeList<'a> {
    pub(crate) fn new(count: &'a AtomicU64, entries: &'a [AtomicU64; WAKE_LIST]) -> Self {
        Self { count, entries }
    }

    /// Adds a ticket. The reader sees everything stored before, whether it finds the entry or only the number.
    pub(crate) fn push(self, ticket: TicketPosition) {
        let number = self.take_number();
        self.write(number, ticket);
    }

    fn take_number(self) -> u64 {
        self.count.fetch_add(1, Ordering::Release)
    }

    fn write(self, number: u64, ticket: TicketPosition) {
        self.place(number).store(entry(number, ticket), Ordering::Release);
    }

    /// How many numbers have been taken so far: where to begin reading.
    pub(crate) fn end(self) -> u64 {
        load_acquire(self.count)
    }

    /// Calls `tell` for all tickets added since the number `next`, and moves `next` to the end.
    pub(crate) fn read(self, next: &mut u64, mut tell: impl FnMut(TicketPosition)) -> Seen {
        let end = self.end();
        let new = end.wrapping_sub(*next);
        let first = std::mem::replace(next, end);
        if new > WAKE_LIST as u64 {
            return Seen::NotAll;
        }
        for number in (0..new).map(|offset| first.wrapping_add(offset)) {
            let word = load_acquire(self.place(number));
            if word >> NUMBER_SHIFT != tag(number) {
                return Seen::NotAll;
            }
            tell(TicketPosition {
                set: field(word, TICKET_BITS + SHARD_BITS, SET_BITS),
                shard: field(word, TICKET_BITS, SHARD_BITS),
                ticket: field(word, 0, TICKET_BITS),
            });
        }
        Seen::All
    }

    fn place(self, number: u64) -> &'a AtomicU64 {
        &self.entries[(number % WAKE_LIST as u64) as usize]
    }
}

/// Tells an entry from the one before it in the same place. For the first numbers it differs from the zero of a place
/// that was never written.
fn tag(number: u64) -> u64 {
    number.wrapping_add(1) & (u64::MAX >> NUMBER_SHIFT)
}

fn entry(number: u64, ticket: TicketPosition) -> u64 {
    let TicketPosition { set, shard, ticket } = ticket;
    (tag(number) << NUMBER_SHIFT)
        | (field(set, 0, SET_BITS) << (TICKET_BITS + SHARD_BITS))
        | (field(shard, 0, SHARD_BITS) << TICKET_BITS)
        | field(ticket, 0, TICKET_BITS)
}

fn field(word: u64, shift: u32, bits: u32) -> u64 {
    (word >> shift) & ((1 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use std::array;

    use super::super::wake_list::*;

    struct Memory {
        count: AtomicU64,
        entries: [AtomicU64; WAKE_LIST],
    }

    impl Memory {
        fn from(number: u64) -> Self {
            Self {
                count: AtomicU64::new(number),
                entries: array::from_fn(|_| AtomicU64::new(0)),
            }
        }

        fn list(&self) -> WakeList<'_> {
            WakeList::new(&self.count, &self.entries)
        }
    }

    fn ticket(ticket: u64) -> TicketPosition {
        TicketPosition {
            set: 1023,
            shard: 1,
            ticket,
        }
    }

    fn read(list: WakeList<'_>, next: &mut u64) -> (Seen, Vec<TicketPosition>) {
        let mut tickets = Vec::new();
        let seen = list.read(next, |ticket| tickets.push(ticket));
        (seen, tickets)
    }

    #[test]
    fn tickets_are_read_once_and_in_order_also_where_the_numbers_wrap() {
        for start in [0, 5, (1 << 28) - 2, u64::MAX - 1] {
            let memory = Memory::from(start);
            let mut next = memory.list().end();
            for round in 0..5 {
                let pushed = [round, 65_535 - round, 7].map(ticket);
                pushed.into_iter().for_each(|ticket| memory.list().push(ticket));
                assert_eq!(read(memory.list(), &mut next), (Seen::All, pushed.to_vec()));
                assert_eq!(read(memory.list(), &mut next), (Seen::All, Vec::new()));
            }
        }
    }

    #[test]
    fn who_was_away_for_longer_than_the_list_looks_at_everything() {
        let memory = Memory::from(0);
        let mut next = memory.list().end();
        for number in 0..WAKE_LIST as u64 {
            memory.list().push(ticket(number));
        }
        assert_eq!(read(memory.list(), &mut next).0, Seen::All);
        for number in 0..=WAKE_LIST as u64 {
            memory.list().push(ticket(number));
        }
        assert_eq!(read(memory.list(), &mut next).0, Seen::NotAll);
        memory.list().push(ticket(3));
        assert_eq!(read(memory.list(), &mut next), (Seen::All, vec![ticket(3)]));
    }

    /// All orders of the steps of two writers, each of which may die before any of them, and of a reader that looks
    /// after every wake and as often as it likes.
    #[test]
    fn no_ticket_is_missed_in_any_order_of_steps() {
        /// A writer's next step: 0 take a number, 1 write, 2 wake.
        #[derive(Clone)]
        struct State {
            writers: [Option<(u8, u64)>; 2],
            words: (u64, Vec<u64>),
            next: u64,
            /// Tickets that were granted before a number was taken, and not seen yet.
            unseen: Vec<u64>,
            /// The reader was woken and will look.
            has_woken: bool,
        }

        fn run<T>(state: &mut State, act: impl FnOnce(WakeList<'_>, &mut u64) -> T) -> T {
            let memory = Memory {
                count: AtomicU64::new(state.words.0),
                entries: array::from_fn(|index| AtomicU64::new(state.words.1[index])),
            };
            let answer = act(memory.list(), &mut state.next);
            state.words = (
                memory.count.into_inner(),
                memory.entries.map(AtomicU64::into_inner).to_vec(),
            );
            answer
        }

        fn explore(state: &State, looks: u8, ends: &mut u64) {
            let is_over = state.writers.iter().all(Option::is_none);
            if is_over && !state.has_woken {
                // A writer that died before it advanced the futex has woken nobody: the once-a-second look finds
                // that.
                *ends += 1;
                return;
            }
            for index in 0..2 {
                let Some((step, number)) = state.writers[index] else {
                    continue;
                };
                let mut dead = state.clone();
                dead.writers[index] = None;
                explore(&dead, looks, ends);
                let mut after = state.clone();
                after.writers[index] = match step {
                    0 => {
                        after.unseen.push(index as u64);
                        Some((1, run(&mut after, |list, _| list.take_number())))
                    }
                    1 => {
                        run(&mut after, |list, _| list.write(number, ticket(index as u64)));
                        Some((2, number))
                    }
                    _ => {
                        after.has_woken = true;
                        None
                    }
                };
                explore(&after, looks, ends);
            }
            if state.has_woken || looks > 0 {
                let mut after = state.clone();
                let looks = if state.has_woken { looks } else { looks - 1 };
                after.has_woken = false;
                let (seen, tickets) = run(&mut after, read);
                match seen {
                    Seen::NotAll => after.unseen.clear(),
                    Seen::All => after.unseen.retain(|index| !tickets.contains(&ticket(*index))),
                }
                // Every ticket whose number was taken before this look has been seen, now or earlier.
                assert!(after.unseen.is_empty(), "{:?} are missed", after.unseen);
                explore(&after, looks, ends);
            }
        }

        let mut ends = 0;
        let state = State {
            writers: [Some((0, 0)); 2],
            words: (0, vec![0; WAKE_LIST]),
            next: 0,
            unseen: Vec::new(),
            has_woken: false,
        };
        explore(&state, 2, &mut ends);
        assert!(ends > 100, "{ends}");
    }
}
