//! The results of a run.

use std::fmt;

use shmlimit::declare::Outage;

/// The lowest acceptable Jain index of what hosts were admitted, for hosts that want more than they get.
const MIN_JAIN: f64 = 0.95;

/// The results of one run.
#[derive(Clone, Debug)]
pub struct Report {
    pub seed: u64,
    /// Units admitted beyond what the limit allows, at the worst moment.
    pub overshoot: u64,
    pub admitted: u64,
    /// The same for an allocator that knows everything.
    pub omniscient: u64,
    /// Units that expired unspent.
    pub expired: u64,
    /// Whether units were counted in windows, in which hosts that spend faster get more.
    pub is_window: bool,
    pub jain: f64,
    pub omniscient_jain: f64,
    pub round_trips: u64,
    /// Failed attempts.
    pub failures: u64,
    /// Requests that were refused on a limit that is hardly used; `None` if more is wanted than there is.
    pub refused: Option<u64>,
    /// The longest time in seconds with nothing admitted, since the store has been back from an outage.
    pub dark: f64,
}

impl Report {
    pub const HEADINGS: &str = "    seed  overshoot      admitted  of possible   expired     Jain  (possible)  admitted/trip  failures  refused   dark  seconds";

    /// Whether it keeps what is promised while the store keeps what it acknowledged.
    pub fn is_kept(&self, policy: Outage) -> bool {
        if let Some(refused) = self.refused {
            return self.overshoot == 0 && refused == 0;
        }
        // These policies admit more while the store is out.
        let admits_more = matches!(policy, Outage::Safe | Outage::Open);
        (admits_more || self.overshoot == 0) && (self.is_window || admits_more || self.jain >= MIN_JAIN)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        write!(
            formatter,
            "{:>8} {:>10} {:>13} {:>11.1}% {:>8.2}% {:>8.4} {:>11.4} {:>14.1} {:>9} {:>8} {:>6.2}",
            self.seed,
            self.overshoot,
            self.admitted,
            percent(self.admitted, self.omniscient),
            percent(self.expired, self.admitted + self.expired),
            self.jain,
            self.omniscient_jain,
            self.admitted as f64 / self.round_trips.max(1) as f64,
            self.failures,
            self.refused
                .map_or_else(|| "-".to_owned(), |refused| refused.to_string()),
            self.dark,
        )
    }
}

/// Jain's index: 1 if all are equal, 1 / n if one has everything.
pub fn jain(amounts: &[u64]) -> f64 {
    let sum: f64 = amounts.iter().map(|&amount| amount as f64).sum();
    let squares: f64 = amounts.iter().map(|&amount| (amount as f64).powi(2)).sum();
    if squares == 0.0 {
        return 1.0;
    }
    sum * sum / (amounts.len() as f64 * squares)
}
