//! How many instructions an operation takes: a number that does not vary from run to run as times do.
//!
//! Callgrind counts them in one run of this program under valgrind. Only the program's own code counts: what the C
//! library and the kernel's clock page add differs from machine to machine, and is printed separately. Earlier counts
//! are kept in `benches/instructions`, for each version of the compiler; more than a tenth above that is a failure.
//!
//! `cargo bench --package instructions` compares with the counts that were kept; `-- --keep` keeps the new ones.

#[allow(dead_code)]
#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use common::operations::{Operation, Place};
use shmlimit::declare::ClockSource;

/// How often each operation runs while it is counted: often enough for the extra work of the first run to vanish in the
/// division.
const TIMES: u64 = 1_000;
/// How much more than before an operation may take: one part in this many.
const TOLERATED_GROWTH: u64 = 10;
/// Tells the run under valgrind that it is that run.
const COUNTED: &str = "--counted";
/// The function whose instructions are counted, as callgrind knows it.
const REGION: &str = "instructions::counted";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |wanted: &str| arguments.iter().any(|argument| argument == wanted);
    let directory = common::directory();
    let mut operations = common::operations::operations(Place {
        directory: directory.path(),
        // How often the counter clock is set by it depends on how fast valgrind runs.
        clock: ClockSource::System,
    });
    if has(COUNTED) {
        operations.iter_mut().for_each(run_counted);
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: no valgrind");
        return ExitCode::SUCCESS;
    }
    let counts = count(directory.path(), &operations);
    let kept = kept_file();
    if has("--keep") {
        let text = counts.iter().fold(String::new(), |mut text, (name, count)| {
            writeln!(text, "{:>6} {name}", count.own).expect("into a string");
            text
        });
        fs::create_dir_all(kept.parent().expect("a directory")).expect("a directory to keep counts in");
        fs::write(&kept, text).expect("counts are written");
    }
    report(&counts, &kept)
}

/// The instructions of one operation.
#[derive(Clone, Copy)]
struct Count {
    own: u64,
    /// The instructions of the C library, the kernel's clock page and whatever else is loaded.
    elsewhere: u64,
}

fn run_counted(operation: &mut Operation) {
    // Do beforehand what only the first runs do: touch the pages of the segment, resolve the symbols of the C library.
    (operation.run)(10);
    counted(operation);
}

#[inline(never)]
fn counted(operation: &mut Operation) {
    (operation.run)(black_box(TIMES));
    // Keeps the call above from becoming a jump, so that callgrind sees this function return.
    black_box(());
}

/// Counts all operations in one run; callgrind writes a separate file for each.
fn count(directory: &Path, operations: &[Operation]) -> Vec<(&'static str, Count)> {
    let program = std::env::current_exe().expect("a program");
    let output = directory.join("callgrind.out");
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={REGION}"))
        .arg(format!("--dump-after={REGION}"))
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(&program)
        .arg(COUNTED)
        .output()
        .expect("valgrind starts");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let counted_of = |number: usize| {
        let dump = PathBuf::from(format!("{}.{number}", output.display()));
        let text = fs::read_to_string(&dump).unwrap_or_else(|error| panic!("{}: {error}", dump.display()));
        per_operation(&text, &program)
    };
    operations
        .iter()
        .zip(1..)
        .map(|(operation, number)| (operation.name, counted_of(number)))
        .collect()
}

/// Adds up one dump of callgrind. Its lines have a position and a count, and belong to the object that was named last.
/// The line after a `calls=` repeats what the callee took, and is skipped.
fn per_operation(dump: &str, program: &Path) -> Count {
    let program = program.to_str().expect("a name in UTF-8");
    let mut names = BTreeMap::new();
    let (mut own, mut elsewhere) = (0, 0);
    let mut is_own = false;
    let mut lines = dump.lines();
    while let Some(line) = lines.next() {
        if let Some(object) = line.strip_prefix("ob=") {
            let (number, name) = object.split_once(' ').unwrap_or((object, ""));
            if !name.is_empty() {
                names.insert(number, name == program);
            }
            is_own = names.get(number).copied().unwrap_or(false);
        } else if let Some(object) = line.strip_prefix("cob=") {
            // The callee's object may be named here for the first time.
            if let Some((number, name)) = object.split_once(' ') {
                names.insert(number, name == program);
            }
        } else if line.starts_with("calls=") {
            lines.next();
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let count: u64 = line
                .split(' ')
                .nth(1)
                .and_then(|count| count.parse().ok())
                .unwrap_or(0);
            *(if is_own { &mut own } else { &mut elsewhere }) += count;
        }
    }
    assert!(own > 0, "callgrind has counted nothing of {program}");
    Count {
        own: own / TIMES,
        elsewhere: elsewhere / TIMES,
    }
}

/// Where the counts for this version of the compiler are kept.
fn kept_file() -> PathBuf {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc)
        .arg("--version")
        .output()
        .expect("rustc says its version");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let version = version.split(' ').nth(1).expect("a version");
    let architecture = std::env::consts::ARCH;
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("rustc-{version}-{architecture}.txt"))
}

fn read_kept(file: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.trim_start().split_once(' '))
        .filter_map(|(count, name)| Some((name.to_owned(), count.parse().ok()?)))
        .collect()
}

fn report(counts: &[(&'static str, Count)], file: &Path) -> ExitCode {
    let kept = read_kept(file);
    let mut is_to_be_renewed = false;
    println!("{:>9} {:>9} {:>9}  operation", "own", "kept", "elsewhere");
    for (name, Count { own, elsewhere }) in counts {
        let before = kept.get(*name).copied();
        let grown = before.is_some_and(|before| *own > before + before / TOLERATED_GROWTH);
        let is_new = before.is_none() && !kept.is_empty();
        is_to_be_renewed |= grown || is_new;
        let before = before.map_or_else(|| "-".to_owned(), |before| before.to_string());
        let verdict = match (grown, is_new) {
            (true, _) => "  <- has grown by more than a tenth",
            (_, true) => "  <- is compared with nothing",
            _ => "",
        };
        println!("{own:>9} {before:>9} {elsewhere:>9}  {name}{verdict}");
    }
    if kept.is_empty() {
        println!("compared with nothing: {} is not there", file.display());
    }
    if is_to_be_renewed {
        println!(
            "if that is worth it: cargo bench --package instructions -- --keep, and commit {}",
            file.display()
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
