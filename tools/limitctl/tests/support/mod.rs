//! Shared by the tests: the program under test, segments, and processes that use them.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(
    unsafe_code,
    reason = "starts commands with the default action for each signal"
)]

pub mod health;
pub mod host;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::unistd::Pid;
use serde_json::Value;

/// Longer than anything takes on the slowest machine: what takes longer hangs.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// The test's own directory.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

/// The verbs, as the help lists them.
pub fn verbs<T: FromIterator<String>>() -> T {
    let help = run(["help"]).ended(0).stdout;
    let (_, commands) = help.split_once("Commands:\n").expect("a list");
    let lines = commands.lines().take_while(|line| !line.is_empty());
    lines
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|verb| !verb.is_empty() && *verb != "help")
        .map(str::to_owned)
        .collect()
}

/// A command that starts with the default action for each signal, however the tests were started: under nohup or in the
/// background of a script, a process ignores signals, and so do the programs that it starts.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: sigaction may be called between fork and exec, and this installs no handler.
    unsafe {
        command.pre_exec(move || {
            for signal in Signal::iterator().filter(|it| ![Signal::SIGKILL, Signal::SIGSTOP].contains(it)) {
                sigaction(signal, &default)?;
            }
            Ok(())
        });
    }
    command
}

/// The program under test, with the default colours.
pub fn limitctl() -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_limitctl"));
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"] {
        command.env_remove(variable);
    }
    command
}

/// The result of a run of the program.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// Its output, if each line is JSON.
    pub fn json_lines(&self) -> Vec<Value> {
        let values = self.stdout.lines().map(serde_json::from_str);
        values
            .collect::<Result<_, _>>()
            .unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// Returns the run after asserting its exit code.
    #[track_caller]
    pub fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }
}

/// Replays events against a declaration.
pub fn replay_declaration(toml: &str, events: &[Value]) -> Run {
    let directory = directory();
    let declaration = directory.path().join("limits.toml");
    std::fs::write(&declaration, toml).expect("written");
    let trace = directory.path().join("trace.ndjson");
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    std::fs::write(&trace, lines).expect("written");
    run(["simulate", text(&declaration), "--trace", text(&trace)])
}

/// Runs the program with these arguments and nothing to read.
pub fn run<const N: usize>(arguments: [&str; N]) -> Run {
    run_command(limitctl().args(arguments))
}

/// Runs a command, and gives up on it if it hangs.
pub fn run_command(command: &mut Command) -> Run {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    finish(child)
}

/// Runs the program with its reader gone, which must be a silent success.
#[track_caller]
pub fn run_without_reader(arguments: &[&str]) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let child = limitctl()
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let run = finish(child).ended(0);
    assert!(run.stderr.is_empty(), "{run:?}");
}

/// Reads a child's output until it ends, and gives up on it if it hangs.
pub fn finish(mut child: Child) -> Run {
    let stderr = read_aside(child.stderr.take());
    let stdout = read_aside(child.stdout.take());
    let said = stderr
        .recv_timeout(TIMEOUT)
        .and_then(|stderr| Ok((stdout.recv_timeout(TIMEOUT)?, stderr)));
    let Ok((stdout, stderr)) = said else {
        child.kill().expect("it was not waited for");
        child.wait().expect("a child of ours");
        panic!("it hung");
    };
    Run {
        code: child
            .wait()
            .expect("a child of ours")
            .code()
            .expect("ended by itself"),
        stdout: String::from_utf8(stdout).expect("UTF-8"),
        stderr: String::from_utf8(stderr).expect("UTF-8"),
    }
}

/// Reads a stream, if there is one, to its end in the background.
fn read_aside<R: Read + Send + 'static>(stream: Option<R>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            stream.read_to_end(&mut bytes).expect("read");
        }
        // If the test has failed, nobody waits for this any more.
        let _ = sender.send(bytes);
    });
    receiver
}

/// The lines of a stream as they arrive, so that a test can wait for each with a deadline. After the receiver is
/// dropped, the next line closes the stream.
pub fn lines_of<R: Read + Send + 'static>(stream: R) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Creates a segment with one set, `api`, of 10 calls a day and 4 in flight.
pub fn create(directory: &Path) -> PathBuf {
    create_with_locks(directory, "slot")
}

/// The same with robust mutexes, for processes of one PID namespace.
pub fn create_with_mutexes(directory: &Path) -> PathBuf {
    create_with_locks(directory, "robust")
}

/// The same with locks of this kind.
pub fn create_with_locks(directory: &Path, lock: &str) -> PathBuf {
    let path = directory.join("limits");
    run([
        "create",
        "--lock",
        lock,
        "--set",
        "api",
        "--calls",
        "requests=10/1d",
        "--concurrency",
        "in_flight=4",
        text(&path),
    ])
    .ended(0);
    path
}

/// Creates a segment of this name from a declaration, which stays next to it.
pub fn create_declared(directory: &Path, name: &str, declaration: &str) -> PathBuf {
    let (config, path) = (directory.join(format!("{name}.toml")), directory.join(name));
    std::fs::write(&config, declaration).expect("written");
    run(["create", text(&path), text(&config)]).ended(0);
    path
}

/// What `show` prints about a key, with all that is kept of it, as text and as JSON.
pub fn show_key(segment: &Path, set: &str, key: &str) -> (String, Value) {
    let shown = run(["show", "--reveal", text(segment), set, key]).ended(0).stdout;
    let json = run(["show", "--reveal", "--json", text(segment), set, key])
        .ended(0)
        .json();
    (shown, json)
}

/// The role of a copy of the test program, set in its environment.
const ROLE: &str = "LIMITCTL_TEST_ROLE";
/// The segment for the role.
const SEGMENT: &str = "LIMITCTL_TEST_SEGMENT";

/// A copy of the test program that plays a role; killed at the latest when it is dropped.
pub struct Actor {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
}

impl Actor {
    /// Starts a process that attaches to the segment and plays a role until it is told to go on: see [`play`].
    pub fn start(role: &str, segment: &Path) -> Self {
        let mut child = command(std::env::current_exe().expect("this program"))
            .args(["--exact", "actor", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(SEGMENT, segment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let commands = child.stdin.take().expect("piped");
        let answers = lines_of(child.stdout.take().expect("piped"));
        let actor = Self {
            child,
            commands,
            answers,
        };
        assert_eq!(actor.answer(), "ready");
        actor
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells the actor to go on, and returns what it says next.
    pub fn go_on(&mut self) -> String {
        self.commands.write_all(b"go on\n").expect("it reads");
        self.answer()
    }

    /// Tells the actor to go on to its end, and waits for that.
    pub fn drop_what_it_holds(mut self) {
        self.commands.write_all(b"go on\n").expect("it reads");
        let deadline = Instant::now() + TIMEOUT;
        while self.child.try_wait().expect("a child of ours").is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::yield_now();
        }
    }

    /// What the actor says next.
    pub fn answer(&self) -> String {
        loop {
            let line = self.answers.recv_timeout(TIMEOUT).expect("it lives and answers");
            // The test harness writes to the same stream.
            if let Some((_, answer)) = line.split_once("actor says ") {
                return answer.to_owned();
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("a pid"));
        kill(pid, signal).expect("it is a child that was not waited for");
    }

    /// Kills the actor with SIGKILL and waits until it is gone.
    pub fn kill(mut self) -> u32 {
        self.end();
        self.pid()
    }

    fn end(&mut self) {
        self.child.kill().expect("it was not waited for");
        self.child.wait().expect("a child of ours");
    }

    /// Stops the actor at an instant when it has a set's lock.
    pub fn stop_with_the_lock(&self, segment: &Path) {
        let reader = shmlimit::snapshot::SegmentReader::open(segment).expect("a segment");
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.signal(Signal::SIGSTOP);
            while !self.is_stopped() {
                assert!(Instant::now() < deadline, "it does not stop");
                std::thread::yield_now();
            }
            let snapshot = reader.snapshot().expect("copied");
            if snapshot.sets.iter().any(|set| set.lock.is_held()) {
                return;
            }
            self.signal(Signal::SIGCONT);
            assert!(Instant::now() < deadline, "it never has the lock");
        }
    }

    /// Whether each of the actor's threads is stopped.
    fn is_stopped(&self) -> bool {
        let tasks = format!("/proc/{}/task", self.pid());
        std::fs::read_dir(tasks).expect("it lives").all(|task| {
            let status = task.expect("an entry").path().join("stat");
            std::fs::read_to_string(status).is_ok_and(|text| text.contains(") T "))
        })
    }
}

/// Makes two processes die: one with the set's lock, the other with a permit. Returns their ids.
pub fn die_with_lock_and_permit(segment: &Path) -> (u32, u32) {
    let holder = Actor::start("hold", segment);
    let locker = Actor::start("spin", segment);
    locker.stop_with_the_lock(segment);
    (locker.kill(), holder.kill())
}

impl Drop for Actor {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.end();
        }
    }
}

/// Plays an actor's role; returns at once in a process that is not an actor.
///
/// * `attach`: attaches, and when told to go on says the result of an acquire.
/// * `hold`: the same while holding a permit. `hold as NAME` takes that name first.
/// * `spin`: takes and drops permits forever.
/// * `wait`: waits for a permit, says that it is granted, and holds it.
/// * `queue`: takes a place in the queue, and when told to go on gives it up and says so.
pub fn play() {
    let (Ok(role), Some(segment)) = (std::env::var(ROLE), std::env::var_os(SEGMENT)) else {
        return;
    };
    // The actor ends if the test dies.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).expect("supported");
    if let Some((_, name)) = role.split_once(" as ") {
        std::fs::write("/proc/self/comm", name).expect("renamed");
    }
    let segment = shmlimit::Segment::open(segment).expect("attached");
    let api = segment.set("api").expect("declared");
    let request = api.request();
    let held = role.starts_with("hold").then(|| {
        request
            .try_acquire()
            .expect("works")
            .into_result()
            .expect("admitted")
    });
    say("ready");
    if role == "spin" {
        loop {
            drop(request.try_acquire().expect("works"));
        }
    }
    if role == "wait" {
        let granted = request.acquire(TIMEOUT).expect("works").into_result();
        let _held = granted.expect("in time");
        say("granted");
        loop {
            std::thread::park();
        }
    }
    if role == "queue" {
        let mut waiting = Box::pin(request.acquire_async(TIMEOUT));
        let first_look = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(first_look.is_pending());
        wait_until_told();
        drop(waiting);
        say("left");
    }
    wait_until_told();
    say(&match request.try_acquire() {
        Ok(outcome) => format!("admitted {}", outcome.is_admitted()),
        Err(shmlimit::Error::Segment(shmlimit::SegmentError::Removed { .. })) => "retired".to_owned(),
        Err(error) => format!("{error}"),
    });
    wait_until_told();
    drop(held);
}

fn wait_until_told() {
    std::io::stdin()
        .lock()
        .read_line(&mut String::new())
        .expect("told");
}

fn say(what: &str) {
    println!("\nactor says {what}");
    std::io::stdout().flush().expect("written");
}
