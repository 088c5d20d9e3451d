//! Panics of the program's code that a test expects.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::{mem, thread};

/// The payload with which the program's code panics.
pub struct Expected;

/// The same, except that it panics once more when it is dropped.
pub struct PanicsAgain;

impl Drop for PanicsAgain {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic_any(Expected);
        }
    }
}

/// Runs code that may panic, and returns whether it did. Any other panic fails the test.
pub fn panics(body: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(()) => false,
        Err(panic) if panic.is::<Expected>() => true,
        Err(panic) if panic.is::<PanicsAgain>() => {
            mem::forget(panic);
            true
        }
        Err(panic) => resume_unwind(panic),
    }
}
