//! A program in which each function may panic, one at a time.

use std::cell::Cell;
use std::panic::panic_any;
use std::thread;
use std::time::Duration;

use shmlimit::{LimitSet, OpenOptions, Segment, SetDeclaration};
use tempfile::TempDir;

use super::expected_panics::{Expected, panics};

thread_local! {
    /// How many more functions of the program succeed in this thread before one panics; `None` if all do.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Called at the beginning of each function of the program.
pub fn users_code() {
    // A panic during unwinding would end the process.
    match LEFT.get().filter(|_| !thread::panicking()) {
        Some(0) => {
            LEFT.set(None);
            panic_any(Expected);
        }
        Some(left) => LEFT.set(Some(left - 1)),
        None => {}
    }
}

/// Runs `body` again and again, with a panic in the first function of the program that it calls, in the second, and so
/// on, until it ends without one. `check` looks at what each run has left. Returns how many runs panicked.
#[track_caller]
pub fn with_each_panic<T>(
    prepare: impl Fn() -> T,
    mut body: impl FnMut(&T),
    mut check: impl FnMut(&T, usize),
) -> usize {
    for calls in 0.. {
        let prepared = prepare();
        LEFT.set(Some(calls));
        let has_panicked = panics(|| body(&prepared));
        LEFT.set(None);
        check(&prepared, calls);
        if !has_panicked {
            return calls;
        }
    }
    unreachable!("a body calls finitely many functions")
}

/// A segment with one set, whose observer is the program's.
pub struct Observed {
    pub segment: Segment,
    pub set: LimitSet,
    _directory: TempDir,
}

impl Observed {
    pub fn of(set: SetDeclaration) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let segment = OpenOptions::new()
            .on_request_event(|_| users_code())
            .create(
                directory.path().join("limits"),
                &super::declaration().add_set(set),
            )
            .expect("a segment");
        let set = segment.sets().next().expect("declared");
        Self {
            segment,
            set,
            _directory: directory,
        }
    }

    /// How many holds and tickets there are.
    pub fn taken(&self) -> (usize, usize) {
        let seen = super::first_set(&self.segment);
        (seen.holds.len(), seen.tickets.len())
    }
}

/// A value of the program: a key, a timeout, or part of something else.
#[derive(Debug)]
pub struct Touchy;

impl Clone for Touchy {
    fn clone(&self) -> Self {
        users_code();
        Self
    }
}

impl Drop for Touchy {
    fn drop(&mut self) {
        users_code();
    }
}

impl AsRef<[u8]> for Touchy {
    fn as_ref(&self) -> &[u8] {
        users_code();
        b"key"
    }
}

impl From<Touchy> for Option<Duration> {
    fn from(_: Touchy) -> Self {
        users_code();
        Some(super::process::TIMEOUT)
    }
}

/// These items, from an iterator of the program.
pub fn items<T>(items: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let (mut items, touchy) = (items.into_iter(), Touchy);
    std::iter::from_fn(move || {
        let _ = &touchy;
        users_code();
        items.next()
    })
}

/// A callback of the program that says yes.
pub fn yes() -> impl FnMut() -> bool {
    let touchy = Touchy;
    move || {
        let _ = &touchy;
        users_code();
        true
    }
}
