//! The permit of a request, and how the work under it went.

use super::callback::{Callback, FailureRule};
use crate::api::permit::Permit;

/// What an admitted request holds until it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    permit: Permit<'static>,
    /// Which responses mean that the work failed.
    is_failure: Callback<FailureRule>,
    has_failed: bool,
}

impl Held {
    pub(super) fn new(permit: Permit<'static>, is_failure: Callback<FailureRule>) -> Self {
        Self {
            permit,
            is_failure,
            has_failed: false,
        }
    }

    pub(super) fn permit(&mut self) -> &mut Permit<'static> {
        &mut self.permit
    }

    /// Which responses mean that the work failed.
    pub(super) fn is_failure(&self) -> Callback<FailureRule> {
        self.is_failure.clone()
    }

    /// Records that the service returned no response, or broke off in the middle of one.
    pub(super) fn note_failure(&mut self) {
        self.has_failed = true;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.has_failed {
            // If this fails, dropping the permit tries again and reports the error.
            let _ = self.permit.release_failed();
        }
    }
}
