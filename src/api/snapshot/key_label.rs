//! Which key a row is of.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::engine::{KeptName, RuledShard};
use crate::table::Fingerprint;

/// Which key: its fingerprint, and what is [kept](crate::Keyed::store_keys) of it for people.
///
/// Serialised with `text`, where what is kept is UTF-8, or else `hex`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct KeyLabel {
    /// The key's hash.
    pub fingerprint: KeyFingerprint,
    /// Its first bytes, at most 40: whatever its user chose. None where they are not kept.
    pub kept: Option<Vec<u8>>,
    /// How many bytes it has, where that is kept.
    pub bytes: Option<u64>,
}

/// The hash that a key is distinguished by: 128 bits, seeded for each segment. Shown as 32 hexadecimal digits.
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

    /// The key of a row; none where the set is not keyed, or the row no one's.
    pub(super) fn of_row(shard: RuledShard<'_>, row: u64) -> Option<Self> {
        let (fingerprint, name) = shard.key_of(row)?;
        Some(Self::new(fingerprint, name))
    }

    /// What is kept of the key, where it is UTF-8; a character that was cut in two at the end is left out.
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

    /// Whether the key is longer than what is kept of it.
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
