//! What identifies a key.

use siphasher::sip::SipHasher13 as ShortHasher;
use siphasher::sip128::SipHasher13;

/// A key as 128 bits of a hash that nobody can compute without the segment's seed. Any two of 10^9 keys collide with
/// a probability below 10^-20, so equal fingerprints are taken for equal keys.
///
/// `low` chooses the first bucket. The upper 40 bits of `high` choose the second one, the next 16 are the tag, and
/// the lowest 8 choose the shard, so these choices are independent of each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl Fingerprint {
    /// The fingerprint of an unused row. No key has it.
    pub(crate) const NONE: Self = Self { low: 0, high: 0 };
    const SHARD_BITS: u32 = 8;
    const TAG_BITS: u32 = 16;

    /// The fingerprint of `key` by SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF"), which
    /// keeps those who choose keys from choosing buckets.
    #[inline]
    pub(crate) fn of(seed: [u64; 2], key: &[u8]) -> Self {
        let hash = SipHasher13::new_with_keys(seed[0], seed[1]).hash(key);
        let fingerprint = Self {
            low: hash.h1,
            high: hash.h2,
        };
        if fingerprint == Self::NONE {
            return Self { low: 1, high: 0 };
        }
        fingerprint
    }

    /// The fingerprint of a key whose limits hosts share. It contains [what the store knows the key by](Self::in_fleet):
    /// a hash that all hosts compute alike, under the seed of this segment. So a row that is found by its fingerprint need
    /// not keep the key.
    #[inline(never)]
    pub(crate) fn of_shared(seed: [u64; 2], key: &[u8]) -> Self {
        let hash = SipHasher13::new().hash(key);
        let mut halves = [hash.h1, hash.h2];
        // Two rounds of a Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations"): whoever
        // chooses keys knows their hashes, but does not choose their buckets.
        halves[0] ^= round(seed, 0, halves[1]);
        halves[1] ^= round(seed, 1, halves[0]);
        // That this hash is zero for some key is as likely as that two keys have the same.
        Self {
            low: halves[0],
            high: halves[1],
        }
    }

    /// What the store knows a key by whose fingerprint [hosts share](Self::of_shared).
    pub(crate) fn in_fleet(self, seed: [u64; 2]) -> u128 {
        let high = self.high ^ round(seed, 1, self.low);
        let low = self.low ^ round(seed, 0, high);
        u128::from(high) << 64 | u128::from(low)
    }

    /// The key's shard among `shards`, a power of two of at most 256.
    #[inline]
    pub(crate) fn shard(self, shards: u64) -> u64 {
        self.high & shards.wrapping_sub(1) & ((1 << Self::SHARD_BITS) - 1)
    }

    /// The key's tag in its bucket. Never zero, which marks a row that was never used.
    #[inline]
    pub(super) fn tag(self) -> u16 {
        ((self.high >> Self::SHARD_BITS) as u16).max(1)
    }

    /// The two buckets, out of `buckets`, one of which has the key's row. They differ if there are at least two.
    ///
    /// A multiplication scales a hash to a range of any length without a division (Lemire, "Fast random integer
    /// generation in an interval"). The second bucket is drawn as a distance from the first. If both were drawn
    /// independently, keys that draw the same full bucket twice would be refused long before keys that draw two
    /// different ones.
    #[inline]
    pub(crate) fn buckets(self, buckets: u64) -> [u64; 2] {
        let first = scale(self.low, buckets);
        let steps = self.high >> (Self::SHARD_BITS + Self::TAG_BITS) << (Self::SHARD_BITS + Self::TAG_BITS);
        let second = first + 1 + scale(steps, buckets.saturating_sub(1));
        [
            first,
            if second < buckets {
                second
            } else {
                second - buckets
            },
        ]
    }

    /// Where in its buckets the search for a row to reuse starts, so that it does not always begin with the same row.
    #[inline]
    pub(super) fn start(self) -> u64 {
        self.low & 63
    }
}

/// A round of [`Fingerprint::of_shared`].
#[inline]
fn round(seed: [u64; 2], number: u64, half: u64) -> u64 {
    ShortHasher::new_with_keys(seed[0], seed[1] ^ number).hash(&half.to_le_bytes())
}

#[inline]
fn scale(hash: u64, range: u64) -> u64 {
    ((u128::from(hash) * u128::from(range)) >> 64) as u64
}
