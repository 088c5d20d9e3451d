//! The queues against a plain model: whatever happens in whatever order, they are first in, first out.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

mod model;

const QUEUES: usize = 3;
const TABLE_WORDS: usize = 5;
const FIRST_TICKET: usize = TABLE_WORDS + 2 * QUEUES;
/// The last word says which queue the ticket is in.
const TICKET_WORDS: usize = 5;

/// Several queues in plain memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PlainQueue {
    words: Vec<u64>,
    capacity: u64,
}

impl PlainQueue {
    fn new(capacity: u64) -> Self {
        Self {
            words: vec![0; FIRST_TICKET + capacity as usize * TICKET_WORDS],
            capacity,
        }
    }

    fn place(index: u64, word: TicketWord) -> usize {
        FIRST_TICKET + index as usize * TICKET_WORDS + word as usize
    }

    fn queue_place(index: u64) -> usize {
        FIRST_TICKET + index as usize * TICKET_WORDS + TICKET_WORDS - 1
    }

    fn end_place(queue: u64, end: QueueEnd) -> usize {
        TABLE_WORDS + 2 * queue as usize + end as usize
    }

    fn add(&mut self, queue: u64, owner: u64) -> Option<TicketReference> {
        let free = find_free(self).expect("sound")?;
        self.words[Self::queue_place(free.index)] = queue;
        Some(enqueue(self, free, owner).expect("sound"))
    }
}

impl Queue for PlainQueue {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn queues(&self) -> u64 {
        QUEUES as u64
    }

    fn queue_of(&self, index: u64) -> u64 {
        if index >= self.capacity {
            return 0;
        }
        self.words[Self::queue_place(index)]
    }

    fn load_end(&self, queue: u64, end: QueueEnd) -> u64 {
        if queue >= self.queues() {
            return 0;
        }
        self.words[Self::end_place(queue, end)]
    }

    fn load(&self, word: TableWord) -> u64 {
        self.words[word as usize]
    }

    fn load_ticket(&self, index: u64, word: TicketWord) -> u64 {
        if index >= self.capacity {
            return 0;
        }
        self.words[Self::place(index, word)]
    }
}

impl QueueMut for PlainQueue {
    fn store_end(&mut self, queue: u64, end: QueueEnd, value: u64) {
        self.words[Self::end_place(queue, end)] = value;
    }

    fn store(&mut self, word: TableWord, value: u64) {
        self.words[word as usize] = value;
    }

    fn store_ticket(&mut self, index: u64, word: TicketWord, value: u64) {
        self.words[Self::place(index, word)] = value;
    }
}

#[derive(Clone, Debug)]
enum Step {
    Enqueue(u64),
    GrantHead(u64),
    Leave(u64, usize),
    Free(usize),
    PassOver(u64),
    Lapse(usize),
    Resume(usize),
    Rebuild,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..QUEUES as u64).prop_map(Step::Enqueue),
        2 => (0..QUEUES as u64).prop_map(Step::GrantHead),
        2 => (0..QUEUES as u64, 0..8_usize).prop_map(|(queue, nth)| Step::Leave(queue, nth)),
        2 => (0..8_usize).prop_map(Step::Free),
        1 => (0..QUEUES as u64).prop_map(Step::PassOver),
        1 => (0..8_usize).prop_map(Step::Lapse),
        2 => (0..8_usize).prop_map(Step::Resume),
        1 => Just(Step::Rebuild),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    #[test]
    fn tickets_are_served_in_the_order_in_which_they_came(steps in steps(), capacity in 0..6_u64) {
        let mut queue = PlainQueue::new(capacity);
        let mut queues: [VecDeque<TicketReference>; QUEUES] = Default::default();
        let mut granted: Vec<TicketReference> = Vec::new();
        let mut passed_over: Vec<(u64, TicketReference)> = Vec::new();
        let mut latest = 0;
        for step in steps {
            match step {
                Step::Enqueue(own_queue) => {
                    let ticket = queue.add(own_queue, 7);
                    let in_use = granted.len() + passed_over.len() + queues.iter().map(VecDeque::len).sum::<usize>();
                    let is_full = in_use as u64 == capacity;
                    prop_assert_eq!(ticket.is_none(), is_full);
                    if let Some(ticket) = ticket {
                        prop_assert!(ticket.serial > latest);
                        latest = ticket.serial;
                        queues[own_queue as usize].push_back(ticket);
                    }
                }
                Step::GrantHead(own_queue) => {
                    let waiting = &mut queues[own_queue as usize];
                    let first = head(&queue, own_queue).expect("sound");
                    prop_assert_eq!(first, waiting.front().map(|ticket| ticket.index));
                    if let Some(ticket) = waiting.pop_front() {
                        prop_assert_eq!(grant(&mut queue, ticket.index), Ok(()));
                        granted.push(ticket);
                    }
                }
                Step::Leave(own_queue, nth) => {
                    if let Some(ticket) = queues[own_queue as usize].remove(nth) {
                        prop_assert_eq!(leave(&mut queue, ticket.index), Ok(()));
                    }
                }
                Step::Free(nth) if nth < granted.len() => {
                    let ticket = granted.remove(nth);
                    prop_assert_eq!(free_unlinked(&mut queue, ticket.index), Ok(()));
                }
                Step::Rebuild => rebuild(&mut queue),
                Step::PassOver(own_queue) => {
                    if let Some(ticket) = queues[own_queue as usize].pop_front() {
                        prop_assert_eq!(pass_over(&mut queue, ticket.index), Ok(()));
                        passed_over.push((own_queue, ticket));
                    }
                }
                Step::Lapse(nth) if nth < granted.len() => {
                    let ticket = granted.remove(nth);
                    prop_assert_eq!(lapse(&mut queue, ticket.index), Ok(()));
                    passed_over.push((queue.queue_of(ticket.index), ticket));
                }
                Step::Resume(nth) if nth < passed_over.len() => {
                    let (own_queue, ticket) = passed_over.remove(nth);
                    prop_assert_eq!(resume(&mut queue, ticket.index), Ok(()));
                    let waiting = &mut queues[own_queue as usize];
                    let place = waiting.partition_point(|other| other.serial < ticket.serial);
                    waiting.insert(place, ticket);
                }
                Step::Free(_) | Step::Lapse(_) | Step::Resume(_) => {}
            }
            prop_assert!(is_consistent(&queue));
            let waiting: usize = queues.iter().map(VecDeque::len).sum();
            prop_assert_eq!(queue.load(TableWord::Length), waiting as u64);
            for waiting in &queues {
                for (position, ticket) in waiting.iter().enumerate() {
                    let before = position.checked_sub(1).map(|before| waiting[before].index);
                    prop_assert_eq!(predecessor(&queue, ticket.index), before);
                    let seen = state(&queue, ticket.index);
                    prop_assert_eq!((seen.serial, seen.phase), (ticket.serial, Phase::Waiting));
                }
            }
        }
    }

    #[test]
    fn damage_is_noticed_or_harmless_and_a_rebuild_heals_it(
        waiting in prop::collection::vec(0..QUEUES as u64, 0..5), word in 0..FIRST_TICKET + 5 * TICKET_WORDS,
        value in prop_oneof![0..8_u64, any::<u64>()],
    ) {
        let mut queue = PlainQueue::new(5);
        for own_queue in waiting {
            queue.add(own_queue, 7);
        }
        queue.words[word] = value;
        let mut used = queue.clone();
        // Whatever these return, none may panic or loop for ever.
        let _ = find_free(&used).map(|free| free.map(|free| enqueue(&mut used.clone(), free, 7)));
        for own_queue in 0..QUEUES as u64 + 1 {
            let _ = head(&used, own_queue).map(|index| index.map(|index| grant(&mut used, index)));
        }
        for index in 0..6 {
            let _ = leave(&mut queue.clone(), index);
            let _ = free_unlinked(&mut queue.clone(), index);
            let _ = pass_over(&mut queue.clone(), index);
            let _ = lapse(&mut queue.clone(), index);
            let _ = resume(&mut queue.clone(), index);
            let _ = predecessor(&queue, index);
        }
        rebuild(&mut queue);
        prop_assert!(is_consistent(&queue));
        let once = queue.clone();
        rebuild(&mut queue);
        prop_assert_eq!(queue, once, "a rebuild can be repeated");
    }

    #[test]
    fn any_state_word_is_read_as_some_state(word in any::<u64>()) {
        let state = TicketState::from_word(word);
        prop_assert_eq!(TicketState::from_word(state.to_word()), state);
    }
}
