//! In what two declarations differ.

use std::collections::BTreeSet;
use std::fmt;

use toml::{Table, Value};

use super::Declaration;

/// One thing in which a declaration differs from the one that a segment holds.
///
/// ```
/// use std::time::Duration;
/// use shmlimit::{Declaration, Limit, SetDeclaration};
///
/// let minute = Duration::from_secs(60);
/// let declaring = |capacity: u64| {
///     Declaration::new().set(SetDeclaration::new("openai").limit(Limit::calls("requests", capacity, minute).burst(5)))
/// };
/// let differences = declaring(5).differences(&declaring(10));
/// assert_eq!(
///     differences[0].to_string(),
///     r#"set "openai" / limit "requests" / capacity: declared 5, in the segment 10"#,
/// );
/// assert_eq!(differences.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    path: String,
    declared: Option<String>,
    in_segment: Option<String>,
    assignment: Option<Assignment>,
    is_of_versions: bool,
    note: Option<String>,
}

/// A field of a limit that `limitctl set` can change, and what it is to be: `capacity=20`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) set: String,
    pub(crate) limit: String,
    pub(crate) text: String,
}

/// What `limitctl set` takes.
const ASSIGNABLE: [&str; 12] = [
    "capacity",
    "burst",
    "rate",
    "interval",
    "floor",
    "ceiling",
    "window",
    "lease",
    "latency_limit",
    "near_limit",
    "shadow",
    "batch",
];

impl Difference {
    /// Of the version of a set.
    pub(crate) fn of_versions(set: &str, declared: Option<u64>, in_segment: Option<u64>) -> Self {
        Self {
            path: format!("set {set:?} / version"),
            declared: declared.map(|version| version.to_string()),
            in_segment: in_segment.map(|version| version.to_string()),
            assignment: None,
            is_of_versions: true,
            note: None,
        }
    }

    /// Of the permissions of the file, which `command` makes those that are declared.
    pub(crate) fn of_modes(declared: u32, in_segment: u32, command: &str) -> Self {
        let shown = |mode| Some(format!("\"{mode:04o}\""));
        Self {
            path: "segment / mode".to_owned(),
            declared: shown(declared),
            in_segment: shown(in_segment),
            assignment: None,
            is_of_versions: false,
            note: Some(format!("{command}, by its owner, changes it")),
        }
    }

    /// Has it say more: what follows from it, and what to do.
    pub(super) fn add_note(&mut self, note: String) {
        self.note = Some(note);
    }

    /// Whether only the versions differ.
    pub(crate) fn is_of_versions(&self) -> bool {
        self.is_of_versions
    }

    /// How `limitctl set` makes the segment's value the declared one, where it can.
    pub(crate) fn assignment(&self) -> Option<&Assignment> {
        self.assignment.as_ref()
    }

    /// Where they differ, such as `set "openai" / limit "tokens" / capacity`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The declared value as TOML writes it, where there is one. A whole set or limit is `present`.
    pub fn declared(&self) -> Option<&str> {
        self.declared.as_deref()
    }

    /// What follows from it and what to do, where that is worth saying: such as that the log of a sliding window stays
    /// [short](crate::Limit::entries).
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The segment's value as TOML writes it, where there is one. A whole set or limit is `present`.
    pub fn in_segment(&self) -> Option<&str> {
        self.in_segment.as_deref()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let declared = self.declared().unwrap_or("absent");
        let in_segment = self.in_segment().unwrap_or("absent");
        write!(
            f,
            "{}: declared {declared}, in the segment {in_segment}",
            self.path
        )?;
        match &self.note {
            Some(note) => write!(f, " ({note})"),
            None => Ok(()),
        }
    }
}

impl Declaration {
    /// Each thing in which this declaration differs from `in_segment`, the one that a segment holds.
    ///
    /// Compared is what the declarations mean: `"60s"` is `"1m"`, and a default is the same written out or not.
    /// The segment's path and mode do not count, nor does the declaration's version. The order of sets and of limits does, because the segment stores
    /// them in it.
    pub fn differences(&self, in_segment: &Self) -> Vec<Difference> {
        self.canonical().differences_as_written(&in_segment.canonical())
    }

    /// As [`differences`](Self::differences), of what is written down already as it is to be compared.
    ///
    /// What is declared by rate and interval in one of them only is compared as a capacity per window.
    pub(super) fn differences_as_written(&self, in_segment: &Self) -> Vec<Difference> {
        let mut found = Vec::new();
        let root = Location::default();
        let sides = [self.worded_as(in_segment), in_segment.worded_as(self)];
        let [declared, in_segment] = sides.each_ref().map(comparable);
        compare_tables(&root, &declared, &in_segment, &mut found);
        found
    }

    /// The same, with each limit per window that `other` has so.
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
    canonical.segment.version = None;
    canonical.segment.on_demand = None;
    // Without the path, everything in a declaration is a number or Unicode, which a table always takes.
    Table::try_from(&canonical).unwrap_or_default()
}

/// Where in a declaration something stands.
#[derive(Debug, Default)]
struct Location {
    path: String,
    /// The set and the limit that it is in.
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
        ASSIGNABLE.contains(&self.field.as_str()).then(|| Assignment {
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
        (Some(Value::Table(declared)), Some(Value::Table(in_segment))) => {
            compare_tables(place, declared, in_segment, found);
        }
        // Metadata that only one of them has: entry by entry, as if the other's were empty.
        (Some(Value::Table(declared)), None) if place.field == "metadata" => {
            compare_tables(place, declared, &nothing, found);
        }
        (None, Some(Value::Table(in_segment))) if place.field == "metadata" => {
            compare_tables(place, &nothing, in_segment, found);
        }
        _ if declared == in_segment => {}
        _ => found.push(Difference {
            path: place.path.clone(),
            declared: declared.map(shown),
            in_segment: in_segment.map(shown),
            assignment: place.assignment(declared),
            is_of_versions: false,
            note: None,
        }),
    }
}

/// Sets or limits: matched by name, then compared; their order counts where all of them match.
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
            None => found.push(Difference {
                path: located(value).path,
                declared: present(),
                in_segment: None,
                assignment: None,
                is_of_versions: false,
                note: None,
            }),
        }
    }
    for value in in_segment {
        if counterpart(value, declared).is_none() {
            found.push(Difference {
                path: located(value).path,
                declared: None,
                in_segment: present(),
                assignment: None,
                is_of_versions: false,
                note: None,
            });
        }
    }
    let names = |values: &[Value]| values.iter().map(name).map(str::to_owned).collect::<Vec<_>>();
    let (here, there) = (names(declared), names(in_segment));
    let matched = here.iter().collect::<BTreeSet<_>>() == there.iter().collect::<BTreeSet<_>>();
    if matched && here != there {
        let order = |names: Vec<String>| Some(format!("{names:?}"));
        found.push(Difference {
            path: place.join(&format!("order of {key}s")).path,
            declared: order(here),
            in_segment: order(there),
            assignment: None,
            is_of_versions: false,
            note: None,
        });
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

/// As TOML writes it, but always in one line.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}
