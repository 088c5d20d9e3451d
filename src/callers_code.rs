//! The program's own code, such as wakers and subscribers, run from within the library.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the program. A panic goes no further than its message: the caller is in the middle of something that
/// must be finished, such as handing over what was just taken. `None` after a panic.
#[cold]
pub(crate) fn contained<T>(run: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(run)).map_err(discard).ok()
}

/// Drops what code of the program panicked with, which may panic, too.
fn discard(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        mem::forget(again);
    }
}
