//! Verbs that change declarations or counts, one per file.

mod apply;
mod assign;
mod edit;
mod reset;
mod throttle;

use shmlimit::{Error, Segment};

verbs![
    apply::Apply,
    edit::Edit,
    assign::Assign,
    reset::Reset,
    throttle::Throttle
];

/// What to add to a report about a key that has no row yet, because it may be mistyped.
fn note_if_new(segment: &Segment, set: &str, key: &[u8]) -> Result<&'static str, Error> {
    let has_row = segment.key_snapshot(set, key)?.is_some();
    Ok(if has_row {
        ""
    } else {
        "; the key had no row: it has used nothing lately"
    })
}
