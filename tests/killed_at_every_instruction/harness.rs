//! Proof: a process may be killed at any instruction of any operation, and what the others find is the state before the
//! operation or the state after it, never something in between, never a lock that no process can get, never a permit
//! lost or doubled.
//!
//! ```text
//! cargo run --release --package killed_at_every_instruction
//! ```
//!
//! Every operation is stepped under `ptrace(2)`, one instruction at a time, in a child, and killed three ways:
//!
//! - **Stepped, copies recovered.** The region is compared after each instruction. Each distinct state of it is a crash
//!   state: a copy is given the lock word that the kernel would leave (which it only would if the lock was on the
//!   victim's robust list or pending there at that very instruction; this is looked up in the victim's memory after
//!   every instruction), and an attached survivor takes the lock, recovers, and is asked about everything. Instructions
//!   that change nothing leave survivors nothing else to find, so they do not make another crash state.
//! - **Killed.** A fresh process each time, a real SIGKILL after the instruction, the kernel's own treatment of the
//!   lock, and a survivor in the same segment. If others wait in the queue, they are real and awake: each of them must
//!   be served after the kill. How long the first has to wait for that is measured, but nothing depends on it.
//!   Attaching, creating and detaching are only killed this way, at every system call (before and after it) and
//!   wherever a file changes between two of them.
//! - **Recoverer killed too.** From every distinct crash state, the survivor's own next operation is stepped, and every
//!   distinct state that it goes through is recovered by a third process. It may find what the first survivor would
//!   have found, or that with the second operation completed.
//!
//! Everything that is done with the queue is killed: taking a ticket, waiting, looking, being served, claiming,
//! leaving, cancelling, and whatever serves the first waiter by giving something back, with none, one and three that
//! wait. While a victim is stepped, the waiters are stopped, and in a copy they count as alive; later they are also
//! taken for dead. *Stuck* is a lock that no process can get, a ticket that no process can remove, and a live waiter
//! that no process serves although what it asks for is there. *Lost* is what is held by no live process, but was not
//! given back.
//!
//! In keyed sets, giving a key its row is killed in each state that the table may be in, with the same seed in every
//! segment, and after each recovery the harness compares tags, keys and pins with fingerprints, holds and tickets on
//! its own. If another definition is applied, all limits must stand as before or all as after, in the eyes of the
//! process that carried them over.
//!
//! Batches of credit are drawn, drawn anew, spent from and settled into. What is left of a batch changes outside of all
//! transactions, so in each crash state the limit must stand as before or after, or lower by less than a batch, and
//! never higher than either.
//!
//! Of a limit that hosts share, a lease is asked for and an answer brought into force. In each crash state, the process
//! that takes over the duty sends the same request, if one was kept, and the same grant comes into force once.
//!
//! Grants that nobody claims lapse on a clock that stands still except when the victim lets time pass.
//!
//! In addition to the listed operations, others are generated, with their sets and with what comes before them: those
//! of `tests/generated`, by seeds that are always the same. Each of their transactions that is found must be whole.
//!
//! Labels of holds are written outside of all transactions. In each crash state, a hold has its own label, whole, or
//! none.
//!
//! The table at the end counts the instructions stepped and the crash states that were recovered and checked: each
//! state of the first way once, each real kill once, each state of the recoverers once. Torn, stuck and lost must be
//! zero.
//!
//! The second table is about victims that do not die: they are **stopped at every instruction**, with the lock or
//! without it, while live processes beside them settle, release, drop, ask, renew, cancel waits and reservations,
//! attach and detach, and one of these dies; then the victim goes on to its end. *Leaked* is what a recount of the file
//! assigns to a live process without a permit, and what is used of a rate beyond what is used if the others come before
//! the victim or after it. *Stuck* is a call that takes a hundred times as long as it may, or that had found the lock
//! stuck and has no result when it is *repeated* with the same value. Within a critical section, only some of the
//! states are tried.
//!
//! The harness can fail. If survivors find the journal empty, nothing is undone, and the harness must find torn states:
//!
//! ```text
//! SHMLIMIT_WITHOUT_JOURNAL=1 cargo run --release --package killed_at_every_instruction
//! ```
//!
//! A name, or part of one, as an argument restricts the run to the operations that have it, and `stopped` restricts it
//! to the second table. `SHMLIMIT_THOROUGH=1` leaves out no state of the segment: operations are killed for real right
//! after each of their changes and at thousands of instructions instead of dozens, every kind of recoverer is killed
//! from every crash state instead of from some, victims are stopped before and after each change, and it takes hours.
//! Of the instructions between two changes, where other processes find nothing new, victims are stopped at one in
//! sixteen; `SHMLIMIT_PHASE` says which. If a definition is applied, less is done, because each try reads it for
//! seconds. A build without optimisation leaves out most, because what it steps is not what is shipped.
//! `SHMLIMIT_PROGRESS=1` prints what is being done.
//! `SHMLIMIT_ONE_IN=12` tries, of each operation, one in twelve of the crash states and stops that an ordinary run
//! tries, and at least one. The operation is killed for real in one run, and in the next its recoverer is, or, if it
//! reads a definition, it is stopped. `SHMLIMIT_PHASE` says which.

mod beside;
mod copies;
mod files;
mod kills;
mod operations;
#[path = "../scene/process.rs"]
mod process;
mod report;
mod sample;
mod state;
mod stepping;
mod stopped;
#[path = "../layout_mirror/words.rs"]
mod words;
mod workers;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use files::{FILE_OPERATIONS, FileOperation};
use operations::changes::CHANGING_OPERATIONS;
use operations::drawing::DRAWING_OPERATIONS;
use operations::generated::generated_operations;
use operations::keys::KEY_OPERATIONS;
use operations::labels::LABEL_OPERATIONS;
use operations::lapses::LAPSE_OPERATIONS;
use operations::leases::LEASE_OPERATIONS;
use operations::marks::MARKING_OPERATIONS;
use operations::overall::OVERALL_OPERATIONS;
use operations::tiers::TIER_OPERATIONS;
use operations::waiting::WAITING_OPERATIONS;
use operations::{DEATHS, OPERATIONS, Operation, RECOVERERS, Recoverer};
use report::{Row, StoppedTable, Table, Tally, Way};
use sample::Sample;

/// The fewest states that a complete optimised run must have recovered.
const MIN_STATES: u64 = 10_000;

/// The fewest states in which it must have stopped a victim.
const MIN_STOPS: u64 = 1_500;

/// Beside others, it takes longer to set the scene and to look at what is left, so less is tried there.
const BESIDE_OTHERS: usize = 12;

/// The journal is the same for all operations, and recovery looks at every row of a table of keys, so fewer recoverers
/// are killed there.
const BY_KEY: usize = 6;

/// Applying a declaration is mostly reading it, over and over before each kill.
const READING_A_TEXT: usize = 300;

/// If a definition has come into force, each recoverer reads it, too: they are killed in one of this many crash states.
const APPLIED: usize = 16;

/// If no change is left out, a victim is also stopped at one in this many instructions.
const BETWEEN_CHANGES: usize = 16;

/// A run in which no job ends for this long hangs, however busy the machine is. A run that leaves nothing out takes
/// hours.
const TIMEOUT: Duration = Duration::from_secs(40 * 60);
const TIMEOUT_WITH_EVERYTHING: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether survivors find the journal empty, whatever the dead have noted in it.
fn is_without_journal() -> bool {
    std::env::var_os("SHMLIMIT_WITHOUT_JOURNAL").is_some()
}

/// A piece of work for one process.
#[derive(Clone, Copy)]
enum Job {
    Copies(Operation),
    Killed(Operation),
    Twice(Operation, Recoverer),
    File(FileOperation),
    FileTwice(FileOperation),
    Stopped(Operation),
}

impl Job {
    fn name(&self) -> &'static str {
        match self {
            Self::Copies(operation)
            | Self::Killed(operation)
            | Self::Twice(operation, _)
            | Self::Stopped(operation) => operation.name,
            Self::File(operation) | Self::FileTwice(operation) => operation.name,
        }
    }

    fn way(&self) -> Way {
        match self {
            Self::Copies(_) => Way::Copies,
            Self::Killed(_) | Self::File(_) => Way::Killed,
            Self::Twice(..) | Self::FileTwice(_) => Way::Twice,
            Self::Stopped(_) => Way::Stopped,
        }
    }

    fn perform(&self, effort: Effort) -> Tally {
        let sample = effort.sample.for_operation(self.name());
        match *self {
            Self::Copies(operation) => copies::kill_once(operation, sample),
            Self::Killed(operation) if operation.has_company() && !effort.is_thorough => {
                kills::kill_for_real(operation, effort.kills.div_ceil(BESIDE_OTHERS), sample)
            }
            Self::Killed(operation) if operation.applies => {
                kills::kill_for_real(operation, effort.kills.div_ceil(READING_A_TEXT), sample)
            }
            Self::Killed(operation) => kills::kill_for_real(operation, effort.kills, sample),
            Self::Twice(operation, recoverer) => {
                let every = if effort.is_thorough {
                    if operation.applies { APPLIED } else { 1 }
                } else {
                    let of_operation = if operation.has_company() {
                        BESIDE_OTHERS
                    } else if operation.is_keyed || operation.applies {
                        BY_KEY
                    } else {
                        1
                    };
                    effort.every * recoverer.every * of_operation
                };
                copies::kill_twice(operation, recoverer, every, sample)
            }
            Self::File(operation) => files::kill_once(operation, effort.every, sample),
            Self::FileTwice(operation) => {
                files::kill_twice(operation, if effort.is_thorough { 1 } else { 2 }, sample)
            }
            Self::Stopped(operation) => {
                let between = (effort.is_thorough && !operation.applies).then_some(BETWEEN_CHANGES);
                stopped::stop_everywhere(operation, effort.stops, between, sample)
            }
        }
    }
}

/// How much is left out.
#[derive(Clone, Copy)]
struct Effort {
    is_thorough: bool,
    /// An unoptimised build only shows that everything works: its instructions are not those that are shipped, and
    /// there are ten times as many.
    is_brief: bool,
    /// The most kills right after changes of the segment, of which no operation makes more than a few hundred, and the
    /// number of kills at equal distances.
    kills: usize,
    /// If not everything is tried, one in this many is.
    every: usize,
    /// How many places to stop at.
    stops: usize,
    sample: Sample,
}

impl Effort {
    fn from_environment() -> Self {
        let is_thorough = std::env::var_os("SHMLIMIT_THOROUGH").is_some();
        let is_brief = cfg!(debug_assertions) && !is_thorough;
        let (kills, every, stops) = match (is_thorough, is_brief) {
            (true, _) => (4_000, 1, usize::MAX),
            (false, true) => (4, 32, 4),
            (false, false) => (12, 24, 8),
        };
        Self {
            is_thorough,
            is_brief,
            kills,
            every,
            stops,
            sample: Sample::from_environment(),
        }
    }
}

fn operations(effort: Effort) -> impl Iterator<Item = Operation> {
    OPERATIONS
        .iter()
        .chain(WAITING_OPERATIONS)
        .chain(KEY_OPERATIONS)
        .chain(OVERALL_OPERATIONS)
        .chain(MARKING_OPERATIONS)
        .chain(CHANGING_OPERATIONS)
        .chain(TIER_OPERATIONS)
        .chain(DRAWING_OPERATIONS)
        .chain(LABEL_OPERATIONS)
        .chain(LAPSE_OPERATIONS)
        .chain(LEASE_OPERATIONS)
        .copied()
        .chain(generated_operations(effort.is_thorough))
}

fn jobs(effort: Effort) -> Vec<Job> {
    let mut jobs = Vec::new();
    if is_without_journal() {
        // The plain operations, at one depth, are enough to show that torn states are found. Waiters recover what they
        // find, and must not be let loose on what cannot be recovered.
        let alone = OPERATIONS.iter().filter(|it| !it.has_company());
        return alone
            .flat_map(|it| [Job::Killed(*it), Job::Copies(*it)])
            .collect();
    }
    let sample = effort.sample;
    let tries_file = |operation: &FileOperation, way| sample.tries(operation.name, way, DEATHS);
    let tries = |operation: &Operation, way| sample.tries(operation.name, way, operation.ways_by_turns());
    // The longest jobs come first, so that no processor is idle at the end.
    if !effort.is_brief {
        let operations = FILE_OPERATIONS.iter().rev();
        let operations = operations.filter(|it| tries_file(it, Way::Twice));
        jobs.extend(operations.map(|it| Job::FileTwice(*it)));
    }
    for operation in operations(effort).filter(|it| tries(it, Way::Twice)) {
        // Beside others, and by key, the journal is the same as for all operations.
        let is_plain = !operation.has_company() && !operation.is_keyed && !operation.applies;
        // A recoverer that draws would depend on batches that are not in the copies, and likewise on what it spends or
        // notes of a lease.
        let goes_by_more = operation.draws || operation.is_leased || operation.seed.is_some();
        let recoverers = if !goes_by_more && (effort.is_thorough || is_plain && !effort.is_brief) {
            RECOVERERS
        } else {
            &RECOVERERS[..1]
        };
        let recoverers = sample
            .for_operation(operation.name)
            .of(recoverers.len(), recoverers.iter().rev());
        jobs.extend(recoverers.map(|recoverer| Job::Twice(operation, *recoverer)));
    }
    let files = FILE_OPERATIONS.iter().rev();
    let files = files.filter(|it| tries_file(it, Way::Killed));
    jobs.extend(files.map(|it| Job::File(*it)));
    for operation in operations(effort) {
        // Reading a definition takes minutes, an instruction at a time: it is done once for real and, for keys, only in
        // copies.
        let is_too_long = operation.applies && operation.is_keyed;
        if effort.is_thorough || tries(&operation, Way::Killed) && !is_too_long {
            jobs.push(Job::Killed(operation));
        }
        jobs.push(Job::Copies(operation));
        if operation.is_stopped() && tries(&operation, Way::Stopped) {
            jobs.push(Job::Stopped(operation));
        }
    }
    jobs
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (only_stopped, names): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|filter| *filter == "stopped");
    let only_stopped = !only_stopped.is_empty();
    let effort = Effort::from_environment();
    let jobs: Vec<Job> = jobs(effort)
        .into_iter()
        .filter(|job| !only_stopped || job.way() == Way::Stopped)
        .filter(|job| names.is_empty() || names.iter().any(|name| job.name().contains(*name)))
        .collect();
    if jobs.is_empty() {
        println!("nothing was tried: no operation has {names:?} in its name");
        return ExitCode::FAILURE;
    }
    let started = Instant::now();
    let mut table = Table(Vec::new());
    for job in &jobs {
        if !table.0.iter().any(|row| row.name == job.name()) {
            table.0.push(Row {
                name: job.name(),
                ..Row::default()
            });
        }
    }
    let verbose = std::env::var_os("SHMLIMIT_PROGRESS").is_some();
    workers::work(
        jobs.len(),
        |job| jobs[job].perform(effort),
        if effort.is_thorough {
            TIMEOUT_WITH_EVERYTHING
        } else {
            TIMEOUT
        },
        |job, tally| {
            if verbose {
                eprintln!(
                    "{:?} {} {:?} {tally:?}",
                    started.elapsed(),
                    jobs[job].name(),
                    jobs[job].way()
                );
            }
            if let Some(row) = table.0.iter_mut().find(|row| row.name == jobs[job].name()) {
                *row.of(jobs[job].way()) += tally;
            }
        },
    );
    print!("{table}");
    if !is_without_journal() {
        print!("\n{}", StoppedTable(&table));
    }
    if effort.is_brief {
        println!("\nThis build is not optimised, so most was left out: add --release for the proof.");
    }
    let total = table.total().total();
    println!(
        "\n{} crash states recovered and checked, {} torn, {} stuck, {} lost, {} instructions stepped, {:.0} s",
        total.states,
        total.torn,
        total.stuck,
        total.lost,
        total.instructions,
        started.elapsed().as_secs_f64()
    );
    let stopped = table.total().stopped;
    println!(
        "{} states of stopped victims tried, {} leaked, {} stuck beyond the bound, {} torn; {} calls found the lock stuck \
         and were repeated",
        stopped.states, stopped.lost, stopped.stuck, stopped.torn, stopped.repeated
    );
    if total.delays.count() > 0 {
        println!(
            "from a kill to the next waiter having what it waits for: {:.1?} at the median, {:.1?} at worst, of {}",
            total.delays.median(),
            Duration::from_nanos(total.delays.worst_nanos),
            total.delays.count()
        );
    }
    if effort.is_thorough && effort.sample.is_everything() {
        println!(
            "tried: every state, and stops at 1 in {BETWEEN_CHANGES} of the instructions between two changes: \
             SHMLIMIT_PHASE={}",
            effort.sample.phase() % BETWEEN_CHANGES
        );
    } else {
        println!("tried: {}", effort.sample);
    }
    let complete = (arguments.is_empty() && !effort.is_brief).then_some(effort);
    if is_without_journal() {
        judge_without_journal(&table)
    } else {
        judge(&table, complete)
    }
}

fn judge(table: &Table, complete: Option<Effort>) -> ExitCode {
    let total = table.total().total();
    if total.torn > 0 || total.stuck > 0 || total.lost > 0 {
        println!("FAILED: a process that is killed can take others with it");
        return ExitCode::FAILURE;
    }
    let stopped = table.total().stopped;
    if stopped.torn > 0 || stopped.stuck > 0 || stopped.lost > 0 {
        println!("FAILED: a process that is stopped can take others with it");
        return ExitCode::FAILURE;
    }
    let Some(effort) = complete else {
        return ExitCode::SUCCESS;
    };
    let sample = effort.sample;
    let (min_states, min_stops) = (MIN_STATES / sample.one_in(), MIN_STOPS / sample.one_in());
    if stopped.states < min_stops || stopped.repeated < min_stops {
        println!("FAILED: such a run stops at least {min_stops} victims, and meets as many stuck locks");
        return ExitCode::FAILURE;
    }
    if total.states < min_states {
        println!("FAILED: such a run recovers at least {min_states} crash states");
        return ExitCode::FAILURE;
    }
    for operation in operations(effort) {
        let row = table.0.iter().find(|row| row.name == operation.name);
        let is_stopped =
            operation.is_stopped() && sample.tries(operation.name, Way::Stopped, operation.ways_by_turns());
        let is_tried = |row: &Row| row.copies.states > 0 && (!is_stopped || row.stopped.states > 0);
        if !row.is_some_and(is_tried) {
            println!("FAILED: of `{}` nothing was tried: {row:?}", operation.name);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Without the journal, every operation that changes several words under it must be found torn, in a copy and, if no
/// request waits beside it, for real. An operation that changes one word, or nothing that a user can see, must not.
fn judge_without_journal(table: &Table) -> ExitCode {
    let mut failed = false;
    for row in &table.0 {
        let operation = OPERATIONS.iter().find(|operation| operation.name == row.name);
        let is_journalled = operation.is_some_and(|it| it.transactions > 0 && !it.changes_one_word);
        let has_company = operation.is_some_and(|it| it.has_company());
        let torn = [row.copies.torn, row.killed.torn];
        let is_as_expected = if is_journalled {
            torn[0] > 0 && (torn[1] > 0 || has_company)
        } else {
            torn == [0, 0]
        };
        // A queue that is torn may well be stuck.
        if !is_as_expected || (row.total().stuck > 0 && !has_company) {
            println!("FAILED: `{}` without the journal: {row:?}", row.name);
            failed = true;
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        println!("Without the journal the harness finds what is torn, as it must.");
        ExitCode::SUCCESS
    }
}
