//! Putting a declaration into force, set by set.

use std::path::Path;

use crate::api::segment::mismatch::{Author, Mismatch, MismatchOutcome, Step, compare, compare_set};
use crate::api::segment::shared_segment::SharedSegment;
use crate::declaration::Declaration;
use crate::declaration::stored::{StoredDeclaration, StoredSet};
use crate::engine::{Applied, SegmentEngine};
use crate::error::{ChangeError, Difference, Error};

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
                        // The set keeps the offsets that it has. The declaration is not at fault.
                        Applied::TooLong if mismatch.outcome() == MismatchOutcome::Renewed => {}
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

impl SharedSegment {
    pub(in crate::api) fn declaration_in_force(&self) -> Result<Declaration, Error> {
        Ok(stored_declaration(&self.engine)?.to_declaration())
    }

    /// What an operator's change to this declaration results in, or the differences that rule it out.
    pub(in crate::api::segment) fn compare(
        &self,
        declaration: &Declaration,
    ) -> Result<Result<Vec<Step>, Vec<Difference>>, Error> {
        let stored = stored_declaration(&self.engine)?;
        Ok(compare(&stored, declaration, Author::Operator))
    }

    /// Makes the change.
    pub(in crate::api::segment) fn apply(&self, declaration: &Declaration) -> Result<Vec<Difference>, Error> {
        let engine = &self.engine;
        let refused = |differences| cannot_apply(engine.path(), differences);
        let mismatches = bring_into_force(engine, declaration, Author::Operator, |_| true, refused)?;
        let changes = mismatches.into_iter().flat_map(Mismatch::into_differences);
        Ok(changes.collect())
    }
}

pub(in crate::api::segment) fn cannot_apply(path: &Path, differences: Vec<Difference>) -> Error {
    Error::Change(ChangeError::CannotApply {
        path: path.to_owned(),
        differences,
    })
}
