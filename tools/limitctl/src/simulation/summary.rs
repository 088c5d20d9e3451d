//! The summary of a replay.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};
use shmlimit::Declaration;
use shmlimit::declare::Kind;
use shmlimit::snapshot::SegmentSnapshot;

use super::replay::{Decided, Happened, Settled};
use super::shares::Shares;
use super::timeline::Timeline;
use super::verdict::EventVerdict;
use crate::text::human::{self, count};
use crate::text::table::Table;
use crate::text::{sanitise, style};

/// A declaration's decisions on a trace, summed up.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The times of the first and the last request, in milliseconds since the Unix epoch.
    from_ms: Option<u64>,
    to_ms: Option<u64>,
    #[serde(flatten)]
    outcomes: Outcomes,
    /// In the order of the declaration.
    sets: Vec<SetSummary>,
    timeline: Timeline,
}

#[derive(Debug, Default, Serialize)]
struct Outcomes {
    requests: u64,
    admitted: u64,
    /// The refusals by reason.
    refused: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct SetSummary {
    set: String,
    #[serde(flatten)]
    outcomes: Outcomes,
    max_requests_in_a_second: Peak,
    max_admitted_in_a_second: Peak,
    limits: Vec<LimitSummary>,
    /// What each key got, if all keys have some limit together.
    #[serde(skip_serializing_if = "Option::is_none")]
    shares: Option<Shares>,
}

#[derive(Debug, Serialize)]
struct LimitSummary {
    limit: String,
    kind: Kind,
    /// Units used, after settlements: less what those gave back, plus what they charged.
    used: u64,
    /// Units charged in one second of the clock, including those given back later.
    max_in_a_second: Peak,
    /// In units. `None` for limits that are not held.
    max_held_at_once: Option<u64>,
    /// Requests for which this was the binding limit.
    refused: u64,
}

/// The most of something in one second of the clock.
#[derive(Debug, Default)]
struct Peak {
    second: u64,
    sum: u64,
    max: u64,
}

impl Summary {
    pub fn new(declaration: &Declaration) -> Self {
        let sets = declaration.sets().iter().map(|set| SetSummary {
            set: set.name().to_owned(),
            outcomes: Outcomes::default(),
            max_requests_in_a_second: Peak::default(),
            max_admitted_in_a_second: Peak::default(),
            limits: set
                .limits()
                .iter()
                .map(|limit| LimitSummary {
                    limit: limit.name().to_owned(),
                    kind: limit.kind(),
                    used: 0,
                    max_in_a_second: Peak::default(),
                    max_held_at_once: None,
                    refused: 0,
                })
                .collect(),
            shares: Shares::of(set),
        });
        Self {
            from_ms: None,
            to_ms: None,
            outcomes: Outcomes::default(),
            sets: sets.collect(),
            timeline: Timeline::default(),
        }
    }

    /// Counts what happened, in the order of time.
    pub fn note(&mut self, happened: &Happened) {
        match happened {
            Happened::Decided(decided) => self.note_decided(decided),
            Happened::Settled(Settled {
                at_ms,
                position,
                key,
                changes,
            }) => {
                let set = &mut self.sets[*position];
                set.charge(*at_ms, &changes.charged);
                if let (Some(shares), Some(key)) = (&mut set.shares, key) {
                    shares.note_settled(key, changes);
                }
            }
        }
    }

    fn note_decided(
        &mut self,
        Decided {
            position, verdict, ..
        }: &Decided,
    ) {
        let EventVerdict {
            at_ms,
            decided_ms,
            answer,
            ..
        } = verdict;
        self.from_ms = Some(self.from_ms.map_or(*at_ms, |from_ms| from_ms.min(*at_ms)));
        self.to_ms = Some(*decided_ms);
        self.timeline.note(*decided_ms, answer.admitted);
        self.outcomes.note(answer.reason);
        let set = &mut self.sets[*position];
        set.outcomes.note(answer.reason);
        set.max_requests_in_a_second.add(*decided_ms, 1);
        if answer.admitted {
            set.max_admitted_in_a_second.add(*decided_ms, 1);
        }
        set.charge(*decided_ms, &answer.taken);
        if let Some(limit) = answer.binding.as_deref().and_then(|name| set.limit(name)) {
            limit.refused += 1;
        }
        if let Some(shares) = &mut set.shares {
            shares.note_decided(verdict);
        }
    }

    /// Adds the segment's counters.
    pub fn finish(&mut self, snapshot: &SegmentSnapshot) {
        for (set, counted) in self.sets.iter_mut().zip(&snapshot.sets) {
            for (limit, counted) in set.limits.iter_mut().zip(&counted.limits) {
                let counts = counted.counts;
                limit.used = counts
                    .taken
                    .saturating_add(counts.overdraft)
                    .saturating_sub(counts.refunded);
                limit.max_held_at_once = (limit.kind == Kind::Concurrency).then_some(counts.high_water);
            }
        }
    }

    pub fn text(&self) -> String {
        let (Some(from_ms), Some(to_ms)) = (self.from_ms, self.to_ms) else {
            return "no requests\n".to_owned();
        };
        let mut text = format!(
            "{} in {}, from {} on: {}\n",
            human::quantity(self.outcomes.requests, "request", "requests"),
            human::duration(Duration::from_millis(to_ms - from_ms)),
            human::instant_with_millis(from_ms),
            self.outcomes.text()
        );
        for set in &self.sets {
            text.push('\n');
            text.push_str(&set.text());
        }
        text.push('\n');
        text.push_str(&self.timeline.text());
        text
    }
}

impl Outcomes {
    fn note(&mut self, reason: Option<&str>) {
        self.requests += 1;
        match reason {
            None => self.admitted += 1,
            Some(reason) => *self.refused.entry(reason.to_owned()).or_default() += 1,
        }
    }

    fn text(&self) -> String {
        let refused = self.requests - self.admitted;
        let mut text = format!("{} admitted, {} refused", count(self.admitted), count(refused));
        if refused > 0 {
            let reasons: Vec<String> = self
                .refused
                .iter()
                .map(|(reason, number)| format!("{} {reason}", count(*number)))
                .collect();
            text.push_str(&format!(" ({})", reasons.join(", ")));
        }
        text
    }
}

impl SetSummary {
    fn limit(&mut self, name: &str) -> Option<&mut LimitSummary> {
        self.limits.iter_mut().find(|limit| limit.limit == name)
    }

    fn charge(&mut self, at_ms: u64, units: &[(String, u64)]) {
        for (name, units) in units {
            if let Some(limit) = self.limit(name) {
                limit.max_in_a_second.add(at_ms, *units);
            }
        }
    }

    fn text(&self) -> String {
        let table = Table::of(&self.limits)
            .left("LIMIT", |limit| sanitise::line(&limit.limit))
            .left("KIND", |limit| limit.kind)
            .right("USED", |limit| count(limit.used))
            .right("MOST IN 1S", |limit| count(limit.max_in_a_second.max))
            .right("MOST HELD", |limit| {
                limit.max_held_at_once.map(count).unwrap_or_default()
            })
            .right("REFUSED", |limit| count(limit.refused));
        format!(
            "{} {}\n  {}; in a second at most {}, {} admitted\n{}",
            style::title("set"),
            style::title(&sanitise::line(&self.set)),
            self.outcomes.text(),
            human::quantity(self.max_requests_in_a_second.max, "request", "requests"),
            count(self.max_admitted_in_a_second.max),
            table.render(2)
        ) + &self.shares.as_ref().map(Shares::text).unwrap_or_default()
    }
}

impl Peak {
    /// Counts units at an instant, which must not be before the previous one.
    fn add(&mut self, at_ms: u64, number: u64) {
        let second = at_ms / 1_000;
        if second != self.second {
            self.second = second;
            self.sum = 0;
        }
        self.sum = self.sum.saturating_add(number);
        self.max = self.max.max(self.sum);
    }
}

impl Serialize for Peak {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.max.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_of_one_second_of_the_clock() {
        let mut peak = Peak::default();
        for (at_ms, number, max) in [
            (999, 5, 5),
            (1_000, 2, 5),
            (1_999, 4, 6),
            (2_000, 3, 6),
            (9_000, u64::MAX, u64::MAX),
            (9_001, 1, u64::MAX),
        ] {
            peak.add(at_ms, number);
            assert_eq!(peak.max, max, "{at_ms}");
        }
    }
}
