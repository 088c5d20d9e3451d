//! Live changes of a segment's declaration.

use super::bring_into_force::{cannot_apply, grown_too_long};
use crate::api::segment::mismatch::{Author, Step, compare};
use crate::api::segment::{Form, Segment};
use crate::api::snapshot::{FileReader, SegmentReader};
use crate::declaration::Declaration;
use crate::error::{Difference, Error};

impl Segment {
    /// The declaration in force now: the one that the segment was created with, and the changes since.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let of = |capacity| Declaration::new().add_set(SetDeclaration::new("api")
    /// #     .add_limit(Limit::calls("requests", capacity, Duration::from_secs(60))));
    /// # let segment = Segment::create(directory.path().join("limits"), &of(10))?;
    /// segment.apply(&of(20))?;
    /// assert!(segment.declaration_in_force()?.to_toml()?.contains("capacity = 20"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SegmentError::Damaged`](crate::SegmentError::Damaged) if a definition cannot be read.
    pub fn declaration_in_force(&self) -> Result<Declaration, Error> {
        let files = self.files();
        let files = files.iter().map(|file| file.declaration_in_force());
        let files = files.collect::<Result<Vec<_>, _>>()?;
        Ok(Declaration::joined(files.iter()))
    }

    /// Changes limits of the live segment to what `declaration` says, for all processes at once. Returns what was
    /// changed.
    ///
    /// What can change in place: capacities, windows and bursts, offsets and time zones of calendar windows, leases,
    /// metadata, shadow, `near_limit`, `refund`, `collect_within`, the size of [batches](crate::Limit::credit), how
    /// hosts share a limit, what happens to new keys when the table is full, further tiers, the bounds of an adaptive
    /// limit, and which of the algorithms with the same rule ([`Gcra`](crate::Algorithm::Gcra),
    /// [`TokenBucket`](crate::Algorithm::TokenBucket), [`LeakyBucket`](crate::Algorithm::LeakyBucket)) a limit has. If
    /// anything else differs, the change is refused as a whole, and the error names all such differences. A concurrency
    /// can be raised as far as there are [holds](crate::SetDeclaration::holds) for it, so declare more of them if you
    /// may need to raise it. A sliding window keeps its [entries](crate::Limit::entries): if a new segment would have
    /// more for the new capacity, units come back late by up to 1/entries of the window, and the change says so.
    ///
    /// Nothing is lost and nothing is given away. A bucket keeps what it holds, up to its new burst, and refills at the
    /// new rate from now on: raising a limit does not grant anything for the past. What a window has counted stays
    /// counted, against the new capacity. What is held stays held; units of a rate that were reserved and not used do
    /// not come back after the change. A set changes as a whole; several sets change one by one. If the process dies
    /// midway, the next process that uses the set finishes the change.
    ///
    /// In a [directory](Self#a-file-for-each-set), sets that do not exist yet are created, and those that are not
    /// declared stay as they are.
    ///
    /// Such a change counts as an operator's: programs that open the segment with
    /// [`OnMismatch::Apply`](crate::declare::OnMismatch::Apply) leave it alone, unless their declaration has a higher
    /// [version](Declaration::version). If `declaration` has a version, even a lower one, that version is in force
    /// afterwards; otherwise the version stays.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// let of = |capacity| {
    ///     Declaration::new().add_set(
    ///         SetDeclaration::new("api").add_limit(Limit::calls("requests", capacity, Duration::from_secs(60))),
    ///     )
    /// };
    /// let segment = Segment::create(directory.path().join("limits"), &of(10))?;
    /// let changes = segment.apply(&of(20))?;
    /// assert!(changes.iter().any(|change| change.to_string().contains("capacity")));
    /// assert!(segment.apply(&of(20))?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ChangeError::CannotApply`](crate::ChangeError::CannotApply), [`Error::Declaration`],
    /// [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned).
    pub fn apply(&self, declaration: &Declaration) -> Result<Vec<Difference>, Error> {
        declaration.validate()?;
        match &self.form {
            Form::File(file) => {
                file.compare(declaration)?
                    .map_err(|it| cannot_apply(self.path(), it))?;
                file.apply(declaration)
            }
            Form::Directory(directory) => directory.apply(declaration),
        }
    }
}

impl SegmentReader {
    /// What [`Segment::apply`] would have changed when this reader was opened. Needs no write permission and locks
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`ChangeError::CannotApply`](crate::ChangeError::CannotApply), [`Error::Declaration`].
    pub fn preview(&self, declaration: &Declaration) -> Result<Vec<Difference>, Error> {
        declaration.validate()?;
        if !self.is_directory() {
            let changes = self.first().preview(declaration)?;
            return changes.map_err(|refused| cannot_apply(self.path(), refused));
        }
        declaration.check_for_directory()?;
        let (mut changes, mut refused) = (Vec::new(), Vec::new());
        for set in declaration.sets() {
            match self.files().find(|file| file.has(set.name())) {
                None => changes.push(Difference::of_new_set(set.name())),
                Some(file) => match file.preview(&declaration.in_directory(set.name()))? {
                    Ok(of_file) => changes.extend(of_file),
                    Err(of_file) => refused.extend(of_file),
                },
            }
        }
        if refused.is_empty() {
            Ok(changes)
        } else {
            Err(cannot_apply(self.path(), refused))
        }
    }
}

impl FileReader {
    /// What a change to this declaration would change, or the differences that rule it out.
    fn preview(&self, declaration: &Declaration) -> Result<Result<Vec<Difference>, Vec<Difference>>, Error> {
        let steps = match compare(self.stored(), declaration, Author::Operator) {
            Ok(steps) => steps,
            Err(refused) => return Ok(Err(refused)),
        };
        let mut changes = Vec::new();
        for (step, room) in steps.into_iter().zip(self.definition_rooms()) {
            if let Step::Change { to, mismatch } = step {
                if to.to_text()?.len() as u64 > room {
                    return Ok(Err(vec![grown_too_long(to.set().name())]));
                }
                changes.extend(mismatch.into_differences());
            }
        }
        Ok(Ok(changes))
    }
}
