//! Looks at a segment until it is certain what is wrong with it.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use shmlimit::{Diagnosis, Error, OpenError, ProcessId, SegmentReader, SegmentSnapshot};

use super::file::FileFacts;
use super::finding::{Finding, Severity};
use super::host::process::{activity, id_here};
use super::remedy::Remedies;
use super::{holders, leases, locks, place, queues};
use crate::text::process;
use crate::whereabouts::Whereabouts;

/// The pause between two looks at something that may be transient.
const PAUSE: Duration = Duration::from_millis(50);

/// The report on a segment.
#[derive(Debug, Serialize)]
pub struct SegmentReport {
    pub path: PathBuf,
    #[serde(flatten)]
    pub file: FileFacts,
    /// Who uses it, if it can be read.
    #[serde(flatten)]
    pub usage: Option<Usage>,
    pub findings: Vec<Finding>,
}

/// Who uses a segment.
#[derive(Debug, Serialize)]
pub struct Usage {
    pub sets: usize,
    pub alive: usize,
    pub dead: usize,
    pub participant_capacity: u64,
    /// By its inode; zero if the kernel does not say.
    pub pid_namespace: u64,
    pub time_namespace: u64,
    /// Whether processes that open it here read the processor's counter instead of the system's clock.
    pub reads_counter: bool,
    /// The live processes visible from here, by their ids in this namespace.
    pub pids: Vec<u64>,
}

/// A segment at one instant, or nearly.
#[derive(Debug)]
pub struct Look {
    pub snapshot: SegmentSnapshot,
    pub diagnosis: Diagnosis,
}

impl Look {
    fn at(reader: &SegmentReader) -> Result<Self, Error> {
        Ok(Self {
            snapshot: reader.snapshot()?,
            diagnosis: reader.diagnose()?,
        })
    }

    /// A process's id and, if the segment knows it, its name.
    pub fn process(&self, process: ProcessId) -> String {
        let mut participants = self.snapshot.participants.iter();
        let known = participants.find(|it| process::attached(it) == process);
        known.map_or_else(
            || format!("process {process}"),
            |it| format!("process {process} ({})", it.name),
        )
    }

    /// If a process does not run until another lets it: how, and the command that makes it continue.
    pub fn standstill_of(&self, process: ProcessId) -> Option<(&'static str, String)> {
        let pid = self.id_here(process)?;
        activity(pid)?.standstill(pid)
    }

    /// A process's id in this process's namespace; `None` if it cannot be seen from here.
    fn id_here(&self, process: ProcessId) -> Option<u64> {
        let place = &self.diagnosis.place;
        // A copy, or a file from another boot, names other processes.
        let is_known = place.same_boot && place.same_file;
        let own = place.own_pid_namespace;
        let namespace = match process.namespace {
            None if place.any_pid_namespace => own,
            None => place.pid_namespace,
            Some(namespace) => namespace,
        };
        if namespace == own {
            return is_known.then_some(process.pid);
        }
        id_here(process.pid, namespace).filter(|_| is_known)
    }

    /// Whether its locks and owners are void, because the next process that opens it starts it cold.
    pub fn is_void(&self) -> bool {
        Whereabouts::of(&self.snapshot) == Whereabouts::Nowhere
    }

    /// What is wrong according to this look alone.
    fn findings(&self, remedies: &Remedies) -> Vec<Finding> {
        let mut findings = locks::findings(self, remedies);
        findings.extend(place::origin(self, remedies));
        if !self.is_void() {
            findings.extend(holders::findings(self, remedies));
            findings.extend(queues::findings(self, remedies));
            findings.extend(leases::findings(self));
        }
        findings
    }

    fn usage(&self) -> Usage {
        let participants = &self.snapshot.participants;
        let alive = participants.iter().filter(|it| it.alive);
        Usage {
            sets: self.snapshot.sets.len(),
            alive: alive.clone().count(),
            dead: participants.len() - alive.clone().count(),
            participant_capacity: self.snapshot.participant_capacity,
            pid_namespace: self.diagnosis.place.pid_namespace,
            time_namespace: self.diagnosis.place.time_namespace,
            reads_counter: self.diagnosis.reads_counter,
            pids: alive
                .filter_map(|it| self.id_here(process::attached(it)))
                .collect(),
        }
    }
}

/// Examines whatever is at a path.
pub fn examine(path: &Path, metadata: &Metadata) -> SegmentReport {
    let file = FileFacts::of(path, metadata);
    let mut findings = Vec::new();
    let mut usage = None;
    match SegmentReader::open(path).and_then(|reader| look_until_certain(&reader, path)) {
        Ok((look, certain)) => {
            usage = Some(look.usage());
            let obstacles = look.diagnosis.obstacles;
            findings.extend(
                obstacles
                    .into_iter()
                    .map(|error| place::obstacle(error, path, metadata, Some(&look.snapshot))),
            );
            findings.extend(certain);
        }
        Err(error) => findings.push(place::obstacle(error, path, metadata, None)),
    }
    let is_misplaced = findings.iter().any(|it| it.finding == "locks_not_kept");
    if usage.is_some()
        && !is_misplaced
        && let Some(space) = &file.space
    {
        findings.extend(space.findings(file.size, "another segment of this size"));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    SegmentReport {
        path: path.to_owned(),
        file,
        usage,
        findings,
    }
}

/// Looks again while something was found that may be transient.
fn look_until_certain(reader: &SegmentReader, path: &Path) -> Result<(Look, Vec<Finding>), Error> {
    let remedies = Remedies::of(path);
    let begun = Instant::now();
    let mut look = Look::at(reader)?;
    let mut findings = look.findings(&remedies);
    loop {
        let longest = findings
            .iter()
            .map(|finding| finding.min_age)
            .max()
            .unwrap_or_default();
        let left = longest.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Ok((look, findings));
        }
        std::thread::sleep(left.min(PAUSE));
        look = Look::at(reader)?;
        let mut again = look.findings(&remedies);
        again.retain(|finding| findings.iter().any(|before| before.is_still(finding)));
        findings = again;
    }
}

impl SegmentReport {
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

/// Whether a file is a segment, judging by its first bytes.
pub enum Kind {
    Segment,
    /// Another program's file, or gone by now.
    Other,
    /// This process may not read it, so it may be either.
    Unreadable,
}

impl Kind {
    /// The kind of a regular file.
    pub fn of(path: &Path) -> Self {
        match SegmentReader::is_segment(path) {
            Ok(true) => Self::Segment,
            Err(Error::Open(OpenError::Denied { .. })) => Self::Unreadable,
            Err(Error::Open(OpenError::Io { source, .. }))
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Self::Unreadable
            }
            Ok(false) | Err(_) => Self::Other,
        }
    }
}

/// The regular files in a directory: opening a device or a pipe could have side effects.
pub fn regular_files(directory: &Path) -> std::io::Result<Vec<(PathBuf, Metadata)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if let Ok(metadata) = entry.metadata()
            && metadata.is_file()
        {
            files.push((entry.path(), metadata));
        }
    }
    files.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(files)
}
