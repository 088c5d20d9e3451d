//! Credit that a process draws from a limit in advance, as declared.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::engine::terms::plan::{BatchSize, CreditPlan};

/// Two-tier checks: each process draws units of a limit in batches, and admits requests from its batch without the
/// lock. See [`Limit::credit`](crate::Limit::credit).
///
/// ```
/// use std::time::Duration;
/// use shmlimit::declare::Credit;
/// use shmlimit::{Algorithm, Limit};
///
/// let requests = Limit::calls("requests", 10_000, Duration::from_secs(60)).credit(Credit::batch(10));
/// assert_eq!(requests.bound().map(|bound| bound.per_process), Some(9));
///
/// // No window ever sees more than 10,000.
/// let exact = Limit::calls("requests", 10_000, Duration::from_secs(60))
///     .algorithm(Algorithm::FixedWindow)
///     .credit(Credit::batch(10).window_coupled(true));
/// assert_eq!(exact.bound().map(|bound| bound.per_process), Some(0));
///
/// // A sixteenth of what remains, shared by the processes that draw.
/// let automatic = Limit::calls("requests", 16_000, Duration::from_secs(60)).credit(Credit::auto());
/// assert_eq!(automatic.bound().map(|bound| bound.per_process), Some(999));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Credit {
    /// `None` if batches are sized automatically.
    pub(super) batch: Option<u64>,
    pub(super) window_coupled: Option<bool>,
}

/// The field of a `credit` table that `limitctl edit` changes.
pub(super) const BATCH: &str = "batch";
/// The word for automatic batch sizes.
const AUTO: &str = "auto";

impl Credit {
    /// Batches of `units` units, from 1 to 1,048,575.
    pub fn batch(units: u64) -> Self {
        Self {
            batch: Some(units),
            window_coupled: None,
        }
    }

    /// Batches of remaining / (16 x processes) units, at most 1,048,575, with what remains of the limit, and the number of
    /// processes that have a batch, as they are when the batch is drawn. In TOML `credit = "auto"`.
    ///
    /// For the only limit of a set that is not keyed, with [`Algorithm::Gcra`](crate::Algorithm::Gcra),
    /// [`TokenBucket`](crate::Algorithm::TokenBucket) or [`LeakyBucket`](crate::Algorithm::LeakyBucket).
    pub fn auto() -> Self {
        Self {
            batch: None,
            window_coupled: None,
        }
    }

    /// Whether a batch ends with the window that it was drawn in, so that no window sees more than the capacity;
    /// false by default. Only for [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow). It costs a reading of
    /// the clock for each request.
    pub fn window_coupled(mut self, window_coupled: bool) -> Self {
        self.window_coupled = Some(window_coupled);
        self
    }

    pub(in crate::declaration) fn is_auto(&self) -> bool {
        self.batch.is_none()
    }

    fn size(&self) -> BatchSize {
        self.batch.map_or(BatchSize::Auto, BatchSize::Fixed)
    }

    pub(in crate::declaration) fn plan(&self) -> CreditPlan {
        CreditPlan {
            batch: self.size(),
            window_coupled: self.window_coupled.unwrap_or_default(),
        }
    }

    /// How much each process may add to what a limit with that burst admits in a window.
    pub(in crate::declaration) fn per_process(&self, burst: u64) -> u64 {
        if self.window_coupled == Some(true) {
            0
        } else {
            self.size().max_left_of(burst)
        }
    }

    /// The same with every default written out.
    pub(in crate::declaration) fn canonical(&self) -> Self {
        Self {
            batch: self.batch,
            window_coupled: match self.batch {
                Some(_) => Some(self.window_coupled.unwrap_or_default()),
                None => self.window_coupled,
            },
        }
    }
}

/// Credit in the form of a table.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::declaration) struct CreditTable {
    batch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_coupled: Option<bool>,
}

impl Serialize for Credit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.batch {
            // Together with `window_coupled` it is invalid, and written only to report that.
            None => serializer.serialize_str(AUTO),
            Some(batch) => CreditTable {
                // No valid value comes near the end of TOML's integers, but invalid ones must be written too.
                batch: batch.min(i64::MAX as u64),
                window_coupled: self.window_coupled,
            }
            .serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Credit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl<'de> Visitor<'de> for Written {
            type Value = Credit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\", or a table such as { batch = 10 }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Credit, E> {
                if text == AUTO {
                    return Ok(Credit::auto());
                }
                Err(E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Credit, M::Error> {
                let table = CreditTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Credit {
                    batch: Some(table.batch),
                    window_coupled: table.window_coupled,
                })
            }
        }

        deserializer.deserialize_any(Written)
    }
}
