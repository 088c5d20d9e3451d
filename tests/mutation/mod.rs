//! Damage to a segment, and what a process does with it: shared by the fuzz target and by the test that runs
//! everywhere.
//!
//! Whatever the bytes of a segment say (apart from those of its mutexes, which the C library trusts), attaching,
//! inspecting and operating must end with an answer or an error.

pub mod image;
pub mod operate;
pub mod specimen;
#[path = "../layout_mirror/words.rs"]
mod words;

use image::Image;

/// A change of one word of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// Which of the words that may be changed, modulo their number.
    pub word: u32,
    /// What happens to it.
    pub change: Change,
}

/// What happens to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is set to this.
    Set(u64),
    /// These bits flip.
    Flip(u64),
    /// This is added, wrapping.
    Add(u64),
    /// It is set to the value of another word.
    CopyOf(u32),
}

/// Changes that are made together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The changes, in order.
    pub mutations: Vec<Mutation>,
    /// Whether the checksums are made to match what they cover, so that checks beyond them are reached.
    pub resealed: bool,
}

impl Damage {
    /// Bytes of one mutation.
    const RECORD: usize = 13;

    /// Reads any bytes as damage: a byte of options, then a record for each mutation.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let Some((options, rest)) = bytes.split_first() else {
            return Self {
                mutations: Vec::new(),
                resealed: false,
            };
        };
        Self {
            mutations: rest
                .chunks_exact(Self::RECORD)
                .filter_map(Mutation::from_record)
                .collect(),
            resealed: options & 1 == 1,
        }
    }

    /// Makes the changes in the file.
    pub fn apply(&self, image: &Image) {
        for mutation in &self.mutations {
            let place = image.place(mutation.word);
            let old = image.load(place);
            let new = match mutation.change {
                Change::Set(value) => value,
                Change::Flip(bits) => old ^ bits,
                Change::Add(amount) => old.wrapping_add(amount),
                Change::CopyOf(other) => image.load(image.place(other)),
            };
            image.store(place, new);
        }
        if self.resealed {
            image.reseal();
        }
    }
}

impl Mutation {
    fn from_record(record: &[u8]) -> Option<Self> {
        let (word, rest) = record.split_first_chunk::<4>()?;
        let (change, rest) = rest.split_first()?;
        let operand = u64::from_le_bytes(*rest.first_chunk::<8>()?);
        Some(Self {
            word: u32::from_le_bytes(*word),
            change: match change % 4 {
                0 => Change::Set(operand),
                1 => Change::Flip(operand),
                2 => Change::Add(operand),
                _ => Change::CopyOf(operand as u32),
            },
        })
    }
}
