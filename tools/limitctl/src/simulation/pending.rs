//! What outlasts its line of the trace: requests that wait, and permits that are held for a time.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shmlimit::request::AcquireFuture;
use shmlimit::{Error, Outcome, Permit};

use super::trace::{Amounts, Take, Timing};

/// A request in the queue.
#[derive(Debug)]
pub struct Waiting {
    /// Its line in the trace.
    pub line: u64,
    /// The position of the set.
    pub position: usize,
    pub take: Take,
    pub asked_at: Duration,
    pub future: Pin<Box<AcquireFuture<'static>>>,
}

/// A permit that is held for a time.
#[derive(Debug)]
pub struct Held {
    /// The position of the set.
    pub position: usize,
    pub key: Option<String>,
    pub permit: Permit<'static>,
    /// What the request will have used by then.
    pub usage: Amounts,
}

impl Held {
    pub fn new(position: usize, key: Option<String>, permit: Permit<'static>, timing: &Timing) -> Self {
        Self {
            position,
            key,
            permit,
            usage: timing.usage.clone(),
        }
    }
}

/// All requests that wait, and all permits that are held for a time.
#[derive(Debug, Default)]
pub struct Pending {
    /// In the order of the trace.
    waiting: Vec<Waiting>,
    /// By the instant at which each ends, and its line in the trace.
    held: BTreeMap<(Duration, u64), Held>,
}

impl Pending {
    pub fn wait(&mut self, waiting: Waiting) {
        self.waiting.push(waiting);
    }

    pub fn is_anybody_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes out the requests that no longer wait, with the outcome of each.
    pub fn decided(&mut self) -> Vec<(Waiting, Result<Outcome<'static>, Error>)> {
        let mut context = Context::from_waker(Waker::noop());
        let mut decided = Vec::new();
        for mut waiting in std::mem::take(&mut self.waiting) {
            match waiting.future.as_mut().poll(&mut context) {
                Poll::Ready(outcome) => decided.push((waiting, outcome)),
                Poll::Pending => self.waiting.push(waiting),
            }
        }
        decided
    }

    /// Keeps a permit until `end`.
    pub fn hold(&mut self, end: Duration, line: u64, held: Held) {
        self.held.insert((end, line), held);
    }

    /// When the next permit ends.
    pub fn next_end(&self) -> Option<Duration> {
        self.held.first_key_value().map(|((end, _), _)| *end)
    }

    /// Takes out a permit that ends by `now`.
    pub fn end_of_hold(&mut self, now: Duration) -> Option<Held> {
        let first = self.held.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
