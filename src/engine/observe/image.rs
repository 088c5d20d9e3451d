//! The image of a segment: everything that its file holds, each shard as it was under its lock.

use std::mem::offset_of;
use std::sync::Arc;

use crate::engine::shard::locked_shard::{LockFor, LockWait};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::error::{Error, SegmentError};
use crate::shm::file::segment_file::damaged;
use crate::shm::file::verified::{Verified, verify};
use crate::shm::layout::records::Header;

/// How many images to begin before giving up because definitions keep coming into force.
const ATTEMPTS: usize = 100;

/// How many bytes to copy at once of what no lock guards.
const CHUNK: u64 = 1 << 20;

impl SegmentEngine {
    /// Passes the segment's image to `write` in pieces, each with its offset in the file. A process that opens a file
    /// with this content starts it cold, whoever used the segment before. What lies before the shards comes last. If
    /// the image has to be copied again, it begins with the same piece. What changes in the meantime is in the image or
    /// not, shard by shard.
    ///
    /// Each shard's lock is held while that shard is copied in memory, and never while a piece is passed on.
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`], [`SegmentError::Poisoned`], [`SegmentError::Removed`], and whatever `write`
    /// returns.
    pub(crate) fn copy_image(
        &self,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.ensure_there()?;
        let mut generations = self.generations()?;
        for _ in 0..ATTEMPTS {
            self.copy_once(&mut write)?;
            let now = self.generations()?;
            if now == generations {
                return self.ensure_there();
            }
            // Another definition came into force meanwhile, so texts and shards may belong to different ones.
            generations = now;
        }
        Err(Error::Segment(SegmentError::Damaged {
            path: self.path().to_owned(),
            what: "its definitions keep changing".to_owned(),
        }))
    }

    fn ensure_there(&self) -> Result<(), Error> {
        match self.membership.look_for_removal(self.path()) {
            None => Ok(()),
            Some(cause) => Err(Error::Segment(SegmentError::Removed {
                path: self.path().to_owned(),
                cause,
            })),
        }
    }

    fn verified(&self) -> Result<Verified, Error> {
        verify(Arc::clone(self.region()), self.path())
    }

    /// The generations of the definitions in force.
    fn generations(&self) -> Result<Vec<u64>, Error> {
        let definitions = self.verified()?.definitions;
        Ok(definitions
            .iter()
            .map(|definition| definition.generation)
            .collect())
    }

    fn copy_once(&self, write: &mut impl FnMut(u64, &[u8]) -> Result<(), Error>) -> Result<(), Error> {
        let mut buffer = Vec::new();
        let extents = self.shards().map(|shard| shard.memory.geometry.extent_offset);
        let front = extents.min().unwrap_or(0);
        let mut copied = front;
        for shard in self.shards() {
            let geometry = &shard.memory.geometry;
            self.copy_unguarded(copied, geometry.extent_offset, &mut buffer, write)?;
            // Written to before the lock is taken, so that no page fault happens under the lock.
            buffer.clear();
            buffer.resize(geometry.extent_size as usize, 1);
            let locked = self
                .lock(shard, LockFor::Timeless, LockWait::Timeout)
                .map_err(|error| *error)?;
            let loaded = self.region().load_bytes(geometry.extent_offset, &mut buffer);
            drop(locked);
            loaded.map_err(|place| damaged(self.path(), place))?;
            write(geometry.extent_offset, &buffer)?;
            copied = geometry.extent_offset + geometry.extent_size;
        }
        self.copy_unguarded(copied, self.region().size(), &mut buffer, write)?;
        // The table of processes comes last, so that the generation of each slot is at least that of any owner in a
        // shard. A cold start continues from there.
        self.copy_unguarded(0, front, &mut buffer, write)
    }

    /// Copies what lies between shards: the header, the table of processes, the directory and the definitions.
    fn copy_unguarded(
        &self,
        mut from: u64,
        to: u64,
        buffer: &mut Vec<u8>,
        write: &mut impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while from < to {
            let size = (to - from).min(CHUNK);
            buffer.clear();
            buffer.resize(size as usize, 0);
            self.region()
                .load_bytes(from, buffer)
                .map_err(|place| damaged(self.path(), place))?;
            if from == 0 {
                // Of no boot, so that its locks and processes belong to nobody.
                let boot_id = offset_of!(Header, boot_id);
                buffer[boot_id..boot_id + size_of::<u64>()].fill(0);
            }
            write(from, buffer)?;
            from += size;
        }
        Ok(())
    }
}
