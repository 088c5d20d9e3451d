//! The limit of each key as if every unit passed through it at once.

/// A key's bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// What was admitted and has not drained yet.
    level: f64,
    /// The same if each request was admitted for which there was anything left.
    possible: f64,
    drained_at: u64,
    was_used: bool,
    /// Whether more was wanted than there was.
    is_short: bool,
    refused: u64,
}

pub struct Quotas {
    burst: f64,
    per_micro: f64,
    buckets: Vec<Bucket>,
    /// How far the fullest bucket was above the burst, at the worst moment.
    pub above_burst: f64,
}

impl Quotas {
    pub fn new(keys: usize, burst: u64, per_second: u64) -> Self {
        Self {
            burst: burst as f64,
            per_micro: per_second as f64 / 1e6,
            buckets: vec![Bucket::default(); keys],
            above_burst: f64::MIN,
        }
    }

    fn drained(&mut self, key: usize, now: u64) -> &mut Bucket {
        let bucket = &mut self.buckets[key];
        let drained = (now - bucket.drained_at) as f64 * self.per_micro;
        bucket.level = (bucket.level - drained).max(0.0);
        bucket.possible = (bucket.possible - drained).max(0.0);
        bucket.drained_at = now;
        bucket
    }

    /// Notes that a unit was admitted.
    pub fn take(&mut self, key: usize, now: u64) {
        let burst = self.burst;
        let bucket = self.drained(key, now);
        bucket.level += 1.0;
        bucket.was_used = true;
        let above = bucket.level - burst;
        self.above_burst = self.above_burst.max(above);
    }

    /// Notes that a unit is wanted. Returns whether there is one.
    pub fn want(&mut self, key: usize, now: u64) -> bool {
        let burst = self.burst;
        let bucket = self.drained(key, now);
        let has_left = bucket.possible + 1.0 <= burst;
        bucket.possible += f64::from(u8::from(has_left));
        bucket.is_short |= !has_left;
        has_left
    }

    /// Notes that a request was refused.
    pub fn refuse(&mut self, key: usize) {
        self.buckets[key].refused += 1;
    }

    /// The requests that were refused of keys of which there was always enough.
    pub fn refused_below(&self) -> u64 {
        let buckets = self.buckets.iter().filter(|bucket| !bucket.is_short);
        buckets.map(|bucket| bucket.refused).sum()
    }

    /// The keys of which anything was admitted.
    pub fn used(&self) -> usize {
        self.buckets.iter().filter(|bucket| bucket.was_used).count()
    }
}
