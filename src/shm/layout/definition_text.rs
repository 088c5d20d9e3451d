//! The definition text of a set. There are two places for it; the generation's lowest bit says which is in force.
//!
//! The text in force is never written to, so a process that dies while writing the other has changed nothing that
//! counts. What it has written belongs to a generation that never came into force, and its checksum says so: it
//! cannot be mistaken for the text that was in that place before.

use std::sync::atomic::Ordering;

use super::geometry::SetGeometry;
use super::records::{CHECKSUM_SEED, DirectoryEntry, checksum_step};
use crate::shm::file::region::{OutOfRegion, Region, load_acquire};

/// A definition that is or was in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Definition {
    pub(crate) generation: u64,
    pub(crate) text: String,
}

/// Why a definition cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidDefinition {
    TooLong,
    Checksum,
    NotText,
}

impl InvalidDefinition {
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::TooLong => "a set's definition is longer than the room for it",
            Self::Checksum => "the checksum of a set's definition does not match",
            Self::NotText => "a set's definition is not UTF-8",
        }
    }
}

fn place_of(generation: u64) -> usize {
    (generation & 1) as usize
}

/// The checksum of a generation's definition text.
fn text_checksum(generation: u64, text: &[u8]) -> u64 {
    let seed = checksum_step(CHECKSUM_SEED, generation);
    let length = checksum_step(seed, text.len() as u64);
    text.iter()
        .fold(length, |hash, byte| checksum_step(hash, u64::from(*byte)))
}

/// Writes the definition of a generation that is not in force yet. There must be room for the text.
pub(crate) fn write_definition(
    region: &Region,
    set: &SetGeometry,
    entry: &DirectoryEntry,
    generation: u64,
    text: &str,
) -> Result<(), OutOfRegion> {
    let place = place_of(generation);
    let size = text.len() as u64;
    if size > set.shape.definition_room {
        return Err(OutOfRegion {
            offset: set.definition_offsets[place],
            size,
        });
    }
    let words = region.words(set.definition_offsets[place], size.div_ceil(8))?;
    for (word, chunk) in words.iter().zip(text.as_bytes().chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
    entry.definition_sizes[place].store(size, Ordering::Relaxed);
    entry.definition_checksums[place].store(text_checksum(generation, text.as_bytes()), Ordering::Relaxed);
    Ok(())
}

/// The definition in force. It may be superseded while it is read.
pub(crate) fn read_definition_in_force(
    region: &Region,
    set: &SetGeometry,
    entry: &DirectoryEntry,
) -> Result<Result<Definition, InvalidDefinition>, OutOfRegion> {
    loop {
        let generation = load_acquire(&entry.generation);
        let read = read_definition(region, set, entry, generation)?;
        // If it could not be read, two more may have come into force in the meantime.
        if read.is_ok() || load_acquire(&entry.generation) == generation {
            return Ok(read);
        }
    }
}

/// The definition of the generation in force, or of the one before it, unless its place is already being written for
/// the next.
pub(crate) fn read_definition(
    region: &Region,
    set: &SetGeometry,
    entry: &DirectoryEntry,
    generation: u64,
) -> Result<Result<Definition, InvalidDefinition>, OutOfRegion> {
    let place = place_of(generation);
    let size = entry.definition_sizes[place].load(Ordering::Relaxed);
    if size > set.shape.definition_room {
        return Ok(Err(InvalidDefinition::TooLong));
    }
    let mut bytes: Vec<u8> = region
        .words(set.definition_offsets[place], size.div_ceil(8))?
        .iter()
        .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
        .collect();
    bytes.truncate(size as usize);
    if text_checksum(generation, &bytes) != entry.definition_checksums[place].load(Ordering::Relaxed) {
        return Ok(Err(InvalidDefinition::Checksum));
    }
    Ok(String::from_utf8(bytes)
        .map(|text| Definition { generation, text })
        .map_err(|_| InvalidDefinition::NotText))
}
