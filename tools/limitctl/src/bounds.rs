//! Snapshots for programs, with each limit's bound.

use serde_json::Value;
use shmlimit::Declaration;
use shmlimit::snapshot::SegmentSnapshot;

/// Returns a snapshot as a JSON object in which each limit also has its `bound` in words, or null if it has none.
///
/// # Errors
///
/// Returns the errors of serialising, which does not fail.
pub fn snapshot_with_bounds(
    snapshot: &SegmentSnapshot,
    declaration: &Declaration,
) -> Result<Value, serde_json::Error> {
    let mut described = serde_json::to_value(snapshot)?;
    let sets = described.get_mut("sets").and_then(Value::as_array_mut);
    for (set, copied) in sets.into_iter().flatten().zip(&snapshot.sets) {
        let declared = declaration.sets().iter().find(|set| set.name() == copied.name);
        let limits = set.get_mut("limits").and_then(Value::as_array_mut);
        for (limit, copied) in limits.into_iter().flatten().zip(&copied.limits) {
            let declared = declared.and_then(|set| set.limits().iter().find(|it| it.name() == copied.name));
            let bound = declared
                .and_then(shmlimit::Limit::bound)
                .map(|bound| bound.to_string());
            limit["bound"] = bound.into();
        }
    }
    Ok(described)
}
