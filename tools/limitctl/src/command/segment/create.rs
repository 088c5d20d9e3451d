//! `limitctl create`.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};
use shmlimit::declare::{LockKind, OnMismatch, ParseError};
use shmlimit::snapshot::{SegmentMemory, SegmentReader};
use shmlimit::{
    Algorithm, Declaration, DeclarationError, Error, Limit, OpenError, OpenOptions, SetDeclaration, Window,
};

use super::declared::{for_all, segment_of};
use crate::arguments::declaration_for;
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::set_files::identity;
use crate::text::table::Table;
use crate::text::{human, sanitise};
use crate::uninterrupted::Uninterrupted;

/// Create a segment
///
/// The declaration comes from a file in TOML or, for one simple set, from flags:
///
///     limitctl create /dev/shm/gateway.limits gateway.toml
///
///     limitctl create --set api --calls requests=100/1s --concurrency in_flight=8 /dev/shm/api.limits
///
/// With --all, it creates all segments of a host, from a directory with a declaration for each:
///
///     limitctl create --on-mismatch apply --all /etc/shmlimit /run/shmlimit
///
/// The file appears complete or not at all, and an existing one is not touched unless --on-mismatch says so. All of its memory is reserved at once. Prints how much of it each set takes for rows of keys, holds and waiters; with --dry-run, it only prints that and creates nothing.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
#[command(group = ArgGroup::new("limits").multiple(true).args(["calls", "rate", "concurrency"]).conflicts_with_all(["declaration", "all"]))]
#[command(group = ArgGroup::new("windows").multiple(true).args(["calls", "rate"]))]
pub struct Create {
    /// A directory with declarations, each of a segment: the files in it that end in .toml
    ///
    /// If NAME.toml declares no path, its segment is PATH/NAME.limits. A failure is reported and does not stop the others;
    /// the exit code is that of the first.
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["declaration", "set"])]
    all: Option<PathBuf>,

    /// The name of the set, if flags declare it
    ///
    /// Its limits are those of --calls, --rate and --concurrency, in that order.
    #[arg(
        long,
        value_name = "NAME",
        requires = "limits",
        conflicts_with = "declaration"
    )]
    set: Option<String>,

    /// A limit of calls, such as requests=100/1s
    ///
    /// Admits so many calls in a window, and with most algorithms up to twice as many in some stretch as long as a window:
    /// see --algorithm. "unlimited" only counts them. May be repeated.
    #[arg(long, value_name = "NAME=CAPACITY/WINDOW", value_parser = calls, requires = "set")]
    calls: Vec<Limit>,

    /// A limit of cost, such as tokens=90000/1m
    ///
    /// Like --calls, but each request names its cost. May be repeated.
    #[arg(long, value_name = "NAME=CAPACITY/WINDOW", value_parser = rate, requires = "set")]
    rate: Vec<Limit>,

    /// The algorithm of the limits of --calls and --rate; gcra unless declared
    ///
    /// For a quota that a provider counts, choose sliding_window: it never admits more than the capacity. `limitctl inspect`
    /// shows the most that each limit admits.
    #[arg(long, value_name = "NAME", value_parser = algorithms(), requires = "windows", conflicts_with_all = ["declaration", "all"])]
    algorithm: Option<Algorithm>,

    /// A limit of what is held at the same time, such as in_flight=8
    ///
    /// Each request holds one, unless it names more, until it is done or its process dies. May be repeated.
    #[arg(long, value_name = "NAME=CAPACITY", value_parser = concurrency, requires = "set")]
    concurrency: Vec<Limit>,

    /// The permissions of the file in octal; 0600 unless declared
    ///
    /// The umask takes nothing away. Every user of the segment must be able to read and write it, and everyone who can
    /// write it is trusted.
    #[arg(long, value_parser = octal)]
    mode: Option<u32>,

    /// How many processes may be attached at once; 256 unless declared
    ///
    /// From 1 to 4096. The record of a process takes 384 bytes.
    #[arg(long, value_name = "COUNT")]
    participants: Option<u32>,

    /// The kind of lock; slot unless declared
    ///
    /// "slot" is for processes of any PID namespaces and C libraries, such as containers that share a directory, or a host
    /// and its containers; "robust" is the C library's robust mutex, for processes of one PID namespace with one C library.
    #[arg(long, value_name = "KIND", value_parser = lock_kind)]
    lock: Option<LockKind>,

    /// Only say how much memory the segment would take, and create nothing
    ///
    /// In a directory, each set has a header and process records of its own. A container's /dev/shm has 64 MB unless it
    /// is given more.
    #[arg(long, conflicts_with = "on_mismatch")]
    dry_run: bool,

    /// Open the segment if it already exists, and say what to do if it has another declaration
    ///
    /// If that cannot be done, the segment stays as it is, and an error (exit code 78) names each difference and what to
    /// do about it.
    #[arg(long, value_name = "WAY", value_parser = ways())]
    on_mismatch: Option<OnMismatch>,

    /// Where to create the segment; with --all, the directory for those that have no path
    ///
    /// May be left out if the declaration has a path.
    segment: Option<PathBuf>,

    /// The declaration, in TOML
    ///
    /// A table for the segment, a table for each set, and in that a table for each limit: see the documentation of
    /// shmlimit::Declaration.
    declaration: Option<PathBuf>,
}

/// The possible ways to treat a segment that has another declaration.
fn ways() -> impl TypedValueParser<Value = OnMismatch> {
    let way = |way: OnMismatch, help| PossibleValue::new(way.as_str()).help(help);
    let ways = [
        way(
            OnMismatch::Apply,
            "Change it as `limitctl apply` would, unless it is of a higher version, or an operator has changed it and this version is no higher",
        ),
        way(OnMismatch::Error, "Refuse it, unless it is of a higher version"),
        way(
            OnMismatch::RecreateIfUnused,
            "Replace it where no process is attached; what was counted is lost",
        ),
    ];
    PossibleValuesParser::new(ways).try_map(|word| word.parse::<OnMismatch>())
}

/// The algorithms, with what each admits.
fn algorithms() -> impl TypedValueParser<Value = Algorithm> {
    let algorithm = |algorithm: Algorithm, help| PossibleValue::new(algorithm.as_str()).help(help);
    let algorithms = [
        algorithm(
            Algorithm::Gcra,
            "The capacity at once, and as much again spread over a window",
        ),
        algorithm(Algorithm::TokenBucket, "The same, as a bucket that is refilled"),
        algorithm(Algorithm::LeakyBucket, "The same, as a bucket that drains"),
        algorithm(
            Algorithm::FixedWindow,
            "The capacity in each window, and so up to twice as much across the end of one; for windows of the calendar",
        ),
        algorithm(
            Algorithm::SlidingWindow,
            "Never more than the capacity in any stretch as long as a window",
        ),
        algorithm(
            Algorithm::SlidingWindowCounter,
            "Roughly that, in little memory whatever the capacity",
        ),
    ];
    PossibleValuesParser::new(algorithms).try_map(|word| word.parse::<Algorithm>())
}

impl Create {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if let Some(directory) = &self.all {
            return for_all(directory, |file| self.create_one_of_all(file));
        }
        let (segment, declaration) = match (&self.set, &self.segment, &self.declaration) {
            (Some(name), segment, _) => (
                segment.as_deref(),
                Declaration::new().add_set(self.simple_set(name)),
            ),
            (None, Some(segment), Some(file)) => (Some(segment.as_path()), declaration_for(segment, file)?),
            // A single path names a declaration, which says where to create its segment.
            (None, Some(file), None) => match Declaration::from_toml_file(file) {
                Err(DeclarationError::Unreadable { .. }) => return Err(nothing_declared(Some(file))),
                declaration => (None, declaration?),
            },
            (None, None, _) => return Err(nothing_declared(None)),
        };
        let declaration = self.completed(declaration)?;
        let path = segment.or(declaration.segment().path());
        if self.dry_run {
            say_memory(&declaration, path, None)?;
            return Ok(ExitCode::DONE);
        }
        let Some(path) = path else {
            return Err(Failure::usage(
                "neither the arguments nor the declaration says where to create the segment: add a path, as in \
                 `limitctl create SEGMENT DECLARATION`",
            ));
        };
        self.create(&declaration, path)?;
        Ok(ExitCode::DONE)
    }

    fn create_one_of_all(&self, file: &Path) -> Result<(), Failure> {
        let declaration = self.completed(Declaration::from_toml_file(file)?)?;
        let path = segment_of(file, &declaration, self.segment.as_deref());
        if self.dry_run {
            return say_memory(&declaration, path.ok().as_deref(), Some(file));
        }
        self.create(&declaration, &path?)
    }

    /// Creates a segment, or finds or changes an existing one, and reports which.
    fn create(&self, declaration: &Declaration, path: &Path) -> Result<(), Failure> {
        let options = OpenOptions::new();
        // It is kept open, so that its successor cannot get the same inode number.
        let former = SegmentReader::open(path).ok();
        let former_files = former.as_ref().and(identity(path));
        let uninterrupted = Uninterrupted::begin()?;
        let outcome = match self.on_mismatch {
            Some(way) => options.on_mismatch(way).open_or_create(path, declaration),
            None => options.create(path, declaration),
        };
        drop(uninterrupted);
        let opened = outcome.map_err(|error| {
            let exists = matches!(error, Error::Open(OpenError::AlreadyExists { .. }));
            let mut failure = Failure::while_creating(error);
            if exists {
                failure
                    .message
                    .push_str("; with --on-mismatch error, one that has the same declaration is enough");
            }
            failure
        })?;
        let mismatches: Vec<String> = opened
            .mismatches()
            .iter()
            .map(|mismatch| format!("  {}\n", sanitise::line(&mismatch.to_string())))
            .collect();
        drop(opened);
        for warning in declaration.warnings() {
            output::complain(&format!("warning: {warning}"));
        }
        let files = identity(path).unwrap_or_default();
        let done = match former_files {
            None => "created",
            Some(former) if former == files => "found",
            Some(former) if former.iter().all(|file| files.contains(file)) => "added to",
            Some(_) => "recreated",
        };
        let reader = SegmentReader::open(path)?;
        let segment = reader.snapshot()?;
        output::print(&format!(
            "{done} {}: {}, {}\n{}{}",
            human::path(path),
            human::quantity(segment.sets.len() as u64, "set", "sets"),
            human::bytes(segment.size),
            mismatches.concat(),
            memory_text(&reader.memory(), segment.participant_capacity),
        ))
    }

    /// Completes the declaration by the arguments.
    fn completed(&self, mut declaration: Declaration) -> Result<Declaration, Failure> {
        if let Some(mode) = self.mode {
            declaration = declaration.mode(mode);
        }
        if let Some(participants) = self.participants {
            declaration = declaration.participants(participants);
        }
        if let Some(lock) = self.lock {
            declaration = declaration.lock(lock);
        }
        declaration.validate()?;
        Ok(declaration)
    }

    fn simple_set(&self, name: &str) -> SetDeclaration {
        let by_window = self.calls.iter().chain(&self.rate).cloned();
        let by_window = by_window.map(|limit| match self.algorithm {
            Some(algorithm) => limit.algorithm(algorithm),
            None => limit,
        });
        let limits = by_window.chain(self.concurrency.iter().cloned());
        limits.fold(SetDeclaration::new(name), SetDeclaration::add_limit)
    }
}

/// Reports how much memory a segment would take at `path` or, without one, in a single file. `file` is the file of its
/// declaration, given only if several segments are reported.
fn say_memory(declaration: &Declaration, path: Option<&Path>, file: Option<&Path>) -> Result<(), Failure> {
    let memory = match path {
        Some(path) => declaration.memory_at(path)?,
        None => declaration.memory()?,
    };
    let participants = declaration.segment().participants().into();
    output::print(&format!(
        "{}would take {}: {}\n{}",
        file.map(|file| format!("{} ", human::path(file)))
            .unwrap_or_default(),
        human::bytes(memory.bytes),
        human::quantity(memory.sets.len() as u64, "set", "sets"),
        memory_text(&memory, participants),
    ))
}

/// The failure if neither a file nor flags declare anything.
fn nothing_declared(named: Option<&Path>) -> Failure {
    let what = named.map_or_else(String::new, |path| {
        format!("{} is not a declaration: ", human::path(path))
    });
    Failure::usage(format!(
        "{what}name the declaration, as in `limitctl create SEGMENT DECLARATION`, or declare a set with --set"
    ))
}

/// How much memory of a file each set takes, and for what.
fn memory_text(memory: &SegmentMemory, participants: u64) -> String {
    let table = Table::of(&memory.sets)
        .left("SET", |set| sanitise::line(&set.set))
        .right("ROWS", |set| human::count(set.rows))
        .right("", |set| human::bytes(set.rows_bytes))
        .right("HOLDS", |set| human::count(set.holds))
        .right("", |set| human::bytes(set.holds_bytes))
        .right("WAITERS", |set| human::count(set.waiters))
        .right("", |set| human::bytes(set.queue_bytes))
        .right("OTHER", |set| human::bytes(set.other_bytes))
        .right("TOTAL", |set| human::bytes(set.bytes()));
    let of_sets: u64 = memory.sets.iter().map(|set| set.bytes()).sum();
    format!(
        "{}  and {} for the header and {}\n",
        table.render(2),
        human::bytes(memory.bytes.saturating_sub(of_sets)),
        human::quantity(participants, "process", "processes"),
    )
}

fn calls(text: &str) -> Result<Limit, String> {
    let (name, capacity, window) = per_window(text)?;
    Ok(Limit::calls(name, capacity, window))
}

fn rate(text: &str) -> Result<Limit, String> {
    let (name, capacity, window) = per_window(text)?;
    Ok(Limit::rate(name, capacity, window))
}

fn concurrency(text: &str) -> Result<Limit, String> {
    let (name, capacity) = name_and_rest(text)?;
    Ok(Limit::concurrency(name, capacity))
}

/// `NAME=CAPACITY/WINDOW`
fn per_window(text: &str) -> Result<(&str, &str, Window), String> {
    let (name, rest) = name_and_rest(text)?;
    let (capacity, window) = rest
        .split_once('/')
        .ok_or("the window is missing: write NAME=CAPACITY/WINDOW, such as requests=100/1s")?;
    let window = window.parse().map_err(|error: ParseError| error.to_string())?;
    Ok((name, capacity, window))
}

/// `NAME=REST`, up to the last `=`, because a name may contain one.
fn name_and_rest(text: &str) -> Result<(&str, &str), String> {
    text.rsplit_once('=')
        .ok_or_else(|| "the capacity is missing: write NAME=CAPACITY, such as in_flight=8".to_owned())
}

fn lock_kind(text: &str) -> Result<LockKind, String> {
    text.parse().map_err(|error: ParseError| error.to_string())
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).map_err(|_| "write octal digits, such as 0660".into())
}
