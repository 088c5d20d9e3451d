//! What can be left of a limit, and in which units.

use crate::declaration::Scale;
use crate::engine::LimitRules;
use crate::limit::RuleOperations;

/// The most units that can be left; `None` if the limit is unlimited.
pub(super) fn capacity(limit: &LimitRules) -> Option<u64> {
    Some(limit.rule.capacity()).filter(|capacity| *capacity != u64::MAX)
}

/// A number of units of a declared size, as a decimal number.
pub(super) fn format_units(unit: &str, units: u64) -> String {
    // A declared unit is one that can be read.
    Scale::parse(unit).unwrap_or(Scale::ONE).format_units(units)
}
