//! Threads that the library starts for itself.

use std::{io, thread};

use nix::sys::signal::{SigSet, SigmaskHow};

/// Starts a thread with all signals blocked: signals are for the program's own threads.
pub(crate) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let own = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let started = thread::Builder::new().name(name.to_owned()).spawn(body);
    own.thread_set_mask()?;
    started.map(drop)
}
