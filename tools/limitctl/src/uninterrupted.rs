//! Defers signals during work that would otherwise leave files behind.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::exit::Failure;

/// While this exists, signals from a terminal or a service manager that would end this program are deferred. Other
/// threads must not take those signals: create this before they are started.
#[derive(Debug)]
#[must_use]
pub struct Uninterrupted {
    former: SigSet,
}

impl Uninterrupted {
    pub fn begin() -> Result<Self, Failure> {
        let ends: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT]
            .into_iter()
            .collect();
        let former = ends
            .thread_swap_mask(SigmaskHow::SIG_BLOCK)
            .map_err(|errno| Failure::of_system(&errno.into(), "cannot block signals"))?;
        Ok(Self { former })
    }
}

impl Drop for Uninterrupted {
    fn drop(&mut self) {
        // This only fails for invalid arguments.
        let _ = self.former.thread_set_mask();
    }
}
