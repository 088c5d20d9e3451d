//! A command that this program runs and stands for: signals pass through, and so do stops and the end.
//!
//! The command stays in the process group of this program. So what a terminal sends to the group reaches it by itself
//! and is not passed on; what a process sends is meant for this program, and is.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use nix::errno::Errno;
use nix::libc::{self, c_int, signalfd_siginfo};
use nix::sys::prctl;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpid, getppid, getsid};

use crate::exit::ExitCode;

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

/// A command that was started and has not ended.
#[derive(Debug)]
pub struct Job {
    command: Child,
    /// All signals of this process, which are blocked.
    signals: SignalFd,
}

impl Job {
    /// Starts a command that dies with this process, also where this process is killed by SIGKILL.
    ///
    /// From here on no signal but SIGKILL and SIGSTOP ends or stops this process by itself.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // Who ignores it has no children to wait for. A process may begin like that, and so shall the command.
        // SAFETY: no handler is installed, so none runs code that is unfit for one.
        let child_action = unsafe { sigaction(Signal::SIGCHLD, &default) }?;
        let everything = SigSet::all();
        let mask = everything.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let signals = SignalFd::with_flags(&everything, SfdFlags::SFD_CLOEXEC)?;
        let parent = getpid();
        let before_it_begins = move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // The parent may have died before the kernel was asked to report that.
            if getppid() != parent {
                return Err(Errno::ESRCH.into());
            }
            // SAFETY: the action is the one that limitctl was started with, which is no handler of this program's.
            unsafe { sigaction(Signal::SIGCHLD, &child_action) }?;
            Ok(mask.thread_set_mask()?)
        };
        // SAFETY: the closure runs in the child, between fork and exec. It makes four system calls, all of which may be
        // made there, takes no lock and allocates nothing: an error is the number of one.
        unsafe { command.pre_exec(before_it_begins) };
        let command = command.spawn()?;
        Ok(Self { command, signals })
    }

    /// Passes signals and stops on until the command has ended, and answers how it did.
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        loop {
            let info = match self.signals.read_signal() {
                Ok(Some(info)) => info,
                Ok(None) | Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let signal = info.ssi_signo.cast_signed();
            if signal == libc::SIGCHLD {
                if let Some(status) = self.command.try_wait()? {
                    return Ok(status);
                }
                if self.has_stopped()? {
                    // So that a shell sees that its job stands still. What continues this process is passed on.
                    send(getpid(), libc::SIGSTOP);
                }
            } else if !self.was_reached_by(signal, &info) {
                send(self.process(), signal);
            }
        }
    }

    fn process(&self) -> Pid {
        Pid::from_raw(self.command.id().cast_signed())
    }

    /// Whether the command was stopped since the last look.
    fn has_stopped(&self) -> io::Result<bool> {
        match waitid(
            Id::Pid(self.process()),
            WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG,
        ) {
            Ok(change) => Ok(matches!(change, WaitStatus::Stopped(..))),
            // It has ended in the meantime, which another SIGCHLD reports.
            Err(Errno::ECHILD) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the command has the signal already.
    fn was_reached_by(&self, signal: c_int, info: &signalfd_siginfo) -> bool {
        if info.ssi_code != libc::SI_KERNEL {
            // The command sent it to its whole group, to which it belongs; or it asks to be ended by ending this
            // process, which it can do itself.
            return info.ssi_code <= 0 && info.ssi_pid == self.command.id();
        }
        // A terminal that is gone tells none but the leader of its session.
        let is_for_the_leader =
            matches!(signal, libc::SIGHUP | libc::SIGCONT) && getsid(None) == Ok(getpid());
        SENT_BY_TERMINALS.contains(&signal) && !is_for_the_leader
    }
}

/// Sends a signal to a process that is there: this one, or a child that was not waited for.
fn send(process: Pid, signal: c_int) {
    // Not the wrapper, which knows no real-time signals. What fails for want of permission, because the command
    // belongs to another user by now, cannot be helped.
    // SAFETY: the call touches no memory of this process.
    unsafe { libc::kill(process.as_raw(), signal) };
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
