//! The process that stands in for a command: it passes signals on, and stops and ends as the command does.
//!
//! The command stays in this program's process group. A signal that a terminal sends to the group reaches the command
//! directly, and is not passed on. A signal from a process is meant for this program, and is passed on.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::libc::{self, c_int, signalfd_siginfo};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{ForkResult, Pid, fork, getpid, getsid};

use super::channel::{Channel, GO, Report};
use super::keeper::{Keeper, Kept};
use super::processes::{send, wait_for};
use crate::exit::{ExitCode, Failure};
use crate::output;

/// The signals that a terminal sends to all of its foreground processes: for a key, a resize or a hang-up.
const SENT_BY_TERMINALS: [c_int; 8] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGWINCH,
    libc::SIGHUP,
    libc::SIGCONT,
];

/// What this process must do next.
#[derive(Debug)]
pub enum Outcome {
    /// Execute the command itself, because nothing is held for it.
    NothingHeld,
    /// End as the command did.
    Ended(ExitStatus),
}

/// The process that the user started, with its keeper.
#[derive(Debug)]
pub struct Front {
    channel: Channel,
    keeper: Pid,
}

impl Front {
    /// Forks the keeper, which runs `keep` and then ends.
    pub fn start(keep: impl FnOnce(&Keeper) -> Result<Kept, Failure>) -> io::Result<Self> {
        let (channel, of_keeper) = Channel::pair()?;
        let parent = getpid();
        // SAFETY: this program has no other thread yet, and in a package's console script no other thread holds a lock
        // of the allocator, so the child may do whatever any process may.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Self {
                channel,
                keeper: child,
            }),
            ForkResult::Child => {
                drop(channel);
                // If the keeper cannot begin, the front notices that it is gone.
                if let Ok(keeper) = Keeper::begin(parent, of_keeper) {
                    keeper.end(keep(&keeper));
                }
                // SAFETY: the call ends the process at once, without running inherited exit handlers.
                unsafe { libc::_exit(0) }
            }
        }
    }

    /// Waits for the permit, and then stands in for the command until the command has ended.
    ///
    /// While it waits, signals act on this process as usual. From then on, only SIGKILL and SIGSTOP end or stop it
    /// directly.
    pub fn stand(self) -> Result<Outcome, Failure> {
        match self.channel.next_report().map_err(not_heard)? {
            Some(Report::Admitted) => {}
            Some(Report::NothingHeld) => {
                self.keepers_end().map_err(not_heard)?;
                return Ok(Outcome::NothingHeld);
            }
            Some(Report::Failed { code, message }) => return self.failed(code, message),
            _ => return self.without_keeper(None),
        }
        let signals = take_all_signals().map_err(not_heard)?;
        // This fails if the keeper is gone, which the next report shows.
        let _ = self.channel.tell(GO);
        match self.channel.next_report().map_err(not_heard)? {
            Some(Report::Started { command }) => RunningFront {
                front: self,
                command: Pid::from_raw(command),
                signals,
            }
            .stand(),
            Some(Report::Failed { code, message }) => self.failed(code, message),
            _ => self.without_keeper(None),
        }
    }

    fn failed(&self, code: u8, message: String) -> Result<Outcome, Failure> {
        self.keepers_end().map_err(not_heard)?;
        Err(Failure::new(ExitCode::of(code), message))
    }

    /// Waits until the keeper has ended, so that it is no longer attached to the segment. Returns `None` if its status
    /// cannot be known.
    fn keepers_end(&self) -> io::Result<Option<ExitStatus>> {
        ended(self.keeper)
    }

    /// The outcome after the keeper was killed: how the command ended or, if none had started, how the keeper did. The
    /// kernel kills the command, and has made it a child of this process.
    fn without_keeper(&self, command: Option<Pid>) -> Result<Outcome, Failure> {
        let keeper = self.keepers_end().map_err(not_heard)?;
        let command = match command {
            Some(command) => ended(command).map_err(not_heard)?,
            None => None,
        };
        output::complain(
            "the process that takes and holds the permit was killed, so nothing is held any more",
        );
        match command.or(keeper) {
            Some(status) => Ok(Outcome::Ended(status)),
            None => Err(Failure::problem("how the command ended is not known")),
        }
    }
}

/// Waits for a child to end, and returns its status. Returns `None` if it is not a child.
fn ended(process: Pid) -> io::Result<Option<ExitStatus>> {
    match wait_for(process, 0) {
        Ok(change) => Ok(change.map(|(_, status)| status)),
        // This also happens if SIGCHLD is ignored. Then the child has ended.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        Err(error) => Err(error),
    }
}

fn not_heard(error: impl Into<io::Error>) -> Failure {
    let error: io::Error = error.into();
    Failure::problem(format!("cannot wait for the command: {error}"))
}

/// Blocks all signals, to read them one by one.
fn take_all_signals() -> io::Result<SignalFd> {
    // This lets the process wait for the command if the keeper is killed.
    prctl::set_child_subreaper(true)?;
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: this installs no handler, so no code runs in a signal context.
    unsafe { sigaction(Signal::SIGCHLD, &default) }?;
    let everything = SigSet::all();
    everything.thread_block()?;
    Ok(SignalFd::with_flags(
        &everything,
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?)
}

/// The front of a running command.
#[derive(Debug)]
struct RunningFront {
    front: Front,
    command: Pid,
    /// Receives all signals of this process; they are blocked.
    signals: SignalFd,
}

impl RunningFront {
    /// Passes on signals, and stops as the command does, until the command has ended.
    fn stand(&self) -> Result<Outcome, Failure> {
        let channel = &self.front.channel;
        loop {
            let mut files = [
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(channel.as_fd(), PollFlags::POLLIN),
            ];
            poll(&mut files, PollTimeout::NONE).map_err(not_heard)?;
            let is_told = files[1].any() == Some(true);
            while let Some(info) = self.signals.read_signal().map_err(not_heard)? {
                self.pass_on(&info);
            }
            if !is_told {
                continue;
            }
            match channel.next_report().map_err(not_heard)? {
                // Stop as well, so that a shell sees its job stop. The signal that continues this process is passed on.
                Some(Report::Stopped) => send(getpid(), libc::SIGSTOP),
                Some(Report::Complaint(message)) => output::complain(&message),
                Some(Report::Ended { status, is_all }) => {
                    if is_all {
                        self.front.keepers_end().map_err(not_heard)?;
                    }
                    return Ok(Outcome::Ended(ExitStatus::from_raw(status)));
                }
                Some(Report::Failed { code, message }) => return self.front.failed(code, message),
                _ => return self.front.without_keeper(Some(self.command)),
            }
        }
    }

    fn pass_on(&self, info: &signalfd_siginfo) {
        let signal = info.ssi_signo.cast_signed();
        // SIGCHLD is about the keeper.
        if signal == libc::SIGCHLD || self.was_reached_by(signal, info) {
            return;
        }
        if let Ok(number) = u8::try_from(signal) {
            // It goes through the keeper, which knows whether the command still exists. If the keeper is gone, the next
            // report says so.
            let _ = self.front.channel.tell(number);
        }
    }

    /// Whether the command has already received the signal.
    fn was_reached_by(&self, signal: c_int, info: &signalfd_siginfo) -> bool {
        if info.ssi_code != libc::SI_KERNEL {
            // The command may have sent it to its whole group, and so received it, too. Or the command means to end
            // itself by ending this process, which it can do directly.
            return info.ssi_code <= 0 && info.ssi_pid == self.command.as_raw().cast_unsigned();
        }
        // After a hang-up, only the session leader gets the signal from the terminal.
        let is_for_the_leader =
            matches!(signal, libc::SIGHUP | libc::SIGCONT) && getsid(None) == Ok(getpid());
        SENT_BY_TERMINALS.contains(&signal) && !is_for_the_leader
    }
}

/// Ends as a command did: dies from the same signal, or returns its exit code.
///
/// A shell distinguishes a program killed by an interrupt from one that exits after an interrupt, and only stops its
/// loops for the former.
pub fn end_like(status: ExitStatus) -> ExitCode {
    let Some(signal) = status.signal() else {
        // An exit code has eight bits.
        return ExitCode::of(status.code().unwrap_or_default() as u8);
    };
    // Only the core dump of the command is of interest.
    let _ = prctl::set_dumpable(false);
    // SAFETY: the default action is not a handler, the set is initialised before it is used, and the calls touch
    // nothing else in this process.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut only = std::mem::zeroed();
        libc::sigemptyset(&mut only);
        libc::sigaddset(&mut only, signal);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &only, std::ptr::null_mut());
    }
    // This is only reached if something keeps the signal that killed the command from killing this process.
    ExitCode::of(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}
