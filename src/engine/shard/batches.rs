//! Which batches of credit this process has drawn: in its own memory, shared by all its handles of a segment.
//!
//! A slot is written under the lock of its shard, and read by any thread at any time. A sequence number tells readers
//! whether the words that they read belong together. A forked child inherits its parent's slots, which name an owner
//! that the child is not. A slot that was being changed at the fork is simply overwritten, like any other.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};

use crate::engine::terms::drawn::{CurrentBatch, Drawn, Period};
use crate::limit::Mark;
use crate::shm::layout::places::HoldReference;
use crate::shm::layout::row::RowReference;
use crate::shm::process::fork_identity::{IdentityPage, ProcessMutex};
use crate::shm::process::participant::Membership;
use crate::table::Fingerprint;

/// For how many keys of a set a process can have batches at once.
const PLACES: usize = 2048;

/// How many slots there are for the batch of any one key.
const WAYS: usize = 4;

const WORDS: usize = 13;

impl Drawn {
    #[inline]
    fn from_words(words: [u64; WORDS]) -> Option<Self> {
        let [
            low,
            high,
            owner,
            generation,
            hold,
            serial,
            row,
            first,
            second,
            units,
            drawn_at,
            begin,
            end,
        ] = words;
        Some(Self {
            fingerprint: Fingerprint { low, high },
            owner: Some(owner).filter(|owner| *owner != 0)?,
            generation,
            hold: HoldReference {
                index: hold & u64::from(u32::MAX),
                serial: NonZeroU64::new(serial)?,
            },
            tag: hold >> 32,
            row: RowReference::from_word(row),
            mark: Mark { first, second },
            units,
            drawn_at,
            period: Period { begin, end },
        })
    }

    fn to_words(self) -> [u64; WORDS] {
        [
            self.fingerprint.low,
            self.fingerprint.high,
            self.owner,
            self.generation,
            // A set has at most 65536 holds, and a tag has 24 bits.
            self.hold.index | self.tag << 32,
            self.hold.serial.get(),
            self.row.to_word(),
            self.mark.first,
            self.mark.second,
            self.units,
            self.drawn_at,
            self.period.begin,
            self.period.end,
        ]
    }
}

/// Where a batch is noted.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(in crate::engine) struct BatchSlot {
    /// Odd while the words are being changed; zero before the first change.
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
    /// What was left when the background worker last looked.
    pub(in crate::engine) seen: AtomicU64,
}

impl BatchSlot {
    #[inline]
    fn is_of(&self, fingerprint: Fingerprint) -> bool {
        self.words[0].load(Ordering::Relaxed) == fingerprint.low
            && self.words[1].load(Ordering::Relaxed) == fingerprint.high
    }

    /// The part of the noted batch that a [`CurrentBatch`] has; no other words are copied. `None` if the slot is
    /// empty or being written, or the batch ends with a window.
    #[inline(always)]
    pub(in crate::engine) fn read_current(&self) -> Option<CurrentBatch> {
        let sequence = self.sequence.load(Ordering::Acquire);
        let word = |index: usize| self.words[index].load(Ordering::Relaxed);
        let current = CurrentBatch {
            owner: word(2),
            generation: word(3),
            hold: word(4),
            serial: NonZeroU64::new(word(5))?,
            mark: Mark {
                first: word(7),
                second: word(8),
            },
            drawn_at: word(10),
        };
        let is_endless = word(12) == u64::MAX;
        // Pairs with the fence in `write_words`, as in `read`.
        fence(Ordering::Acquire);
        let is_whole = self.sequence.load(Ordering::Relaxed) == sequence && sequence.is_multiple_of(2);
        (is_whole && is_endless && current.owner != 0).then_some(current)
    }

    /// The noted batch; `None` if the slot is empty or being written.
    #[inline]
    pub(in crate::engine) fn read(&self) -> Option<Drawn> {
        let sequence = self.sequence.load(Ordering::Acquire);
        if sequence == 0 || sequence % 2 == 1 {
            return None;
        }
        let words = std::array::from_fn(|index| self.words[index].load(Ordering::Relaxed));
        // Pairs with the fence in `write_words`: a reader that has read any of the new words reads the odd sequence
        // here, or a later one.
        fence(Ordering::Acquire);
        if self.sequence.load(Ordering::Relaxed) != sequence {
            return None;
        }
        Drawn::from_words(words)
    }

    /// Notes a batch. The caller holds the lock of the shard.
    pub(in crate::engine) fn write(&self, drawn: &Drawn) {
        self.write_words(drawn.to_words());
    }

    /// Empties the slot. The caller holds the lock of the shard.
    pub(in crate::engine) fn clear(&self) {
        self.write_words([0; WORDS]);
    }

    fn write_words(&self, words: [u64; WORDS]) {
        let odd = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.sequence.store(odd + 1, Ordering::Release);
    }
}

/// The batches of one set.
#[derive(Debug)]
pub(crate) struct Batches {
    slots: Box<[BatchSlot]>,
    /// How many slots each shard has, and each bucket.
    of_shard: usize,
    ways: usize,
    /// The bits of a fingerprint that select its bucket.
    bucket_mask: usize,
    /// How many open handles of the segment share the batches.
    handles: AtomicUsize,
    /// The process, by identity, whose background worker gives back unused batches.
    attended_by: AtomicU64,
    /// Whether a batch was drawn that no background worker knows of.
    unattended: AtomicBool,
}

impl Batches {
    fn new(shards: usize, is_keyed: bool) -> Self {
        let (buckets, ways) = if is_keyed {
            let buckets = (PLACES / shards.max(1) / WAYS).max(1);
            (1 << buckets.ilog2(), WAYS)
        } else {
            (1, 1)
        };
        let of_shard = buckets * ways;
        Self {
            slots: (0..of_shard * shards).map(|_| BatchSlot::default()).collect(),
            of_shard,
            ways,
            bucket_mask: buckets - 1,
            handles: AtomicUsize::new(0),
            attended_by: AtomicU64::new(0),
            unattended: AtomicBool::new(false),
        }
    }

    /// This process's batches in a set of a segment, for a handle that is being opened. The handle calls
    /// [`close_handle`](Self::close_handle) in the end.
    pub(in crate::engine) fn of(
        membership: &Arc<Membership>,
        set: u64,
        shards: usize,
        is_keyed: bool,
    ) -> Arc<Self> {
        let new = || Self::new(shards, is_keyed);
        let batches = match KNOWN.lock() {
            Ok(mut known) => find_or_add(&mut known, membership, set, new),
            Err(_) => Arc::new(new()),
        };
        batches.handles.fetch_add(1, Ordering::Relaxed);
        batches
    }

    /// Notes that a handle is closed. Returns whether it was the last one.
    pub(in crate::engine) fn close_handle(&self) -> bool {
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    #[inline]
    fn bucket(&self, shard: u32, fingerprint: Fingerprint) -> &[BatchSlot] {
        let bucket = fingerprint.low as usize & self.bucket_mask;
        let start = shard as usize * self.of_shard + bucket * self.ways;
        self.slots.get(start..start + self.ways).unwrap_or_default()
    }

    /// The batch of a key.
    #[inline]
    pub(in crate::engine) fn find(&self, shard: u32, fingerprint: Fingerprint) -> Option<Drawn> {
        let mut slots = self.bucket(shard, fingerprint).iter();
        let drawn = slots.find(|slot| slot.is_of(fingerprint))?.read()?;
        (drawn.fingerprint == fingerprint).then_some(drawn)
    }

    /// The batch of a set without keys.
    #[inline(always)]
    pub(in crate::engine) fn current(&self) -> Option<CurrentBatch> {
        match &*self.slots {
            [only] => only.read_current(),
            _ => None,
        }
    }

    /// Where to note the batch of a key, and what the participant `owner` has noted there now: the key's own batch,
    /// or nothing, or, if the bucket is full of its batches, the one that it drew first. The caller holds the lock of
    /// the shard.
    pub(in crate::engine) fn slot(
        &self,
        shard: u32,
        fingerprint: Fingerprint,
        owner: u64,
    ) -> Option<(&BatchSlot, Option<Drawn>)> {
        let noted = |slot: &BatchSlot| slot.read().filter(|drawn| drawn.owner == owner);
        let bucket = self.bucket(shard, fingerprint).iter();
        bucket
            .map(|slot| (slot, noted(slot)))
            .min_by_key(|(_, drawn)| match drawn {
                Some(drawn) if drawn.fingerprint == fingerprint => (0, 0),
                None => (1, 0),
                Some(drawn) => (2, drawn.drawn_at),
            })
    }

    /// All slots, with their shards.
    pub(in crate::engine) fn slots(&self) -> impl Iterator<Item = (u32, &BatchSlot)> {
        (0..)
            .zip(self.slots.chunks(self.of_shard))
            .flat_map(|(shard, slots)| slots.iter().map(move |slot| (shard, slot)))
    }

    /// Notes that a batch was drawn, which has to be given back if it goes unused. The caller has written its slot.
    pub(in crate::engine) fn note_draw(&self) {
        let process = current_process();
        // A thread that draws writes a slot, then reads `attended_by`. The worker, before it stops, writes
        // `attended_by`, then reads the slots. With a sequentially consistent fence in between on both sides, at
        // least one sees what the other wrote: the worker finds the batch, or this thread finds that the worker is
        // stopping. Without the fences, both might read the old values.
        fence(Ordering::SeqCst);
        if self.attended_by.load(Ordering::Relaxed) != process {
            self.unattended.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the caller should tell the background worker that there are batches. True for one caller only.
    #[inline]
    pub(crate) fn claim_unattended(&self) -> bool {
        self.unattended.load(Ordering::Relaxed)
            && self.unattended.swap(false, Ordering::Relaxed)
            && self.attend()
    }

    /// Notes that the background worker of this process looks after the batches. Returns whether it did not before.
    /// If, after [`set_unattended`](Self::set_unattended), the worker decides to go on while another thread is about
    /// to notify it, only one of them gets `true`.
    #[cold]
    pub(in crate::engine) fn attend(&self) -> bool {
        let process = current_process();
        self.attended_by.swap(process, Ordering::Relaxed) != process
    }

    /// Notes that no background worker looks after the batches any more. Whoever reads the slots after this sees every
    /// batch whose [draw](Self::note_draw) did not see this.
    pub(in crate::engine) fn set_unattended(&self) {
        self.attended_by.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

fn current_process() -> u64 {
    IdentityPage::get().map_or(0, |page| page.current().as_u64())
}

/// A segment, the position of a set in it, and the batches.
type OfSet = (Weak<Membership>, u64, Weak<Batches>);

/// The batches of this process, by segment and set. A forked child inherits those of its parent. If another thread
/// was changing the list at the time, the child starts a new list, and handles that it opens share nothing with those
/// that it inherited.
static KNOWN: ProcessMutex<Vec<OfSet>> = ProcessMutex::new();

fn find_or_add(
    known: &mut Vec<OfSet>,
    membership: &Arc<Membership>,
    set: u64,
    new: impl FnOnce() -> Batches,
) -> Arc<Batches> {
    known.retain(|(_, _, batches)| batches.strong_count() > 0);
    let same = |(of, position, _): &&OfSet| *position == set && Weak::as_ptr(of) == Arc::as_ptr(membership);
    if let Some(found) = known.iter().find(same).and_then(|(_, _, found)| found.upgrade()) {
        return found;
    }
    let added = Arc::new(new());
    known.push((Arc::downgrade(membership), set, Arc::downgrade(&added)));
    added
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::batches::*;

    fn drawn(fingerprint: Fingerprint, owner: u64, drawn_at: u64) -> Drawn {
        Drawn {
            fingerprint,
            owner,
            generation: 3,
            hold: HoldReference {
                index: 65_535,
                serial: NonZeroU64::MIN,
            },
            tag: (1 << 24) - 1,
            row: RowReference {
                index: 5,
                generation: 6,
            },
            mark: Mark { first: 7, second: 8 },
            units: 9,
            drawn_at,
            period: Period::ALWAYS,
        }
    }

    proptest! {
        #[test]
        fn what_is_noted_is_found_and_a_full_bucket_names_the_batch_that_was_drawn_first(
            keys in prop::collection::hash_set((any::<u64>(), any::<u64>()), 1..40), shards in 0_u32..9,
        ) {
            let shards = 1 << shards;
            let batches = Batches::new(shards, true);
            for (instant, (low, high)) in (1..).zip(&keys) {
                let fingerprint = Fingerprint { low: *low, high: *high };
                let shard = fingerprint.shard(shards as u64) as u32;
                let (slot, before) = batches.slot(shard, fingerprint, 1).expect("a slot");
                let bucket: Vec<Drawn> = batches.bucket(shard, fingerprint).iter().filter_map(BatchSlot::read).collect();
                let first = bucket.iter().copied().min_by_key(|drawn| drawn.drawn_at);
                prop_assert_eq!(before, first.filter(|_| bucket.len() == WAYS));
                let new = drawn(fingerprint, 1, instant);
                slot.write(&new);
                prop_assert_eq!(batches.find(shard, fingerprint), Some(new));
                prop_assert_eq!(batches.slot(shard, fingerprint, 1).expect("a slot").1, Some(new));
                prop_assert_eq!(batches.slot(shard, fingerprint, 2).expect("a slot").1, None);
            }
        }
    }

    #[test]
    fn batches_are_looked_after_by_one_worker_whichever_is_first() {
        let batches = Batches::new(1, false);
        assert!(!batches.claim_unattended());
        batches.note_draw();
        assert!(batches.claim_unattended());
        batches.note_draw();
        assert!(!batches.claim_unattended(), "known already");
        // The worker finds the batch and goes on, and is notified of it at the same time.
        for is_claimed_first in [false, true] {
            batches.set_unattended();
            batches.note_draw();
            let (claimed, goes_on) = if is_claimed_first {
                let claimed = batches.claim_unattended();
                (claimed, batches.attend())
            } else {
                let goes_on = batches.attend();
                (batches.claim_unattended(), goes_on)
            };
            assert_eq!((claimed, goes_on), (is_claimed_first, !is_claimed_first));
        }
    }

    #[test]
    fn a_slot_that_is_being_changed_says_nothing_and_can_be_written_anew() {
        let slot = BatchSlot::default();
        assert_eq!(slot.read(), None);
        let new = drawn(Fingerprint { low: 1, high: 2 }, 1, 1);
        slot.write(&new);
        slot.sequence.fetch_add(1, Ordering::Relaxed);
        assert_eq!(slot.read(), None);
        slot.write(&new);
        assert_eq!(slot.read(), Some(new));
        slot.clear();
        assert_eq!(slot.read(), None);
    }
}
