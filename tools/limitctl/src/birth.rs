//! Starting a command without a copy of this process.
//!
//! A fork copies the tables of all memory, and what either process then writes to: for a command of little work, a
//! good part of what running it costs. Here the child uses the memory of its parent, which stands still until the
//! child is the command, as in a vfork, on a stack of its own.
#![allow(unsafe_code)]

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use nix::errno::Errno;
use nix::libc::{self, c_char, c_int, c_void, pid_t};
use nix::sys::signal::{SigAction, SigSet, SigmaskHow, Signal, sigaction, sigprocmask};
use nix::unistd::{Pid, getpid};

/// What looking for the command in PATH takes of a stack, many times over.
const STACK: usize = 128 * 1024;

/// What a child needs until it is the command. Nothing is allocated from there on.
pub struct Birth {
    /// Ends in a null pointer. Points to what `_texts` owns.
    arguments: Vec<*const c_char>,
    _texts: Vec<CString>,
    parent: pid_t,
    child_action: SigAction,
    mask: SigSet,
    error: Option<Errno>,
}

impl Birth {
    /// Of a command that begins with that action for SIGCHLD and that mask. All signals are blocked meanwhile.
    pub fn of(command: &[OsString], child_action: SigAction, mask: SigSet) -> io::Result<Self> {
        let texts: Vec<CString> = command
            .iter()
            .map(|text| CString::new(text.as_bytes()))
            .collect::<Result<_, _>>()?;
        let arguments = texts
            .iter()
            .map(|text| text.as_ptr())
            .chain([ptr::null()])
            .collect();
        Ok(Self {
            arguments,
            _texts: texts,
            parent: getpid().as_raw(),
            child_action,
            mask,
            error: None,
        })
    }

    /// Starts the command, or answers why it could not be.
    pub fn give(mut self) -> io::Result<Pid> {
        // A script without a first line that names its interpreter is run with one more argument, on the stack.
        let size = STACK + size_of_val(self.arguments.as_slice());
        let mut stack: Vec<u128> = Vec::with_capacity(size.div_ceil(size_of::<u128>()));
        let top = stack.spare_capacity_mut().as_mut_ptr_range().end;
        // SAFETY: the child runs on `stack`, which grows downwards, is as aligned as a stack must be, larger than
        // what the child uses, and alive until the parent goes on, which is when the child uses it no more. `self`
        // lives as long, and nobody else looks at it meanwhile: this thread stands still, and no other knows of it.
        let child = unsafe {
            libc::clone(
                become_the_command,
                top.cast::<c_void>(),
                libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
                ptr::from_mut(&mut self).cast::<c_void>(),
            )
        };
        let child = Errno::result(child)?;
        let Some(error) = self.error else {
            return Ok(Pid::from_raw(child));
        };
        // SAFETY: the call is to write nothing.
        unsafe { libc::waitpid(child, ptr::null_mut(), 0) };
        Err(error.into())
    }

    /// In the child: what is asked of the kernel before the command begins, and the command.
    ///
    /// Answers only where something failed.
    fn run(&self) -> Result<(), Errno> {
        // SAFETY: the call touches no memory.
        Errno::result(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        // It may have died before the kernel was asked to tell.
        // SAFETY: as above.
        if unsafe { libc::getppid() } != self.parent {
            return Err(Errno::ESRCH);
        }
        // A child that shares memory does not share its actions on signals.
        // SAFETY: the first action is the one that the process began with, which is no handler of this program's; the
        // second is what it was before the standard library began to ignore the signal.
        unsafe {
            sigaction(Signal::SIGCHLD, &self.child_action)?;
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.mask), None)?;
        // SAFETY: the arguments are strings that end in a zero byte, in a list that ends in a null pointer and has
        // one at least.
        unsafe { libc::execvp(self.arguments[0], self.arguments.as_ptr()) };
        Err(Errno::last())
    }
}

extern "C" fn become_the_command(birth: *mut c_void) -> c_int {
    // SAFETY: the one caller passes a `Birth` that it does not touch until this function has ended.
    let birth = unsafe { &mut *birth.cast::<Birth>() };
    if let Err(error) = birth.run() {
        birth.error = Some(error);
    }
    // SAFETY: ends the child alone, and runs nothing that is the parent's to run.
    unsafe { libc::_exit(127) }
}
