//! Each rule against a slow and obviously right model, over random traces.

use super::{State, StateMut};

impl State for [u64] {
    fn load(&self, index: usize) -> u64 {
        self[index]
    }
}

impl StateMut for [u64] {
    fn store(&mut self, index: usize, value: u64) {
        self[index] = value;
    }
}
