//! The image of a segment: all that its file holds, each shard as its lock guards it.

use std::mem::offset_of;
use std::sync::Arc;

use crate::engine::shard::locked_shard::LockWait;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::error::{Error, SegmentError};
use crate::shm::file::segment_file::damaged;
use crate::shm::file::verified::{Verified, verify};
use crate::shm::layout::records::Header;

/// Images that are begun before one is given up because definitions come into force all the time.
const ATTEMPTS: usize = 100;

/// The most of what no lock guards that is copied at once, in bytes.
const CHUNK: u64 = 1 << 20;

impl SegmentEngine {
    /// Gives out the segment's image in pieces, each with where it lies in the file. A file of that content is started cold by
    /// the process that opens it, whatever it was used by before. What lies before the shards comes last; where an image has to be
    /// copied again, it begins with the same piece. What changes meanwhile is in it or not, shard by shard.
    ///
    /// The lock of each shard is held while that shard is copied in memory, and never while a piece is given out.
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`], [`SegmentError::Poisoned`], [`SegmentError::Removed`], and what `write` answers.
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
            // A definition came into force on the way, so its text may be of one and shards of the other.
            generations = now;
        }
        Err(Error::Segment(SegmentError::Damaged {
            path: self.path().to_owned(),
            what: "its definitions change all the time".to_owned(),
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

    /// Of the definitions in force.
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
            // Stored to before the lock is taken, so that no page of it is looked for under the lock.
            buffer.clear();
            buffer.resize(geometry.extent_size as usize, 1);
            let locked = self
                .lock_timeless(shard, LockWait::Timeout)
                .map_err(|error| *error)?;
            let loaded = self.region().load_bytes(geometry.extent_offset, &mut buffer);
            drop(locked);
            loaded.map_err(|place| damaged(self.path(), place))?;
            write(geometry.extent_offset, &buffer)?;
            copied = geometry.extent_offset + geometry.extent_size;
        }
        self.copy_unguarded(copied, self.region().size(), &mut buffer, write)?;
        // The table of processes last: of each slot it then has a life as late as any that owns something in a shard, and the
        // lives that follow a cold start are later ones.
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
                // Of no boot: its locks and processes are no one's.
                let boot_id = offset_of!(Header, boot_id);
                buffer[boot_id..boot_id + size_of::<u64>()].fill(0);
            }
            write(from, buffer)?;
            from += size;
        }
        Ok(())
    }
}
