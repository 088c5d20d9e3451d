//! Looks at a segment until what is wrong with it is certain.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Error, OpenError};

use super::condition::{Condition, Severity};
use super::file::FileFacts;
use super::finding::Finding;
use super::look::{Look, Usage};
use super::remedy::Remedies;
use super::{holders, leases, locks, obstacles, queues, time_zones};

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

/// Examines whatever is at a path.
pub fn examine(path: &Path, metadata: &Metadata) -> SegmentReport {
    let file = FileFacts::of(path, metadata);
    let mut findings = Vec::new();
    let mut usage = None;
    let looked = SegmentReader::open(path).and_then(|reader| {
        let (look, certain) = look_until_certain(&reader, path)?;
        Ok((look, certain, time_zones::findings(reader.declaration())))
    });
    match looked {
        Ok((look, certain, of_time_zones)) => {
            usage = Some(look.usage());
            let obstacles = look.diagnosis.obstacles;
            findings.extend(
                obstacles
                    .into_iter()
                    .map(|error| obstacles::obstacle(error, path, metadata, Some(&look.diagnosis.snapshot))),
            );
            findings.extend(certain);
            findings.extend(of_time_zones);
        }
        Err(error) => findings.push(obstacles::obstacle(error, path, metadata, None)),
    }
    let is_misplaced = findings.iter().any(|it| it.finding == Condition::LocksNotKept);
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

/// Looks again for as long as a finding may be transient.
fn look_until_certain(reader: &SegmentReader, path: &Path) -> Result<(Look, Vec<Finding>), Error> {
    let remedies = Remedies::of(path);
    let begun = Instant::now();
    let mut look = Look::at(reader)?;
    let mut found = findings(&look, &remedies);
    loop {
        let longest = found
            .iter()
            .map(|finding| finding.min_age)
            .max()
            .unwrap_or_default();
        let left = longest.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Ok((look, found));
        }
        std::thread::sleep(left.min(PAUSE));
        look = Look::at(reader)?;
        let mut again = findings(&look, &remedies);
        again.retain(|finding| found.iter().any(|before| before.is_still(finding)));
        found = again;
    }
}

/// What is wrong according to one look alone.
fn findings(look: &Look, remedies: &Remedies) -> Vec<Finding> {
    let mut findings = locks::findings(look, remedies);
    findings.extend(obstacles::origin(look, remedies));
    if !look.is_void() {
        findings.extend(holders::findings(look, remedies));
        findings.extend(queues::findings(look, remedies));
        findings.extend(leases::findings(look));
    }
    findings
}

impl SegmentReport {
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

/// Whether a file is a segment, judged by its first bytes.
pub enum Kind {
    Segment,
    /// A file of another program, or one that is gone by now.
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

/// The regular files in a directory. Other kinds are left out, because opening a device or a pipe could have side
/// effects.
pub fn regular_files(directory: &Path) -> std::io::Result<Vec<(PathBuf, Metadata)>> {
    entries(directory, Metadata::is_file)
}

/// The directories in a directory.
pub fn directories(directory: &Path) -> std::io::Result<Vec<(PathBuf, Metadata)>> {
    entries(directory, Metadata::is_dir)
}

fn entries(directory: &Path, is_one: fn(&Metadata) -> bool) -> std::io::Result<Vec<(PathBuf, Metadata)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if let Ok(metadata) = entry.metadata()
            && is_one(&metadata)
        {
            entries.push((entry.path(), metadata));
        }
    }
    entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(entries)
}
