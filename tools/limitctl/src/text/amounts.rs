//! Amounts of limits, in the units in which they were declared.

use std::collections::BTreeMap;

use shmlimit::SetDeclaration;
use shmlimit::snapshot::{KeyLimitSnapshot, LimitSnapshot, SetSnapshot};

use super::human::{count, grouped};
use super::sanitise;

/// A number of units of a limit.
pub fn amount(limit: &LimitSnapshot, units: u64) -> String {
    grouped(&limit.format_units(units))
}

/// A number of units of a key's limit.
pub fn amount_of_key(limit: &KeyLimitSnapshot, units: u64) -> String {
    grouped(&limit.format_units(units))
}

/// Amounts of limits of a set, by their names, on one line.
pub fn amounts(set: &SetSnapshot, amounts: &BTreeMap<String, u64>) -> String {
    let limit = |name: &str| set.limits.iter().find(|limit| limit.name == name);
    named(amounts, |name, units| Some(limit(name)?.format_units(units)))
}

/// The same as [`amounts()`], for callers that only have the set's declaration.
pub fn declared_amounts(set: Option<&SetDeclaration>, amounts: &BTreeMap<String, u64>) -> String {
    let limit = |name: &str| set?.limits().iter().find(|limit| limit.name() == name);
    named(amounts, |name, units| Some(limit(name)?.format_units(units)))
}

fn named(amounts: &BTreeMap<String, u64>, format: impl Fn(&str, u64) -> Option<String>) -> String {
    let amounts = amounts.iter().map(|(name, units)| {
        let amount = format(name, *units).map_or_else(|| count(*units), |amount| grouped(&amount));
        sanitise::line(&format!("{name} {amount}"))
    });
    amounts.collect::<Vec<String>>().join(", ")
}
