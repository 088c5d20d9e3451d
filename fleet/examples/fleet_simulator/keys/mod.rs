//! Hosts that share a limit of which each key has its own: the course of time.

mod quota;
mod report;
mod zipf;

use std::time::Duration;

use fastrand::Rng;
use shmlimit::declare::{FleetLease, WhenFull};
use shmlimit::fleet::StoreProblem;
use shmlimit::{Keyed, Limit, SetDeclaration};
use shmlimit_fleet::model::KeyedStoreModel;
use shmlimit_fleet::{Answers, Pipeline, StoreError};
use tempfile::TempDir;

use crate::host::{Host, Taken, declared};
use crate::schedule::Schedule;
use crate::world::{ANSWER_TIMEOUT, LEASE, SECOND, START, directory};
use crate::{Failure, Settings};
use quota::Quotas;
pub use report::KeysReport;
use zipf::Zipf;

/// What a host admits of a key before it asks.
const UNLEASED: u64 = 1;
/// How long a request waits for the store.
const COLD_WAIT: u64 = SECOND / 20;

/// What happens at an instant.
enum Event {
    /// A request comes to a host.
    Request(usize),
    /// A request of a host has waited for long enough.
    Overdue(usize),
    Look(usize),
    Arrive(usize, u64, Pipeline),
    Answer(usize, u64, Answers),
    GiveUp(usize, u64),
    CutOff(usize, bool),
    FailOver,
    /// The store drops the records that are gone.
    Sweep,
}

/// A request that waits for an answer.
#[derive(Clone, Copy)]
struct Waiting {
    key: usize,
    since: u64,
}

/// What belongs to a host beside its segment.
#[derive(Default)]
struct Callers {
    /// In order of arrival.
    waiting: Vec<Waiting>,
    /// When it looks next, if that is planned.
    looks_at: Option<u64>,
}

pub struct KeysWorld {
    settings: Settings,
    _directory: TempDir,
    hosts: Vec<Host>,
    callers: Vec<Callers>,
    store: KeyedStoreModel,
    run: String,
    is_failing_over: u64,
    random: Rng,
    now: u64,
    events: Schedule<Event>,
    zipf: Zipf,
    quotas: Quotas,
    report: KeysReport,
}

impl KeysWorld {
    pub fn new(settings: Settings, keys: u64) -> Result<Self, Failure> {
        let mut random = Rng::with_seed(settings.seed);
        let directory = directory()?;
        let burst = 2 * settings.units;
        let limit = Limit::calls("units", settings.units, Duration::from_micros(SECOND))
            .burst(burst)
            .fleet(
                FleetLease::new("simulated/keys")
                    .lease(Duration::from_micros(LEASE))
                    .outage(settings.policy)
                    .unleased(UNLEASED)
                    // Time passes between events only.
                    .cold_wait(Duration::ZERO),
            );
        // A host needs rows for the keys that it used lately.
        let rows = Keyed::new((keys / 4).max(1_000)).when_full(WhenFull::EvictLeastUsed);
        let set = SetDeclaration::new("api").waiters(1).keyed(rows).add_limit(limit);
        let declaration = declared(set);
        let mut hosts = Vec::new();
        for number in 0..settings.hosts {
            let path = directory.path().join(number.to_string());
            let (rate, seed) = (random.u64(..1_000), random.u64(..));
            hosts.push(Host::new(&path, &declaration, START, rate, 0, seed)?);
        }
        let mut world = Self {
            callers: hosts.iter().map(|_| Callers::default()).collect(),
            hosts,
            _directory: directory,
            store: KeyedStoreModel::new(),
            run: "first".to_owned(),
            is_failing_over: 0,
            random,
            now: START,
            events: Schedule::new(),
            zipf: Zipf::new(keys),
            quotas: Quotas::new(usize::try_from(keys)?, burst, settings.units),
            report: KeysReport::new(settings.seed),
            settings,
        };
        world.plan();
        Ok(world)
    }

    /// Schedules the first requests and the failures.
    fn plan(&mut self) {
        for host in 0..self.hosts.len() {
            let instant = START + self.until_next_request();
            self.events.at(instant, Event::Request(host));
        }
        self.events.at(START + SECOND, Event::Sweep);
        if self.settings.is_calm {
            return;
        }
        let length = self.settings.seconds * SECOND;
        for _ in 0..self.hosts.len().div_ceil(10) {
            let host = self.random.usize(..self.hosts.len());
            self.events.at(START + length / 3, Event::CutOff(host, true));
            let back = START + length / 3 + 4 * SECOND;
            self.events.at(back, Event::CutOff(host, false));
        }
        self.events.at(START + length * 2 / 3, Event::FailOver);
    }

    /// Requests come at random.
    fn until_next_request(&mut self) -> u64 {
        let mean = SECOND as f64 / self.settings.requests as f64;
        (-mean * (1.0 - self.random.f64()).ln()) as u64
    }

    pub fn run(&mut self) -> Result<KeysReport, Failure> {
        let end = START + self.settings.seconds * SECOND;
        while let Some((instant, event)) = self.events.pop_before(end) {
            self.now = instant;
            self.happen(event)?;
        }
        let allowed = (UNLEASED * self.settings.hosts) as f64;
        Ok(KeysReport {
            overshoot: (self.quotas.above_burst - allowed).max(0.0).ceil() as u64,
            keys: self.quotas.used(),
            refused_below: self.quotas.refused_below(),
            ..self.report
        })
    }

    fn happen(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Request(host) => {
                let next = self.now + self.until_next_request();
                self.events.at(next, Event::Request(host));
                let key = self.zipf.draw(&mut self.random);
                self.request(host, key)?;
            }
            Event::Overdue(host) => self.retry_waiting(host)?,
            Event::Look(host) => {
                self.callers[host].looks_at = None;
                self.look(host)?;
            }
            Event::Arrive(host, number, pipeline) => self.arrive(host, number, &pipeline),
            Event::Answer(host, number, answers) => {
                if !self.hosts[host].is_cut_off {
                    self.settle(host, number, answers)?;
                }
            }
            Event::GiveUp(host, number) => {
                let error = StoreError::Unavailable {
                    at: "the simulated store".to_owned(),
                    server: None,
                    problem: StoreProblem::TimedOut,
                    name: String::new(),
                    reason: "no answer in time".to_owned(),
                };
                self.report.failures += u64::from(self.settle(host, number, Err(error))?);
            }
            Event::CutOff(host, is_cut_off) => self.hosts[host].is_cut_off = is_cut_off,
            Event::FailOver => {
                self.run.push_str(" and another");
                self.is_failing_over = self.now + SECOND;
            }
            Event::Sweep => {
                self.store.drop_gone(self.now);
                self.report.records = self.report.records.max(self.store.keys());
                self.events.at(self.now + SECOND, Event::Sweep);
            }
        }
        Ok(())
    }

    fn request(&mut self, host: usize, key: usize) -> Result<(), Failure> {
        let since = self.now;
        self.report.possible += u64::from(self.quotas.want(key, since));
        if !self.is_decided(host, Waiting { key, since })? {
            self.callers[host].waiting.push(Waiting { key, since });
            self.events.at(since + COLD_WAIT, Event::Overdue(host));
        }
        self.look(host)
    }

    /// Tries a request, unless it has been admitted. Returns whether it is admitted or refused for good.
    fn is_decided(&mut self, host: usize, request: Waiting) -> Result<bool, Failure> {
        self.hosts[host].advance(START, self.now);
        let taken = self.hosts[host].take_of(request.key as u64)?;
        if taken == Taken::Admitted {
            self.report.admitted += 1;
            self.quotas.take(request.key, self.now);
            return Ok(true);
        }
        if taken == Taken::Pending && self.now < request.since + COLD_WAIT {
            return Ok(false);
        }
        self.report.refused += 1;
        self.quotas.refuse(request.key);
        Ok(true)
    }

    /// Lets those who wait try again, because an answer has come or their time is over.
    fn retry_waiting(&mut self, host: usize) -> Result<(), Failure> {
        for request in std::mem::take(&mut self.callers[host].waiting) {
            if !self.is_decided(host, request)? {
                self.callers[host].waiting.push(request);
            }
        }
        self.look(host)
    }

    /// Returns whether the answers were still expected.
    fn settle(&mut self, host: usize, number: u64, answers: Answers) -> Result<bool, Failure> {
        self.hosts[host].advance(START, self.now);
        let was_expected = self.hosts[host].settle(number, answers);
        if was_expected {
            self.retry_waiting(host)?;
        }
        Ok(was_expected)
    }

    /// Lets a host ask if it should, and schedules its next look.
    fn look(&mut self, index: usize) -> Result<(), Failure> {
        let host = &mut self.hosts[index];
        host.advance(START, self.now);
        let Some(due) = host.due_in() else { return Ok(()) };
        if due > 0 {
            let due = self.now + due;
            let looks_at = &mut self.callers[index].looks_at;
            if looks_at.is_none_or(|planned| planned > due) {
                *looks_at = Some(due);
                self.events.at(due, Event::Look(index));
            }
            return Ok(());
        }
        let number = self.events.next_number();
        let Some(pipeline) = host.ask(number)? else {
            return Ok(());
        };
        self.report.calls += pipeline.calls() as u64;
        self.report.requests += pipeline.requests().len() as u64;
        self.events
            .at(self.now + ANSWER_TIMEOUT, Event::GiveUp(index, number));
        if !self.hosts[index].is_cut_off && !self.is_lost() {
            let instant = self.now + self.latency();
            self.events.at(instant, Event::Arrive(index, number, pipeline));
        }
        Ok(())
    }

    fn arrive(&mut self, host: usize, number: u64, pipeline: &Pipeline) {
        if self.is_failing_over > self.now {
            return;
        }
        let answers = pipeline.requests().iter().filter_map(|(request, terms)| {
            let key = request.of_key?;
            Some(Ok(self.store.answer(&self.run, self.now, terms, key, request)))
        });
        let answers = Ok(answers.collect());
        if !self.is_lost() {
            let instant = self.now + self.latency();
            self.events.at(instant, Event::Answer(host, number, answers));
        }
    }

    fn is_lost(&mut self) -> bool {
        !self.settings.is_calm && self.random.u64(..200) == 0
    }

    /// Half a millisecond to four.
    fn latency(&mut self) -> u64 {
        500 + self.random.u64(..3_500)
    }
}
