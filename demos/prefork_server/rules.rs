//! What the declared limits promise, as numbers to compare the counts with.

use std::time::Duration;

use serde::de::{Deserializer, IgnoredAny};
use serde::{Deserialize, Serialize};
use shmlimit::declare::Kind;
use shmlimit::{Algorithm, Declaration, Window};

use crate::Failure;

/// One limit of the set that the server uses.
#[derive(Clone, Debug, Deserialize)]
pub struct Rule {
    pub name: String,
    pub kind: Kind,
    /// `None` if it is unlimited.
    #[serde(deserialize_with = "amount")]
    pub capacity: Option<u64>,
    #[serde(default, deserialize_with = "amount")]
    pub burst: Option<u64>,
    pub window: Option<Window>,
    pub algorithm: Option<Algorithm>,
}

/// A set that the server uses.
#[derive(Clone, Debug, Deserialize)]
pub struct Rules {
    #[serde(rename = "name")]
    pub set: String,
    keyed: Option<IgnoredAny>,
    #[serde(rename = "limit")]
    pub limits: Vec<Rule>,
}

/// The sets that the server uses: the first declared set without keys and, for requests that name a key, the first one
/// with keys.
#[derive(Clone, Debug)]
pub struct AllRules {
    pub everyone: Rules,
    pub each_key: Option<Rules>,
}

/// A bound, and what was counted.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub subject: String,
    pub what: String,
    pub allowed: u64,
    pub counted: u64,
    pub held: bool,
}

impl AllRules {
    pub fn of(declaration: &Declaration) -> Result<Self, Failure> {
        let (keyed, shared): (Vec<_>, Vec<_>) = Rules::of(declaration)?
            .into_iter()
            .partition(|rules| rules.keyed.is_some());
        let rules = Self {
            everyone: shared
                .into_iter()
                .next()
                .ok_or("the declaration has no set without keys")?,
            each_key: keyed.into_iter().next(),
        };
        rules.everyone.require_no_cost()?;
        if let Some(each_key) = &rules.each_key {
            each_key.require_no_cost()?;
        }
        Ok(rules)
    }
}

impl Rules {
    fn of(declaration: &Declaration) -> Result<Vec<Self>, Failure> {
        #[derive(Deserialize)]
        struct Canonical {
            set: Vec<Rules>,
        }
        // In the canonical form, every default is written out.
        let canonical: Canonical = toml::from_str(&declaration.to_toml()?)?;
        Ok(canonical.set)
    }

    /// Refuses limits that the demonstration cannot count.
    fn require_no_cost(&self) -> Result<(), Failure> {
        for limit in &self.limits {
            if !matches!(limit.kind, Kind::Calls | Kind::Concurrency) {
                return Err(format!(
                    "limit `{}`: requests have no cost here, so only calls and concurrency limits can be used",
                    limit.name
                )
                .into());
            }
            if !limit
                .name
                .bytes()
                .all(|byte| matches!(byte, b' '..=b'~' if byte != b'%'))
            {
                return Err(format!(
                    "limit `{}`: clients name what refused them, so names are in plain ASCII",
                    limit.name
                )
                .into());
            }
        }
        Ok(())
    }

    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Rule> {
        self.limits.iter().filter(move |limit| limit.kind == kind)
    }
}

impl Rule {
    /// The length of the window, unless the calendar sets it.
    pub fn span(&self) -> Option<Duration> {
        match self.window {
            Some(Window::Span(span)) => Some(span),
            _ => None,
        }
    }

    /// The most calls that the limit admits in any stretch of `elapsed`.
    pub fn max_within(&self, elapsed: Duration) -> Option<u64> {
        let capacity = self.capacity?;
        let Some(window) = self.span() else {
            // A run may cross the boundary between two days, weeks or months.
            return Some(capacity.saturating_mul(2));
        };
        let windows = elapsed.as_nanos() / window.as_nanos().max(1);
        let max = match self.algorithm {
            Some(Algorithm::SlidingWindow) => u128::from(capacity) * (windows + 1),
            Some(Algorithm::FixedWindow | Algorithm::SlidingWindowCounter) => {
                u128::from(capacity) * (windows + 2)
            }
            _ => {
                let replenished =
                    u128::from(capacity).saturating_mul(elapsed.as_nanos()) / window.as_nanos().max(1);
                replenished + u128::from(self.burst.unwrap_or(capacity))
            }
        };
        Some(u64::try_from(max).unwrap_or(u64::MAX))
    }

    /// The most calls that the limit admits in any stretch as long as its window.
    pub fn max_in_window(&self) -> Option<u64> {
        let capacity = self.capacity?;
        match self.algorithm {
            Some(Algorithm::SlidingWindow) => Some(capacity),
            Some(Algorithm::FixedWindow | Algorithm::SlidingWindowCounter) => {
                Some(capacity.saturating_mul(2))
            }
            _ => Some(capacity.saturating_add(self.burst.unwrap_or(capacity))),
        }
    }
}

/// An amount of whole calls; `None` if it is unlimited.
fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Whole(u64),
        Unlimited(IgnoredAny),
    }
    Ok(match Written::deserialize(deserializer)? {
        Written::Whole(whole) => Some(whole),
        Written::Unlimited(_) => None,
    })
}
