//! The lines against a plain model: whatever happens in whatever order, they are lines.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

mod model;

const LINES: usize = 3;
const TABLE_WORDS: usize = 5;
const FIRST_TICKET: usize = TABLE_WORDS + 2 * LINES;
/// The last says in which line the ticket is.
const TICKET_WORDS: usize = 5;

/// Some lines in plain memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PlainLine {
    words: Vec<u64>,
    capacity: u64,
}

impl PlainLine {
    fn new(capacity: u64) -> Self {
        Self {
            words: vec![0; FIRST_TICKET + capacity as usize * TICKET_WORDS],
            capacity,
        }
    }

    fn place(index: u64, word: TicketWord) -> usize {
        FIRST_TICKET + index as usize * TICKET_WORDS + word as usize
    }

    fn line_place(index: u64) -> usize {
        FIRST_TICKET + index as usize * TICKET_WORDS + TICKET_WORDS - 1
    }

    fn end_place(line: u64, end: LineEnd) -> usize {
        TABLE_WORDS + 2 * line as usize + end as usize
    }

    fn add(&mut self, line: u64, owner: u64) -> Option<TicketReference> {
        let free = find_free(self).expect("sound")?;
        self.words[Self::line_place(free.index)] = line;
        Some(enqueue(self, free, owner).expect("sound"))
    }
}

impl Line for PlainLine {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn lines(&self) -> u64 {
        LINES as u64
    }

    fn line_of(&self, index: u64) -> u64 {
        if index >= self.capacity {
            return 0;
        }
        self.words[Self::line_place(index)]
    }

    fn load_end(&self, line: u64, end: LineEnd) -> u64 {
        if line >= self.lines() {
            return 0;
        }
        self.words[Self::end_place(line, end)]
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

impl LineMut for PlainLine {
    fn store_end(&mut self, line: u64, end: LineEnd, value: u64) {
        self.words[Self::end_place(line, end)] = value;
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
    Claim(usize),
    Rebuild,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..LINES as u64).prop_map(Step::Enqueue),
        2 => (0..LINES as u64).prop_map(Step::GrantHead),
        2 => (0..LINES as u64, 0..8_usize).prop_map(|(line, nth)| Step::Leave(line, nth)),
        2 => (0..8_usize).prop_map(Step::Claim),
        1 => Just(Step::Rebuild),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    #[test]
    fn tickets_are_served_in_the_order_in_which_they_came(steps in steps(), capacity in 0..6_u64) {
        let mut line = PlainLine::new(capacity);
        let mut lines: [VecDeque<TicketReference>; LINES] = Default::default();
        let mut granted: Vec<TicketReference> = Vec::new();
        let mut latest = 0;
        for step in steps {
            match step {
                Step::Enqueue(own_line) => {
                    let ticket = line.add(own_line, 7);
                    let in_use = granted.len() + lines.iter().map(VecDeque::len).sum::<usize>();
                    let is_full = in_use as u64 == capacity;
                    prop_assert_eq!(ticket.is_none(), is_full);
                    if let Some(ticket) = ticket {
                        prop_assert!(ticket.serial > latest);
                        latest = ticket.serial;
                        lines[own_line as usize].push_back(ticket);
                    }
                }
                Step::GrantHead(own_line) => {
                    let waiting = &mut lines[own_line as usize];
                    let first = head(&line, own_line).expect("sound");
                    prop_assert_eq!(first, waiting.front().map(|ticket| ticket.index));
                    if let Some(ticket) = waiting.pop_front() {
                        prop_assert_eq!(grant(&mut line, ticket.index), Ok(()));
                        granted.push(ticket);
                    }
                }
                Step::Leave(own_line, nth) => {
                    if let Some(ticket) = lines[own_line as usize].remove(nth) {
                        prop_assert_eq!(leave(&mut line, ticket.index), Ok(()));
                    }
                }
                Step::Claim(nth) if nth < granted.len() => {
                    let ticket = granted.remove(nth);
                    prop_assert_eq!(claim(&mut line, ticket.index), Ok(()));
                }
                Step::Rebuild => rebuild(&mut line),
                Step::Claim(_) => {}
            }
            prop_assert!(is_consistent(&line));
            let waiting: usize = lines.iter().map(VecDeque::len).sum();
            prop_assert_eq!(line.load(TableWord::Length), waiting as u64);
            for waiting in &lines {
                for (position, ticket) in waiting.iter().enumerate() {
                    let before = position.checked_sub(1).map(|before| waiting[before].index);
                    prop_assert_eq!(predecessor(&line, ticket.index), before);
                    let seen = state(&line, ticket.index);
                    prop_assert_eq!((seen.serial, seen.phase), (ticket.serial, Phase::Waiting));
                }
            }
        }
    }

    #[test]
    fn damage_is_noticed_or_harmless_and_a_rebuild_heals_it(
        waiting in prop::collection::vec(0..LINES as u64, 0..5), word in 0..FIRST_TICKET + 5 * TICKET_WORDS,
        value in prop_oneof![0..8_u64, any::<u64>()],
    ) {
        let mut line = PlainLine::new(5);
        for own_line in waiting {
            line.add(own_line, 7);
        }
        line.words[word] = value;
        let mut used = line.clone();
        // None of these may panic, or run for ever, whatever they answer.
        let _ = find_free(&used).map(|free| free.map(|free| enqueue(&mut used.clone(), free, 7)));
        for own_line in 0..LINES as u64 + 1 {
            let _ = head(&used, own_line).map(|index| index.map(|index| grant(&mut used, index)));
        }
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
