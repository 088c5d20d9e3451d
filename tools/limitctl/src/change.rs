//! Changing a live segment and reporting what changed: shared by `apply` and `edit`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use shmlimit::declare::Difference;
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Declaration, Segment};

use crate::arguments::{Access, Form, Report};
use crate::exit::{ExitCode, Failure};
use crate::text::{human, sanitise, style};

/// How a change is carried out.
#[derive(Args, Clone, Copy, Debug)]
pub struct Change {
    #[command(flatten)]
    access: Access,

    /// Only say what would be changed, or why it cannot be
    ///
    /// Maps the file read-only and takes no lock.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    form: Form,
}

/// The changes that were made, or would be made.
#[derive(Debug, Serialize)]
struct Changes {
    path: PathBuf,
    dry_run: bool,
    changes: Vec<Step>,
}

/// One value, before and after.
#[derive(Debug, Serialize)]
pub struct Step {
    pub place: String,
    pub before: Option<String>,
    pub after: Option<String>,
    /// A consequence worth mentioning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Change {
    /// Applies the declaration that `asked` makes from the one in force or, with `--dry-run`, only previews it.
    pub fn carry_out(
        self,
        path: &Path,
        asked: impl FnOnce(&Declaration) -> Result<Declaration, Failure>,
    ) -> Result<ExitCode, Failure> {
        let changes = if self.dry_run {
            let reader = SegmentReader::open(path)?;
            reader.preview(&asked(reader.declaration())?)?
        } else {
            let segment = self.access.options().open(path)?;
            segment.apply(&asked(&segment.declaration_in_force()?)?)?
        };
        self.report(path, changes.iter().map(Step::of).collect())
    }

    /// Opens the segment as it is, to change something that is not in a declaration.
    pub fn open(self, path: &Path) -> Result<Segment, Failure> {
        Ok(self.access.options().open(path)?)
    }

    /// Reports the changes that were made, or would be made.
    pub fn report(self, path: &Path, changes: Vec<Step>) -> Result<ExitCode, Failure> {
        let report = Changes {
            path: human::as_text(path),
            dry_run: self.dry_run,
            changes,
        };
        self.form.print(&report)
    }
}

impl Report for Changes {
    fn text(&self) -> String {
        if self.changes.is_empty() {
            return "nothing to change\n".to_owned();
        }
        let mut text = format!(
            "{} {}\n",
            if self.dry_run { "would change" } else { "changed" },
            human::quantity(self.changes.len() as u64, "value", "values")
        );
        for step in &self.changes {
            text.push_str(&format!(
                "  {}: {}\n",
                sanitise::line(&step.place),
                step.in_words()
            ));
            if let Some(note) = &step.note {
                text.push_str(&format!("    {}\n", sanitise::line(note)));
            }
        }
        text
    }
}

impl Step {
    fn of(change: &Difference) -> Self {
        Self {
            place: change.path().to_owned(),
            before: change.in_segment().map(str::to_owned),
            after: change.declared().map(str::to_owned),
            note: change.note().map(str::to_owned),
        }
    }

    fn in_words(&self) -> String {
        let good = |text: String| style::paint(style::GOOD, text);
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => {
                format!("{} to {}", sanitise::line(before), good(sanitise::line(after)))
            }
            // A whole set, whose file is created.
            (None, Some(after)) if after == "present" => good("new".to_owned()).to_string(),
            (None, Some(after)) => format!("{} (was not declared)", good(sanitise::line(after))),
            (Some(before), None) => format!("no longer declared (was {})", sanitise::line(before)),
            (None, None) => "changed".to_owned(),
        }
    }
}
