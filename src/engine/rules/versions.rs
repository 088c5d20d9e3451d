//! Successive versions of a value. Each keeps its address for as long as the sequence lives.

use std::sync::atomic::{AtomicUsize, Ordering};

use once_cell::race::OnceBox;

/// Each block is twice as large as the one before: together they hold more versions than any process makes.
const BLOCKS: usize = 32;

/// A sequence of values that only grows. Reading takes no lock, and what was read stays valid: the few older versions
/// are kept, because somebody may still be deciding by them. Adding a version blocks no thread, so a child that is
/// forked in the middle of that can add one as well.
#[derive(Debug)]
pub(crate) struct Versions<T> {
    first: T,
    latest: AtomicUsize,
    /// Block i holds the versions from 2^i to 2^(i + 1) - 1.
    blocks: [OnceBox<Box<[OnceBox<T>]>>; BLOCKS],
}

impl<T> Versions<T> {
    pub(crate) fn new(first: T) -> Self {
        Self {
            first,
            latest: AtomicUsize::new(0),
            blocks: [const { OnceBox::new() }; BLOCKS],
        }
    }

    /// The latest version.
    #[inline]
    pub(crate) fn latest(&self) -> &T {
        match self.latest.load(Ordering::Acquire) {
            0 => &self.first,
            number => self.get(number).unwrap_or(&self.first),
        }
    }

    /// The latest version that `is_wanted`.
    pub(crate) fn find(&self, is_wanted: impl Fn(&T) -> bool) -> Option<&T> {
        (0..=self.latest.load(Ordering::Acquire))
            .rev()
            .filter_map(|number| match number {
                0 => Some(&self.first),
                number => self.get(number),
            })
            .find(|version| is_wanted(version))
    }

    fn get(&self, number: usize) -> Option<&T> {
        let (block, place) = position(number)?;
        self.blocks.get(block)?.get()?.get(place)?.get()
    }

    /// Adds a version if it `is_newer` than the latest. If another thread adds one first, compares again.
    pub(crate) fn add(&self, value: T, is_newer: impl Fn(&T, &T) -> bool) {
        let mut value = Box::new(value);
        loop {
            let number = self.latest.load(Ordering::Acquire);
            if !is_newer(&value, self.latest()) {
                return;
            }
            let Some((block, place)) = position(number + 1) else {
                return;
            };
            let Some(places) = self.blocks.get(block) else {
                return;
            };
            let places =
                places.get_or_init(|| Box::new((0..1_usize << block).map(|_| OnceBox::new()).collect()));
            let Some(place) = places.get(place) else { return };
            let outcome = place.set(value);
            // Whichever thread filled the place, its version counts from now on.
            let _ = self
                .latest
                .compare_exchange(number, number + 1, Ordering::AcqRel, Ordering::Acquire);
            match outcome {
                Ok(()) => return,
                Err(refused) => value = refused,
            }
        }
    }
}

fn position(number: usize) -> Option<(usize, usize)> {
    let block = number.checked_ilog2()? as usize;
    Some((block, number - (1 << block)))
}

#[cfg(test)]
mod tests {
    use super::super::versions::*;

    #[test]
    fn the_latest_is_the_newest_that_any_thread_added() {
        let versions = Versions::new(0_u32);
        let first = versions.latest();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 1..=200 {
                        versions.add(number, |new, old| new > old);
                        assert!(*versions.latest() >= number);
                    }
                });
            }
        });
        assert_eq!(*versions.latest(), 200);
        assert_eq!(*first, 0, "what was read before stays");
    }
}
