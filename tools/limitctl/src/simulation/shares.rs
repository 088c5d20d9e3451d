//! What each key got of the limits that all keys have together, and how long it waited for it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};
use shmlimit::SetDeclaration;
use shmlimit::declare::Scope;

use super::replay::Changes;
use super::verdict::EventVerdict;
use crate::text::human;
use crate::text::sanitise;
use crate::text::table::Table;

/// The most keys that a text lists.
const MAX_ROWS: usize = 20;

/// The keys of a set that has limits of all keys.
#[derive(Debug)]
pub struct Shares {
    /// The names of the limits of all keys, in the order of the declaration.
    limits: Vec<String>,
    by_key: BTreeMap<String, Share>,
}

#[derive(Debug, Default, Serialize)]
struct Share {
    requests: u64,
    admitted: u64,
    /// Units of each limit of all keys, after settlements.
    used: BTreeMap<String, u64>,
    /// The total wait of the requests that were admitted, in milliseconds.
    waited_ms: u64,
    longest_wait_ms: u64,
}

impl Shares {
    /// Returns `None` if the keys share no limit.
    pub fn of(set: &SetDeclaration) -> Option<Self> {
        let overall = set
            .limits()
            .iter()
            .filter(|limit| limit.options().scope() == Scope::AllKeys);
        let limits: Vec<String> = overall.map(|limit| limit.name().to_owned()).collect();
        (!limits.is_empty()).then_some(Self {
            limits,
            by_key: BTreeMap::new(),
        })
    }

    pub fn note_decided(&mut self, verdict: &EventVerdict) {
        let Some(key) = &verdict.key else { return };
        let answer = &verdict.answer;
        let share = self.by_key.entry(key.clone()).or_default();
        share.requests += 1;
        if answer.admitted {
            let waited_ms = verdict.waited_ms.unwrap_or_default();
            share.admitted += 1;
            share.waited_ms = share.waited_ms.saturating_add(waited_ms);
            share.longest_wait_ms = share.longest_wait_ms.max(waited_ms);
        }
        self.change(key, &answer.taken, u64::saturating_add);
    }

    pub fn note_settled(&mut self, key: &str, changes: &Changes) {
        self.change(key, &changes.charged, u64::saturating_add);
        self.change(key, &changes.returned, u64::saturating_sub);
    }

    fn change(&mut self, key: &str, amounts: &[(String, u64)], by: fn(u64, u64) -> u64) {
        let share = self.by_key.entry(key.to_owned()).or_default();
        for (limit, units) in amounts.iter().filter(|(limit, _)| self.limits.contains(limit)) {
            let used = share.used.entry(limit.clone()).or_default();
            *used = by(*used, *units);
        }
    }

    /// The keys that got the most of the first limit, in that order.
    pub fn text(&self) -> String {
        let mut rows: Vec<(&String, &Share)> = self.by_key.iter().collect();
        let first = |share: &Share| self.limits.first().map(|limit| share.used(limit));
        rows.sort_by_key(|(_, share)| std::cmp::Reverse(first(share)));
        let left_out = rows.len().saturating_sub(MAX_ROWS);
        rows.truncate(MAX_ROWS);
        let mut table = Table::of(&rows)
            .left("KEY", |(key, _)| sanitise::line(key))
            .right("REQUESTS", |(_, share)| human::count(share.requests))
            .right("ADMITTED", |(_, share)| human::count(share.admitted))
            .right("MEAN WAIT", |(_, share)| share.mean_wait())
            .right("LONGEST", |(_, share)| milliseconds(share.longest_wait_ms));
        for limit in &self.limits {
            let all: u64 = self.by_key.values().map(|share| share.used(limit)).sum();
            table = table
                .right(&sanitise::line(limit).to_uppercase(), |(_, share)| {
                    human::count(share.used(limit))
                })
                .right("SHARE", |(_, share)| percentage(share.used(limit), all));
        }
        let rest = match left_out {
            0 => String::new(),
            left_out => format!("  and {} more\n", human::quantity(left_out as u64, "key", "keys")),
        };
        table.render(2) + &rest
    }
}

impl Share {
    fn used(&self, limit: &str) -> u64 {
        self.used.get(limit).copied().unwrap_or_default()
    }

    fn mean_wait(&self) -> String {
        self.waited_ms
            .checked_div(self.admitted)
            .map(milliseconds)
            .unwrap_or_default()
    }
}

fn milliseconds(count: u64) -> String {
    human::duration(Duration::from_millis(count))
}

fn percentage(part: u64, whole: u64) -> String {
    match whole {
        0 => String::new(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

impl Serialize for Shares {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.by_key.serialize(serializer)
    }
}
