//! The program's functions that layers call.

use std::fmt;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use http::response::Parts;
use http::{HeaderMap, StatusCode};

/// A function or closure of the program, shared by a layer, its services and what their requests hold.
pub(super) struct Callback<F: ?Sized>(pub(super) Arc<F>);

/// Whether a response with this status means that the work failed.
pub(super) type FailureRule = dyn Fn(StatusCode) -> bool + Send + Sync;

/// Whether a response with this head means that its request never happened.
pub(super) type RefundRule = dyn Fn(&Parts) -> bool + Send + Sync;

/// How long an upstream accepts nothing, if this response says so.
pub(super) type ThrottleRule = dyn Fn(StatusCode, &HeaderMap) -> Option<Duration> + Send + Sync;

// The layers keep no state that a panic of the function could leave half changed.
impl<F: ?Sized> UnwindSafe for Callback<F> {}
impl<F: ?Sized> RefUnwindSafe for Callback<F> {}

// Not derived: functions need not be `Clone`.
impl<F: ?Sized> Clone for Callback<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: ?Sized> Deref for Callback<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.0
    }
}

impl<F: ?Sized> fmt::Debug for Callback<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}
