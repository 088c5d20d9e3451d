//! The line against a plain model: whatever happens in whatever order, it is a line.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

mod model;

const LINE_WORDS: usize = 7;
const TICKET_WORDS: usize = 4;

/// A line in plain memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PlainLine {
    words: Vec<u64>,
    capacity: u64,
}

impl PlainLine {
    fn new(capacity: u64) -> Self {
        Self {
            words: vec![0; LINE_WORDS + capacity as usize * TICKET_WORDS],
            capacity,
        }
    }

    fn place(index: u64, word: TicketWord) -> usize {
        LINE_WORDS + index as usize * TICKET_WORDS + word as usize
    }

    fn add(&mut self, owner: u64) -> Option<TicketReference> {
        let free = find_free(self).expect("sound")?;
        Some(enqueue(self, free, owner).expect("sound"))
    }
}

impl Line for PlainLine {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn load(&self, word: LineWord) -> u64 {
        self.words[word as usize]
    }

    fn load_ticket(&self, index: u64, word: TicketWord) -> u64 {
        if index >= self.capacity {
            return 0;
        }
        self.words[Self::place(index, word)]
    }
}

impl LineMut for PlainLine {
    fn store(&mut self, word: LineWord, value: u64) {
        self.words[word as usize] = value;
    }

    fn store_ticket(&mut self, index: u64, word: TicketWord, value: u64) {
        self.words[Self::place(index, word)] = value;
    }
}

#[derive(Clone, Debug)]
enum Step {
    Enqueue,
    GrantHead,
    Leave(usize),
    Claim(usize),
    Rebuild,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Enqueue),
        2 => Just(Step::GrantHead),
        2 => (0..8_usize).prop_map(Step::Leave),
        2 => (0..8_usize).prop_map(Step::Claim),
        1 => Just(Step::Rebuild),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    #[test]
    fn tickets_are_served_in_the_order_in_which_they_came(steps in steps(), capacity in 0..6_u64) {
        let mut line = PlainLine::new(capacity);
        let mut waiting: VecDeque<TicketReference> = VecDeque::new();
        let mut granted: Vec<TicketReference> = Vec::new();
        let mut latest = 0;
        for step in steps {
            match step {
                Step::Enqueue => {
                    let ticket = line.add(7);
                    let is_full = (waiting.len() + granted.len()) as u64 == capacity;
                    prop_assert_eq!(ticket.is_none(), is_full);
                    if let Some(ticket) = ticket {
                        prop_assert!(ticket.serial > latest);
                        latest = ticket.serial;
                        waiting.push_back(ticket);
                    }
                }
                Step::GrantHead => {
                    let first = head(&line).expect("sound");
                    prop_assert_eq!(first, waiting.front().map(|ticket| ticket.index));
                    if let Some(ticket) = waiting.pop_front() {
                        prop_assert_eq!(grant(&mut line, ticket.index), Ok(()));
                        granted.push(ticket);
                    }
                }
                Step::Leave(nth) if nth < waiting.len() => {
                    let ticket = waiting.remove(nth).expect("in range");
                    prop_assert_eq!(leave(&mut line, ticket.index), Ok(()));
                }
                Step::Claim(nth) if nth < granted.len() => {
                    let ticket = granted.remove(nth);
                    prop_assert_eq!(claim(&mut line, ticket.index), Ok(()));
                }
                Step::Rebuild => rebuild(&mut line),
                Step::Leave(_) | Step::Claim(_) => {}
            }
            prop_assert!(is_consistent(&line));
            prop_assert_eq!(line.load(LineWord::Length), waiting.len() as u64);
            for (position, ticket) in waiting.iter().enumerate() {
                let before = position.checked_sub(1).map(|before| waiting[before].index);
                prop_assert_eq!(predecessor(&line, ticket.index), before);
                let seen = state(&line, ticket.index);
                prop_assert_eq!((seen.serial, seen.phase), (ticket.serial, Phase::Waiting));
            }
        }
    }

    #[test]
    fn damage_is_noticed_or_harmless_and_a_rebuild_heals_it(
        waiting in 0..5_u64, word in 0..LINE_WORDS + 5 * TICKET_WORDS, value in prop_oneof![0..8_u64, any::<u64>()],
    ) {
        let mut line = PlainLine::new(5);
        for _ in 0..waiting {
            line.add(7);
        }
        line.words[word] = value;
        let mut used = line.clone();
        // None of these may panic, or run for ever, whatever they answer.
        let _ = find_free(&used).map(|free| free.map(|free| enqueue(&mut used.clone(), free, 7)));
        let _ = head(&used).map(|index| index.map(|index| grant(&mut used, index)));
        for index in 0..6 {
            let _ = leave(&mut line.clone(), index);
            let _ = claim(&mut line.clone(), index);
            let _ = predecessor(&line, index);
        }
        rebuild(&mut line);
        prop_assert!(is_consistent(&line));
        let once = line.clone();
        rebuild(&mut line);
        prop_assert_eq!(line, once, "a rebuild can be repeated");
    }

    #[test]
    fn any_state_word_is_read_as_some_state(word in any::<u64>()) {
        let state = TicketState::from_word(word);
        prop_assert_eq!(TicketState::from_word(state.to_word()), state);
    }
}
