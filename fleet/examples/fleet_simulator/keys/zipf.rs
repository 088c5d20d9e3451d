//! Which key a request is for, by Zipf's law: the first key is used twice as often as the second, three times as often
//! as the third, and so on.

use fastrand::Rng;

pub struct Zipf {
    /// The sum of the weights of each key and those before it.
    sums: Vec<f64>,
}

impl Zipf {
    pub fn new(keys: u64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=keys).map(|rank| 1.0 / rank as f64);
        let sums = weights.map(|weight| {
            sum += weight;
            sum
        });
        Self { sums: sums.collect() }
    }

    pub fn draw(&self, random: &mut Rng) -> usize {
        let all = self.sums.last().copied().unwrap_or_default();
        let drawn = random.f64() * all;
        let key = self.sums.partition_point(|sum| *sum <= drawn);
        key.min(self.sums.len() - 1)
    }
}
