//! Signals by their numbers, real-time ones included, which the wrappers do not know.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::libc::{self, c_int};
use nix::unistd::Pid;

/// Sends a signal to a process that is there: this one, or a child that was not waited for.
pub fn send(process: Pid, signal: c_int) {
    // What fails for want of permission, because the command
    // belongs to another user by now, cannot be helped.
    // SAFETY: the call touches no memory of this process.
    unsafe { libc::kill(process.as_raw(), signal) };
}

/// A change of a child, or of any with -1, that was not waited for; `None` where `WNOHANG` is among the options and there is none.
pub fn wait_for(process: Pid, options: c_int) -> io::Result<Option<(Pid, ExitStatus)>> {
    let mut status = 0;
    loop {
        // SAFETY: the status is written to a variable of this function.
        match unsafe { libc::waitpid(process.as_raw(), &mut status, options) } {
            0 => return Ok(None),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            changed => return Ok(Some((Pid::from_raw(changed), ExitStatus::from_raw(status)))),
        }
    }
}
