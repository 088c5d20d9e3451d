//! Live changes of what a segment was declared with.

use std::path::Path;

use crate::config::{Declaration, Difference};
use crate::engine::Applied;
use crate::error::Error;
use crate::segment::Segment;
use crate::shm::definition::Definition;
use crate::snapshot::SegmentReader;

impl Segment {
    /// What is in force now: what the segment was created with, and the changes since.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let folder = tempfile::tempdir()?;
    /// # let of = |capacity| Declaration::new().set(SetDeclaration::new("api")
    /// #     .limit(Limit::calls("requests", capacity, Duration::from_secs(60))));
    /// # let segment = Segment::create(folder.path().join("limits"), &of(10))?;
    /// segment.apply(&of(20))?;
    /// assert!(segment.declaration_in_force()?.to_toml()?.contains("capacity = 20"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] where a definition cannot be read.
    pub fn declaration_in_force(&self) -> Result<Declaration, Error> {
        self.declared_by(&self.definitions()?)
    }

    /// Changes limits of the live segment, for all processes at once, to what `declaration` says; answers what was
    /// changed.
    ///
    /// What can change in place: capacities, windows and bursts, leases, metadata, shadow, `near_limit`, what becomes of
    /// new keys of a full table, and the bounds of an adaptive limit. Whatever else differs is refused, all of it named,
    /// and then nothing is changed. A concurrency can be raised as far as there are
    /// [holds](crate::SetDeclaration::holds) for it, so declare more of them where it may have to be.
    ///
    /// Nothing is lost and nothing is given away. What a bucket held stays, at most its new burst, and refills at the new
    /// rate from now on: a raised limit does not grant the past. What a window counted stays counted, against the new
    /// capacity. What is held stays held. A set changes as a whole; of several sets, each by itself. A process that dies
    /// on the way is followed by whoever uses the set next.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let of = |capacity| {
    ///     Declaration::new().set(
    ///         SetDeclaration::new("api").limit(Limit::calls("requests", capacity, Duration::from_secs(60))),
    ///     )
    /// };
    /// let segment = Segment::create(folder.path().join("limits"), &of(10))?;
    /// let changes = segment.apply(&of(20))?;
    /// assert!(changes.iter().any(|change| change.to_string().contains("capacity")));
    /// assert!(segment.apply(&of(20))?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::CannotApply`], [`Error::Declaration`], [`Error::Retired`], [`Error::LockStuck`], [`Error::Poisoned`].
    pub fn apply(&self, declaration: &Declaration) -> Result<Vec<Difference>, Error> {
        declaration.validate()?;
        let engine = &self.shared().engine;
        'again: loop {
            let definitions = self.definitions()?;
            let stored = self.declared_by(&definitions)?;
            let (changed, changes) = changes_to(self.path(), &stored, declaration)?;
            if changes.is_empty() {
                return Ok(changes);
            }
            let present = stored.sets().iter().zip(&definitions);
            for ((set, changed), (present, definition)) in
                engine.sets().iter().zip(changed.sets()).zip(present)
            {
                let changed = Declaration::new().set(changed.clone());
                if changed
                    .differences(&Declaration::new().set(present.clone()))
                    .is_empty()
                {
                    continue;
                }
                let text = changed.to_toml()?;
                match engine.apply(set, definition.generation, &text)? {
                    Applied::InForce => {}
                    Applied::Superseded => continue 'again,
                    Applied::TooLong => {
                        return Err(cannot_apply(self.path(), [grown_too_long(&set.name)]));
                    }
                }
            }
            return Ok(changes);
        }
    }

    /// The definitions of the sets that are in force.
    fn definitions(&self) -> Result<Vec<Definition>, Error> {
        let engine = &self.shared().engine;
        let definitions = engine.sets().iter().map(|set| Ok(engine.definition(set)?));
        definitions.collect()
    }

    /// What definitions of all sets declare.
    fn declared_by(&self, definitions: &[Definition]) -> Result<Declaration, Error> {
        let participants = self.declaration().segment().participants();
        let mut declaration = Declaration::new().participants(participants);
        for definition in definitions {
            let defined = Declaration::from_toml(&definition.text).map_err(|error| Error::Damaged {
                path: self.path().to_owned(),
                what: format!("a set's definition cannot be read: {error}"),
            })?;
            for set in defined.sets() {
                declaration = declaration.set(set.clone());
            }
        }
        Ok(declaration)
    }
}

impl SegmentReader {
    /// What [`Segment::apply`] would change, had it been asked when this was opened. Needs no permission to write, and
    /// locks nothing.
    ///
    /// # Errors
    ///
    /// [`Error::CannotApply`], [`Error::Declaration`].
    pub fn preview(&self, declaration: &Declaration) -> Result<Vec<Difference>, Error> {
        declaration.validate()?;
        let (changed, changes) = changes_to(self.path(), self.declaration(), declaration)?;
        for (set, room) in changed.sets().iter().zip(self.definition_rooms()) {
            let text = Declaration::new().set(set.clone()).to_toml()?;
            if text.len() as u64 > room {
                return Err(cannot_apply(self.path(), [grown_too_long(set.name())]));
            }
        }
        Ok(changes)
    }
}

/// `stored` with what `asked` changes in it, and what that is.
fn changes_to(
    path: &Path,
    stored: &Declaration,
    asked: &Declaration,
) -> Result<(Declaration, Vec<Difference>), Error> {
    let applied = asked
        .applied_to(stored)
        .map_err(|differences| cannot_apply(path, differences.iter().map(ToString::to_string)))?;
    require_states_to_fit(path, stored, &applied.declaration)?;
    Ok((applied.declaration, applied.changes))
}

/// That every limit can go on with the state that it has.
fn require_states_to_fit(path: &Path, stored: &Declaration, changed: &Declaration) -> Result<(), Error> {
    let (stored, changed) = (stored.compile()?, changed.compile()?);
    let mut misfits = Vec::new();
    for (old, new) in stored.iter().zip(&changed) {
        // As many as are held at once need as many holds, and of those there are as many as when the file was made.
        let holds = u64::from(new.hold_capacity);
        if (old.most_held()..new.most_held()).contains(&holds) {
            misfits.push(format!(
                "set `{}` / holds: {holds} are too few for a concurrency of {}, and only a new segment can have more",
                new.name,
                new.most_held()
            ));
        }
        for (old_limit, limit) in old.limits.iter().zip(&new.limits) {
            if !limit.rule.can_carry_over(&old_limit.rule) {
                misfits.push(format!(
                    "set `{}` / limit `{}`: what it has counted cannot be counted on over the new window",
                    new.name, limit.name
                ));
            }
        }
    }
    if misfits.is_empty() {
        Ok(())
    } else {
        Err(cannot_apply(path, misfits))
    }
}

fn grown_too_long(set: &str) -> String {
    format!("the definition of set `{set}` has grown too long")
}

fn cannot_apply(path: &Path, differences: impl IntoIterator<Item = String>) -> Error {
    Error::CannotApply {
        path: path.to_owned(),
        differences: differences.into_iter().collect(),
    }
}
