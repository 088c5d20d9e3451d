//! Signals by number, including real-time ones, which the wrappers do not know.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::libc::{self, c_int};
use nix::unistd::Pid;

/// Sends a signal to an existing process: this one, or a child that has not been waited for.
pub fn send(process: Pid, signal: c_int) {
    // The call fails if the command now belongs to another user. Nothing can be done about that.
    // SAFETY: the call touches no memory of this process.
    unsafe { libc::kill(process.as_raw(), signal) };
}

/// Waits for a status change of a child or, if `process` is -1, of any child. Returns `None` if the options include
/// `WNOHANG` and no status has changed.
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
