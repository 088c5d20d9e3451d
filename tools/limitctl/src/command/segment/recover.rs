//! `limitctl recover`.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use shmlimit::snapshot::{RecoveryReport, SegmentReader, SetRecovery};

use crate::arguments::{Access, Looking, Report};
use crate::exit::{ExitCode, Failure};
use crate::text::{human, sanitise, style};

/// Clean up what dead processes left behind
///
/// Repairs locks and half-done operations, and frees what dead processes hold and their places in the table of processes.
/// All of this happens by itself as soon as a process needs it; this does it now, and says what it did. If something could
/// not be repaired, the exit code is 1.
#[derive(Args, Debug)]
pub struct Recover {
    #[command(flatten)]
    access: Access,

    /// Recount everything that follows from holds, tickets and keys, whether or not it is wrong
    ///
    /// Otherwise that is done only if the counts do not agree. Holds the lock of each set for as long as it takes.
    #[arg(long)]
    rebuild: bool,

    #[command(flatten)]
    looking: Looking,
}

impl Recover {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let recovery = self.recover()?;
        let locked = recovery.report.sets.iter().any(|set| set.locked);
        let problem = recovery.report.sets.iter().any(is_still_broken);
        self.looking.form.print(&recovery)?;
        Ok(if locked {
            ExitCode::UNAVAILABLE
        } else if problem {
            ExitCode::PROBLEM
        } else {
            ExitCode::DONE
        })
    }

    fn recover(&self) -> Result<Recovery, Failure> {
        let path = &self.looking.segment.path;
        let cold_starts_before = SegmentReader::open(path)?.snapshot()?.cold_starts;
        let segment = self.access.options().reclaim(false).open(path)?;
        let started_cold = segment.snapshot()?.cold_starts != cold_starts_before;
        Ok(Recovery {
            path: human::as_text(path),
            started_cold,
            report: if self.rebuild {
                segment.rebuild()?
            } else {
                segment.recover()?
            },
        })
    }
}

/// What was done.
#[derive(Debug, Serialize)]
struct Recovery {
    path: PathBuf,
    /// Whether the file was from another boot or namespace, or a copy, so that its locks and owners were void.
    started_cold: bool,
    #[serde(flatten)]
    report: RecoveryReport,
}

fn is_still_broken(set: &SetRecovery) -> bool {
    set.problem.is_some() || set.repairs.is_some_and(|repairs| repairs.poisoned)
}

impl Report for Recovery {
    fn text(&self) -> String {
        let mut lines = Vec::new();
        if self.started_cold {
            lines.push("voided the locks and owners of another boot, namespace or file".to_owned());
        }
        if self.report.freed_participants > 0 {
            let places = human::quantity(self.report.freed_participants as u64, "place", "places");
            lines.push(format!("freed {places} of dead processes"));
        }
        for set in &self.report.sets {
            let actions = actions(set);
            if !actions.is_empty() {
                let line = sanitise::line(&format!("{}: {}", set.set, actions.join(", ")));
                let style = if is_still_broken(set) {
                    style::BAD
                } else {
                    style::GOOD
                };
                lines.push(style::paint(style, line));
            }
        }
        if lines.is_empty() {
            lines.push("nothing to recover".to_owned());
        }
        lines.insert(0, style::title(&human::path(&self.path)));
        lines.join("\n  ") + "\n"
    }
}

fn actions(set: &SetRecovery) -> Vec<String> {
    let mut actions = Vec::new();
    if let Some(repairs) = set.repairs {
        if repairs.owner_died {
            actions.push("took the lock of a dead process".to_owned());
        }
        if repairs.undone_words > 0 {
            let words = human::quantity(repairs.undone_words as u64, "word", "words");
            actions.push(format!("undid {words} of a half-done operation"));
        }
        if repairs.finished_reset {
            actions.push("carried a reset to its end".to_owned());
        }
        if repairs.rebuilt {
            actions.push("counted the holds again".to_owned());
        }
        if repairs.poisoned {
            actions.push("is poisoned: reset it".to_owned());
        }
    }
    if set.reclaimed > 0 {
        let holds = human::quantity(set.reclaimed, "hold", "holds");
        actions.push(format!("gave back {holds} of dead processes"));
    }
    actions.extend(set.problem.clone());
    actions
}
