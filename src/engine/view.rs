//! The parts of one set in a region, and a limit's state as the rules see it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limit::{State, StateMut};
use crate::shm::geometry::SetGeometry;
use crate::shm::journal::{Journal, Transaction};
use crate::shm::layout::{Hold, JOURNAL_ENTRIES, LimitCounters, SetControl};
use crate::shm::region::{OutOfRegion, Region};

/// The parts of one set. Made anew for each operation from a geometry that was checked at attach.
#[derive(Clone, Copy)]
pub(crate) struct SetView<'a> {
    region: &'a Region,
    geometry: &'a SetGeometry,
    pub(crate) control: &'a SetControl,
    pub(crate) journal: Journal<'a>,
    pub(crate) counters: &'a [LimitCounters],
    /// The state words of all limits in a row.
    pub(crate) state: &'a [AtomicU64],
}

impl<'a> SetView<'a> {
    #[inline]
    pub(crate) fn new(region: &'a Region, geometry: &'a SetGeometry) -> Result<Self, OutOfRegion> {
        let control: &SetControl = region.record(geometry.control_offset)?;
        let entries = region.records(geometry.journal_offset, JOURNAL_ENTRIES as u64)?;
        let extent = region.words(geometry.extent_offset, geometry.extent_size / 8)?;
        Ok(Self {
            region,
            geometry,
            control,
            journal: Journal::new(&control.journal, entries, extent),
            counters: region.records(geometry.counters_offset, geometry.shape.limits)?,
            state: region.words(geometry.state_offset, geometry.shape.state_words)?,
        })
    }

    /// How many holds the set has room for.
    pub(crate) fn hold_capacity(&self) -> u64 {
        self.geometry.shape.holds
    }

    /// The hold at `index` and the amounts it holds; `None` beyond the table.
    #[inline]
    pub(crate) fn hold(&self, index: u64) -> Option<(&'a Hold, &'a [AtomicU64])> {
        if index >= self.geometry.shape.holds {
            return None;
        }
        let offset = self.geometry.holds_offset + index * self.geometry.hold_stride;
        let amounts = offset + size_of::<Hold>() as u64;
        Some((
            self.region.record(offset).ok()?,
            self.region
                .words(amounts, self.geometry.shape.held_amounts)
                .ok()?,
        ))
    }

    /// Holds that were ever taken: what lies beyond is zero.
    pub(crate) fn touched_holds(&self) -> u64 {
        self.control
            .untouched_hold
            .load(Ordering::Relaxed)
            .min(self.hold_capacity())
    }
}

/// A limit's state in shared memory, for reading.
#[derive(Clone, Copy)]
pub(crate) struct StateWords<'a>(pub(crate) &'a [AtomicU64]);

impl State for StateWords<'_> {
    #[inline]
    fn load(&self, index: usize) -> u64 {
        load(self.0, index)
    }
}

/// A limit's state in shared memory, changed through the journal.
pub(crate) struct JournalledState<'a, 't, 'j> {
    pub(crate) words: &'a [AtomicU64],
    pub(crate) transaction: &'t mut Transaction<'j>,
}

impl State for JournalledState<'_, '_, '_> {
    #[inline]
    fn load(&self, index: usize) -> u64 {
        load(self.words, index)
    }
}

impl StateMut for JournalledState<'_, '_, '_> {
    #[inline]
    fn store(&mut self, index: usize, value: u64) {
        if let Some(word) = self.words.get(index) {
            self.transaction.store(word, value);
        }
    }
}

/// A limit's state in shared memory, changed at once: for what can be repeated from the start.
pub(crate) struct RepeatableState<'a>(pub(crate) &'a [AtomicU64]);

impl State for RepeatableState<'_> {
    fn load(&self, index: usize) -> u64 {
        load(self.0, index)
    }
}

impl StateMut for RepeatableState<'_> {
    fn store(&mut self, index: usize, value: u64) {
        if let Some(word) = self.0.get(index) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

#[inline]
fn load(words: &[AtomicU64], index: usize) -> u64 {
    // A rule asks only for the words it said it has; an absent one reads as never used.
    words.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
}
