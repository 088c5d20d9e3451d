//! Findings: what was found, what it means, and what fixes it.

use std::time::Duration;

use serde::Serialize;

use super::condition::{Condition, Severity};

/// The least age of a finding that must be present at two looks, because running processes may clear it in between.
const TWO_LOOKS: Duration = Duration::from_millis(30);

/// One thing that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub severity: Severity,
    /// Its kind, as a stable identifier.
    pub finding: Condition,
    /// The set that it is about, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
    /// The process that it is about, if it can be named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u64>,
    /// What was found.
    pub what: String,
    /// What it means for those who use the segment.
    pub meaning: String,
    /// The command that fixes it, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heal: Option<String>,
    /// How long it must last to be reported.
    #[serde(skip)]
    pub min_age: Duration,
    /// What identifies the same finding at another look, in addition to its kind, set and process.
    #[serde(skip)]
    still: String,
}

impl Finding {
    pub fn new(
        severity: Severity,
        finding: Condition,
        what: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Self {
        debug_assert!(finding.severities().contains(&severity), "{finding} {severity:?}");
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

    /// A finding that the segment, or a part of it, does not work.
    pub fn error(finding: Condition, what: impl Into<String>, meaning: impl Into<String>) -> Self {
        Self::new(Severity::Error, finding, what, meaning)
    }

    /// A finding that is repaired without help at the next use, or may become an error.
    pub fn warning(finding: Condition, what: impl Into<String>, meaning: impl Into<String>) -> Self {
        Self::new(Severity::Warning, finding, what, meaning)
    }

    /// A finding that is worth knowing, although nothing needs to be done.
    pub fn note(finding: Condition, what: impl Into<String>, meaning: impl Into<String>) -> Self {
        Self::new(Severity::Note, finding, what, meaning)
    }

    pub fn of_set(mut self, set: &str) -> Self {
        self.set = Some(set.to_owned());
        self
    }

    pub fn of_process(mut self, pid: Option<u64>) -> Self {
        self.pid = pid;
        self
    }

    pub fn healed_by(mut self, command: impl Into<Option<String>>) -> Self {
        self.heal = command.into();
        self
    }

    /// Requires the finding to be present at two looks, with the same `still`.
    pub fn twice(self, still: impl Into<String>) -> Self {
        self.after(TWO_LOOKS, still)
    }

    /// Requires the finding to be present at each look for this long.
    pub fn after(mut self, min_age: Duration, still: impl Into<String>) -> Self {
        self.min_age = min_age;
        self.still = still.into();
        self
    }

    /// Whether `other`, from another look, is the same finding.
    pub fn is_still(&self, other: &Self) -> bool {
        (&self.finding, &self.set, self.pid, &self.still)
            == (&other.finding, &other.set, other.pid, &other.still)
    }
}
