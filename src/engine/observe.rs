//! Looking at a set without its lock: a copy that is consistent, or says that it is not.

use std::io;
use std::sync::atomic::{Ordering, fence};

use super::segment::SetEngine;
use super::view::SetView;
use crate::limit::Now;
use crate::shm::journal::JournalState;
use crate::shm::region::{OutOfRegion, Region};
use crate::shm::robust_mutex::LockWord;

/// Copies that are tried before one is taken as it is.
const ATTEMPTS: usize = 100;

/// A copy of a set, in private memory of the same layout.
#[derive(Debug)]
pub(crate) struct SetObservation {
    copy: Region,
    /// The set changed during every attempt: the parts may not belong together.
    pub(crate) torn: bool,
    pub(crate) lock: LockWord,
}

/// Copies a set. Never locks, never writes to `region`.
pub(crate) fn observe(region: &Region, set: &SetEngine) -> io::Result<SetObservation> {
    let copy = Region::private(region.size())?;
    let view = SetView::new(region, &set.geometry).map_err(outside)?;
    let lock = view.control.lock.word();
    for _ in 0..ATTEMPTS {
        let Some(sequence) = view.journal.sequence_if_idle() else {
            std::hint::spin_loop();
            continue;
        };
        copy_set(region, &copy, set).map_err(outside)?;
        if view.journal.unchanged_since(sequence) {
            return Ok(SetObservation {
                copy,
                torn: false,
                lock,
            });
        }
    }
    fence(Ordering::Acquire);
    copy_set(region, &copy, set).map_err(outside)?;
    Ok(SetObservation {
        copy,
        torn: true,
        lock,
    })
}

impl SetObservation {
    /// The copied set.
    pub(crate) fn view<'a>(&'a self, set: &'a SetEngine) -> io::Result<SetView<'a>> {
        SetView::new(&self.copy, &set.geometry).map_err(outside)
    }

    /// How many words an operation that has not come to an end has changed; `None` where a reset is under way or
    /// the journal is damaged.
    pub(crate) fn words_in_flight(view: &SetView<'_>) -> Option<usize> {
        match view.journal.state() {
            JournalState::Idle => Some(0),
            JournalState::Undo(count) => Some(count),
            JournalState::Reset | JournalState::Damaged(_) => None,
        }
    }

    /// An instant for looking at the copy: never before its latest change.
    pub(crate) fn instant(view: &SetView<'_>, now: Now) -> Now {
        let last_seen = view.control.last_seen.load(Ordering::Relaxed);
        Now {
            monotonic: now.monotonic.max(last_seen),
            ..now
        }
    }
}

/// A hold that is in use, as its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedHold {
    pub(crate) index: u64,
    pub(crate) owner: u64,
    pub(crate) serial: u64,
    pub(crate) taken_at: u64,
    /// What is held of each limit that gives back.
    pub(crate) amounts: Vec<(usize, u64)>,
}

impl SetEngine {
    /// The holds in use of a copied set.
    pub(crate) fn observed_holds(&self, view: &SetView<'_>) -> Vec<ObservedHold> {
        (0..view.touched_holds())
            .filter_map(|index| Some((index, view.hold(index)?)))
            .filter(|(_, (hold, _))| hold.owner.load(Ordering::Relaxed) != 0)
            .map(|(index, (hold, amounts))| ObservedHold {
                index,
                owner: hold.owner.load(Ordering::Relaxed),
                serial: hold.serial.load(Ordering::Relaxed),
                taken_at: hold.taken_at.load(Ordering::Relaxed),
                amounts: self
                    .held_limits
                    .iter()
                    .zip(amounts)
                    .map(|(limit, amount)| (*limit, amount.load(Ordering::Relaxed)))
                    .collect(),
            })
            .collect()
    }
}

/// Copies the words of a set from its control to the last hold that was ever touched.
fn copy_set(region: &Region, copy: &Region, set: &SetEngine) -> Result<(), OutOfRegion> {
    let geometry = &set.geometry;
    let touched = SetView::new(region, geometry)?.touched_holds();
    let size = geometry.holds_offset + touched * geometry.hold_stride - geometry.control_offset;
    let from = region.words(geometry.control_offset, size / 8)?;
    let to = copy.words(geometry.control_offset, size / 8)?;
    for (source, target) in from.iter().zip(to) {
        target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    Ok(())
}

fn outside(place: OutOfRegion) -> io::Error {
    io::Error::other(format!(
        "{} bytes at {} lie outside the segment",
        place.size, place.offset
    ))
}
