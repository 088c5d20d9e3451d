//! How two declarations differ.

use toml::{Table, Value};

use super::{Declaration, Limit, TimeZone};
use crate::declaration::toml_text::as_table;
use crate::error::{Assignment, Difference};
use crate::sorting::set_of;

impl Declaration {
    /// Each difference between this declaration and `in_segment`, the one that a segment holds.
    ///
    /// Meanings are compared: `"60s"` is `"1m"`, and a default is the same whether it is written out or not. The
    /// segment's path, mode and checkpoint do not count, nor does the declaration's version. The order of sets and
    /// limits counts, because the segment stores them in that order.
    pub fn differences(&self, in_segment: &Self) -> Vec<Difference> {
        self.canonical().differences_as_written(&in_segment.canonical())
    }

    /// The [`differences`](Self::differences) between declarations that are already in a form to be compared.
    ///
    /// A limit that only one of them declares by rate and interval is compared as a capacity per window.
    pub(super) fn differences_as_written(&self, in_segment: &Self) -> Vec<Difference> {
        let mut found = Vec::new();
        let root = Location::default();
        let sides = [self.worded_as(in_segment), in_segment.worded_as(self)];
        let [declared, in_segment] = sides.each_ref().map(comparable);
        compare_tables(&root, &declared, &in_segment, &mut found);
        found
    }

    /// The same declaration, with each limit written per window that `other` declares per window.
    fn worded_as(&self, other: &Self) -> Self {
        let mut worded = self.clone();
        for set in &mut worded.sets {
            let Some(other) = other.sets.iter().find(|other| other.name == set.name) else {
                continue;
            };
            let is_per_window = |name: &str| {
                let other = other.limits.iter().find(|other| other.name == name);
                other.is_some_and(|other| !other.is_by_rate())
            };
            set.tiers_per_window(is_per_window);
            for limit in &mut set.limits {
                if is_per_window(&limit.name) {
                    *limit = limit.clone().per_window();
                }
            }
        }
        worded
    }
}

fn comparable(canonical: &Declaration) -> Table {
    let mut canonical = canonical.clone();
    canonical.segment.path = None;
    canonical.segment.mode = None;
    canonical.segment.checkpoint = None;
    canonical.segment.version = None;
    // Without the path, everything in a declaration is a number or Unicode, which a table always accepts.
    as_table(&canonical)
}

/// A place in a declaration.
#[derive(Debug, Default)]
struct Location {
    path: String,
    /// The names of the set and the limit that it is in.
    names: Vec<String>,
    field: String,
    is_in_tier: bool,
}

impl Location {
    fn join(&self, field: &str) -> Self {
        Self {
            path: join(&self.path, field),
            names: self.names.clone(),
            field: field.to_owned(),
            is_in_tier: self.is_in_tier,
        }
    }

    fn join_named(&self, field: &str, name: &str) -> Self {
        let mut location = self.join(&format!("{field} {name:?}"));
        location.names.push(name.to_owned());
        location.is_in_tier |= field == "tier";
        location
    }

    fn assignment(&self, declared: Option<&Value>) -> Option<Assignment> {
        let [set, limit] = &self.names[..] else {
            return None;
        };
        if self.is_in_tier {
            return None;
        }
        let value = match declared {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => "none".to_owned(),
        };
        let is_editable = Limit::editable_fields().any(|(field, _)| field == self.field);
        is_editable.then(|| Assignment {
            set: set.clone(),
            limit: limit.clone(),
            text: format!("{}={value}", self.field),
        })
    }
}

fn compare_tables(place: &Location, declared: &Table, in_segment: &Table, found: &mut Vec<Difference>) {
    let only_in_segment = in_segment.keys().filter(|key| !declared.contains_key(*key));
    for key in declared.keys().chain(only_in_segment) {
        match (declared.get(key), in_segment.get(key)) {
            (Some(Value::Array(declared)), Some(Value::Array(in_segment))) => {
                compare_named(place, key, declared, in_segment, found);
            }
            (declared, in_segment) => compare_values(&place.join(key), declared, in_segment, found),
        }
    }
}

fn compare_values(
    place: &Location,
    declared: Option<&Value>,
    in_segment: Option<&Value>,
    found: &mut Vec<Difference>,
) {
    let nothing = Table::new();
    match (declared, in_segment) {
        _ if declared == in_segment => {}
        _ if place.field == "time_zone" => found.push(compare_zones(place, declared, in_segment)),
        (Some(Value::Table(declared)), Some(Value::Table(in_segment))) => {
            compare_tables(place, declared, in_segment, found);
        }
        // Metadata that only one of them has is compared entry by entry, as if the other's were empty.
        (Some(Value::Table(declared)), None) if place.field == "metadata" => {
            compare_tables(place, declared, &nothing, found);
        }
        (None, Some(Value::Table(in_segment))) if place.field == "metadata" => {
            compare_tables(place, &nothing, in_segment, found);
        }
        _ => found.push(
            Difference::new(place.path.clone(), declared.map(shown), in_segment.map(shown))
                .with_assignment(place.assignment(declared)),
        ),
    }
}

/// The difference between two time zones, or between two lists of offsets of the same zone. The lists are not shown,
/// because nobody could read them.
fn compare_zones(place: &Location, declared: Option<&Value>, in_segment: Option<&Value>) -> Difference {
    let zone = |value: &Value| value.clone().try_into::<TimeZone>().ok();
    let (declared, in_segment) = (declared.and_then(zone), in_segment.and_then(zone));
    match (&declared, &in_segment) {
        (Some(declared), Some(in_segment)) if declared.name() == in_segment.name() => Difference::of_offsets(
            place.path.clone(),
            format!("{declared:?}"),
            format!("{in_segment:?}"),
        ),
        _ => {
            let name = |zone: Option<TimeZone>| zone.map(|zone| Value::from(zone.name()));
            let (declared, in_segment) = (name(declared), name(in_segment));
            let (said, was) = (declared.as_ref().map(shown), in_segment.as_ref().map(shown));
            Difference::new(place.path.clone(), said, was)
                .with_assignment(place.assignment(declared.as_ref()))
        }
    }
}

/// Compares sets or limits, matched by name. Their order counts if all of them match.
fn compare_named(
    place: &Location,
    key: &str,
    declared: &[Value],
    in_segment: &[Value],
    found: &mut Vec<Difference>,
) {
    let located = |value: &Value| place.join_named(key, name(value));
    let present = || Some("present".to_owned());
    let counterpart = |of: &Value, among: &[Value]| among.iter().position(|other| name(other) == name(of));

    for value in declared {
        match counterpart(value, in_segment) {
            Some(other) => compare_values(&located(value), Some(value), in_segment.get(other), found),
            None => found.push(Difference::new(located(value).path, present(), None)),
        }
    }
    for value in in_segment {
        if counterpart(value, declared).is_none() {
            found.push(Difference::new(located(value).path, None, present()));
        }
    }
    let names = |values: &[Value]| values.iter().map(name).map(str::to_owned).collect::<Vec<_>>();
    let (here, there) = (names(declared), names(in_segment));
    let matched = set_of(&here) == set_of(&there);
    if matched && here != there {
        let order = |names: Vec<String>| Some(format!("{names:?}"));
        found.push(Difference::new(
            place.join(&format!("order of {key}s")).path,
            order(here),
            order(there),
        ));
    }
}

fn name(value: &Value) -> &str {
    value.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path} / {key}")
    }
}

/// As TOML writes it, but always on one line.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}
