//! The signals that the program was started with, which its command shall start with.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

/// Whether SIGPIPE was ignored before the runtime of the language began, which ignores it in any case.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Notes what the runtime is about to change. To be called before it begins; where it is not, as in a Python program, the
/// command starts with the default action, as those of Python's `subprocess` do.
pub fn note_signals() {
    // SAFETY: all bytes of an action may be zero. The call only writes the present action to it.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action);
        action
    };
    PIPE_WAS_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// The command, to be started with SIGPIPE as this program was started with it. The standard library has it begin with the
/// default action.
pub fn with_inherited_signals(mut command: Command) -> Command {
    if PIPE_WAS_IGNORED.load(Ordering::Relaxed) {
        let ignore = || {
            // SAFETY: no handler is installed.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: the closure makes one system call, which may be made between fork and exec.
        unsafe { command.pre_exec(ignore) };
    }
    command
}
