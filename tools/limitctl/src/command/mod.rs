//! The verbs, one per file.

pub mod change;
pub mod completions;
pub mod exec;
pub mod fleet;
pub mod man;
pub mod segment;
pub mod selftest;
pub mod simulate;
pub mod view;

use std::path::Path;

use shmlimit::snapshot::{HoldSnapshot, KeysSnapshot};

use crate::text::human::{self, count};
pub use crate::text::human::{amounts, as_text};
use crate::text::{sanitise, style};

/// A path, safe to print.
fn shown(path: &Path) -> String {
    sanitise::line(&path.to_string_lossy())
}

/// How full a table of keys is.
fn occupancy(table: &KeysSnapshot) -> String {
    let percent = table.in_use * 100 / table.rows.max(1);
    let mut text = format!(
        "{} of {} in use ({percent} %), at most {} of 32 in a bucket",
        count(table.in_use),
        human::quantity(table.rows, "row", "rows"),
        count(table.fullest_bucket)
    );
    for (number, what) in [
        (table.evicted_unused, "rows without usage evicted"),
        (table.evicted_in_use, "rows in use evicted"),
    ] {
        if number > 0 {
            text.push_str(&format!(", {} {what}", count(number)));
        }
    }
    text
}

/// The label of a hold's request.
fn label(hold: &HoldSnapshot) -> String {
    hold.label.as_deref().map(sanitise::line).unwrap_or_default()
}

/// The heading of the column of labels; empty if there are none.
fn label_heading(holds: &[HoldSnapshot]) -> &'static str {
    let has_labels = holds.iter().any(|hold| hold.label.is_some());
    if has_labels { "LABEL" } else { "" }
}

/// Names and texts in two columns.
fn aligned(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    facts
        .iter()
        .map(|(name, text)| {
            let name = style::paint(style::FAINT, format!("{name:width$}"));
            format!("  {name}  {text}\n")
        })
        .collect()
}
