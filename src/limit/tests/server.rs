//! A server of known capacity on a virtual clock, and callers who ask an adaptive limit before they ask the server.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{Limit, at};
use crate::limit::{Assessment, Rule, RuleOperations, Sample};

/// Nanoseconds that a worker takes for one request, give or take a tenth.
pub(super) const SERVICE: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    /// The answer to a request that arrived at that instant.
    Answer(u64),
}

pub(super) struct Simulation {
    pub(super) limit: Limit,
    pub(super) workers: u64,
    /// Requests that may wait for a worker; any more are turned away at once.
    pub(super) longest_queue: usize,
    /// Nanoseconds between arrivals.
    pub(super) interval: u64,
    pub(super) service: u64,
    now: u64,
    busy: u64,
    queue: VecDeque<u64>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    random: u64,
}

/// How many units could be in use over a span of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) mean: f64,
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Simulation {
    pub(super) fn new(rule: Rule, workers: u64, arrivals_in_service: u64) -> Self {
        Self {
            limit: Limit::new(rule),
            workers,
            longest_queue: usize::MAX,
            interval: SERVICE / arrivals_in_service,
            service: SERVICE,
            now: 0,
            busy: 0,
            queue: VecDeque::new(),
            events: BinaryHeap::from([Reverse((0, Event::Arrival))]),
            random: 1,
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.limit
            .rule
            .mark(self.limit.words.as_slice(), at(self.now))
            .second
    }

    /// Lets this many service times pass, and returns what was seen.
    pub(super) fn pass(&mut self, service_times: u64) -> Seen {
        let (begin, end) = (self.now, self.now + service_times * SERVICE);
        let (mut area, mut min, mut max) = (0, u64::MAX, 0);
        while let Some(Reverse((instant, event))) = self.events.pop() {
            let until = instant.min(end);
            let capacity = self.capacity();
            area += u128::from(capacity) * u128::from(until - self.now);
            (min, max) = (min.min(capacity), max.max(capacity));
            self.now = until;
            if instant >= end {
                self.events.push(Reverse((instant, event)));
                break;
            }
            match event {
                Event::Arrival => self.arrive(),
                Event::Answer(arrived) => self.answer(arrived),
            }
        }
        let mean = area as f64 / (end - begin) as f64;
        Seen { mean, min, max }
    }

    fn arrive(&mut self) {
        self.events
            .push(Reverse((self.now + self.interval, Event::Arrival)));
        if self.limit.take(at(self.now), 1) != Assessment::Admissible {
            return;
        }
        if self.queue.len() >= self.longest_queue && self.busy >= self.workers {
            self.give_back(0, true);
            return;
        }
        self.queue.push_back(self.now);
        self.work();
    }

    fn answer(&mut self, arrived: u64) {
        self.busy -= 1;
        self.give_back(self.now - arrived, false);
        self.work();
    }

    fn work(&mut self) {
        while self.busy < self.workers
            && let Some(arrived) = self.queue.pop_front()
        {
            self.busy += 1;
            self.random = self
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let jitter = (self.random >> 33) % (self.service / 5);
            let done = self.now + self.service - self.service / 10 + jitter;
            self.events.push(Reverse((done, Event::Answer(arrived))));
        }
    }

    fn give_back(&mut self, latency: u64, failed: bool) {
        let in_flight = self.limit.words[0];
        let sample = Sample {
            latency,
            in_flight,
            failed,
        };
        let words = self.limit.words.as_mut_slice();
        self.limit.rule.observe(words, at(self.now), sample);
        self.limit.rule.give_back(words, 1);
    }
}
