//! A key as the table knows it.

use crate::table::Fingerprint;

/// The words of each key that are kept for people to read: its length and its first bytes.
pub(in crate::engine) const NAME_WORDS: u64 = 6;

/// The most bytes of a key that are kept for people to read.
const NAME_BYTES: usize = 8 * (NAME_WORDS as usize - 1);

/// A key: the fingerprint that finds its row, and the name that people see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyIdentity {
    pub(crate) fingerprint: Fingerprint,
    name: KeyName,
}

/// The length of a key and its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyName {
    pub(crate) words: [u64; NAME_WORDS as usize],
}

impl KeyIdentity {
    /// The name matters only if names are kept.
    #[inline]
    pub(crate) fn of(fingerprint: Fingerprint, key: &[u8], keeps_names: bool) -> Self {
        if keeps_names {
            Self::named(fingerprint, key)
        } else {
            Self::nameless(fingerprint)
        }
    }

    /// A key whose name for people is not the bytes that were hashed.
    pub(crate) fn named(fingerprint: Fingerprint, name: &[u8]) -> Self {
        Self {
            fingerprint,
            name: KeyName::of(name),
        }
    }

    /// A key known only by its fingerprint.
    pub(crate) fn nameless(fingerprint: Fingerprint) -> Self {
        Self {
            fingerprint,
            name: KeyName {
                words: [0; NAME_WORDS as usize],
            },
        }
    }

    pub(crate) fn name(&self) -> &KeyName {
        &self.name
    }
}

impl KeyName {
    #[inline]
    fn of(key: &[u8]) -> Self {
        let mut words = [0; NAME_WORDS as usize];
        words[0] = key.len() as u64;
        let kept = &key[..key.len().min(NAME_BYTES)];
        for (word, chunk) in words[1..].iter_mut().zip(kept.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_ne_bytes(bytes);
        }
        Self { words }
    }

    /// The bytes that were kept, and the length of the whole key.
    pub(crate) fn read(words: &[u64]) -> Option<(Vec<u8>, u64)> {
        let (length, kept) = words.split_first()?;
        let mut bytes: Vec<u8> = kept.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.truncate((*length).min(NAME_BYTES as u64) as usize);
        Some((bytes, *length))
    }
}
