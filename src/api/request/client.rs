//! Whose limits in a keyed set a request takes from.

use std::net::IpAddr;

use crate::engine::KeyIdentity;

/// Whose limits of the set apply.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Client {
    /// Those of the set as a whole; if it is keyed, the key is still missing.
    Everyone,
    Key(KeyIdentity),
    /// Those of every network that contains the address.
    Address(IpAddr),
}
