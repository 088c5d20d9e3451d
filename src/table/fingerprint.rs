//! What identifies a key.

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

/// A permutation of 128 bits that only this segment has, which keeps those who choose keys from choosing buckets,
/// although they know the hashes of their keys.
///
/// Three rounds of a Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations"), whose
/// functions are multiplications by secret numbers (Dietzfelbinger, "Universal hashing and k-wise independent random
/// variables via integer arithmetic without primes"). So whatever hashes are chosen by somebody who does not see
/// where their keys end up, they meet in buckets as seldom as any others. Functions that also withstand somebody who
/// sees that would cost as much as hashing the key once more, for each decision on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mixer {
    factors: [u128; 3],
}

impl Mixer {
    /// The permutation of the segment with this seed.
    pub(crate) fn of(seed: [u64; 2]) -> Self {
        Self {
            factors: [0_u64, 1, 2].map(|round| {
                let hash = SipHasher13::new_with_keys(seed[0], seed[1]).hash(&round.to_le_bytes());
                u128::from(hash.h2) << 64 | u128::from(hash.h1)
            }),
        }
    }

    #[inline]
    fn mix(&self, [mut low, mut high]: [u64; 2]) -> [u64; 2] {
        let [first, second, third] = self.factors;
        low = low.wrapping_add(folded(first, high));
        high = high.wrapping_add(folded(second, low));
        low = low.wrapping_add(folded(third, high));
        [low, high]
    }

    /// Undoes [`mix`](Self::mix).
    fn unmix(&self, [mut low, mut high]: [u64; 2]) -> [u64; 2] {
        let [first, second, third] = self.factors;
        low = low.wrapping_sub(folded(third, high));
        high = high.wrapping_sub(folded(second, low));
        low = low.wrapping_sub(folded(first, high));
        [low, high]
    }
}

/// A product modulo 2^128, with its halves folded onto each other, so that consecutive words do not become evenly spaced
/// numbers.
#[inline]
fn folded(factor: u128, word: u64) -> u64 {
    let product = factor.wrapping_mul(u128::from(word));
    (product >> 64) as u64 ^ product as u64
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
    /// a hash that all hosts compute alike, mixed as only this segment does. So a row that is found by its fingerprint
    /// need not keep the key.
    #[inline(never)]
    pub(crate) fn of_shared(mixer: &Mixer, key: &[u8]) -> Self {
        let hash = SipHasher13::new().hash(key);
        Self::mixed(mixer, [hash.h1, hash.h2])
    }

    #[inline]
    pub(super) fn mixed(mixer: &Mixer, hash: [u64; 2]) -> Self {
        // That this is zero for some key is as unlikely as that two keys have the same fingerprint.
        let [low, high] = mixer.mix(hash);
        Self { low, high }
    }

    /// What the store knows a key by, if its fingerprint is one that [hosts share](Self::of_shared).
    pub(crate) fn in_fleet(self, mixer: &Mixer) -> u128 {
        let [low, high] = mixer.unmix([self.low, self.high]);
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

#[inline]
fn scale(hash: u64, range: u64) -> u64 {
    ((u128::from(hash) * u128::from(range)) >> 64) as u64
}
