//! What a key is known by.

use siphasher::sip128::SipHasher13;

/// A key, by 128 bits of a hash that only those can compute who know the segment's seed. Two keys of 10^9 share one
/// with a probability below 10^-20, so that equal fingerprints are taken for equal keys.
///
/// `low` chooses the first bucket. The upper 40 bits of `high` choose the second one, the next 16 are the tag, and the
/// lowest 8 choose the shard: what decides one of these says nothing about another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl Fingerprint {
    /// The fingerprint of a row that no process uses. No key has it.
    pub(crate) const NONE: Self = Self { low: 0, high: 0 };
    const SHARD_BITS: u32 = 8;
    const TAG_BITS: u32 = 16;

    /// The fingerprint of `key` by SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF"), which keeps
    /// those who choose keys from choosing buckets.
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

    /// Which of `shards`, a power of two of at most 256.
    #[inline]
    pub(crate) fn shard(self, shards: u64) -> u64 {
        self.high & shards.wrapping_sub(1) & ((1 << Self::SHARD_BITS) - 1)
    }

    /// What stands for the key in its bucket. Never zero, which marks a row that was never used.
    #[inline]
    pub(super) fn tag(self) -> u16 {
        ((self.high >> Self::SHARD_BITS) as u16).max(1)
    }

    /// The two buckets, of `buckets`, in one of which the key's row is. They differ where there are two.
    ///
    /// A multiplication scales a hash to a range of any length without a division (Lemire, "Fast random integer
    /// generation in an interval"). The second bucket is so many steps from the first: were they drawn independently,
    /// keys that draw one full bucket twice would be refused long before keys that draw two.
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

    /// Where in its buckets the search for a row to reuse begins, so that it is not always the same row that is asked.
    #[inline]
    pub(super) fn start(self) -> u64 {
        self.low & 63
    }
}

#[inline]
fn scale(hash: u64, range: u64) -> u64 {
    ((u128::from(hash) * u128::from(range)) >> 64) as u64
}
