//! Identifies the key of a row.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::engine::{KeptName, RuledShard};
use crate::table::Fingerprint;

/// Identifies a key: by its fingerprint, and by the part of it that is [stored](crate::Keyed::store_keys) for people to
/// read.
///
/// Serialised with `text` if the stored bytes are UTF-8, otherwise with `hex`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct KeyLabel {
    /// The key's hash.
    pub fingerprint: KeyFingerprint,
    /// The first bytes of the key, at most 40, unsanitised. `None` if they are not stored.
    pub kept: Option<Vec<u8>>,
    /// The length of the key in bytes, if stored.
    pub bytes: Option<u64>,
}

/// The hash that identifies a key: 128 bits, seeded for each segment. Displayed as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyFingerprint(u128);

impl fmt::Display for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for KeyFingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl From<Fingerprint> for KeyFingerprint {
    fn from(fingerprint: Fingerprint) -> Self {
        Self((u128::from(fingerprint.high) << 64) | u128::from(fingerprint.low))
    }
}

impl KeyLabel {
    pub(super) fn new(fingerprint: Fingerprint, name: Option<KeptName>) -> Self {
        let (kept, bytes) = name.unzip();
        Self {
            fingerprint: fingerprint.into(),
            kept,
            bytes,
        }
    }

    /// The key of a row; `None` if the set is not keyed, or the row belongs to no key.
    pub(super) fn of_row(shard: RuledShard<'_>, row: u64) -> Option<Self> {
        let (fingerprint, name) = shard.key_of(row)?;
        Some(Self::new(fingerprint, name))
    }

    /// The stored bytes as text, if they are UTF-8. A character that was cut off at the end is left out.
    pub fn text(&self) -> Option<&str> {
        let kept = self.kept.as_deref()?;
        match std::str::from_utf8(kept) {
            Ok(text) => Some(text),
            Err(error) if self.is_cut() && error.error_len().is_none() => {
                std::str::from_utf8(&kept[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        }
    }

    /// Whether the key is longer than the stored part.
    pub fn is_cut(&self) -> bool {
        let kept = self.kept.as_ref().map(|kept| kept.len() as u64);
        kept < self.bytes
    }
}

impl Serialize for KeyLabel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Label<'a> {
            text: Option<&'a str>,
            hex: Option<String>,
            bytes: Option<u64>,
            fingerprint: KeyFingerprint,
        }

        let text = self.text();
        let hex = || {
            Some(
                self.kept
                    .as_ref()?
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect(),
            )
        };
        Label {
            text,
            hex: if text.is_none() { hex() } else { None },
            bytes: self.bytes,
            fingerprint: self.fingerprint,
        }
        .serialize(serializer)
    }
}
