//! Credit that a process draws in advance from a limit, as it is declared.

use serde::{Deserialize, Serialize};

use crate::engine::definition::plan::CreditPlan;

/// Two-tier checks: each process draws units of a limit in batches, and admits requests from its batch without the
/// lock. See [`Limit::credit`](crate::Limit::credit).
///
/// ```
/// use std::time::Duration;
/// use shmlimit::{Algorithm, Credit, Limit};
///
/// let requests = Limit::calls("requests", 10_000, Duration::from_secs(60)).credit(Credit::batch(10));
/// assert_eq!(requests.bound().map(|bound| bound.per_process), Some(9));
///
/// // No window ever sees more than 10,000.
/// let exact = Limit::calls("requests", 10_000, Duration::from_secs(60))
///     .algorithm(Algorithm::FixedWindow)
///     .credit(Credit::batch(10).window_coupled(true));
/// assert_eq!(exact.bound().map(|bound| bound.per_process), Some(0));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use]
pub struct Credit {
    pub(super) batch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) window_coupled: Option<bool>,
}

impl Credit {
    /// Batches of that many units, from 1 to 1,048,575.
    pub fn batch(units: u64) -> Self {
        Self {
            batch: units,
            window_coupled: None,
        }
    }

    /// Whether a batch ends with the window that it was drawn in, so that no window sees more than the capacity. For
    /// [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow) only; it costs a reading of the clock for each request. No
    /// unless declared.
    pub fn window_coupled(mut self, window_coupled: bool) -> Self {
        self.window_coupled = Some(window_coupled);
        self
    }

    pub(in crate::api::declaration) fn plan(&self) -> CreditPlan {
        CreditPlan {
            batch: self.batch,
            window_coupled: self.window_coupled.unwrap_or_default(),
        }
    }

    /// What each process may add to what the limit admits in a window.
    pub(in crate::api::declaration) fn per_process(&self) -> u64 {
        if self.window_coupled == Some(true) {
            0
        } else {
            self.batch.saturating_sub(1)
        }
    }

    /// The same with every default written out.
    pub(in crate::api::declaration) fn canonical(&self) -> Self {
        Self {
            // Nothing valid comes near the end of TOML's integers, and what is not valid must be written too.
            batch: self.batch.min(i64::MAX as u64),
            window_coupled: Some(self.window_coupled.unwrap_or_default()),
        }
    }
}
