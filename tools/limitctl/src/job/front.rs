//! The process that stands for a command: signals pass through, and so do stops and the end.
//!
//! The command stays in the process group of this program. So what a terminal sends to the group reaches it by itself
//! and is not passed on; what a process sends is meant for this program, and is.
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

/// What a terminal sends to its foreground processes, all of them: on a key, a resize or a hang-up.
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

/// What is to be done by the process that was started.
#[derive(Debug)]
pub enum Outcome {
    /// It becomes the command, for which nothing is held.
    NothingHeld,
    /// It ends as the command did.
    Ended(ExitStatus),
}

/// The process that was started, beside its keeper.
#[derive(Debug)]
pub struct Front {
    channel: Channel,
    keeper: Pid,
}

impl Front {
    /// Forks the keeper, which does as it is told and ends.
    pub fn start(keep: impl FnOnce(&Keeper) -> Result<Kept, Failure>) -> io::Result<Self> {
        let (channel, of_keeper) = Channel::pair()?;
        let parent = getpid();
        // SAFETY: this program has no other thread so far, and the console script of a package none that has a lock of the
        // allocator: so the child may do what any process may.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Self {
                channel,
                keeper: child,
            }),
            ForkResult::Child => {
                drop(channel);
                // Where it cannot begin, the front finds it gone.
                if let Ok(keeper) = Keeper::begin(parent, of_keeper) {
                    keeper.end(keep(&keeper));
                }
                // SAFETY: ends the process. What the parent is to do at its end is not done twice.
                unsafe { libc::_exit(0) }
            }
        }
    }

    /// Waits for the permit, and then stands for the command until that has ended.
    ///
    /// While it waits, signals do to this process what they do to any. From then on none but SIGKILL and SIGSTOP ends or stops it
    /// by itself.
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
        // Fails where the keeper is gone, of which the next report says more.
        let _ = self.channel.tell(GO);
        match self.channel.next_report().map_err(not_heard)? {
            Some(Report::Started { command }) => Standing {
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
        Err(Failure::new(ExitCode::Other(code), message))
    }

    /// Waits until the keeper has ended, so that it is attached to the segment no more; `None` where no one can know how.
    fn keepers_end(&self) -> io::Result<Option<ExitStatus>> {
        ended(self.keeper)
    }

    /// Ends as the command did, or the keeper where that was killed before there was one. The kernel has given the command, which
    /// it kills, to this process.
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
            None => Err(Failure::new(
                ExitCode::Problem,
                "how the command ended is not known",
            )),
        }
    }
}

/// How a child has ended, once it has; `None` where it is none.
fn ended(process: Pid) -> io::Result<Option<ExitStatus>> {
    match wait_for(process, 0) {
        Ok(change) => Ok(change.map(|(_, status)| status)),
        // Also where SIGCHLD is ignored: then it has ended.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        Err(error) => Err(error),
    }
}

fn not_heard(error: impl Into<io::Error>) -> Failure {
    let error: io::Error = error.into();
    Failure::new(ExitCode::Problem, format!("cannot wait for the command: {error}"))
}

/// Blocks all signals, to be read one by one.
fn take_all_signals() -> io::Result<SignalFd> {
    // Should the keeper be killed, the command is this process's to wait for.
    prctl::set_child_subreaper(true)?;
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed, so none runs code that is unfit for one.
    unsafe { sigaction(Signal::SIGCHLD, &default) }?;
    let everything = SigSet::all();
    everything.thread_block()?;
    Ok(SignalFd::with_flags(
        &everything,
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?)
}

/// The front of a command that runs.
#[derive(Debug)]
struct Standing {
    front: Front,
    command: Pid,
    /// All signals of this process, which are blocked.
    signals: SignalFd,
}

impl Standing {
    /// Passes signals and stops on until the command has ended.
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
                // So that a shell sees that its job stands still. What continues this process is passed on.
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
        // Of the keeper's, if it is one of SIGCHLD.
        if signal == libc::SIGCHLD || self.was_reached_by(signal, info) {
            return;
        }
        if let Ok(number) = u8::try_from(signal) {
            // By the keeper, which knows that the command is there. Where that is gone, the next report says so.
            let _ = self.front.channel.tell(number);
        }
    }

    /// Whether the command has the signal already.
    fn was_reached_by(&self, signal: c_int, info: &signalfd_siginfo) -> bool {
        if info.ssi_code != libc::SI_KERNEL {
            // The command sent it to its whole group, to which it belongs; or it asks to be ended by ending this
            // process, which it can do itself.
            return info.ssi_code <= 0 && info.ssi_pid == self.command.as_raw().cast_unsigned();
        }
        // A terminal that is gone tells none but the leader of its session.
        let is_for_the_leader =
            matches!(signal, libc::SIGHUP | libc::SIGCONT) && getsid(None) == Ok(getpid());
        SENT_BY_TERMINALS.contains(&signal) && !is_for_the_leader
    }
}

/// Ends as a command did: dies of the signal that it died of, or answers the code that it ended with.
///
/// A shell tells a program that was interrupted from one that ended by itself after an interrupt, and stops its loops
/// for the first.
pub fn end_like(status: ExitStatus) -> ExitCode {
    let Some(signal) = status.signal() else {
        // A code has eight bits.
        return ExitCode::Other(status.code().unwrap_or_default() as u8);
    };
    // The core that matters is the command's.
    let _ = prctl::set_dumpable(false);
    // SAFETY: the default action is no handler; the set is initialised before it is used; the calls touch nothing
    // else of this process.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut only = std::mem::zeroed();
        libc::sigemptyset(&mut only);
        libc::sigaddset(&mut only, signal);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &only, std::ptr::null_mut());
    }
    // Only where something keeps the signal from killing this process although it killed the command.
    ExitCode::Other(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}
