//! Static probes: all are in the program, with the arguments that are documented, and the scripts for bpftrace see what
//! happens in processes that take, wait, hold for too long and die.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};
use std::time::{Duration, Instant};

use crate::layout_mirror::RawSegment;
use crate::scene;
use crate::scene::process::{Child, TIMEOUT, in_own_process};
use crate::scene::{expect_permit, expect_refusal};
use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;
use shmlimit::{Limit, LimitSet, OpenOptions, Segment, SetDeclaration};

/// How long a script may take to show everything.
const PATIENCE: Duration = Duration::from_secs(120);

/// The test binary, which contains the library.
fn program() -> PathBuf {
    std::env::current_exe().expect("a path of the test binary")
}

fn of_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A probe, as a note in a program describes it to tracers.
struct Note<'a> {
    location: u64,
    /// Where the counter of attached tracers is, or 0 if there is none.
    counter: u64,
    provider: &'a str,
    name: &'a str,
    /// `SIZE@PLACE` of each argument, with a negative size if the number is signed.
    arguments: Vec<&'a str>,
}

/// All notes that begin with the owner's name: three addresses and three texts follow.
fn notes(program: &[u8]) -> Vec<Note<'_>> {
    const OWNER: &[u8] = b"stapsdt\0";
    let starts = program
        .windows(OWNER.len())
        .enumerate()
        .filter(|(_, window)| *window == OWNER);
    let notes = starts.filter_map(|(start, _)| {
        let (addresses, texts) = program[start + OWNER.len()..].split_at_checked(3 * 8)?;
        let address = |index: usize| {
            let bytes = addresses.chunks_exact(8).nth(index).expect("three");
            u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
        };
        let mut texts = texts
            .split(|byte| *byte == 0)
            .map(|text| std::str::from_utf8(text).ok());
        let mut text = || texts.next().flatten();
        Some(Note {
            location: address(0),
            counter: address(2),
            provider: text()?,
            name: text()?,
            arguments: text()?.split_whitespace().collect(),
        })
    });
    notes.filter(|note| note.provider == "shmlimit").collect()
}

/// How many arguments each probe has according to the table in the documentation.
fn documented() -> BTreeMap<String, usize> {
    let text = fs::read_to_string(of_repository("docs/observability.md")).expect("a document");
    let (_, section) = text.split_once("\n## Probes\n").expect("a section");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let probes = rows.filter_map(|row| {
        let (name, row) = row.split_once("` | ")?;
        let (arguments, _) = row.split_once(" | ")?;
        Some((name.to_owned(), arguments.matches('`').count() / 2))
    });
    probes.collect()
}

#[test]
fn every_documented_probe_is_in_the_program_with_its_arguments() {
    let program = fs::read(program()).expect("the test binary");
    let notes = notes(&program);
    let mut found = BTreeMap::new();
    for note in &notes {
        let name = note.name;
        assert_ne!(note.location, 0, "{name} is nowhere");
        assert_ne!(note.counter, 0, "{name} does not know whether it is attached");
        for argument in &note.arguments {
            assert!(argument.starts_with("-8@"), "{name}: {argument}");
        }
        let others = found.insert(name.to_owned(), note.arguments.len());
        assert!(others.is_none_or(|count| count == note.arguments.len()), "{name}");
    }
    assert_eq!(found.len(), 8, "{found:?}");
    assert_eq!(found, documented());
}

/// A tracer that runs a script, and what it has printed.
struct Tracer {
    process: Process,
    output: PathBuf,
}

impl Tracer {
    fn of_script(script: &str, directory: &Path) -> Self {
        let output = directory.join("output");
        let file = File::create(&output).expect("a file for the output");
        let copy = file.try_clone().expect("a second handle");
        let process = bpftrace()
            .arg(of_repository("packaging/bpftrace").join(script))
            .arg(program())
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .spawn();
        Self {
            process: process.expect("bpftrace starts"),
            output,
        }
    }

    fn printed(&self) -> String {
        let bytes = fs::read(&self.output).expect("the output");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn has_ended(&mut self) -> bool {
        self.process
            .try_wait()
            .expect("a child of this process")
            .is_some()
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.process.id().cast_signed());
        // Neither can fail for a child that was not waited for; another one is gone.
        let _ = kill(pid, Signal::SIGTERM);
        let _ = self.process.wait();
    }
}

/// The tracer, run by `timeout`, which ends it if the test cannot.
fn bpftrace() -> Command {
    let mut command = Command::new("timeout");
    let seconds = (2 * PATIENCE).as_secs().to_string();
    command.args(["--kill-after=5", &seconds, "bpftrace", "-B", "none"]);
    command
}

/// Whether the scripts can run. Says what is missing if not.
fn can_trace() -> bool {
    if Command::new("bpftrace").arg("--version").output().is_err() {
        println!("skipped: no bpftrace");
        return false;
    }
    let probe = format!("usdt:{}:shmlimit:queued {{ }}", program().display());
    let attached = bpftrace()
        .args(["-e", &format!("{probe} interval:ms:1 {{ exit(); }}")])
        .output()
        .expect("it starts");
    if !attached.status.success() {
        println!("skipped: the kernel lets no probe attach");
        println!("{}", String::from_utf8_lossy(&attached.stderr));
    }
    attached.status.success()
}

/// What the scripts watch.
struct Scene {
    path: PathBuf,
    segment: Segment,
    api: LimitSet,
    jobs: LimitSet,
    leased: LimitSet,
}

impl Scene {
    fn new(directory: &Path) -> Self {
        let path = directory.join("limits");
        let calls = Limit::calls("requests", 1, Duration::from_secs(3600));
        let slots = Limit::concurrency("slots", 1);
        let leased = Limit::concurrency("slots", 1).lease(Duration::from_millis(1));
        let declaration = scene::declaration()
            .participants(16)
            .add_set(SetDeclaration::new("jobs").add_limit(slots))
            .add_set(SetDeclaration::new("api").add_limit(calls))
            .add_set(SetDeclaration::new("leased").add_limit(leased));
        // A lock's holder may be off its processor for long on a busy machine.
        let options = OpenOptions::new().lock_timeout(TIMEOUT);
        let segment = options.create(&path, &declaration).expect("a segment");
        let set = |name| segment.set(name).expect("declared");
        Self {
            api: set("api"),
            jobs: set("jobs"),
            leased: set("leased"),
            path,
            segment,
        }
    }

    /// Makes everything that has a probe happen once, except for waits for locks, which may not come about.
    fn happens(&self) {
        let (jobs, leased) = (&self.jobs, &self.leased);
        self.contend();
        expect_refusal(self.api.request().try_acquire());
        // A wait in the queue.
        let request = jobs.request().with("slots", 1).expect("declared");
        let held = expect_permit(request.try_acquire());
        let waiter = Child::fork(|| drop(expect_permit(request.acquire(TIMEOUT))));
        scene::process::eventually("the child waits", || scene::queued(&self.segment) == 1);
        drop(held);
        waiter.succeed();
        // The death of a holder.
        let holder = Child::fork(|| {
            let _permit = expect_permit(request.try_acquire());
            raise(Signal::SIGSTOP).expect("stops");
        });
        holder.wait_until_stopped();
        holder.kill();
        drop(expect_permit(request.acquire(TIMEOUT)));
        // A lease that runs out.
        let request = leased.request().with("slots", 1).expect("declared");
        let late = expect_permit(request.try_acquire());
        drop(expect_permit(request.acquire(TIMEOUT)));
        drop(late);
        // The death of the owner of a lock: that of the first set.
        let owner = Child::fork(|| {
            RawSegment::open(&self.path).lock().take_and_stop();
        });
        owner.wait_until_stopped();
        owner.kill();
        drop(expect_permit(
            jobs.request().with("slots", 1).expect("declared").try_acquire(),
        ));
    }

    /// Makes processes take one lock often enough that some are likely to wait for it.
    fn contend(&self) {
        let take = || {
            for _ in 0..20_000 {
                let _ = self.api.request().check().expect("a decision");
            }
        };
        let others = [Child::fork(take), Child::fork(take)];
        take();
        others.into_iter().for_each(Child::succeed);
    }
}

/// Runs a script while everything happens again and again, until the script has printed all that is wanted.
fn shows(script: &str, test: &str, wanted: &[&str]) {
    in_own_process(test, 2 * PATIENCE, |directory| {
        if !can_trace() {
            return;
        }
        let scene = Scene::new(directory);
        let mut tracer = Tracer::of_script(script, directory);
        let deadline = Instant::now() + PATIENCE;
        loop {
            scene.happens();
            let printed = tracer.printed();
            if wanted.iter().all(|text| printed.contains(text)) {
                println!("{printed}");
                return;
            }
            let is_over = Instant::now() > deadline || tracer.has_ended();
            assert!(!is_over, "{script} is to print {wanted:?}:\n{printed}");
        }
    });
}

#[test]
fn a_script_shows_waits_for_locks_by_process() {
    let test = "probes::a_script_shows_waits_for_locks_by_process";
    shows("lock-waits.bt", test, &["@waits_us[", ", api]: "]);
}

#[test]
fn a_script_shows_what_is_refused_in_each_second() {
    let test = "probes::a_script_shows_what_is_refused_in_each_second";
    shows("refusals.bt", test, &["@refused[api, requests, rate]: "]);
}

#[test]
fn a_script_shows_deaths_and_waits_in_queues() {
    let wanted = [
        "the owner of the lock of `jobs` died",
        "`jobs` recovered in ",
        "died: 1 permits and 0 waiters of `jobs` given back",
        "held 1 of `slots` of `leased` for longer than its lease",
        "@queued[jobs]: ",
        "@waits_ms[jobs]:",
    ];
    shows(
        "deaths.bt",
        "probes::a_script_shows_deaths_and_waits_in_queues",
        &wanted,
    );
}
