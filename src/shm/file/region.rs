//! One mapping of a segment file, seen as atomics. The library's pointer arithmetic is here.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::shm::layout::records::{ALIGNMENT, SharedRecord};

/// Regions of at least this many bytes get huge pages, so that random accesses need fewer entries of the processor's
/// page tables.
const HUGE_PAGES_FROM: usize = 16 << 20;

/// An acquire load of a word that may lie in a read-only mapping: whatever was stored before the release store it
/// sees is visible too. On memory that cannot be written, Rust guarantees only relaxed loads, so a fence does the
/// rest.
#[inline(always)]
pub(crate) fn load_acquire(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

/// A mapped file. It hands out only references to atomics, and only after checking bounds and alignment.
#[derive(Debug)]
pub(crate) struct Region {
    map: MmapRaw,
}

/// A requested place that does not lie within the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfRegion {
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

impl Region {
    /// Maps `size` bytes for reading and writing and touches every page, so that no operation faults later.
    pub(crate) fn writable(file: &File, size: usize) -> io::Result<Self> {
        if size >= HUGE_PAGES_FROM
            && let Some(map) = map_in_huge_pages(file, size)
        {
            return Ok(Self { map });
        }
        Ok(Self {
            map: MmapOptions::new().len(size).populate().map_raw(file)?,
        })
    }

    /// Maps `size` bytes for reading. Storing through a reference from such a region faults: give it only to code
    /// that loads, and only with relaxed loads (see [`load_acquire`]).
    pub(crate) fn read_only(file: &File, size: usize) -> io::Result<Self> {
        Ok(Self {
            map: MmapOptions::new().len(size).map_raw_read_only(file)?,
        })
    }

    /// Private memory of the same size, all zeros, for a copy of another region.
    pub(crate) fn private(size: u64) -> io::Result<Self> {
        let size = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            map: memmap2::MmapMut::map_anon(size)?.into(),
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.map.len() as u64
    }

    /// The record at `offset`.
    pub(crate) fn record<T: SharedRecord>(&self, offset: u64) -> Result<&T, OutOfRegion> {
        self.records(offset, 1).map(|records| &records[0])
    }

    /// `count` consecutive records from `offset`.
    pub(crate) fn records<T: SharedRecord>(&self, offset: u64, count: u64) -> Result<&[T], OutOfRegion> {
        let start = self.checked_start(offset, count, size_of::<T>() as u64, align_of::<T>() as u64)?;
        // SAFETY: `checked_start` has proven that `count` records of `T` lie within the mapping from `start` and that
        // `start` is aligned for `T`. The mapping stays in place for as long as `self` lives; if the file has been
        // truncated in the meantime, touching it ends the process (SIGBUS). `SharedRecord` promises that every byte
        // of `T` belongs to an atomic, so any bit pattern is valid and other processes may write concurrently. A
        // read-only mapping is accessed by relaxed loads only: see `read_only`.
        Ok(unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(start).cast::<T>(), count as usize) })
    }

    /// `count` consecutive words from `offset`.
    pub(crate) fn words(&self, offset: u64, count: u64) -> Result<&[AtomicU64], OutOfRegion> {
        let start = self.checked_start(offset, count, 8, 8)?;
        // SAFETY: as in `records`; an atomic of 64 bits is valid for any bit pattern.
        Ok(unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().add(start).cast::<AtomicU64>(), count as usize)
        })
    }

    /// Loads `into.len()` bytes, word by word; `offset` and the length are multiples of eight. Concurrent stores by
    /// others may be seen in part.
    pub(crate) fn load_bytes(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRegion> {
        let words = self.words(offset, into.len() as u64 / 8)?;
        for (word, bytes) in words.iter().zip(into.as_chunks_mut().0) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        Ok(())
    }

    /// Stores bytes, word by word; `offset` and the length are multiples of eight.
    pub(crate) fn store_bytes(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRegion> {
        let words = self.words(offset, from.len() as u64 / 8)?;
        for (word, bytes) in words.iter().zip(from.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        Ok(())
    }

    /// `count` consecutive records from `offset`, checked once and kept: using them later costs no check.
    pub(crate) fn mapped_records<T: SharedRecord>(
        self: &Arc<Self>,
        offset: u64,
        count: u64,
    ) -> Result<Mapped<T>, OutOfRegion> {
        let records = NonNull::from(self.records::<T>(offset, count)?);
        Ok(Mapped {
            records,
            _region: Arc::clone(self),
        })
    }

    /// The record at `offset`, checked once and kept.
    pub(crate) fn mapped_record<T: SharedRecord>(
        self: &Arc<Self>,
        offset: u64,
    ) -> Result<MappedRecord<T>, OutOfRegion> {
        let record = NonNull::from(self.record::<T>(offset)?);
        Ok(MappedRecord {
            record,
            _region: Arc::clone(self),
        })
    }

    /// `count` consecutive words from `offset`, checked once and kept.
    pub(crate) fn mapped_words(
        self: &Arc<Self>,
        offset: u64,
        count: u64,
    ) -> Result<Mapped<AtomicU64>, OutOfRegion> {
        let records = NonNull::from(self.words(offset, count)?);
        Ok(Mapped {
            records,
            _region: Arc::clone(self),
        })
    }

    fn checked_start(&self, offset: u64, count: u64, size: u64, align: u64) -> Result<usize, OutOfRegion> {
        let bytes = count.checked_mul(size).ok_or(OutOfRegion {
            offset,
            size: u64::MAX,
        })?;
        let end = offset
            .checked_add(bytes)
            .ok_or(OutOfRegion { offset, size: bytes })?;
        // The mapping is page-aligned, so an aligned offset is an aligned address.
        if end > self.size() || !offset.is_multiple_of(align) || align > ALIGNMENT {
            return Err(OutOfRegion { offset, size: bytes });
        }
        Ok(offset as usize)
    }
}

/// Maps a file in huge pages if its file system supports that, and touches all of it. `None` if the system cannot do
/// both; the caller then maps it the ordinary way.
fn map_in_huge_pages(file: &File, size: usize) -> Option<MmapRaw> {
    let map = MmapOptions::new().len(size).map_raw(file).ok()?;
    // Must come before the pages are there. If there are no huge pages, nothing is lost.
    let _ = map.advise(Advice::HugePage);
    map.advise(Advice::PopulateWrite).ok()?;
    Some(map)
}

/// Consecutive records or words, together with the mapping they lie in.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    records: NonNull<[T]>,
    /// Never used: it keeps the mapping alive.
    _region: Arc<Region>,
}

impl<T> Deref for Mapped<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the pointer was made from a reference that `Region::records` or `Region::words` had checked, into a
        // mapping that `_region` keeps in place for as long as `self` lives.
        unsafe { self.records.as_ref() }
    }
}

// SAFETY: it gives out nothing but shared references to `T`, which is `Sync`, into memory that it keeps alive from
// any thread.
unsafe impl<T: Sync> Send for Mapped<T> {}

// SAFETY: as for `Send`.
unsafe impl<T: Sync> Sync for Mapped<T> {}

/// One record of a region, which it keeps mapped. Unlike the first element of a [`Mapped`], it needs no bounds check.
#[derive(Debug)]
pub(crate) struct MappedRecord<T> {
    record: NonNull<T>,
    /// Never used: it keeps the mapping alive.
    _region: Arc<Region>,
}

impl<T> Deref for MappedRecord<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the pointer was made from a reference that `Region::record` had checked, into a mapping that
        // `_region` keeps in place for as long as `self` lives.
        unsafe { self.record.as_ref() }
    }
}

// SAFETY: as for `Mapped`.
unsafe impl<T: Sync> Send for MappedRecord<T> {}

// SAFETY: as for `Mapped`.
unsafe impl<T: Sync> Sync for MappedRecord<T> {}

/// The record at the start of `words`, and the words after it; `None` if there are too few.
#[inline(always)]
pub(crate) fn split_record<T: SharedRecord>(words: &[AtomicU64]) -> Option<(&T, &[AtomicU64])> {
    const {
        assert!(
            size_of::<T>().is_multiple_of(size_of::<AtomicU64>())
                && align_of::<T>() <= align_of::<AtomicU64>()
        );
    }
    let (head, rest) = words.split_at_checked(size_of::<T>() / size_of::<AtomicU64>())?;
    // SAFETY: `head` is as long as a `T` and aligned for it, as asserted. `SharedRecord` promises that every byte of
    // `T` belongs to an atomic, so any bit pattern is valid, and both are only accessed as atomics. The words are
    // borrowed for as long as the record.
    Some((unsafe { &*head.as_ptr().cast::<T>() }, rest))
}

#[cfg(test)]
mod tests {
    use super::super::region::*;
    use crate::shm::layout::records::{Header, Participant};

    fn region(size: usize) -> Region {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(size as u64).expect("room");
        Region::writable(&file, size).expect("a mapping")
    }

    #[test]
    fn hands_out_nothing_beyond_its_end() {
        let region = region(4096);
        assert!(region.record::<Header>(4096 - 512).is_ok());
        assert!(region.record::<Header>(4096 - 504).is_err());
        assert!(region.records::<Participant>(0, 65).is_err());
        assert!(region.records::<Participant>(u64::MAX - 7, 1).is_err());
        assert!(region.words(0, u64::MAX / 4).is_err());
        assert!(region.words(4096, 0).is_ok());
    }

    #[test]
    fn hands_out_nothing_misaligned() {
        assert_eq!(
            region(4096).words(12, 1).err(),
            Some(OutOfRegion { offset: 12, size: 8 })
        );
    }
}
