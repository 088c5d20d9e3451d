//! Processes that are frozen with their cgroup, or with one above it. They do not run, but do not count as stopped.

use std::fs;
use std::path::{Path, PathBuf};

use super::hierarchy::Hierarchy;
use crate::diagnosis::remedy::quoted;

/// A frozen cgroup, and how to thaw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenCgroup {
    switch: PathBuf,
    thawed: &'static str,
}

impl FrozenCgroup {
    /// The command that makes its processes continue.
    pub fn thaw(&self) -> String {
        format!("echo {} > {}", self.thawed, quoted(&self.switch))
    }
}

/// The cgroup that a process is frozen with. Returns `None` if it is not frozen, or if that cannot be seen from here.
pub fn frozen_cgroup(pid: u64) -> Option<FrozenCgroup> {
    let hierarchies = Hierarchy::of(pid);
    let directories = |found: Option<Vec<PathBuf>>| found.unwrap_or_default();
    let second = directories(hierarchies.second_version());
    let first = directories(hierarchies.first_version("freezer"));
    let says = |directory: &Path, file: &str, word: &str| {
        fs::read_to_string(directory.join(file)).is_ok_and(|text| text.lines().any(|line| line == word))
    };
    // Take the topmost of several, because everything below it stays frozen until it is thawed.
    let frozen = second.iter().rev().find(|it| says(it, "cgroup.freeze", "1"));
    if let Some(directory) = frozen {
        return Some(FrozenCgroup {
            switch: directory.join("cgroup.freeze"),
            thawed: "0",
        });
    }
    let frozen = first
        .iter()
        .rev()
        .find(|it| says(it, "freezer.self_freezing", "1"));
    frozen.map(|directory| FrozenCgroup {
        switch: directory.join("freezer.state"),
        thawed: "THAWED",
    })
}
