//! The process that holds the permit until the command and everything that it started have ended.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, getpid, getppid, setsid};

use super::channel::{Channel, GO, Report};
use super::inherited::with_inherited_signals;
use super::processes::{send, wait_for};
use crate::exit::Failure;

/// Any child.
const ANY: Pid = Pid::from_raw(-1);

/// The keeper, before it has a command.
#[derive(Debug)]
pub struct Keeper {
    channel: Channel,
}

/// How the keeper's work ended, once it has given back what it took.
#[derive(Debug)]
pub enum Kept {
    /// The permit had nothing to give back.
    Nothing,
    /// The command and everything that it started have ended. Has the command's status, unless the front already knows
    /// it.
    UntilTheEnd(Option<ExitStatus>),
    /// The front was gone before the command started.
    Abandoned,
}

impl Keeper {
    /// Turns a process into a keeper, right after its parent has forked it.
    pub(super) fn begin(parent: Pid, channel: Channel) -> nix::Result<Self> {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the kernel was asked to report its death.
        if getppid() != parent {
            return Err(Errno::ESRCH);
        }
        prctl::set_child_subreaper(true)?;
        // The name is for people who list processes, and keeps `killall limitctl` from ending the keeper.
        prctl::set_name(c"limitctl-keeper")?;
        Ok(Self { channel })
    }

    /// Starts the command, for which the permit is already taken. The command dies with this process. Returns `None` if
    /// the front is gone, so that the command is no longer wanted.
    pub fn start(&self, command: Command) -> io::Result<Option<Tree<'_>>> {
        let started = self.channel.report(&Report::Admitted).is_ok() && self.channel.told()? == Some(GO);
        if !started {
            return Ok(None);
        }
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // A process that ignores SIGCHLD cannot wait for its children. This process may have been started in that
        // state, and then the command must be, too.
        // SAFETY: this installs no handler, so no code runs in a signal context.
        let child_action = unsafe { sigaction(Signal::SIGCHLD, &default) }?;
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let mut deaths = SigSet::empty();
        deaths.add(Signal::SIGCHLD);
        let deaths = SignalFd::with_flags(&deaths, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        // From here on, the command continues even if the front is killed.
        prctl::set_pdeathsig(None)?;
        let parent = getpid();
        let before_it_begins = move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            if getppid() != parent {
                return Err(Errno::ESRCH.into());
            }
            // SAFETY: the action is the one that limitctl was started with, which is not a handler.
            unsafe { sigaction(Signal::SIGCHLD, &child_action) }?;
            Ok(mask.thread_set_mask()?)
        };
        let mut command = with_inherited_signals(command);
        // SAFETY: the closure runs in the child, between fork and exec. It makes four system calls, all of which are
        // allowed there, takes no lock and allocates nothing: its error is a plain number.
        unsafe { command.pre_exec(before_it_begins) };
        let command = Pid::from_raw(command.spawn()?.id().cast_signed());
        leave_the_front();
        // If the front is gone, there is no one to report to.
        let _ = self.channel.report(&Report::Started {
            command: command.as_raw(),
        });
        Ok(Some(Tree {
            channel: &self.channel,
            command,
            deaths,
        }))
    }

    /// Reports the outcome to the front. Called last, when the segment is closed.
    pub(super) fn end(&self, outcome: Result<Kept, Failure>) {
        let report = match outcome {
            Ok(Kept::Nothing) => Report::NothingHeld,
            Ok(Kept::UntilTheEnd(Some(status))) => Report::Ended {
                status: status.into_raw(),
                is_all: true,
            },
            Ok(Kept::UntilTheEnd(None) | Kept::Abandoned) => return,
            Err(failure) => Report::Failed {
                code: failure.code.number(),
                message: failure.message,
            },
        };
        let _ = self.channel.report(&report);
    }
}

/// Leaves the front's session, because its process group may be killed, and closes its streams, because their readers
/// wait for the end.
fn leave_the_front() {
    // Only fails for group leaders, and a forked process is not one.
    let _ = setsid();
    if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&nothing);
        let _ = dup2_stdout(&nothing);
        let _ = dup2_stderr(&nothing);
    }
}

/// A running command and everything that it started.
#[derive(Debug)]
pub struct Tree<'a> {
    channel: &'a Channel,
    command: Pid,
    /// Receives SIGCHLD, which is blocked like all signals.
    deaths: SignalFd,
}

impl Tree<'_> {
    /// Makes the front report a failure on its standard error.
    pub fn complain(&self, failure: Failure) {
        let _ = self.channel.report(&Report::Complaint(failure.message));
    }

    /// Waits until no process is left, and passes signals on to the command until it has ended. Returns the command's
    /// status, unless the front already knows it because some process has outlived the command.
    pub fn wait(&self) -> io::Result<Option<ExitStatus>> {
        let mut status = None;
        let mut is_reported = false;
        let mut has_front = true;
        loop {
            loop {
                match wait_for(ANY, libc::WNOHANG | libc::WUNTRACED) {
                    Ok(None) => break,
                    Ok(Some((process, change))) if process == self.command => {
                        if change.stopped_signal().is_some() {
                            let _ = self.channel.report(&Report::Stopped);
                        } else {
                            status = Some(change);
                        }
                    }
                    // A process that the command left running.
                    Ok(Some(_)) => {}
                    Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                        return Ok(status.filter(|_| !is_reported));
                    }
                    Err(error) => return Err(error),
                }
            }
            if let Some(status) = status.filter(|_| !is_reported) {
                is_reported = true;
                let _ = self.channel.report(&Report::Ended {
                    status: status.into_raw(),
                    is_all: false,
                });
            }
            let mut files = vec![PollFd::new(self.deaths.as_fd(), PollFlags::POLLIN)];
            if has_front {
                files.push(PollFd::new(self.channel.as_fd(), PollFlags::POLLIN));
            }
            poll(&mut files, PollTimeout::NONE)?;
            let is_told = files.get(1).is_some_and(|file| file.any() == Some(true));
            while self.deaths.read_signal()?.is_some() {}
            if is_told {
                match self.channel.told()? {
                    // The command has not been waited for yet, so its id cannot have been reused.
                    Some(signal) if status.is_none() => send(self.command, signal.into()),
                    Some(_) => {}
                    None => has_front = false,
                }
            }
        }
    }
}
