//! Limits of networks: an address is charged to every network that contains it, or to none.
//!
//! All networks of one address lie in the shard of the largest of them, so that one lock and one transaction cover
//! them.

use std::fmt::{self, Write};
use std::net::IpAddr;

use smallvec::SmallVec;

use crate::engine::admit::attempt::{Answer, Attempt};
use crate::engine::admit::charge::Admission;
use crate::engine::shard::key_table::NoRow;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{SetEngine, Shard};
use crate::engine::terms::decision::{Costs, Decision};
use crate::engine::terms::key_identity::KeyIdentity;
use crate::engine::terms::plan::PrefixLengths;
use crate::error::Error;
use crate::shm::layout::row::{Row, Rows};
use crate::table::Fingerprint;

/// The most prefix lengths that a set may have; declarations are checked against it.
const MAX_LEVELS: usize = 4;

/// The networks that contain an address, the largest first.
pub(crate) type Networks = SmallVec<[Network; MAX_LEVELS]>;

/// A network, and its fingerprint under the seed of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    length: u8,
    fingerprint: Fingerprint,
}

type RowsOfLevels<'a> = SmallVec<[Row<'a>; MAX_LEVELS]>;

impl Network {
    fn containing(address: IpAddr, lengths: PrefixLengths, seed: [u64; 2]) -> Self {
        // An IPv4-mapped IPv6 address counts as the IPv4 address.
        let address = address.to_canonical();
        let (address, length) = match address {
            IpAddr::V4(address) => {
                let length = lengths.ipv4.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                (IpAddr::V4((u32::from(address) & mask).into()), length)
            }
            IpAddr::V6(address) => {
                let length = lengths.ipv6.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                (IpAddr::V6((u128::from(address) & mask).into()), length)
            }
        };
        // The prefix length in one byte, then the address. The number of bytes tells the two families apart.
        let mut bytes: SmallVec<[u8; 17]> = SmallVec::new();
        bytes.push(length);
        match address {
            IpAddr::V4(address) => bytes.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes.extend_from_slice(&address.octets()),
        }
        Self {
            address,
            length,
            fingerprint: Fingerprint::of(seed, &bytes),
        }
    }

    pub(in crate::engine) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Whether limits with these prefix lengths count this network.
    pub(in crate::engine) fn is_counted_by(&self, lengths: PrefixLengths) -> bool {
        let length = match self.address {
            IpAddr::V4(_) => lengths.ipv4,
            IpAddr::V6(_) => lengths.ipv6,
        };
        self.length == length
    }

    /// Its identity as a key, named as people write it.
    fn identity(&self) -> KeyIdentity {
        let mut name = String::new();
        // Writing to a string does not fail.
        let _ = write!(name, "{self}");
        KeyIdentity::named(self.fingerprint, name.as_bytes())
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl SetEngine {
    /// The networks that contain an address, one for each prefix length that the set counts.
    pub(crate) fn networks_of(&self, address: IpAddr) -> Networks {
        let levels = self.levels.iter();
        levels
            .map(|lengths| Network::containing(address, *lengths, self.seed))
            .collect()
    }

    /// The shard that the networks of one address lie in.
    pub(crate) fn shard_of_networks(&self, networks: &Networks) -> Shard<'_> {
        let largest = networks.first();
        self.shard_of_fingerprint(largest.map_or(Fingerprint::NONE, Network::fingerprint))
    }
}

impl SegmentEngine {
    /// Takes what `costs` names from all the networks for good, or nothing. Returns whether it did.
    pub(crate) fn check_networks(
        &self,
        set: &SetEngine,
        networks: &Networks,
        costs: &Costs,
        decision: &mut Decision,
    ) -> Result<bool, Box<Error>> {
        let shard = set.shard_of_networks(networks);
        self.decide_at_once(shard, decision, |decision, attempt| {
            self.lock(shard, LockFor::Decide, LockWait::Timeout)?
                .check_networks(networks, costs, decision, attempt)
        })
    }

    /// How `costs` would be decided now. Takes and counts nothing.
    pub(crate) fn peek_networks(
        &self,
        set: &SetEngine,
        networks: &Networks,
        costs: &Costs,
    ) -> Result<Decision, Box<Error>> {
        let mut decision = Decision::pending(costs, 0);
        let locked = self.lock(set.shard_of_networks(networks), LockFor::Look, LockWait::Timeout)?;
        let rows: RowsOfLevels<'_> = networks
            .iter()
            .map(|network| {
                locked
                    .shard
                    .find_row_of(network.fingerprint)
                    .unwrap_or_else(|| locked.shard.absent_row())
            })
            .collect();
        locked.assess_all(Rows::of_levels(&rows), costs, &mut decision);
        Ok(decision)
    }

    /// Resets the limits of the networks that contain an address. Returns whether any had used something.
    pub(crate) fn reset_networks(
        &self,
        set: &SetEngine,
        networks: &Networks,
        limits: u32,
    ) -> Result<bool, Box<Error>> {
        let shard = set.shard_of_networks(networks);
        let mut any = false;
        for network in networks {
            any |= self.reset_key(shard, &network.identity(), limits)?;
        }
        Ok(any)
    }
}

impl LockedShard<'_> {
    fn check_networks(
        &self,
        networks: &Networks,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        let mut rows: RowsOfLevels<'_> = SmallVec::new();
        for network in networks {
            let row = match self.shard.find_row_of(network.fingerprint) {
                Some(row) => Ok(row),
                // Rows found before count as free if nothing was taken from them yet, so they are excluded. A request
                // that can never be met takes no row from another key.
                None if self
                    .shard
                    .impossible_cost(self.shard.absent_row(), costs)
                    .is_none() =>
                {
                    self.add_row(&network.identity(), &rows)?
                }
                None => Err(NoRow::Full { room_in: None }),
            };
            match row {
                Ok(row) => rows.push(row),
                Err(no_row) => return self.without_a_row(no_row, costs, decision, attempt),
            }
        }
        let rows = Rows::of_levels(&rows);
        self.take_all(&Admission::of(rows, costs), decision, attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::super::network::*;

    fn network(address: &str, ipv4: u8, ipv6: u8) -> Network {
        let address = address.parse().expect("an address");
        Network::containing(address, PrefixLengths { ipv4, ipv6 }, [1, 2])
    }

    #[test]
    fn addresses_of_one_network_are_one_and_others_are_not() {
        for (one, other, ipv4, ipv6, same) in [
            ("203.0.113.7", "203.0.113.200", 24, 48, true),
            ("203.0.113.7", "203.0.114.7", 24, 48, false),
            ("203.0.113.7", "203.0.113.8", 32, 128, false),
            ("10.0.0.1", "192.0.2.1", 0, 0, true),
            ("2001:db8:1::1", "2001:db8:1:2::1", 24, 48, true),
            ("2001:db8:1::1", "2001:db8:1:2::1", 24, 64, false),
            ("::ffff:203.0.113.7", "203.0.113.9", 24, 48, true),
            ("0.0.0.0", "::", 0, 0, false),
        ] {
            let (one, other) = (network(one, ipv4, ipv6), network(other, ipv4, ipv6));
            assert_eq!(one.fingerprint == other.fingerprint, same, "{one} and {other}");
        }
    }

    #[test]
    fn networks_of_different_lengths_differ_where_their_addresses_do_not() {
        assert_ne!(
            network("10.0.0.0", 8, 8).fingerprint,
            network("10.0.0.0", 16, 8).fingerprint
        );
    }

    #[test]
    fn a_network_is_named_as_people_write_it() {
        assert_eq!(network("203.0.113.7", 24, 48).to_string(), "203.0.113.0/24");
        assert_eq!(network("2001:db8:1:2::1", 24, 48).to_string(), "2001:db8:1::/48");
    }
}
