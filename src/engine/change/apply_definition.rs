//! Bringing another definition of a set into force.

use std::sync::atomic::Ordering;

use crate::engine::shard::locked_shard::{LockFor, LockWait};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::SetEngine;
use crate::error::{Error, SegmentError};
use crate::shm::file::segment_file::damaged;
use crate::shm::layout::definition_text::{Definition, read_definition_in_force, write_definition};

/// What became of a new definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// It is in force in every shard.
    InForce,
    /// Another definition came into force in the meantime: this one was made from an outdated one.
    Superseded,
    /// The text does not fit into its room.
    TooLong,
}

impl SegmentEngine {
    /// The definition in force for a set.
    pub(crate) fn definition(&self, set: &SetEngine) -> Result<Definition, Box<Error>> {
        let definition = read_definition_in_force(self.region(), &set.geometry, &set.entry)
            .map_err(|place| damaged(self.path(), place))?;
        definition.map_err(|invalid| {
            Box::new(Error::Segment(SegmentError::Damaged {
                path: self.path().to_owned(),
                what: invalid.what().to_owned(),
            }))
        })
    }

    /// Brings `text` into force as the definition that follows `generation`. If the process dies on the way, either it
    /// has changed nothing yet, or others complete the change.
    pub(crate) fn apply(&self, set: &SetEngine, generation: u64, text: &str) -> Result<Applied, Box<Error>> {
        loop {
            // Taking a shard's lock migrates it to what is in force.
            for shard in set.shards() {
                drop(self.lock(shard, LockFor::Decide, LockWait::Timeout)?);
            }
            let locked = self.lock(set.shard(0), LockFor::Decide, LockWait::Timeout)?;
            if self.generation_of(set) != generation {
                return Ok(Applied::Superseded);
            }
            let is_settled = set
                .shards()
                .all(|shard| shard.memory.control().generation.load(Ordering::Relaxed) == generation);
            if !is_settled {
                // Not expected, since each shard was just migrated. The next round migrates again.
                continue;
            }
            let entry = &set.entry;
            if text.len() as u64 > set.geometry.shape.definition_room {
                return Ok(Applied::TooLong);
            }
            let next = generation.wrapping_add(1);
            write_definition(self.region(), &set.geometry, entry, next, text)
                .map_err(|place| damaged(self.path(), place))?;
            // From here on it is in force: whoever sees the generation sees the text.
            entry.generation.store(next, Ordering::Release);
            drop(locked);
            // Processes renew leases in the background by the definition that they know. Make them look before a new
            // lease runs out.
            self.wake_every_process();
            // This process reads it like any other. Whoever takes a shard's lock first migrates the shard.
            for shard in set.shards() {
                drop(self.lock(shard, LockFor::Decide, LockWait::Timeout)?);
            }
            return Ok(Applied::InForce);
        }
    }
}
