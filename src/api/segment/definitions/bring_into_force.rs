//! Putting a declaration into force, set by set.

use crate::api::declaration::Declaration;
use crate::api::declaration::stored::{StoredDeclaration, StoredSet};
use crate::api::segment::mismatch::{Author, Mismatch, Step, compare_set};
use crate::engine::{Applied, SegmentEngine};
use crate::error::{Difference, Error};

/// What is in force now.
pub(crate) fn stored_declaration(engine: &SegmentEngine) -> Result<StoredDeclaration, Error> {
    let sets = engine.sets().iter().map(|set| {
        let definition = engine.definition(set)?;
        StoredSet::read(&definition.text, engine.path())
    });
    Ok(StoredDeclaration::new(
        engine.creation_options(),
        sets.collect::<Result<_, _>>()?,
    ))
}

/// Puts what `asked` declares into force, set by set, wherever it has precedence. Returns how the sets differed, and
/// what was done about it. A set that other processes change in the meantime is compared again. Each set is written
/// at most once, by a step that is `permitted`.
pub(crate) fn bring_into_force(
    engine: &SegmentEngine,
    asked: &Declaration,
    author: Author,
    permitted: impl Fn(&Step) -> bool,
    refused: impl Fn(Vec<Difference>) -> Error,
) -> Result<Vec<Mismatch>, Error> {
    let mut mismatches = Vec::new();
    for set in engine.sets() {
        let asked = asked.only(&set.name);
        loop {
            let definition = engine.definition(set)?;
            let stored = StoredSet::read(&definition.text, engine.path())?;
            let step = compare_set(engine.creation_options(), &stored, &asked, author).map_err(&refused)?;
            match step.filter(&permitted) {
                None | Some(Step::Unchanged) => {}
                Some(Step::Keep(mismatch)) => mismatches.push(mismatch),
                Some(Step::Change { to, mismatch }) => {
                    match engine.apply(set, definition.generation, &to.to_text()?)? {
                        Applied::InForce => mismatches.push(mismatch),
                        Applied::Superseded => continue,
                        Applied::TooLong => return Err(refused(vec![grown_too_long(&set.name)])),
                    }
                }
            }
            break;
        }
    }
    Ok(mismatches)
}

pub(super) fn grown_too_long(set: &str) -> Difference {
    Difference::of_state(
        format!("set {set:?}"),
        "its definition has grown too long".to_owned(),
    )
}
