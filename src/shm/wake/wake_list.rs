//! Which tickets a process was woken for: what the thread that sleeps by the process futex of its process looks at, so
//! that it need not look at all tickets.
//!
//! A ring with as many places as [`WAKE_LIST`], in the record of the participant. The process that advances the process
//! futex for a ticket takes the next number first, then writes the ticket and the number into the place of the number.
//! Several may do that at once, and each may die in between. The reader finds out by the numbers whether an entry is
//! the one that it expects; where one is not, because it is late, will never come, or was written over, the reader
//! looks at everything. `src/weak_memory/wake_order.rs` explores what each sees on processors that reorder loads and stores, and is
//! changed with this.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::shm::file::region::load_acquire;
use crate::shm::layout::records::WAKE_LIST;

const TICKET_BITS: u32 = 16;
const SHARD_BITS: u32 = 10;
const SET_BITS: u32 = 10;
const NUMBER_SHIFT: u32 = TICKET_BITS + SHARD_BITS + SET_BITS;

/// Where a ticket is. Read from the list, it may be anything within the widths of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TicketPosition {
    /// The position of the set in its segment.
    pub(crate) set: u64,
    pub(crate) shard: u64,
    /// The index of the ticket in its shard.
    pub(crate) ticket: u64,
}

/// Whether all that was written since the last look has been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    All,
    /// Something is missing: everything is to be looked at.
    NotAll,
}

/// The list of one participant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakeList<'a> {
    /// How many numbers were given out.
    count: &'a AtomicU64,
    entries: &'a [AtomicU64; WAKE_LIST],
}

impl<'a> WakeList<'a> {
    pub(crate) fn new(count: &'a AtomicU64, entries: &'a [AtomicU64; WAKE_LIST]) -> Self {
        Self { count, entries }
    }

    /// Writes a ticket down. Its reader sees what was stored before, whether it finds the entry or only the number.
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

    /// How many numbers were given out so far: where to begin with reading.
    pub(crate) fn end(self) -> u64 {
        load_acquire(self.count)
    }

    /// Tells all tickets that were written down from the number `next` on, and moves it on to the end.
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

/// What tells an entry from the one before it in the same place. Those of the first numbers differ from the zero of a
/// place that no process has written to.
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

    /// Steps of two writers, each of which may die before any of them, and of a reader who looks after every ring and
    /// as often as it likes: all orders.
    #[test]
    fn no_ticket_is_missed_in_any_order_of_steps() {
        /// What the writers have still to do: 0 take a number, 1 write, 2 ring.
        #[derive(Clone)]
        struct State {
            writers: [Option<(u8, u64)>; 2],
            words: (u64, Vec<u64>),
            next: u64,
            /// Granted before a number was taken, and not seen.
            unseen: Vec<u64>,
            /// The reader will look, because a process rang.
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
                // A writer that died before it advanced the futex has woken no process: the look once a second finds that.
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
                // What had its number when the reader looked is seen, or was before.
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
