//! Sets that are made when a process asks for them first.
//!
//! The copies of the declared set lie in the file from its creation on, without names. A name is given by a definition
//! that comes into force in place of the one without, always to the first copy that has none, and never taken back. So
//! two processes that ask for one name at the same time meet at the same copy, and one of them finds that another
//! definition came into force.

use crate::api::declaration::Declaration;
use crate::api::declaration::stored::StoredSet;
use crate::engine::{Applied, SegmentEngine};
use crate::error::{Error, SegmentError};

/// The position of the set of that name, which is given a copy if there is one left; `None` if not.
pub(crate) fn find_or_make(engine: &SegmentEngine, name: &str) -> Result<Option<usize>, Error> {
    if let Some(known) = engine.definitions().find(engine.sets(), name) {
        return Ok(Some(known));
    }
    for (position, set) in engine.sets().iter().enumerate() {
        while set.name.is_spare() {
            Declaration::check_set_name(name)?;
            let definition = engine.definition(set)?;
            let stored = StoredSet::read(&definition.text, engine.path())?;
            let Some(given) = stored.given_to(name) else {
                set.name.follow(&stored.compile()?);
                continue;
            };
            match engine.apply(set, definition.generation, &given.to_text()?)? {
                // Whichever definition it was, the next look finds whether it gives a name, and to which set.
                Applied::InForce | Applied::Superseded => {}
                Applied::TooLong => {
                    return Err(Error::Segment(SegmentError::Damaged {
                        path: engine.path().to_owned(),
                        what: format!(
                            "there is no room for the name of a copy of set `{}`",
                            set.name.declared()
                        ),
                    }));
                }
            }
        }
        if set.name.is(name) {
            return Ok(Some(position));
        }
    }
    Ok(None)
}
