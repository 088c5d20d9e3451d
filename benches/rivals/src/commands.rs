//! A command that runs under a permit, compared with the same command alone and under other programs that queue
//! commands.
//!
//! The programs take turns, one command at a time, so that all of them are measured under the same conditions. If a
//! command does little work, most of the time is what the system spends on any program that starts, and a program that
//! starts another cannot be faster than two starts: `env` shows what those cost.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use shmlimit::{Declaration, Limit, Segment, SetDeclaration};

const COMMAND: &str = "/bin/true";

/// A way to run the command, and how long each run took.
struct Runner {
    name: &'static str,
    command: Command,
    times: Vec<Duration>,
}

/// Measures and prints a table. Skips what is not installed.
pub fn compare(rounds: usize) {
    let Some(limitctl) = built_limitctl() else {
        println!(
            "There is no limitctl beside this program: build it with `cargo build --release -p limitctl`."
        );
        return;
    };
    let directory = crate::common::directory();
    let mut runners = runners(&limitctl, directory.path());
    // The first run reads the program from the disk.
    runners.retain_mut(|runner| runner.run().is_some());
    for _ in 0..rounds {
        for runner in &mut runners {
            if let Some(time) = runner.run() {
                runner.times.push(time);
            }
        }
    }
    let alone = runners.first().map_or(Duration::ZERO, Runner::median);
    println!("One run of each in turn, {rounds} times over; medians.\n");
    println!("| what | us | above the command alone, us | ratio |");
    println!("|---|---:|---:|---:|");
    for runner in &runners {
        let median = runner.median();
        println!(
            "| {} | {} | {} | {:.2} |",
            runner.name,
            median.as_micros(),
            median.saturating_sub(alone).as_micros(),
            median.as_secs_f64() / alone.as_secs_f64()
        );
    }
}

fn runners(limitctl: &Path, directory: &Path) -> Vec<Runner> {
    let segment = directory.join("limits");
    let places = SetDeclaration::new("places").add_limit(Limit::concurrency("running", 1));
    let calls = SetDeclaration::new("calls").add_limit(Limit::calls("started", u64::from(u32::MAX), SECOND));
    let declaration = Declaration::new().add_set(places).add_set(calls);
    drop(Segment::create(&segment, &declaration).expect("a segment"));
    let exec = |set| {
        let mut command = Command::new(limitctl);
        command.arg("exec").arg(&segment).args([set, "--", COMMAND]);
        command
    };
    let through = |program, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments);
        command
    };
    let lock = directory.join("lock").to_string_lossy().into_owned();
    let mut semaphore = through("sem", &["--fg", "--id", "shmlimit", COMMAND]);
    semaphore.env("PARALLEL_HOME", directory);
    let all = [
        ("the command alone", Command::new(COMMAND)),
        ("env", through("env", &[COMMAND])),
        ("flock", through("flock", &[&lock, COMMAND])),
        ("GNU sem", semaphore),
        ("limitctl exec, a place held meanwhile", exec("places")),
        ("limitctl exec, calls only: nothing held", exec("calls")),
    ];
    all.into_iter()
        .map(|(name, command)| Runner {
            name,
            command,
            times: Vec::new(),
        })
        .collect()
}

const SECOND: Duration = Duration::from_secs(1);

impl Runner {
    /// How long one run took; `None` if it could not be run.
    fn run(&mut self) -> Option<Duration> {
        self.command.stdin(Stdio::null()).stdout(Stdio::null());
        let begin = Instant::now();
        let status = self.command.status().ok()?;
        let taken = begin.elapsed();
        status.success().then_some(taken)
    }

    fn median(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

/// The program next to this one.
fn built_limitctl() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name("limitctl");
    path.exists().then_some(path)
}
