//! `limitctl recover`.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use shmlimit::{
    ProcessId, RecoveryReport, SegmentReader, SegmentSnapshot, SetCounts, SetRecovery, SetSnapshot,
};

use crate::arguments::Access;
use crate::command::{as_text, shown};
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::text::{human, sanitise, style};
use crate::whereabouts::Whereabouts;

/// Set right what dead processes left behind
///
/// That is: locks, half-done operations, holds, places in the table of processes.
/// All of it happens by itself as soon as a process needs it; this does it now, and says what it did. Ends with exit
/// code 1 where something could not be set right.
#[derive(Args, Debug)]
pub struct Recover {
    #[command(flatten)]
    access: Access,

    /// Only look, and change nothing
    ///
    /// Does not attach either. Ends with exit code 1 if there is something to recover.
    #[arg(long)]
    check: bool,

    /// Count again what follows from holds, tickets and keys, whether or not it is wrong
    ///
    /// Without it that is done where the counts do not agree. It takes the lock of each set for as long as that takes.
    #[arg(long, conflicts_with = "check")]
    rebuild: bool,

    /// Print JSON
    ///
    /// It says the same as the text, set by set.
    #[arg(long)]
    json: bool,

    /// The segment
    ///
    /// A file that `limitctl create` or a program made. Symbolic links are not followed.
    path: PathBuf,
}

impl Recover {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if self.check {
            let check = self.look()?;
            let found = !check.findings.is_empty();
            self.print(&check, Check::text)?;
            return Ok(if found { ExitCode::Problem } else { ExitCode::Done });
        }
        let recovery = self.recover()?;
        let locked = recovery.report.sets.iter().any(|set| set.locked);
        let problem = recovery.report.sets.iter().any(is_still_broken);
        self.print(&recovery, Recovery::text)?;
        Ok(if locked {
            ExitCode::Unavailable
        } else if problem {
            ExitCode::Problem
        } else {
            ExitCode::Done
        })
    }

    fn recover(&self) -> Result<Recovery, Failure> {
        let cold_starts_before = SegmentReader::open(&self.path)?.snapshot()?.cold_starts;
        let segment = self.access.options().reclaim(false).open(&self.path)?;
        let started_cold = segment.snapshot()?.cold_starts != cold_starts_before;
        Ok(Recovery {
            path: as_text(&self.path),
            started_cold,
            report: if self.rebuild {
                segment.rebuild()?
            } else {
                segment.recover()?
            },
        })
    }

    fn look(&self) -> Result<Check, Failure> {
        let reader = SegmentReader::open(&self.path)?;
        let mut findings = findings(&reader.snapshot()?);
        // Live processes change things during the copy. Whatever dead ones left behind is there at every look.
        if !findings.is_empty() {
            let confirmed = self::findings(&reader.snapshot()?);
            findings.retain(|finding| confirmed.contains(finding));
        }
        Ok(Check {
            path: as_text(&self.path),
            findings,
        })
    }

    fn print<T: Serialize>(&self, value: &T, text: impl Fn(&T) -> String) -> Result<(), Failure> {
        if self.json {
            output::print_json(value)
        } else {
            output::print(&text(value))
        }
    }
}

/// What was done.
#[derive(Debug, Serialize)]
struct Recovery {
    path: PathBuf,
    /// The file was from another boot or namespace, or a copy: its locks and owners were void.
    started_cold: bool,
    #[serde(flatten)]
    report: RecoveryReport,
}

fn is_still_broken(set: &SetRecovery) -> bool {
    set.problem.is_some() || set.repairs.is_some_and(|repairs| repairs.poisoned)
}

impl Recovery {
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
        under_path(&self.path, &lines)
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

/// What needs to be done.
#[derive(Debug, Serialize)]
struct Check {
    path: PathBuf,
    findings: Vec<Finding>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
enum Finding {
    /// The file is from another boot or namespace, or a copy, and no process uses it.
    Cold,
    DeadProcess {
        slot: u64,
        generation: u64,
        pid: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        pid_namespace: Option<u64>,
        name: String,
    },
    OwnerDied {
        set: String,
    },
    /// An operation that no live process will finish.
    HalfDone {
        set: String,
        /// `None` for a reset, or if the journal is damaged.
        words: Option<usize>,
        /// Distinguishes two operations at two looks from one that stands still.
        #[serde(skip)]
        counts: SetCounts,
    },
    HeldByTheDead {
        set: String,
        serial: u64,
        pid: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pid_namespace: Option<u64>,
    },
    Poisoned {
        set: String,
    },
}

fn findings(snapshot: &SegmentSnapshot) -> Vec<Finding> {
    let cold = (Whereabouts::of(snapshot) == Whereabouts::Nowhere).then_some(Finding::Cold);
    let dead = snapshot
        .participants
        .iter()
        .filter(|participant| !participant.alive)
        .map(|participant| Finding::DeadProcess {
            slot: participant.slot,
            generation: participant.generation,
            pid: participant.pid,
            pid_namespace: participant.pid_namespace,
            name: participant.name.clone(),
        });
    let of_sets = snapshot.sets.iter().flat_map(findings_of_set);
    cold.into_iter().chain(dead).chain(of_sets).collect()
}

fn findings_of_set(set: &SetSnapshot) -> Vec<Finding> {
    let name = || set.name.clone();
    let mut findings = Vec::new();
    if set.lock.owner_died {
        findings.push(Finding::OwnerDied { set: name() });
    }
    if set.words_in_flight != Some(0) && !set.lock.is_held() {
        findings.push(Finding::HalfDone {
            set: name(),
            words: set.words_in_flight,
            counts: set.counts,
        });
    }
    let of_the_dead = set.holds.iter().filter(|hold| !hold.owner_alive);
    findings.extend(of_the_dead.map(|hold| Finding::HeldByTheDead {
        set: name(),
        serial: hold.serial,
        pid: hold.owner_pid,
        pid_namespace: hold.owner_namespace,
    }));
    if set.poisoned {
        findings.push(Finding::Poisoned { set: name() });
    }
    findings
}

impl Check {
    fn text(&self) -> String {
        if self.findings.is_empty() {
            return under_path(&self.path, &["nothing to recover".to_owned()]);
        }
        let lines: Vec<String> = self
            .findings
            .iter()
            .map(|finding| style::paint(style::WARNING, sanitise::line(&finding.text())))
            .collect();
        under_path(&self.path, &lines)
    }
}

impl Finding {
    fn text(&self) -> String {
        match self {
            Self::Cold => "is of another boot, namespace or file: its locks and owners are void".to_owned(),
            Self::DeadProcess {
                pid,
                pid_namespace: namespace,
                name,
                ..
            } => {
                let process = ProcessId {
                    pid: *pid,
                    namespace: *namespace,
                };
                format!("process {process} ({name}) died attached")
            }
            Self::OwnerDied { set } => format!("{set}: the owner of the lock died"),
            Self::HalfDone {
                set,
                words: Some(words),
                ..
            } => format!(
                "{set}: an operation that changed {} was left half done",
                human::quantity(*words as u64, "word", "words")
            ),
            Self::HalfDone { set, words: None, .. } => format!("{set}: a reset was left half done"),
            Self::HeldByTheDead {
                set,
                serial,
                pid: Some(pid),
                pid_namespace: namespace,
            } => {
                let process = ProcessId {
                    pid: *pid,
                    namespace: *namespace,
                };
                format!("{set}: hold {serial} belongs to process {process}, which is dead")
            }
            Self::HeldByTheDead {
                set,
                serial,
                pid: None,
                ..
            } => {
                format!("{set}: hold {serial} belongs to a process that is dead")
            }
            Self::Poisoned { set } => format!("{set}: is poisoned"),
        }
    }
}

fn under_path(path: &std::path::Path, lines: &[String]) -> String {
    let mut text = format!("{}\n", style::paint(style::TITLE, shown(path)));
    for line in lines {
        text.push_str(&format!("  {line}\n"));
    }
    text
}
