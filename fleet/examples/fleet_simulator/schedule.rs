//! What happens next.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Events by instant, and at the same instant in order of creation.
pub struct Schedule<E> {
    number: u64,
    instants: BinaryHeap<Reverse<(u64, u64)>>,
    events: HashMap<u64, E>,
}

impl<E> Schedule<E> {
    pub fn new() -> Self {
        Self {
            number: 0,
            instants: BinaryHeap::new(),
            events: HashMap::new(),
        }
    }

    pub fn at(&mut self, instant: u64, event: E) {
        let number = self.next_number();
        self.instants.push(Reverse((instant, number)));
        self.events.insert(number, event);
    }

    /// A number that nothing else has, events included.
    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// The next event before `end`, and its instant.
    pub fn pop_before(&mut self, end: u64) -> Option<(u64, E)> {
        let Reverse((instant, number)) = self.instants.pop().filter(|next| next.0.0 < end)?;
        let event = self.events.remove(&number)?;
        Some((instant, event))
    }
}
