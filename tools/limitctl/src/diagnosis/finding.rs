//! What was found: how bad it is, what it means, and what heals it.

use std::time::Duration;

use serde::Serialize;

/// What is there at one look may be gone at the next, where processes go on.
const TWO_LOOKS: Duration = Duration::from_millis(30);

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing is to be done.
    Note,
    /// Heals by itself at the next use, or may become an error.
    Warning,
    /// The segment, or a part of it, does not work.
    Error,
}

/// One thing that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub severity: Severity,
    /// Which kind it is, in a word that stays the same.
    pub finding: &'static str,
    /// The set that it is about, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
    /// The process that it is about, where it can be named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u64>,
    /// What was found.
    pub what: String,
    /// What follows from it.
    pub meaning: String,
    /// The command that heals it, where one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heal: Option<String>,
    /// For how long it must have been there to be believed.
    #[serde(skip)]
    pub min_age: Duration,
    /// What stands still as long as it is the same finding, beside its kind, set and process.
    #[serde(skip)]
    still: String,
}

impl Finding {
    pub fn new(
        severity: Severity,
        finding: &'static str,
        what: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            finding,
            set: None,
            pid: None,
            what: what.into(),
            meaning: meaning.into(),
            heal: None,
            min_age: Duration::ZERO,
            still: String::new(),
        }
    }

    pub fn of_set(mut self, set: &str) -> Self {
        self.set = Some(set.to_owned());
        self
    }

    pub fn of_process(mut self, pid: Option<u64>) -> Self {
        self.pid = pid;
        self
    }

    pub fn healed_by(mut self, command: impl Into<String>) -> Self {
        self.heal = Some(command.into());
        self
    }

    /// It has to be there at two looks, each time with the same `still`.
    pub fn twice(self, still: impl Into<String>) -> Self {
        self.after(TWO_LOOKS, still)
    }

    /// It has to be there at each look for that long.
    pub fn after(mut self, min_age: Duration, still: impl Into<String>) -> Self {
        self.min_age = min_age;
        self.still = still.into();
        self
    }

    /// Whether it is what another look found.
    pub fn is_still(&self, other: &Self) -> bool {
        (self.finding, &self.set, self.pid, &self.still)
            == (other.finding, &other.set, other.pid, &other.still)
    }
}
