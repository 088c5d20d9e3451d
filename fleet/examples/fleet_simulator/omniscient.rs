//! An allocator that sees all demand and all units at once, without a network: what no fleet can be better than.

/// A bucket that is divided among the hosts of each step, so that each gets what it wants up to a common level.
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

    /// A window has turned: everything can be had again.
    pub fn turn(&mut self) {
        self.available = self.burst;
    }

    /// One step, in which each host wants so much.
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
