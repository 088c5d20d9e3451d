//! What the program's subscriber is told by the engine.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Reports an event. A panic of the subscriber goes no further than its message: what was just taken, or is being given
/// back, belongs to no permit yet, and would stay taken.
pub(in crate::engine) fn tell_subscriber(report: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(report));
}
