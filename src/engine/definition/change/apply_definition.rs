//! Bringing another definition of a set into force.

use std::sync::atomic::Ordering;

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
    /// Another one came into force meanwhile: what this one was made from is not the present one any more.
    Superseded,
    /// There is no room for so long a text.
    TooLong,
}

impl SegmentEngine {
    /// The definition of a set that is in force.
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

    /// Brings `text` into force as the definition that follows that of `generation`. The process that dies on the way
    /// has changed nothing yet, or others carry it to its end.
    pub(crate) fn apply(&self, set: &SetEngine, generation: u64, text: &str) -> Result<Applied, Box<Error>> {
        loop {
            // Taking a shard's lock migrates it to what is in force.
            for shard in set.shards() {
                drop(self.lock(shard)?);
            }
            let locked = self.lock(set.shard(0))?;
            if self.generation_of(set) != generation {
                return Ok(Applied::Superseded);
            }
            let is_settled = set
                .shards()
                .all(|shard| shard.memory.control().generation.load(Ordering::Relaxed) == generation);
            if !is_settled {
                // A cold shard of another life of the file; the next round sees to it.
                continue;
            }
            let entry = &set.entry;
            if text.len() as u64 > set.geometry.shape.definition_room {
                return Ok(Applied::TooLong);
            }
            let next = generation.wrapping_add(1);
            write_definition(self.region(), &set.geometry, entry, next, text)
                .map_err(|place| damaged(self.path(), place))?;
            // From here on it is in force: the process that sees the generation sees the text.
            entry.generation.store(next, Ordering::Release);
            drop(locked);
            // A process renews leases in the background by what it knows: it is to look before a new one runs out.
            self.wake_every_process();
            // This process reads it as any other does, and whichever takes a shard's lock first migrates it.
            for shard in set.shards() {
                drop(self.lock(shard)?);
            }
            return Ok(Applied::InForce);
        }
    }
}
