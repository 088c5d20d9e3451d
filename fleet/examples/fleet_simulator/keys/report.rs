//! The results of a run.

use std::fmt;

/// The results of one run.
#[derive(Clone, Copy, Debug)]
pub struct KeysReport {
    pub seed: u64,
    /// Units of one key admitted beyond its burst and what hosts may admit unleased, at the worst moment.
    pub overshoot: u64,
    pub admitted: u64,
    /// What could have been admitted, had each host known of all others at once.
    pub possible: u64,
    /// The keys of which anything was admitted.
    pub keys: usize,
    /// Requests for keys in the calls that follow.
    pub requests: u64,
    /// Calls of the script that the store was sent.
    pub calls: u64,
    /// The most records that the store had at once.
    pub records: usize,
    pub refused: u64,
    /// Refused of keys that never reached their limit, whatever was wanted.
    pub refused_below: u64,
    pub failures: u64,
}

impl KeysReport {
    pub const HEADINGS: &str = "    seed  overshoot      admitted  of possible     keys  calls/admission  keys/call  records   refused  below limit  failures  seconds";

    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            overshoot: 0,
            admitted: 0,
            possible: 0,
            keys: 0,
            requests: 0,
            calls: 0,
            records: 0,
            refused: 0,
            refused_below: 0,
            failures: 0,
        }
    }

    /// Whether it keeps what is promised.
    pub fn is_kept(&self) -> bool {
        self.overshoot == 0
    }
}

impl fmt::Display for KeysReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        write!(
            formatter,
            "{:>8} {:>10} {:>13} {:>11.1}% {:>8} {:>16.3} {:>10.1} {:>8} {:>8.2}% {:>11.3}% {:>9}",
            self.seed,
            self.overshoot,
            self.admitted,
            100.0 * part(self.admitted, self.possible),
            self.keys,
            part(self.calls, self.admitted),
            part(self.requests, self.calls),
            self.records,
            100.0 * part(self.refused, self.admitted + self.refused),
            100.0 * part(self.refused_below, self.admitted + self.refused),
            self.failures,
        )
    }
}
