//! The definitions that a segment holds, compiled to what the engine decides by.

use std::path::Path;

use crate::api::declaration::stored::{StoredDeclaration, StoredSet};
use crate::engine::definition::plan::SetPlan;
use crate::error::{Error, SegmentError};
use crate::shm::file::verified::{CreationOptions, Verified};
use crate::shm::layout::definition_text::Definition;

/// A set by its definition text; none where it does not define one set.
pub(crate) fn compile_one(text: &str) -> Option<SetPlan> {
    StoredSet::from_text(text).ok()?.compile().ok()
}

/// What definitions of all sets declare.
pub(crate) fn read_definitions(
    definitions: &[Definition],
    options: CreationOptions,
    path: &Path,
) -> Result<StoredDeclaration, Error> {
    let texts = definitions.iter().map(|definition| definition.text.as_str());
    StoredDeclaration::read(options, texts, path)
}

/// The declaration that a segment holds, and its sets compiled, each with the generation of its definition, and compared
/// with the directory.
pub(crate) fn compile_definitions(
    verified: &Verified,
    path: &Path,
) -> Result<(StoredDeclaration, Vec<(u64, SetPlan)>), Error> {
    let damaged = |what: String| {
        Error::Segment(SegmentError::Damaged {
            path: path.to_owned(),
            what,
        })
    };
    let stored = read_definitions(&verified.definitions, verified.creation_options, path)?;
    // As a whole, in which no two sets have one name.
    stored
        .to_declaration()
        .compile()
        .map_err(|error| damaged(format!("the definitions do not fit: {error}")))?;
    let plans: Vec<SetPlan> = stored
        .sets()
        .iter()
        .map(StoredSet::compile)
        .collect::<Result<_, _>>()?;
    for (plan, geometry) in plans.iter().zip(&verified.geometry.sets) {
        if plan.shape(geometry.shape.definition_room) != geometry.shape {
            return Err(damaged(format!(
                "the directory entry of set `{}` does not fit its definition",
                plan.name
            )));
        }
    }
    let generations = verified
        .definitions
        .iter()
        .map(|definition| definition.generation);
    Ok((stored, generations.zip(plans).collect()))
}
