//! Starts the command with the signal dispositions that this program was started with.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

/// Whether SIGPIPE was ignored when the program started, before Rust's runtime, which always ignores it.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Records what the runtime is about to change. Must be called before the runtime starts. If it is not called, as in a
/// Python program, the command starts with the default action, as it does with Python's `subprocess`.
pub fn note_signals() {
    // SAFETY: all bytes of an action may be zero. The call only writes the current action to it.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action);
        action
    };
    PIPE_WAS_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// Makes the command start with the disposition of SIGPIPE that this program was started with. Otherwise, the standard
/// library resets it to the default action.
pub fn with_inherited_signals(mut command: Command) -> Command {
    if PIPE_WAS_IGNORED.load(Ordering::Relaxed) {
        let ignore = || {
            // SAFETY: this installs no handler.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: the closure makes one system call, which is allowed between fork and exec.
        unsafe { command.pre_exec(ignore) };
    }
    command
}
