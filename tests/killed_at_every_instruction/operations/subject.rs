//! Whose limits an operation is put to: those of the set, or those of one of its keys.

use std::time::Duration;

use shmlimit::request::AcquireFuture;
use shmlimit::{Error, Key, LimitSet, Outcome, Request, Verdict};

/// The key that every process asks for in a keyed set, unless the operation says otherwise.
pub const KEY: &str = "tenant";

/// A set, or a key of one that is keyed.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    Set(&'a LimitSet),
    Key(Key<'a>),
}

impl<'a> Subject<'a> {
    pub fn of(set: &'a LimitSet) -> Self {
        if set.is_keyed() {
            Self::key(set, KEY)
        } else {
            Self::Set(set)
        }
    }

    pub fn key(set: &'a LimitSet, key: &str) -> Self {
        Self::Key(set.key(key).expect("a keyed set"))
    }

    pub fn try_acquire(self, request: &Request) -> Result<Outcome<'a>, Error> {
        match self {
            Self::Set(set) => set.try_acquire(request),
            Self::Key(key) => key.try_acquire(request),
        }
    }

    pub fn acquire(self, request: &Request, timeout: Duration) -> Result<Outcome<'a>, Error> {
        match self {
            Self::Set(set) => set.acquire(request, timeout),
            Self::Key(key) => key.acquire(request, timeout),
        }
    }

    pub fn acquire_async(self, request: &Request, timeout: Duration) -> AcquireFuture<'a> {
        match self {
            Self::Set(set) => set.acquire_async(request, timeout),
            Self::Key(key) => key.acquire_async(request, timeout),
        }
    }

    pub fn peek(self, request: &Request) -> Result<Vec<Verdict<'a>>, Error> {
        match self {
            Self::Set(set) => set.peek(request),
            Self::Key(key) => key.peek(request),
        }
    }
}
