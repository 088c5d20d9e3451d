//! What hosts want, in powers of two, so that the cost of a fair level does not depend on the number of hosts.

use std::collections::BTreeMap;

/// For each bit length of what a host wants: the number of hosts, and the sum of what they want.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    buckets: BTreeMap<u32, (u64, u64)>,
}

fn bits(amount: u64) -> u32 {
    u64::BITS - amount.leading_zeros()
}

impl Histogram {
    pub(super) fn add(&mut self, amount: u64) {
        if amount > 0 {
            let (hosts, sum) = self.buckets.entry(bits(amount)).or_default();
            *hosts += 1;
            *sum += amount;
        }
    }

    pub(super) fn remove(&mut self, amount: u64) {
        let Some((hosts, sum)) = self.buckets.get_mut(&bits(amount)) else {
            return;
        };
        *hosts -= 1;
        *sum -= amount;
        if *hosts == 0 {
            self.buckets.remove(&bits(amount));
        }
    }

    pub(super) fn joined_with(&self, other: &Self) -> Self {
        let mut joined = self.clone();
        for (bits, (hosts, sum)) in &other.buckets {
            let bucket = joined.buckets.entry(*bits).or_default();
            bucket.0 += hosts;
            bucket.1 += sum;
        }
        joined
    }

    pub(super) fn hosts(&self) -> u64 {
        self.buckets.values().map(|(hosts, _)| hosts).sum()
    }

    /// The level up to which each host gets what it wants if `supply` is divided fairly: rounded up, to at least 1, and
    /// rounded down. `None` if all wants are met.
    pub(super) fn fair_level(&self, supply: u64) -> Option<(u64, u64)> {
        let wanted: u64 = self.buckets.values().map(|(_, sum)| sum).sum();
        if wanted <= supply {
            return None;
        }
        let (mut below, mut above) = (0, self.hosts());
        for (hosts, sum) in self.buckets.values() {
            // The hosts of a bucket are treated as if each wanted their mean.
            let at_mean = u128::from(below) * u128::from(*hosts) + u128::from(*sum) * u128::from(above);
            if at_mean >= u128::from(supply) * u128::from(*hosts) {
                let left = supply - below;
                return Some((left.div_ceil(above).max(1), left / above));
            }
            below += sum;
            above -= hosts;
        }
        None
    }
}
