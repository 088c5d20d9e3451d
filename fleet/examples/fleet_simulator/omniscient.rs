//! An allocator that sees all demand and all units at once, without a network: an upper bound for any fleet.

/// A bucket that is divided among the hosts in each step, so that each gets what it wants up to a common level.
pub struct Omniscient {
    burst: f64,
    per_step: f64,
    available: f64,
    pub admitted: Vec<u64>,
}

impl Omniscient {
    pub fn new(hosts: usize, burst: u64, per_step: f64) -> Self {
        Self {
            burst: burst as f64,
            per_step,
            available: burst as f64,
            admitted: vec![0; hosts],
        }
    }

    /// Refills the bucket because a window has turned.
    pub fn turn(&mut self) {
        self.available = self.burst;
    }

    /// Runs one step, in which each host wants the given amount.
    pub fn step(&mut self, demands: &[u64]) {
        let mut order: Vec<usize> = (0..demands.len()).collect();
        order.sort_by_key(|&host| demands[host]);
        let mut left = self.available.floor() as u64;
        let mut hosts = demands.len() as u64;
        for host in order {
            let granted = demands[host].min(left / hosts);
            self.admitted[host] += granted;
            left -= granted;
            hosts -= 1;
        }
        self.available = (left as f64 + self.available.fract() + self.per_step).min(self.burst);
    }
}
