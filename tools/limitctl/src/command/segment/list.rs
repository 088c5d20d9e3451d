//! `limitctl list`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use shmlimit::snapshot::{SegmentReader, SegmentSnapshot};
use shmlimit::{Error, OpenError, SegmentError};

use crate::arguments::{Form, Report};
use crate::diagnosis::{directories, quoted, regular_files};
use crate::exit::{ExitCode, Failure};
use crate::set_files::{sets_in, undeclared};
use crate::state::State;
use crate::text::table::{Cell, Table};
use crate::text::{human, sanitise, style};

/// List the segments of a directory
///
/// Shows the state of each: ok; retired (no longer to be used); elsewhere (in use in another namespace, such as that of a
/// container: here it can only be looked at); cold (of another boot or namespace, or a copy, and in use nowhere: the next
/// process to open it voids its locks and owners); foreign format; damaged. Other files are left out. Attaches to
/// nothing, locks nothing and changes nothing.
///
/// A directory with a file for each set is one segment. If some of its sets are in use, those to which no process is
/// attached are named: no running program declares them. If they will not come back, remove them by the paths of their
/// files, with `limitctl remove`. In JSON, paths are full.
#[derive(Args, Debug)]
pub struct List {
    #[command(flatten)]
    form: Form,

    /// The directory
    ///
    /// Directories inside it are shown if they have a file for each set. If it has a file for each set itself, each set
    /// is shown.
    #[arg(default_value = "/dev/shm")]
    directory: PathBuf,
}

/// The segments in a directory.
#[derive(Debug, Serialize)]
struct Listing {
    directory: PathBuf,
    segments: Vec<Entry>,
    /// How many files this user may not read; they may or may not be segments.
    unexamined: u64,
}

#[derive(Debug, Serialize)]
struct Entry {
    path: PathBuf,
    state: State,
    /// What is wrong, if anything.
    problem: Option<String>,
    /// The files of sets that no running program declares: no process has them open, although some process has other
    /// sets of the directory open.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    undeclared: Vec<PathBuf>,
    /// What could be read, if anything.
    #[serde(flatten)]
    summary: Option<Summary>,
}

#[derive(Debug, Serialize)]
struct Summary {
    size: u64,
    sets: usize,
    alive: usize,
    dead: usize,
    participant_capacity: u64,
    #[serde(serialize_with = "human::as_seconds")]
    created_utc: Duration,
}

impl List {
    pub fn run(self) -> Result<ExitCode, Failure> {
        self.form.print(&Listing::of(&self.directory)?)
    }
}

impl Listing {
    fn of(directory: &Path) -> Result<Self, Error> {
        let failed = |source: io::Error| {
            Error::Open(OpenError::Io {
                action: "list",
                path: directory.to_owned(),
                source,
            })
        };
        let mut listing = Self {
            directory: human::as_text(directory),
            segments: Vec::new(),
            unexamined: 0,
        };
        for (file, _) in regular_files(directory).map_err(failed)? {
            listing.add(&file)?;
        }
        for (directory, _) in directories(directory).map_err(failed)? {
            listing.add_directory(&directory)?;
        }
        if let Some(files) = sets_in(directory) {
            let undeclared = undeclared(&files);
            for entry in &mut listing.segments {
                if undeclared.contains(&entry.path) {
                    entry.undeclared.push(entry.path.clone());
                }
            }
        }
        listing
            .segments
            .sort_unstable_by(|one, other| one.path.cmp(&other.path));
        Ok(listing)
    }

    /// Adds the segment at a path, if it is one that can be shown.
    fn add(&mut self, path: &Path) -> Result<Option<&mut Entry>, Error> {
        let entry = match SegmentReader::open(path).and_then(|reader| reader.snapshot()) {
            Ok(snapshot) => Entry::readable(path, &snapshot),
            Err(Error::Open(OpenError::NotASegment { .. } | OpenError::NotFound { .. })) => return Ok(None),
            // A file that is named like the directory of a segment may belong to another program.
            Err(Error::Open(OpenError::NotADirectory { .. })) if !is_segment(path) => return Ok(None),
            Err(error @ Error::Open(OpenError::UnsupportedFileSystem { .. })) => return Err(error),
            Err(error @ Error::Open(OpenError::Incompatible { .. })) => {
                Entry::unreadable(path, State::ForeignFormat, error)
            }
            Err(
                error @ (Error::Open(
                    OpenError::WrongSize { .. }
                    | OpenError::Misplaced { .. }
                    | OpenError::NotADirectory { .. },
                )
                | Error::Segment(SegmentError::Damaged { .. })),
            ) => Entry::unreadable(path, State::Damaged, error),
            Err(_) => {
                self.unexamined += 1;
                return Ok(None);
            }
        };
        self.segments.push(entry);
        Ok(self.segments.last_mut())
    }

    /// Adds a directory, if it has a file for each set. Does not look into other directories.
    fn add_directory(&mut self, path: &Path) -> Result<(), Error> {
        if let Some(files) = sets_in(path)
            && let Some(entry) = self.add(path)?
        {
            entry.undeclared = undeclared(&files);
        }
        Ok(())
    }
}

impl Report for Listing {
    fn text(&self) -> String {
        let mut text = if self.segments.is_empty() {
            format!("no segments in {}\n", human::path(&self.directory))
        } else {
            self.table()
        };
        if self.unexamined > 0 {
            let files = human::quantity(self.unexamined, "file", "files");
            text.push_str(&style::paint(
                style::FAINT,
                format!("{files} could not be examined\n"),
            ));
        }
        text
    }
}

impl Listing {
    fn table(&self) -> String {
        let summary = |text: fn(&Summary) -> String| {
            move |entry: &Entry| entry.summary.as_ref().map(text).unwrap_or_default()
        };
        let processes = |summary: &Summary| match summary.dead {
            0 => summary.alive.to_string(),
            dead => format!("{} + {dead} dead", summary.alive),
        };
        Table::of(&self.segments)
            .left("SEGMENT", |entry| {
                human::path(entry.path.file_name().map_or(&entry.path, Path::new))
            })
            .left("STATE", |entry| {
                Cell::styled(entry.state.word(), entry.state.style())
            })
            .right("SIZE", summary(|summary| human::bytes(summary.size)))
            .right("SETS", summary(|summary| summary.sets.to_string()))
            .right("PROCESSES", summary(processes))
            .left("CREATED", summary(|summary| human::instant(summary.created_utc)))
            .left("PROBLEM", |entry| sanitise::line(&entry.remark()))
            .render(0)
    }
}

impl Entry {
    fn readable(path: &Path, snapshot: &SegmentSnapshot) -> Self {
        let alive = snapshot.participants.iter().filter(|it| it.alive).count();
        Self {
            path: human::as_text(path),
            state: State::of(snapshot),
            problem: None,
            undeclared: Vec::new(),
            summary: Some(Summary {
                size: snapshot.size,
                sets: snapshot.sets.len(),
                alive,
                dead: snapshot.participants.len() - alive,
                participant_capacity: snapshot.participant_capacity,
                created_utc: snapshot.created_utc,
            }),
        }
    }

    fn unreadable(path: &Path, state: State, error: Error) -> Self {
        Self {
            path: human::as_text(path),
            state,
            problem: Some(Failure::from(error).message),
            undeclared: Vec::new(),
            summary: None,
        }
    }

    /// What is wrong, or worth knowing.
    fn remark(&self) -> String {
        if let Some(problem) = &self.problem {
            return problem.clone();
        }
        let commands: Vec<String> = self
            .undeclared
            .iter()
            .map(|path| format!("limitctl remove {}", quoted(path)))
            .collect();
        match &commands[..] {
            [] => String::new(),
            [command] => format!("declared by no process that is attached: {command}"),
            _ => format!(
                "{} sets declared by no process that is attached: {}",
                commands.len(),
                commands.join(" && ")
            ),
        }
    }
}

fn is_segment(path: &Path) -> bool {
    SegmentReader::is_segment(path).unwrap_or(false)
}
