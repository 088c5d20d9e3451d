//! Validates and hashes keys.

use crate::engine::{KeyIdentity, SetEngine};
use crate::error::{Error, RequestError};

/// The maximum length of a key.
const MAX_KEY_BYTES: usize = 65_536;

/// The identity of a key in the table of a set: its seeded hash, and its name if the set stores names.
#[inline]
pub(crate) fn identify(set: &SetEngine, key: &[u8]) -> Result<KeyIdentity, Error> {
    if !set.is_keyed() {
        return Err(Error::Request(RequestError::NotKeyed {
            set: set.name.to_string(),
        }));
    }
    if !set.levels.is_empty() {
        return Err(Error::Request(RequestError::AddressRequired {
            set: set.name.to_string(),
        }));
    }
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(Error::Request(RequestError::InvalidKey {
            set: set.name.to_string(),
            bytes: key.len(),
            max: MAX_KEY_BYTES,
        }));
    }
    let keeps_names = set.stores_keys;
    Ok(KeyIdentity::of(set.seed, key, keeps_names))
}
