//! The state of a set and its limits, in the numbers that all views share.

use serde::Serialize;
use shmlimit::declare::{Kind, Scope};
use shmlimit::snapshot::{LimitSnapshot, SetSnapshot};

use crate::text::amounts::amount;
use crate::text::human;

/// How much of a limit is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Usage {
    /// How much is used of all that may be used at once.
    Of { used: u64, capacity: u64 },
    /// Hosts share the limit: what this host may spend, which says nothing about how much is used.
    Leased { units: u64 },
    /// Each key has its own usage.
    ByKey,
    /// There is nothing to use up.
    Unlimited,
}

/// Whether each key of the set has the limit for itself.
pub fn is_by_key(set: &SetSnapshot, limit: &LimitSnapshot) -> bool {
    set.keys.is_some() && limit.scope == Scope::Key
}

/// How much of a limit of a set is used.
pub fn usage(set: &SetSnapshot, limit: &LimitSnapshot) -> Usage {
    let Some(capacity) = limit.found_capacity.or(limit.capacity) else {
        return Usage::Unlimited;
    };
    if is_by_key(set, limit) {
        return Usage::ByKey;
    }
    if let Some(lease) = &limit.lease {
        return Usage::Leased { units: lease.left };
    }
    Usage::Of {
        used: capacity.saturating_sub(limit.remaining),
        capacity,
    }
}

/// The usage in words. For a budget, with the time left of its window, because what is spent says little without that.
pub fn words(limit: &LimitSnapshot, usage: Usage) -> String {
    match usage {
        Usage::Of { used, capacity } => {
            let mut words = format!("{} of {}", amount(limit, used), amount(limit, capacity));
            if limit.kind == Kind::Budget && !limit.reset_after.is_zero() {
                words.push_str(&format!(", {} left", human::duration(limit.reset_after)));
            }
            words
        }
        Usage::Leased { units } => format!("{} leased", amount(limit, units)),
        Usage::ByKey => "by key".to_owned(),
        Usage::Unlimited => "unlimited".to_owned(),
    }
}

impl Usage {
    /// The fraction used, from 0 to 1, or `None` if there is no capacity to compare with.
    pub fn share(self) -> Option<f64> {
        match self {
            Self::Of { used, capacity } if capacity > 0 => Some(used as f64 / capacity as f64),
            Self::Of { .. } => Some(1.0),
            Self::Leased { .. } | Self::ByKey | Self::Unlimited => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_not_be_used_at_all_is_used_up() {
        let share = |used, capacity| Usage::Of { used, capacity }.share();
        assert_eq!(share(1, 4), Some(0.25));
        assert_eq!(share(0, 0), Some(1.0));
        assert_eq!(Usage::ByKey.share(), None);
    }
}
