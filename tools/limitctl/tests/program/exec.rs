//! Commands that run under a permit.
#![allow(unsafe_code, reason = "starts commands with odd signals, and on a terminal")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use crate::support;
use crate::support::{Run, TIMEOUT, create_declared, directory, limitctl, lines_of, run, run_command, text};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::unistd::Pid;
use shmlimit::snapshot::{SegmentReader, SegmentSnapshot, SetSnapshot};

/// A segment with a set `jobs` of one place.
pub(super) fn one_place(directory: &Path) -> PathBuf {
    create_declared(
        directory,
        "jobs",
        "[[set]]\nname = \"jobs\"\n[[set.limit]]\nname = \"running\"\nkind = \"concurrency\"\ncapacity = 1\n",
    )
}

/// A segment with a set `model` of 100 tokens a day.
fn tokens(directory: &Path) -> PathBuf {
    create_declared(
        directory,
        "model",
        "[[set]]\nname = \"model\"\n[[set.limit]]\nname = \"tokens\"\nkind = \"rate\"\ncapacity = 100\nunit = \"0.5\"\n\
         window = \"1d\"\n",
    )
}

/// `limitctl exec` with a line of shell.
pub(super) fn exec(segment: &Path, set: &str, options: &[&str], script: &str) -> Command {
    let mut command = limitctl();
    command
        .arg("exec")
        .args(options)
        .args([text(segment), set, "--", "sh", "-c", script]);
    command
}

pub(super) fn run_exec(segment: &Path, set: &str, options: &[&str], script: &str) -> Run {
    run_command(&mut exec(segment, set, options, script))
}

/// A running `limitctl exec`; killed at the latest when it is dropped.
pub(super) struct Running {
    pub(super) child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Running {
    pub(super) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = lines_of(child.stdout.take().expect("piped"));
        let stdin = child.stdin.take();
        Self { child, stdin, lines }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    #[track_caller]
    pub(super) fn line(&self) -> String {
        self.lines.recv_timeout(TIMEOUT).expect("a line of output")
    }

    #[track_caller]
    pub(super) fn number(&self) -> u32 {
        self.line().parse().expect("a number")
    }

    /// The rest of its output, once that is closed.
    #[track_caller]
    pub(super) fn rest(&self) -> Vec<String> {
        let mut rest = Vec::new();
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Disconnected) => return rest,
                Err(RecvTimeoutError::Timeout) => panic!("its output is never closed"),
            }
        }
    }

    pub(super) fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("piped");
        writeln!(stdin, "{line}").expect("it reads");
    }

    #[track_caller]
    pub(super) fn end(&mut self) -> ExitStatus {
        let mut status = None;
        until("it ends", || {
            status = self.child.try_wait().expect("a child of ours");
            status.is_some()
        });
        status.expect("it ended")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The child may have ended and been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
pub(super) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::yield_now();
    }
}

fn snapshot(segment: &Path) -> SegmentSnapshot {
    SegmentReader::open(segment)
        .expect("a segment")
        .snapshot()
        .expect("copied")
}

fn only_set(segment: &Path) -> SetSnapshot {
    snapshot(segment).sets.remove(0)
}

#[track_caller]
pub(super) fn until_a_command_waits(segment: &Path) {
    until("a command waits in the queue", || {
        only_set(segment).tickets.iter().any(|ticket| ticket.owner_alive)
    });
}

/// A command that runs until it reads a line, with its process id, and one that waits for its place.
pub(super) fn one_runs_and_one_waits(segment: &Path) -> (Running, u32, Running) {
    let first = Running::start(&mut exec(segment, "jobs", &[], WAITING_TO_BE_TOLD));
    let command = first.number();
    let second = Running::start(&mut exec(segment, "jobs", &[], "echo second"));
    until_a_command_waits(segment);
    (first, command, second)
}

/// The letter that the kernel shows for a process's state; none if it is gone.
fn state(pid: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// Whether it has ended, even if nobody has waited for it yet.
pub(super) fn has_ended(pid: u32) -> bool {
    matches!(state(pid), None | Some('Z' | 'X'))
}

pub(super) fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).expect("it is there");
}

/// Prints its process id, and ends when it is told to, or when its input ends.
pub(super) const WAITING_TO_BE_TOLD: &str = "echo $$; read told; exit 0";

/// The process that holds the permit: the only attached one.
#[track_caller]
pub(super) fn keeper(segment: &Path) -> u32 {
    let mut participants = snapshot(segment).participants;
    participants.retain(|participant| participant.alive);
    assert_eq!(participants.len(), 1, "{participants:?}");
    u32::try_from(participants[0].pid).expect("a process id")
}

#[test]
fn one_place_runs_one_command_at_a_time() {
    let directory = directory();
    let segment = one_place(directory.path());
    let log = directory.path().join("log");
    let script = format!("echo begin >> {0}; ls / > /dev/null; echo end >> {0}", text(&log));
    let mut all: Vec<Running> = (0..8)
        .map(|_| Running::start(&mut exec(&segment, "jobs", &[], &script)))
        .collect();
    for running in &mut all {
        assert_eq!(running.end().code(), Some(0));
    }
    assert_eq!(
        fs::read_to_string(log).expect("written"),
        "begin\nend\n".repeat(8)
    );
    assert_eq!(only_set(&segment).active, 0);
}

#[test]
fn waits_its_turn() {
    let directory = directory();
    let segment = one_place(directory.path());
    let (mut first, _, mut second) = one_runs_and_one_waits(&segment);
    first.say("go on");
    assert_eq!(second.line(), "second");
    assert_eq!(first.end().code(), Some(0));
    assert_eq!(second.end().code(), Some(0));
    assert_eq!(
        only_set(&segment).counts.reclaimed,
        0,
        "it was given back, not taken back"
    );
}

#[test]
fn ends_as_the_command_does() {
    let directory = directory();
    for (segment, set, options) in [
        (one_place(directory.path()), "jobs", &[][..]),
        (tokens(directory.path()), "model", &["--cost", "tokens=0"]),
    ] {
        for code in [0, 1, 42, 75, 255] {
            run_exec(&segment, set, options, &format!("exit {code}")).ended(code);
        }
        for signal in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGPIPE, Signal::SIGSEGV] {
            let script = format!("ulimit -c 0; kill -{} $$", signal as i32);
            let mut running = Running::start(&mut exec(&segment, set, options, &script));
            assert_eq!(running.end().signal(), Some(signal as i32));
        }
    }
}

#[test]
fn output_and_input_are_the_commands() {
    let directory = directory();
    let segment = one_place(directory.path());
    let run_ = run_exec(&segment, "jobs", &[], "cat; echo out; echo err >&2").ended(0);
    assert_eq!((&*run_.stdout, &*run_.stderr), ("out\n", "err\n"));
}

#[test]
fn killing_the_command_frees_its_place() {
    let directory = directory();
    let segment = one_place(directory.path());
    let (mut first, command, second) = one_runs_and_one_waits(&segment);
    signal(command, Signal::SIGKILL);
    assert_eq!(second.line(), "second");
    assert_eq!(first.end().signal(), Some(Signal::SIGKILL as i32));
}

#[test]
fn a_signal_ends_a_wait_and_the_place_in_line_goes_to_the_next() {
    let directory = directory();
    let segment = one_place(directory.path());
    let (mut first, _, mut second) = one_runs_and_one_waits(&segment);
    signal(second.pid(), Signal::SIGINT);
    assert_eq!(second.end().signal(), Some(Signal::SIGINT as i32));
    let third = Running::start(&mut exec(&segment, "jobs", &[], "echo third"));
    first.say("go on");
    assert_eq!(third.line(), "third");
    assert!(second.rest().is_empty());
}

#[test]
fn signals_are_passed_on() {
    let directory = directory();
    let segment = one_place(directory.path());
    // Numbers, because a shell has no names for real-time signals: USR1, USR2, HUP, INT, QUIT, ALRM, WINCH, CONT, and
    // a real-time one.
    let signals = [10, 12, 1, 2, 3, 14, 28, 18, 40];
    let traps: String = signals
        .iter()
        .map(|signal| format!("trap 'echo {signal}' {signal}; "))
        .collect();
    let script = format!("{traps} trap 'exit 5' TERM; echo ready; while :; do read told; done");
    let mut running = Running::start(&mut exec(&segment, "jobs", &[], &script));
    assert_eq!(running.line(), "ready");
    for signal in signals {
        send_number(running.pid(), signal);
        assert_eq!(running.line(), signal.to_string());
    }
    signal(running.pid(), Signal::SIGTERM);
    assert_eq!(running.end().code(), Some(5));
    assert_eq!(running.rest(), Vec::<String>::new());
}

/// Sends a signal by number, including real-time signals.
fn send_number(pid: u32, number: i32) {
    let script = format!("kill -{number} {pid}");
    assert_eq!(run_command(Command::new("sh").args(["-c", &script])).code, 0);
}

#[test]
fn what_the_command_sends_to_its_whole_group_comes_back_to_no_process() {
    let directory = directory();
    let segment = one_place(directory.path());
    let script =
        "trap 'echo group' USR1; trap 'exit 5' TERM; kill -USR1 0; echo ready; while :; do read told; done";
    let mut command = exec(&segment, "jobs", &[], script);
    let mut running = Running::start(command.process_group(0));
    let mut lines = [running.line(), running.line()];
    lines.sort_unstable();
    assert_eq!(lines, ["group", "ready"]);
    signal(running.pid(), Signal::SIGTERM);
    assert_eq!(running.end().code(), Some(5));
    assert!(running.rest().is_empty());
}

#[test]
fn a_stopped_command_stops_limitctl_and_both_continue_together() {
    let directory = directory();
    let segment = one_place(directory.path());
    let mut running = Running::start(&mut exec(&segment, "jobs", &[], WAITING_TO_BE_TOLD));
    let command = running.number();
    for _ in 0..3 {
        signal(command, Signal::SIGSTOP);
        until("both are stopped", || {
            state(command) == Some('T') && state(running.pid()) == Some('T')
        });
        assert_eq!(only_set(&segment).active, 1, "a stopped command has its place");
        signal(running.pid(), Signal::SIGCONT);
        until("both go on", || {
            state(command) != Some('T') && state(running.pid()) != Some('T')
        });
    }
    running.say("go on");
    assert_eq!(running.end().code(), Some(0));
}

/// `limitctl exec` as the leader of a new session, on a terminal, and the user's side of that terminal.
fn on_a_terminal(command: &mut Command) -> (Running, PtyMaster) {
    // Closed on exec, so that processes of other tests do not keep it from hanging up.
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).expect("a terminal");
    grantpt(&master).expect("ours");
    unlockpt(&master).expect("ours");
    let slave = fs::File::options()
        .read(true)
        .write(true)
        .custom_flags(nix::libc::O_NOCTTY)
        .open(ptsname_r(&master).expect("it has a name"))
        .expect("unlocked");
    command.stderr(slave);
    // SAFETY: both calls may be made between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            Errno::result(nix::libc::ioctl(2, nix::libc::TIOCSCTTY, 0))?;
            Ok(())
        });
    }
    (Running::start(command), master)
}

#[test]
fn what_is_typed_reaches_the_command_once() {
    let directory = directory();
    let segment = one_place(directory.path());
    let script = "trap 'echo int' INT; trap 'echo quit' QUIT; trap 'echo usr' USR1; trap 'exit 5' TERM; echo ready; \
                  while :; do read told; done";
    let (mut running, mut terminal) = on_a_terminal(&mut exec(&segment, "jobs", &[], script));
    assert_eq!(running.line(), "ready");
    for _ in 0..10 {
        for (key, trapped) in [(b"\x03", "int"), (b"\x1c", "quit")] {
            terminal.write_all(key).expect("typed");
            assert_eq!(running.line(), trapped);
            // This signal is passed on after every signal before it.
            signal(running.pid(), Signal::SIGUSR1);
            assert_eq!(running.line(), "usr");
        }
    }
    signal(running.pid(), Signal::SIGTERM);
    assert_eq!(running.end().code(), Some(5));
}

#[test]
fn a_terminal_that_hangs_up_is_told_to_the_command() {
    let directory = directory();
    let segment = one_place(directory.path());
    let script = "trap 'exit 5' HUP; echo ready; while :; do read told; done";
    let (mut running, terminal) = on_a_terminal(&mut exec(&segment, "jobs", &[], script));
    assert_eq!(running.line(), "ready");
    drop(terminal);
    assert_eq!(running.end().code(), Some(5));
}

#[test]
fn who_is_refused_or_waits_too_long_does_not_run_the_command() {
    let directory = directory();
    let segment = one_place(directory.path());
    let mut first = Running::start(&mut exec(&segment, "jobs", &[], WAITING_TO_BE_TOLD));
    first.number();
    for timeout in ["0", "50ms", "0.05"] {
        let refused = run_exec(&segment, "jobs", &["--timeout", timeout], "echo ran").ended(75);
        assert_eq!(refused.stdout, "");
        let waited = if timeout == "0" { "" } else { "time was up: " };
        assert_eq!(
            refused.stderr,
            format!("limitctl: {waited}set `jobs` refused by limit `running`\n")
        );
        let options = ["--timeout", timeout, "--conflict-exit-code", "9"];
        run_exec(&segment, "jobs", &options, "echo ran").ended(9);
    }
    first.say("go on");
    first.end();
    run_exec(&segment, "jobs", &["--timeout", "0"], "exit 0").ended(0);
}

#[test]
fn a_line_that_is_full_refuses() {
    let directory = directory();
    let segment = create_declared(
        directory.path(),
        "jobs",
        "[[set]]\nname = \"jobs\"\nwaiters = 1\n[[set.limit]]\nname = \"running\"\nkind = \"concurrency\"\n\
         capacity = 1\n",
    );
    let (_first, _, _second) = one_runs_and_one_waits(&segment);
    run_exec(&segment, "jobs", &[], "echo third").ended(75);
}

#[test]
fn a_command_that_cannot_be_run_says_so_as_a_shell_does_and_holds_nothing() {
    let directory = directory();
    let places = one_place(directory.path());
    let model = tokens(directory.path());
    let data = directory.path().join("data");
    fs::write(&data, "no program").expect("written");
    for (segment, set, options) in [
        (&places, "jobs", &[][..]),
        (&model, "model", &["--cost", "tokens=1"]),
    ] {
        for (program, code) in [("a-command-that-is-not-there", 127), (text(&data), 126)] {
            let mut command = limitctl();
            command
                .arg("exec")
                .args(options)
                .args([text(segment), set, "--", program]);
            let run_ = run_command(&mut command).ended(code);
            assert!(
                run_.stderr
                    .starts_with(&format!("limitctl: cannot run `{program}`: ")),
                "{run_:?}"
            );
        }
        assert_eq!(only_set(segment).active, 0);
    }
}

#[test]
fn a_permit_with_nothing_to_give_back_makes_limitctl_the_command() {
    let directory = directory();
    let segment = tokens(directory.path());
    let mut running = Running::start(&mut exec(
        &segment,
        "model",
        &["--cost", "tokens=20.5"],
        WAITING_TO_BE_TOLD,
    ));
    assert_eq!(running.number(), running.pid());
    let seen = snapshot(&segment);
    assert!(
        seen.participants.is_empty(),
        "it let go of the segment: {:?}",
        seen.participants
    );
    let limit = &seen.sets[0].limits[0];
    assert_eq!((limit.counts.taken, limit.counts.unsettled), (41, 0));
    running.say("go on");
    assert_eq!(running.end().code(), Some(0));
    let options = ["--cost", "tokens=79.5", "--timeout", "0"];
    run_exec(&segment, "model", &options, "echo ran").ended(0);
    let refused = run_exec(&segment, "model", &options, "echo ran").ended(75);
    assert!(
        refused.stderr.contains("refused by limit `tokens`, retry after "),
        "{refused:?}"
    );
}

#[test]
fn a_cost_is_settled_where_a_place_is_held_as_well() {
    let directory = directory();
    let segment = create_declared(
        directory.path(),
        "jobs",
        "[[set]]\nname = \"jobs\"\n[[set.limit]]\nname = \"running\"\nkind = \"concurrency\"\ncapacity = 2\n\
         [[set.limit]]\nname = \"dollars\"\nkind = \"rate\"\nunit = \"0.01\"\ncapacity = 5\nwindow = \"1d\"\n",
    );
    run_exec(
        &segment,
        "jobs",
        &["--cost", "dollars=1.25", "--cost", "running=2"],
        "exit 0",
    )
    .ended(0);
    let set = only_set(&segment);
    let figures: Vec<(u64, u64)> = set
        .limits
        .iter()
        .map(|limit| (limit.counts.taken, limit.counts.unsettled))
        .collect();
    assert_eq!(figures, [(2, 0), (125, 0)]);
    assert_eq!(set.active, 0);
}

#[test]
fn a_lease_is_renewed_while_the_command_runs() {
    let directory = directory();
    let segment = create_declared(
        directory.path(),
        "jobs",
        "[[set]]\nname = \"jobs\"\n[[set.limit]]\nname = \"running\"\nkind = \"concurrency\"\ncapacity = 1\n\
         lease = \"1h\"\n",
    );
    let mut running = Running::start(&mut exec(&segment, "jobs", &[], WAITING_TO_BE_TOLD));
    running.number();
    let threads = format!("/proc/{}/task", keeper(&segment));
    until("a thread renews it", || {
        fs::read_dir(&threads).expect("it runs").count() == 2
    });
    running.say("go on");
    assert_eq!(running.end().code(), Some(0));
}

#[test]
fn the_command_starts_with_the_signals_blocked_and_ignored_that_limitctl_started_with() {
    let directory = directory();
    let places = one_place(directory.path());
    let model = tokens(directory.path());
    let command = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    let bare = run_command(with_odd_signals(support::command("grep").args(&command[1..]))).ended(0);
    assert!(!bare.stdout.contains("SigBlk:\t0000000000000000"), "{bare:?}");
    for (segment, options) in [
        (&places, ["jobs", "--timeout", "1m"]),
        (&model, ["model", "--cost", "tokens=1"]),
    ] {
        let mut through = limitctl();
        through
            .args(["exec", text(segment)])
            .args(options)
            .arg("--")
            .args(command);
        let through = run_command(with_odd_signals(&mut through)).ended(0);
        assert_eq!(through.stdout, bare.stdout);
    }
}

/// Makes the command start with one signal blocked and some ignored.
fn with_odd_signals(command: &mut Command) -> &mut Command {
    // SAFETY: the calls may be made between fork and exec; no handler is installed.
    unsafe {
        command.pre_exec(|| {
            let mut blocked = SigSet::empty();
            blocked.add(Signal::SIGUSR2);
            blocked.thread_set_mask()?;
            let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
            for signal in [Signal::SIGCHLD, Signal::SIGHUP, Signal::SIGTSTP, Signal::SIGPIPE] {
                sigaction(signal, &ignore)?;
            }
            Ok(())
        })
    }
}

#[test]
fn what_makes_no_sense_ends_with_64_and_what_is_not_there_with_69() {
    let directory = directory();
    let path = tokens(directory.path());
    let segment = text(&path);
    let run_ = run(["exec", segment, "model", "--", "true"]).ended(64);
    assert!(run_.stderr.ends_with(": add --cost tokens=AMOUNT\n"), "{run_:?}");
    for cost in [
        "tokens",
        "tokens=",
        "tokens=many",
        "tokens=0.3",
        "tokens=-1",
        "tokens=101",
        "nonsense=1",
    ] {
        let run_ = run(["exec", "--cost", cost, segment, "model", "--", "true"]).ended(64);
        assert!(run_.stderr.starts_with("limitctl: "), "{run_:?}");
    }
    run(["exec", segment, "nonsense", "--", "true"]).ended(64);
    run(["exec", segment, "model", "true"]).ended(64);
    run(["exec", segment, "model", "--"]).ended(64);
    run(["exec", "--timeout", "soon", segment, "model", "--", "true"]).ended(64);
    run([
        "exec",
        "--conflict-exit-code",
        "256",
        segment,
        "model",
        "--",
        "true",
    ])
    .ended(64);
    let missing = text(&directory.path().join("missing")).to_owned();
    let run_ = run(["exec", &missing, "model", "--", "true"]).ended(69);
    assert!(run_.stderr.contains("there is no segment at"), "{run_:?}");
    assert_eq!(only_set(&path).limits[0].counts.taken, 0);
}

/// Without care, these tests would wait forever if the suite was started with nohup or in the background of a script.
#[test]
fn the_tests_hold_where_signals_are_ignored_from_the_start() {
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    again.args([
        "--exact",
        "exec::a_signal_ends_a_wait_and_the_place_in_line_goes_to_the_next",
        "exec::signals_are_passed_on",
        "exec::what_is_typed_reaches_the_command_once",
        "exec::a_terminal_that_hangs_up_is_told_to_the_command",
        "exec::the_command_starts_with_the_signals_blocked_and_ignored_that_limitctl_started_with",
    ]);
    // SAFETY: the calls may be made between fork and exec; no handler is installed.
    unsafe {
        again.pre_exec(|| {
            let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
            for signal in [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP] {
                sigaction(signal, &ignore)?;
            }
            Ok(())
        });
    }
    let run_ = run_command(&mut again).ended(0);
    assert!(run_.stdout.contains("5 passed"), "{run_:?}");
}

#[test]
fn where_a_set_keeps_labels_a_job_is_shown_by_its_name_or_by_what_it_is_for() {
    let directory = directory();
    let segment = create_declared(
        directory.path(),
        "jobs",
        "[[set]]\nname = \"jobs\"\nlabels = true\n[[set.limit]]\nname = \"running\"\nkind = \"concurrency\"\ncapacity = 2\n",
    );
    for (options, label) in [
        (&[][..], "sh"),
        (&["--label", "nightly import"], "nightly import"),
    ] {
        let mut running = Running::start(&mut exec(&segment, "jobs", options, WAITING_TO_BE_TOLD));
        running.number();
        let held = only_set(&segment).holds;
        let labels: Vec<Option<&str>> = held.iter().map(|hold| hold.label.as_deref()).collect();
        assert_eq!(labels, [Some(label)], "never its arguments, which may be secrets");
        running.say("go on");
        assert_eq!(running.end().code(), Some(0));
        until("its place is free", || only_set(&segment).active == 0);
    }
}
