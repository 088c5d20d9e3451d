//! Whose limits an operation uses: those of the set, or those of one of its keys.

use std::time::Duration;

use shmlimit::request::AcquireFuture;
use shmlimit::{Error, LimitSet, Outcome, Request, Verdict};

/// The key that every process asks for in a keyed set, unless the operation says otherwise.
pub const KEY: &str = "tenant";

/// A set, or a key of a keyed one.
#[derive(Clone, Debug)]
pub struct Subject {
    key: Option<String>,
}

impl Subject {
    pub fn of(set: &LimitSet) -> Self {
        Self {
            key: set.is_keyed().then(|| KEY.to_owned()),
        }
    }

    /// As [`of`](Self::of), for processes other than the victim: if the set has keys, one of three other keys.
    pub fn of_another(set: &LimitSet, number: usize) -> Self {
        if set.is_keyed() {
            Self::key(&format!("other {}", number % 3))
        } else {
            Self::of(set)
        }
    }

    pub fn key(key: &str) -> Self {
        Self {
            key: Some(key.to_owned()),
        }
    }

    fn ask<'a>(&self, request: &Request<'a>) -> Request<'a> {
        match &self.key {
            None => request.clone(),
            Some(key) => request.for_key(key).expect("a keyed set"),
        }
    }

    pub fn try_acquire<'a>(&self, request: &Request<'a>) -> Result<Outcome<'a>, Error> {
        self.ask(request).try_acquire()
    }

    pub fn acquire<'a>(&self, request: &Request<'a>, timeout: Duration) -> Result<Outcome<'a>, Error> {
        self.ask(request).acquire(timeout)
    }

    /// Waits in the queue, and leaves it at the first opportunity: on a clock that stands still, a timeout would never
    /// pass.
    pub fn wait_in_vain<'a>(&self, request: &Request<'a>) -> Result<Outcome<'a>, Error> {
        self.ask(request).acquire_while(None, || false)
    }

    pub fn acquire_async<'a>(&self, request: &Request<'a>, timeout: Duration) -> AcquireFuture<'a> {
        self.ask(request).acquire_async(timeout)
    }

    pub fn peek<'a>(&self, request: &Request<'a>) -> Result<Vec<Verdict<'a>>, Error> {
        self.ask(request).peek()
    }
}
