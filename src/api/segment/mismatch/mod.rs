//! What to do about a segment that differs from the declaration it is opened with.

mod remedy;

use std::fmt;
use std::path::Path;

pub(crate) use remedy::needs_another_file;
use remedy::{can_be_applied, change_mode, is_in_use};

use crate::declaration::stored::{StoredDeclaration, StoredSet};
use crate::declaration::{Declaration, FleetOptions, SetDeclaration};
use crate::error::{Difference, Error, ProcessId};
use crate::limit::RuleOperations;
use crate::shm::file::attach::Admission;
use crate::shm::file::verified::CreationOptions;
use crate::words::words;

/// What [`open_or_create`](crate::Segment::open_or_create) does if the segment exists with another declaration.
///
/// Sets, limits, kinds, sizes and most algorithms cannot change in a live segment. If they differ, the answer is
/// [`OpenError::ConfigMismatch`](crate::OpenError::ConfigMismatch), unless the segment is unused and to be recreated.
/// Everything else can change, as described at [`Segment::apply`](crate::Segment::apply).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnMismatch {
    /// Changes the live segment as far as possible, for all processes, if this declaration has a higher
    /// [version](Declaration::version) than the one in force, or the same. With equal versions, the process that
    /// starts last wins.
    ///
    /// What is in force stays if it has a higher version, or if an operator has changed it
    /// ([`Segment::apply`](crate::Segment::apply), `limitctl apply`, `limitctl edit`) and this version is not higher.
    ///
    /// [`Segment::mismatches`](crate::Segment::mismatches) lists the differences; with the feature `tracing` each is
    /// also reported as an event.
    Apply,
    /// Treats every difference as [`OpenError::ConfigMismatch`](crate::OpenError::ConfigMismatch), except that what
    /// is in force with a higher version stays.
    #[default]
    Error,
    /// Replaces the file with a new one, losing what was counted, if no other process is attached; otherwise returns
    /// [`OpenError::ConfigMismatch`](crate::OpenError::ConfigMismatch). Handles of the former file in this process then
    /// return [`SegmentError::Removed`](crate::SegmentError::Removed). What is in force stays in the same cases as with
    /// [`Apply`](Self::Apply).
    RecreateIfUnused,
}

words!(OnMismatch, "what can be done about a mismatch", {
    Apply = "apply",
    Error = "error",
    RecreateIfUnused = "recreate_if_unused",
});

/// How a set of a segment, or its file, differed from the declaration that the segment was opened with, and what was
/// done about it.
#[derive(Clone, Debug)]
pub struct Mismatch {
    set: Option<String>,
    outcome: MismatchOutcome,
    differences: Vec<Difference>,
    declared_version: Option<u64>,
    segment_version: Option<u64>,
}

/// What was done about a [`Mismatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MismatchOutcome {
    /// The declaration has a higher version, and is in force now.
    Upgraded,
    /// The declaration has the same version, or neither has one, and it is in force now: the process that starts last
    /// wins.
    Replaced,
    /// The declarations agree, but this process has a newer database of [time zones](crate::declare::TimeZone): what it
    /// says is in force now.
    Renewed,
    /// What is in force has a higher version, and stays.
    KeptNewer,
    /// An operator has changed the set, and the declaration does not have a higher version: what is in force stays.
    KeptEdited,
    /// The file has another [mode](Declaration::mode) than declared. It stays: only its owner should change it,
    /// deliberately.
    KeptMode,
}

words!(MismatchOutcome, "an outcome of a mismatch", {
    Upgraded = "upgraded",
    Replaced = "replaced",
    Renewed = "renewed",
    KeptNewer = "kept_newer",
    KeptEdited = "kept_edited",
    KeptMode = "kept_mode",
});

impl Mismatch {
    /// The mismatch of a file whose mode is not the declared one; `None` if it is.
    pub(crate) fn of_modes(path: &Path, declared: u32, in_segment: u32) -> Option<Self> {
        (declared != in_segment).then(|| Self {
            set: None,
            outcome: MismatchOutcome::KeptMode,
            differences: vec![Difference::of_modes(
                declared,
                in_segment,
                &change_mode(path, declared),
            )],
            declared_version: None,
            segment_version: None,
        })
    }

    /// The name of the set; `None` if it is the file that differs.
    pub fn set(&self) -> Option<&str> {
        self.set.as_deref()
    }

    /// What was done about it.
    pub fn outcome(&self) -> MismatchOutcome {
        self.outcome
    }

    /// The differences, from what was in the segment to what is declared.
    pub fn differences(&self) -> &[Difference] {
        &self.differences
    }

    /// Reports it to the program's `tracing` subscriber. Upgrades and renewals are intended; anything else is worth a
    /// warning.
    #[cfg_attr(
        not(feature = "tracing"),
        expect(clippy::unused_self, reason = "without a subscriber there is nothing to tell")
    )]
    pub(crate) fn report(&self, _path: &Path) {
        #[cfg(feature = "tracing")]
        {
            let path = _path.display();
            let Self {
                set,
                declared_version,
                segment_version,
                ..
            } = self;
            if matches!(self.outcome, MismatchOutcome::Upgraded | MismatchOutcome::Renewed) {
                tracing::info!(%path, set, declared_version, segment_version, "{self}");
            } else {
                tracing::warn!(%path, set, declared_version, segment_version, "{self}");
            }
        }
    }

    pub(crate) fn into_differences(self) -> Vec<Difference> {
        self.differences
    }

    /// The version of the declaration, if it has one.
    pub fn declared_version(&self) -> Option<u64> {
        self.declared_version
    }

    /// The version that the set had in the segment, if any.
    pub fn segment_version(&self) -> Option<u64> {
        self.segment_version
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.set().unwrap_or_default();
        match self.outcome {
            MismatchOutcome::Upgraded => {
                write!(f, "set `{set}` was changed to a declaration of a higher version")
            }
            MismatchOutcome::Replaced => write!(
                f,
                "set `{set}` was changed to another declaration of the same version, as the process that starts last \
                 wins; give declarations versions to tell which is the newer"
            ),
            MismatchOutcome::Renewed => write!(
                f,
                "set `{set}` has the offsets of its time zones from a newer database"
            ),
            MismatchOutcome::KeptNewer => write!(
                f,
                "set `{set}` stays as a declaration of a higher version has made it, and differs from this one"
            ),
            MismatchOutcome::KeptEdited => write!(
                f,
                "set `{set}` stays as an operator has changed it, and differs from this declaration; a higher version \
                 of it, or `limitctl apply`, changes it"
            ),
            MismatchOutcome::KeptMode => {
                f.write_str("the file keeps its mode, which differs from that declared")
            }
        }?;
        for (index, difference) in self.differences.iter().enumerate() {
            write!(f, "{} {difference}", if index == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

/// Who asks for the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    /// A program that opens the segment with its declaration.
    Program,
    /// An operator, who changes the live segment deliberately.
    Operator,
}

/// What to do with one set.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Unchanged,
    Change { to: Box<StoredSet>, mismatch: Mismatch },
    Keep(Mismatch),
}

impl Step {
    /// The differences that [`OnMismatch::Error`] does not allow.
    fn forbidden(&self) -> &[Difference] {
        match self {
            Self::Unchanged => &[],
            Self::Change { mismatch, .. } if mismatch.outcome == MismatchOutcome::Renewed => &[],
            Self::Keep(mismatch) if mismatch.outcome == MismatchOutcome::KeptNewer => &[],
            Self::Change { mismatch, .. } | Self::Keep(mismatch) => &mismatch.differences,
        }
    }

    /// Whether anything but the version changes.
    fn changes_limits(&self) -> bool {
        match self {
            Self::Change { mismatch, .. } => {
                let is_of_limits = |it: &Difference| !it.is_of_versions() && !it.is_of_offsets();
                mismatch.differences.iter().any(is_of_limits)
            }
            Self::Unchanged | Self::Keep(_) => false,
        }
    }
}

/// What to do with each set of `stored` if `author` declares `asked`.
///
/// # Errors
///
/// The differences that cannot be changed in a live segment.
pub(crate) fn compare(
    stored: &StoredDeclaration,
    asked: &Declaration,
    author: Author,
) -> Result<Vec<Step>, Vec<Difference>> {
    let applied = applied(&stored.to_declaration(), asked)?;
    let version = asked.segment().version();
    let steps = stored.sets().iter().zip(applied.sets());
    Ok(steps
        .map(|(stored, set)| step(stored, set, applied.fleet_options(), version, author))
        .collect())
}

/// What to do with one set if `author` declares `asked`, which declares no other set; `None` if it does not declare
/// this one.
///
/// # Errors
///
/// See [`compare`].
pub(crate) fn compare_set(
    options: CreationOptions,
    stored: &StoredSet,
    asked: &Declaration,
    author: Author,
) -> Result<Option<Step>, Vec<Difference>> {
    let applied = applied(&stored.to_declaration().created_with(options), asked)?;
    let version = asked.segment().version();
    let set = applied.sets().first();
    Ok(set.map(|set| step(stored, set, applied.fleet_options(), version, author)))
}

/// The result of applying `asked` to `in_force`, the declaration that the segment holds.
fn applied(in_force: &Declaration, asked: &Declaration) -> Result<Declaration, Vec<Difference>> {
    let applied = asked.applied_to(in_force)?;
    let misfits = states_that_do_not_fit(in_force, &applied);
    if misfits.is_empty() {
        Ok(applied)
    } else {
        Err(misfits)
    }
}

fn step(
    stored: &StoredSet,
    set: &SetDeclaration,
    fleet: Option<&FleetOptions>,
    version: Option<u64>,
    author: Author,
) -> Step {
    let changed = Declaration::new().of_fleet(fleet.cloned()).add_set(set.clone());
    let mut differences = changed.differences(&stored.to_declaration());
    set.note_short_logs(&mut differences);
    match author {
        Author::Program => {
            let declared = StoredSet::declared(set.clone(), version).of_fleet(fleet);
            step_of_program(stored, declared, differences)
        }
        Author::Operator => {
            let edited = StoredSet::edited(set.clone(), version.or(stored.version())).of_fleet(fleet);
            step_of_operator(stored, edited, differences)
        }
    }
}

fn step_of_program(stored: &StoredSet, declared: StoredSet, mut differences: Vec<Difference>) -> Step {
    let (version, in_force) = (declared.version(), stored.version());
    let outcome = if version > in_force {
        let name = declared.set().name();
        differences.insert(0, Difference::of_versions(name, version, in_force));
        MismatchOutcome::Upgraded
    } else if differences.is_empty() {
        return Step::Unchanged;
    } else if version < in_force {
        MismatchOutcome::KeptNewer
    } else if differences.iter().all(Difference::is_of_offsets) {
        MismatchOutcome::Renewed
    } else if stored.is_edited() {
        MismatchOutcome::KeptEdited
    } else {
        MismatchOutcome::Replaced
    };
    let mismatch = mismatch(stored, &declared, outcome, differences);
    let to = match outcome {
        MismatchOutcome::Upgraded | MismatchOutcome::Replaced => declared,
        // What an operator has changed stays.
        MismatchOutcome::Renewed if stored.is_edited() => {
            StoredSet::edited(declared.set().clone(), version).of_fleet(declared.fleet())
        }
        MismatchOutcome::Renewed => declared,
        _ => return Step::Keep(mismatch),
    };
    Step::Change {
        to: Box::new(to),
        mismatch,
    }
}

fn step_of_operator(stored: &StoredSet, edited: StoredSet, mut differences: Vec<Difference>) -> Step {
    let (version, in_force) = (edited.version(), stored.version());
    if version != in_force {
        let name = edited.set().name();
        differences.insert(0, Difference::of_versions(name, version, in_force));
    }
    if differences.is_empty() {
        return Step::Unchanged;
    }
    let mismatch = mismatch(stored, &edited, MismatchOutcome::Replaced, differences);
    Step::Change {
        to: Box::new(edited),
        mismatch,
    }
}

fn mismatch(
    stored: &StoredSet,
    declared: &StoredSet,
    outcome: MismatchOutcome,
    differences: Vec<Difference>,
) -> Mismatch {
    Mismatch {
        set: Some(declared.set().name().to_owned()),
        outcome,
        differences,
        declared_version: declared.version(),
        segment_version: stored.version(),
    }
}

/// The limits that cannot continue with their present state. Both declarations have been validated.
fn states_that_do_not_fit(stored: &Declaration, changed: &Declaration) -> Vec<Difference> {
    let (stored, changed) = match (stored.compile(), changed.compile()) {
        (Ok(stored), Ok(changed)) => (stored, changed),
        (Err(error), _) | (_, Err(error)) => {
            return vec![Difference::of_state("declaration".to_owned(), error.to_string())];
        }
    };
    let mut misfits = Vec::new();
    for (old, new) in stored.iter().zip(&changed) {
        // Each unit held at once needs a hold, and the number of holds is fixed when the file is created.
        let holds = u64::from(new.hold_capacity);
        if (old.max_held()..new.max_held()).contains(&holds) {
            misfits.push(Difference::of_state(
                format!("set {:?} / holds", new.name),
                format!(
                    "{holds} are too few for a concurrency of {}, and only a new segment can have more",
                    new.max_held()
                ),
            ));
        }
        let of_tiers = old.tiers.iter().zip(&new.tiers);
        let of_tiers = of_tiers.flat_map(|(old, new)| old.limits.iter().zip(&new.limits));
        for (old_limit, limit) in old.limits.iter().zip(&new.limits).chain(of_tiers) {
            if !limit.rule.can_migrate(&old_limit.rule) {
                misfits.push(Difference::of_state(
                    format!("set {:?} / limit {:?}", new.name, limit.name),
                    "what it has counted cannot be carried over to the new window".to_owned(),
                ));
            }
        }
    }
    misfits
}

impl OnMismatch {
    /// Whether a process that has joined may take `step`. A step that is not permitted can only have arisen after it
    /// joined, from changes by other processes.
    pub(crate) fn permits(self, step: &Step) -> bool {
        match self {
            Self::Apply => true,
            Self::Error => match step {
                Step::Change { mismatch, .. } => mismatch.outcome == MismatchOutcome::Renewed,
                Step::Unchanged | Step::Keep(_) => true,
            },
            Self::RecreateIfUnused => !step.changes_limits(),
        }
    }

    /// Whether a process with the declaration `asked` may join a segment that holds `stored`, or is to replace it.
    /// `other_processes` are those attached.
    pub(crate) fn admission(
        self,
        path: &Path,
        stored: &StoredDeclaration,
        asked: &Declaration,
        other_processes: impl FnOnce() -> Vec<ProcessId>,
    ) -> Result<Admission, Error> {
        let steps = compare(stored, asked, Author::Program);
        match (self, steps) {
            (Self::Apply, Ok(_)) => Ok(Admission::Join),
            (Self::Apply | Self::Error, Err(immutable)) => {
                Err(needs_another_file(path, stored, asked, &immutable))
            }
            (Self::Error, Ok(steps)) => {
                let differences: Vec<&Difference> = steps.iter().flat_map(Step::forbidden).collect();
                if differences.is_empty() {
                    Ok(Admission::Join)
                } else {
                    Err(can_be_applied(path, &differences))
                }
            }
            (Self::RecreateIfUnused, Ok(steps)) if !steps.iter().any(Step::changes_limits) => {
                Ok(Admission::Join)
            }
            (Self::RecreateIfUnused, _) => {
                let others = other_processes();
                if others.is_empty() {
                    Ok(Admission::Replace)
                } else {
                    Err(is_in_use(path, stored, asked, &others))
                }
            }
        }
    }
}
