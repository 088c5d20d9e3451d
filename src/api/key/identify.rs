//! Validates and hashes keys.

use crate::engine::{KeyIdentity, SetEngine};
use crate::error::{Error, RequestError};
use crate::table::Fingerprint;

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
    let fingerprint = if set.has_lease_room {
        Fingerprint::of_shared(&set.mixer, key)
    } else {
        Fingerprint::of(set.seed, key)
    };
    Ok(KeyIdentity::of(fingerprint, key, set.stores_keys))
}
