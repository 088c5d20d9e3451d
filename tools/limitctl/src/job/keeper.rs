//! The process that holds the permit until the command and everything that it started has ended.
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

/// The keeper before it has a command.
#[derive(Debug)]
pub struct Keeper {
    channel: Channel,
}

/// What the keeper came to, once it has given back what it took.
#[derive(Debug)]
pub enum Kept {
    /// The permit had nothing to give back.
    Nothing,
    /// The command has ended, like this unless the front knows that already, and so has everything that it started.
    UntilTheEnd(Option<ExitStatus>),
    /// The front was gone before the command started.
    Abandoned,
}

impl Keeper {
    /// What a process does to become one, right after its parent has forked it.
    pub(super) fn begin(parent: Pid, channel: Channel) -> nix::Result<Self> {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the kernel was asked to report that.
        if getppid() != parent {
            return Err(Errno::ESRCH);
        }
        prctl::set_child_subreaper(true)?;
        // For those who list processes, and so that `killall limitctl` leaves it alone.
        prctl::set_name(c"limitctl-keeper")?;
        Ok(Self { channel })
    }

    /// Starts the command, of which the permit is had by now. It dies with this process. `None` where the front is gone, so that no
    /// process wants it any more.
    pub fn start(&self, command: Command) -> io::Result<Option<Tree<'_>>> {
        let started = self.channel.report(&Report::Admitted).is_ok() && self.channel.told()? == Some(GO);
        if !started {
            return Ok(None);
        }
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // Who ignores it has no children to wait for. A process may begin like that, and so shall the command.
        // SAFETY: no handler is installed, so none runs code that is unfit for one.
        let child_action = unsafe { sigaction(Signal::SIGCHLD, &default) }?;
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let mut deaths = SigSet::empty();
        deaths.add(Signal::SIGCHLD);
        let deaths = SignalFd::with_flags(&deaths, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        // From here on the front may be killed, and the command goes on.
        prctl::set_pdeathsig(None)?;
        let parent = getpid();
        let before_it_begins = move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            if getppid() != parent {
                return Err(Errno::ESRCH.into());
            }
            // SAFETY: the action is the one that limitctl was started with, which is no handler of this program's.
            unsafe { sigaction(Signal::SIGCHLD, &child_action) }?;
            Ok(mask.thread_set_mask()?)
        };
        let mut command = with_inherited_signals(command);
        // SAFETY: the closure runs in the child, between fork and exec. It makes four system calls, all of which may be
        // made there, takes no lock and allocates nothing: an error is the number of one.
        unsafe { command.pre_exec(before_it_begins) };
        let command = Pid::from_raw(command.spawn()?.id().cast_signed());
        leave_the_front();
        // Where the front is gone, there is none to be told.
        let _ = self.channel.report(&Report::Started {
            command: command.as_raw(),
        });
        Ok(Some(Tree {
            channel: &self.channel,
            command,
            deaths,
        }))
    }

    /// Tells the front what it came to; to be done last, when the segment is closed.
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

/// Leaves the front's session, which may be killed as a group, and its streams, whose readers wait for their end.
fn leave_the_front() {
    // Fails for leaders of a group alone, which a forked process is not.
    let _ = setsid();
    if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&nothing);
        let _ = dup2_stdout(&nothing);
        let _ = dup2_stderr(&nothing);
    }
}

/// A command that runs, with everything that it started.
#[derive(Debug)]
pub struct Tree<'a> {
    channel: &'a Channel,
    command: Pid,
    /// SIGCHLD, which is blocked as all signals are.
    deaths: SignalFd,
}

impl Tree<'_> {
    /// Says on the standard error of the front what went wrong.
    pub fn complain(&self, failure: Failure) {
        let _ = self.channel.report(&Report::Complaint(failure.message));
    }

    /// Waits until nothing is left, and passes signals on to the command until that has ended. Answers how it did unless the front
    /// was told, which is so where something outlives it.
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
                    // Something that the command left running.
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
                    // Not waited for, so the number is its own.
                    Some(signal) if status.is_none() => send(self.command, signal.into()),
                    Some(_) => {}
                    None => has_front = false,
                }
            }
        }
    }
}
