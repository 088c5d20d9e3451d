//! A host: its segment, its clock, and what its callers want.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use shmlimit::fleet::Duty;
use shmlimit::{
    Declaration, LimitSet, OpenOptions, Outcome, Permit, RefusalReason, Segment, SetDeclaration, VirtualClock,
};
use shmlimit_fleet::{Answers, Exchange, Pipeline};

use crate::Failure;

const PER_MILLION: u64 = 1_000_000;

/// What became of a request for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Admitted,
    Pending,
    Refused,
}

/// What a host declares, whose limits the store counts.
pub fn declared(set: SetDeclaration) -> Declaration {
    Declaration::new()
        .participants(1)
        .fleet_url("redis://127.0.0.1")
        .add_set(set)
}

pub struct Host {
    segment: Segment,
    clock: VirtualClock,
    /// How fast its clock runs: millionths above 500 are a gain, below 500 a loss.
    rate: u64,
    duty: Duty,
    exchange: Exchange,
    set: LimitSet,
    /// Units that its callers want per step.
    pub demand: u64,
    pub is_cut_off: bool,
    /// Whether it was cut off or suspended: no fleet can make up for that.
    pub was_hit: bool,
    /// It does nothing until then, in microseconds of the simulation.
    pub suspended_until: u64,
    pub admitted: u64,
    pub wanted: u64,
    /// Requests that found nothing, nor did a step later: that long a caller waits for the store's answer.
    pub refused: u64,
    /// A request that found nothing in the step before.
    is_waiting: bool,
    /// Places that are held, and until when.
    holds: VecDeque<(u64, Permit<'static>)>,
    /// The pipeline that has not been answered yet, with its number.
    in_flight: Option<(u64, Pipeline)>,
}

impl Host {
    /// The clock is off by `rate` - 500 millionths; `rate` is below 1,000.
    pub fn new(
        path: &Path,
        declaration: &Declaration,
        start: u64,
        rate: u64,
        demand: u64,
        seed: u64,
    ) -> Result<Self, Failure> {
        let clock = VirtualClock::new(Duration::from_micros(start));
        let segment = OpenOptions::new()
            .virtual_clock(&clock)
            .create(path, declaration)?;
        let set = segment.set("api")?;
        let duty = segment.fleet().try_take_duty()?;
        Ok(Self {
            exchange: Exchange::new(seed),
            duty: duty.ok_or("a segment whose limits no host shares")?,
            segment,
            clock,
            rate,
            set,
            demand,
            is_cut_off: false,
            was_hit: false,
            suspended_until: 0,
            admitted: 0,
            wanted: 0,
            refused: 0,
            is_waiting: false,
            holds: VecDeque::new(),
            in_flight: None,
        })
    }

    /// Moves its clock to an instant of the simulation.
    pub fn advance(&self, start: u64, now: u64) {
        let passed = now - start;
        let gained = passed * self.rate / PER_MILLION;
        let lost = passed * 500 / PER_MILLION;
        self.clock.advance_to(Duration::from_micros(now + gained - lost));
    }

    /// Lets its callers take what they want, or as much as is leased. Returns how much that was.
    pub fn take(&mut self) -> Result<u64, Failure> {
        self.wanted += self.demand;
        let mut admitted = 0;
        let mut cost = self.demand;
        // Equivalent to many single requests: an amount that is refused as too much is halved and tried again.
        while cost > 0 && admitted < self.demand {
            if self.set.request().with("units", cost)?.check()?.is_admitted() {
                admitted += cost;
                cost = cost.min(self.demand - admitted);
            } else {
                cost /= 2;
            }
        }
        self.admitted += admitted;
        Ok(admitted)
    }

    /// Lets a caller that comes now want one unit, for so many microseconds if it is held. Returns how much was admitted.
    pub fn take_one(&mut self, comes: bool, now: u64, hold: Option<u64>) -> Result<u64, Failure> {
        while self.holds.front().is_some_and(|(until, _)| *until <= now) {
            self.holds.pop_front();
        }
        if !comes && !self.is_waiting {
            return Ok(0);
        }
        self.wanted += u64::from(comes);
        let request = self.set.request().with("units", 1)?;
        let Outcome::Admitted(permit) = request.try_acquire()? else {
            self.refused += u64::from(self.is_waiting);
            self.is_waiting = comes;
            return Ok(0);
        };
        if let Some(length) = hold {
            self.holds.push_back((now + length, permit.into_owned()));
        }
        self.is_waiting = false;
        self.admitted += 1;
        Ok(1)
    }

    /// Lets a caller want one unit of a key. Returns whether it was admitted; if not, whether an answer of the store may
    /// change that.
    pub fn take_of(&mut self, key: u64) -> Result<Taken, Failure> {
        let request = self.set.request().for_key(key.to_le_bytes())?;
        let checked = request.check()?;
        let is_pending = checked.reason() == Some(RefusalReason::LeasePending);
        Ok(match checked.is_admitted() {
            true => Taken::Admitted,
            false if is_pending => Taken::Pending,
            false => Taken::Refused,
        })
    }

    /// The places that its callers hold.
    pub fn held(&self) -> u64 {
        self.holds.len() as u64
    }

    /// What is to be sent now, if anything, provided that no pipeline is on its way.
    pub fn ask(&mut self, number: u64) -> Result<Option<Pipeline>, Failure> {
        if self.in_flight.is_some() {
            return Ok(None);
        }
        let asked = self.duty.ask()?;
        if asked.is_empty() {
            return Ok(None);
        }
        let (pipeline, problems) = self.exchange.pipeline(&self.duty, asked);
        if let Some((_, problem)) = problems.into_iter().next() {
            return Err(problem.into());
        }
        self.in_flight = Some((number, pipeline.clone()));
        Ok(Some(pipeline))
    }

    /// Handles the answers or the timeout of a pipeline, given by its number. Returns whether they were still
    /// expected.
    pub fn settle(&mut self, number: u64, answers: Answers) -> bool {
        match self.in_flight.take() {
            Some((waiting_for, pipeline)) if waiting_for == number => {
                // Outages are part of the simulation; any other error shows in the report as units that were not
                // admitted.
                let _ = self.exchange.settle(&self.duty, &pipeline, answers);
                true
            }
            other => {
                self.in_flight = other;
                false
            }
        }
    }

    /// Microseconds until it asks on its own if nothing is spent; `None` if it does not.
    pub fn due_in(&self) -> Option<u64> {
        let due = self.duty.due_in()?;
        u64::try_from(due.as_micros()).ok()
    }

    /// Units that expired unspent.
    pub fn expired(&self) -> Result<u64, Failure> {
        let snapshot = self.segment.snapshot()?;
        let limits = snapshot.sets.iter().flat_map(|set| &set.limits);
        Ok(limits
            .filter_map(|limit| limit.lease.as_ref())
            .map(|lease| lease.counts.expired_units)
            .sum())
    }
}
