//! `limitctl doctor`.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Error, OpenError};

use crate::arguments::{Form, Report};
use crate::diagnosis::{
    Finding, Host, Kind, SegmentReport, Severity, Space, directories, examine, obstacle, regular_files,
};
use crate::exit::{ExitCode, Failure};
use crate::set_files::sets_in;
use crate::text::facts::Facts;
use crate::text::{human, sanitise, style};

/// Find out what is wrong with a segment, or with all segments of a directory
///
/// Examines locks, processes, permits, queues, counts, the file, the file system and the host. Each finding says how bad
/// it is, what it means, and which command fixes it. Locks nothing and changes nothing; damaged files are examined as
/// well. Whatever may be transient is looked at again, for up to two seconds.
///
/// If any finding is an error, the exit code is 1. In JSON, the word for each finding stays the same from version to
/// version.
#[derive(Args, Debug)]
pub struct Doctor {
    /// End with exit code 1 for warnings, too
    ///
    /// Otherwise they are only shown. Notes never count.
    #[arg(long)]
    strict: bool,

    #[command(flatten)]
    form: Form,

    /// A segment, or a directory with segments
    ///
    /// Of a directory, examines all segments directly in it, and directories in it that have a file for each set. Files
    /// of other programs are left out; those that this user may not read are counted, because they may be segments.
    #[arg(value_name = "SEGMENT | DIRECTORY", default_value = "/dev/shm")]
    path: PathBuf,
}

/// Everything that was found.
#[derive(Debug, Serialize)]
struct Examination {
    path: PathBuf,
    host: Host,
    segments: Vec<SegmentReport>,
    /// How many files in the directory this user may not read.
    unreadable: u64,
    /// What is wrong with the host or the directory.
    findings: Vec<Finding>,
}

impl Doctor {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let report = Examination::of(&self.path)?;
        self.form.print(&report)?;
        let counts = if self.strict {
            Severity::Warning
        } else {
            Severity::Error
        };
        let is_ill = report.worst().is_some_and(|worst| worst >= counts);
        Ok(if is_ill { ExitCode::PROBLEM } else { ExitCode::DONE })
    }
}

impl Examination {
    fn of(path: &Path) -> Result<Self, Failure> {
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => Failure::from(Error::Open(OpenError::NotFound {
                path: path.to_owned(),
            })),
            _ => Failure::of_system(&source, format_args!("cannot examine {}", human::path(path))),
        };
        let metadata = fs::symlink_metadata(path).map_err(failed)?;
        let mut findings = Vec::new();
        let mut unreadable = 0;
        // This follows a link to a directory, but not to a segment.
        let segments = if path.is_dir() {
            let mut files = regular_files(path).map_err(failed)?;
            if sets_in(path).is_some() {
                findings.extend(of_directory(path, &metadata));
            }
            for (directory, metadata) in directories(path).map_err(failed)? {
                if sets_in(&directory).is_some() {
                    files.extend(regular_files(&directory).map_err(failed)?);
                    findings.extend(of_directory(&directory, &metadata));
                }
            }
            let mut reports = Vec::new();
            for (file, metadata) in &files {
                match Kind::of(file) {
                    Kind::Segment => {
                        let report = examined(file, metadata);
                        // A program may have removed its segment meanwhile.
                        if file.symlink_metadata().is_ok() {
                            reports.push(report);
                        }
                    }
                    Kind::Other => {}
                    Kind::Unreadable => unreadable += 1,
                }
            }
            if reports.is_empty()
                && let Some(space) = Space::under(path)
            {
                findings.extend(space.findings(SMALLEST, "the smallest segment"));
            }
            reports
        } else {
            vec![examined(path, &metadata)]
        };
        let pids: Vec<u64> = segments
            .iter()
            .filter_map(|segment| segment.usage.as_ref())
            .flat_map(|usage| usage.pids.iter().copied())
            .collect();
        let (host, of_host) = Host::examine(&pids);
        findings.extend(of_host);
        Ok(Self {
            path: human::as_text(path),
            host,
            segments,
            unreadable,
            findings,
        })
    }

    fn worst(&self) -> Option<Severity> {
        let of_host = self.findings.iter().map(|finding| finding.severity).max();
        self.segments
            .iter()
            .filter_map(SegmentReport::worst)
            .max()
            .max(of_host)
    }
}

impl Report for Examination {
    fn text(&self) -> String {
        let mut text = self.host.text();
        text.push_str(&findings_text(&self.findings));
        if self.segments.is_empty() {
            text.push_str(&format!("no segments in {}\n", human::path(&self.path)));
        }
        if self.unreadable > 0 {
            let files = human::quantity(self.unreadable, "file", "files");
            text.push_str(&style::paint(
                style::FAINT,
                format!("{files} there cannot be read by this user\n"),
            ));
        }
        for segment in &self.segments {
            text.push('\n');
            text.push_str(&segment.text());
        }
        let count = |severity| {
            let of_segments = self.segments.iter().flat_map(|segment| &segment.findings);
            let all = of_segments.chain(&self.findings);
            all.filter(|finding| finding.severity == severity).count() as u64
        };
        text.push_str(&format!(
            "\n{}, {}, {}\n",
            human::quantity(count(Severity::Error), "error", "errors"),
            human::quantity(count(Severity::Warning), "warning", "warnings"),
            human::quantity(count(Severity::Note), "note", "notes"),
        ));
        text
    }
}

/// What keeps this process from using a directory with a file for each set.
fn of_directory(path: &Path, metadata: &Metadata) -> Vec<Finding> {
    let obstacles = match SegmentReader::open(path).and_then(|reader| reader.diagnose()) {
        Ok(diagnosis) => diagnosis.obstacles,
        Err(error) => vec![error],
    };
    // The other obstacles are in the report on each file.
    let of_directory = obstacles.into_iter().filter(|error| match error {
        Error::Open(OpenError::Untrusted { path: of, .. }) => of.is_dir(),
        Error::Open(OpenError::Misplaced { .. }) => true,
        _ => false,
    });
    of_directory
        .map(|error| obstacle(error, path, metadata, None))
        .collect()
}

/// The report on a file, with its path in a form that JSON can represent.
fn examined(path: &Path, metadata: &Metadata) -> SegmentReport {
    SegmentReport {
        path: human::as_text(path),
        ..examine(path, metadata)
    }
}

/// The size of a segment with one limit and without keys.
const SMALLEST: u64 = 800 << 10;

impl Host {
    fn text(&self) -> String {
        let namespace = |inode: Option<u64>| inode.map_or_else(|| "?".to_owned(), |inode| inode.to_string());
        let namespaces = format!(
            "PID {}, time {}",
            namespace(self.pid_namespace),
            namespace(self.time_namespace)
        );
        let clock_source = self.clock_source.as_deref();
        let clock_source = sanitise::line(clock_source.unwrap_or("unknown"));
        let kernel = format!("Linux {}, {}", self.kernel, self.c_library);
        let mut facts = Facts::default()
            .fact("kernel", sanitise::line(&kernel))
            .fact("namespaces", namespaces)
            .fact("clock", format!("the kernel's clock source is {clock_source}"));
        for limit in &self.memory_limits {
            let used = format!("{} of {}", human::bytes(limit.used), human::bytes(limit.limit));
            facts = facts.fact("memory", format!("{used} used in {}", human::path(&limit.cgroup)));
        }
        format!("{}\n{}", style::title("this host"), facts.render())
    }
}

impl SegmentReport {
    fn text(&self) -> String {
        let named = |number: u32, name: &Option<String>| match name {
            Some(name) => format!("{number} ({name})"),
            None => number.to_string(),
        };
        let file = &self.file;
        let facts_of_file = format!(
            "{}, mode {}, of user {} and group {}",
            human::bytes(file.size),
            file.mode,
            named(file.owner, &file.owner_name),
            named(file.group, &file.group_name)
        );
        let space = file.space.as_ref().map(|space| {
            format!(
                "{}, mounted at {}: {} of {} free",
                sanitise::line(&space.file_system),
                human::path(&space.mounted_at),
                human::bytes(space.free),
                human::bytes(space.total)
            )
        });
        let usage = self.usage.as_ref();
        let processes = usage.map(|usage| {
            format!(
                "{} of {}, and {} dead",
                usage.alive, usage.participant_capacity, usage.dead
            )
        });
        let namespaces =
            usage.map(|usage| format!("PID {}, time {}", usage.pid_namespace, usage.time_namespace));
        let clock = usage.map(|usage| match usage.reads_counter {
            true => "tells the time by the processor's counter".to_owned(),
            false => "tells the time by the system's clock".to_owned(),
        });
        let facts = Facts::default()
            .fact("file", sanitise::line(&facts_of_file))
            .fact("lies on", space)
            .fact("processes", processes)
            .fact("namespaces", namespaces)
            .fact("clock", clock);
        let nothing = format!("  {}\n", style::paint(style::GOOD, "nothing wrong was found"));
        format!(
            "{}\n{}{}{}",
            style::title(&human::path(&self.path)),
            facts.render(),
            if self.findings.is_empty() { &nothing } else { "" },
            findings_text(&self.findings)
        )
    }
}

fn findings_text(findings: &[Finding]) -> String {
    findings.iter().map(Finding::text).collect()
}

impl Finding {
    fn text(&self) -> String {
        let (word, style) = match self.severity {
            Severity::Error => ("error", style::BAD),
            Severity::Warning => ("warning", style::WARNING),
            Severity::Note => ("note", style::FAINT),
        };
        let about = self.set.as_ref().map(|set| format!("set {set}: "));
        let about = about.unwrap_or_default();
        let what = sanitise::line(&format!("{about}{}", self.what));
        let mut text = format!("  {} {}: {what}\n", style::paint(style, word), self.finding);
        text.push_str(&format!("      {}\n", sanitise::line(&self.meaning)));
        if let Some(heal) = &self.heal {
            let heal = style::paint(style::TITLE, sanitise::line(heal));
            text.push_str(&format!("      heal with: {heal}\n"));
        }
        text
    }
}
