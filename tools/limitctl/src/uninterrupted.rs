//! Work that would leave files behind if a signal ended it.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::exit::Failure;

/// What a terminal or a service manager sends to end this program is dealt with when this is dropped. Other threads must not take
/// those signals: make it before they are there.
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
        // It fails for arguments that make no sense, of which this is none.
        let _ = self.former.thread_set_mask();
    }
}
