//! The course of time: hosts, the network, the store, and failures.

use std::time::Duration;

use fastrand::Rng;
use shmlimit::declare::FleetLease;
use shmlimit::fleet::StoreProblem;
use shmlimit::{Algorithm, Limit, SetDeclaration};
use shmlimit_fleet::model::StoreModel;
use shmlimit_fleet::{Answers, Pipeline, StoreError};
use tempfile::TempDir;

use crate::host::{Host, declared};
use crate::omniscient::Omniscient;
use crate::report::{Report, jain};
use crate::schedule::Schedule;
use crate::{Failure, Settings};

pub const SECOND: u64 = 1_000_000;
/// Callers arrive in steps of this many microseconds.
const STEP: u64 = 50_000;
pub const LEASE: u64 = 2 * SECOND;
const MINUTE: u64 = 60 * SECOND;
/// What part of a limit quiet hosts use, in percent.
const QUIET_USE: u64 = 7;
/// How long a host waits for an answer.
pub const ANSWER_TIMEOUT: u64 = SECOND;
/// The wall clock when a run begins: 2026-11-24.
pub const START: u64 = 1_795_478_400 * SECOND;
/// One host in this many wants a hundred times as much as the others.
const HEAVY: u64 = 10;

/// What happens at an instant.
enum Event {
    /// All callers take what they want.
    Step,
    /// A host checks whether it should ask.
    Look(usize),
    /// A pipeline reaches the store.
    Arrive(usize, u64, Pipeline),
    /// The answers to a pipeline return.
    Answer(usize, u64, Answers),
    /// The host stops waiting for a pipeline.
    GiveUp(usize, u64),
    CutOff(usize, bool),
    /// No host reaches the store any more, or all do again.
    StoreOut(bool),
    Suspend(usize),
    /// The replica receives the store's state.
    Replicate,
    FailOver,
}

/// Where the segments of hosts are: in memory, if possible.
pub fn directory() -> Result<TempDir, Failure> {
    let memory = std::path::Path::new("/dev/shm");
    Ok(if memory.is_dir() {
        tempfile::tempdir_in(memory)?
    } else {
        tempfile::tempdir()?
    })
}

pub struct World {
    settings: Settings,
    _directory: TempDir,
    hosts: Vec<Host>,
    store: StoreModel,
    run: String,
    replica: Option<StoreModel>,
    is_failing_over: u64,
    is_out: bool,
    was_out: bool,
    /// How long nothing has been admitted, and the longest such time since the outage.
    dark: [u64; 2],
    random: Rng,
    now: u64,
    events: Schedule<Event>,
    omniscient: Omniscient,
    /// The limit itself, as if every unit passed through it: the admitted units that have not drained yet.
    level: f64,
    drained_at: u64,
    overshoot: f64,
    round_trips: u64,
    failures: u64,
    /// How much each host and each host of the omniscient allocator had been admitted once all hosts knew of one
    /// another.
    warm: Option<Vec<(u64, u64)>>,
}

impl World {
    pub fn new(settings: Settings) -> Result<Self, Failure> {
        let mut random = Rng::with_seed(settings.seed);
        let directory = directory()?;
        let limit = match settings.window {
            None if settings.hold.is_some() => Limit::concurrency("units", Self::burst(settings)),
            None if settings.quiet.is_some() => {
                Limit::rate("units", Self::burst(settings), Duration::from_micros(MINUTE))
            }
            None => Limit::rate(
                "units",
                settings.units * settings.hosts,
                Duration::from_micros(SECOND),
            )
            .burst(Self::burst(settings)),
            Some(seconds) => Limit::rate("units", Self::burst(settings), Duration::from_secs(seconds))
                .algorithm(Algorithm::FixedWindow),
        };
        let limit = limit.fleet(
            FleetLease::new("simulated/units")
                .lease(Duration::from_micros(LEASE))
                .outage(settings.policy)
                // Time passes between steps only.
                .cold_wait(Duration::ZERO),
        );
        let set = SetDeclaration::new("api").waiters(1).add_limit(limit);
        let declaration = declared(set);
        let mut hosts = Vec::new();
        for number in 0..settings.hosts {
            // Light hosts also want more than there is for each.
            let per_second = if number % HEAVY == 0 {
                120 * settings.units
            } else {
                settings.units * 12 / 10
            };
            let path = directory.path().join(number.to_string());
            let (rate, seed) = (random.u64(..1_000), random.u64(..));
            // More than the burst of all can never be had at once.
            let demand = (per_second * STEP / SECOND).min(Self::burst(settings));
            hosts.push(Host::new(&path, &declaration, START, rate, demand, seed)?);
        }
        let per_step = match settings.window {
            None => (settings.units * settings.hosts * STEP) as f64 / SECOND as f64,
            Some(_) => 0.0,
        };
        let mut world = Self {
            omniscient: Omniscient::new(hosts.len(), Self::burst(settings), per_step),
            settings,
            _directory: directory,
            hosts,
            store: StoreModel::new(),
            run: "first".to_owned(),
            replica: None,
            is_failing_over: 0,
            is_out: false,
            was_out: false,
            dark: [0; 2],
            random,
            now: START,
            events: Schedule::new(),
            level: 0.0,
            drained_at: START,
            overshoot: 0.0,
            round_trips: 0,
            failures: 0,
            warm: None,
        };
        world.plan();
        Ok(world)
    }

    /// For a rate, enough for what is leased and what is used in the meantime; otherwise the units of a window.
    fn burst(settings: Settings) -> u64 {
        if let Some(mean) = settings.quiet {
            // What comes in a window, or while a place is held.
            let length = settings.hold.or(settings.window).unwrap_or(MINUTE / SECOND);
            return (settings.hosts * length * 100).div_ceil(mean * QUIET_USE).max(1);
        }
        settings.window.unwrap_or(2) * settings.units * settings.hosts
    }

    /// Schedules the failures.
    fn plan(&mut self) {
        let length = self.settings.seconds * SECOND;
        self.at(START, Event::Step);
        if let Some(seconds) = self.settings.outage {
            self.at(START + length / 3, Event::StoreOut(true));
            self.at(START + length / 3 + seconds * SECOND, Event::StoreOut(false));
        }
        if self.settings.is_calm {
            return;
        }
        let all = self.settings.hosts;
        for _ in 0..all / 10 {
            let host = self.any_host();
            self.at(START + length / 3, Event::CutOff(host, true));
            self.at(START + length / 3 + 4 * SECOND, Event::CutOff(host, false));
        }
        for _ in 0..all / 50 {
            let (host, instant) = (self.any_host(), self.random.u64(..length));
            self.at(START + instant, Event::Suspend(host));
        }
        self.at(START + length * 2 / 3, Event::FailOver);
        if self.settings.lose_writes {
            self.at(START + length * 2 / 3 - SECOND / 2, Event::Replicate);
        }
    }

    fn any_host(&mut self) -> usize {
        usize::try_from(self.random.u64(..self.settings.hosts)).unwrap_or(0)
    }

    fn at(&mut self, instant: u64, event: Event) {
        self.events.at(instant, event);
    }

    pub fn run(&mut self) -> Result<(), Failure> {
        let end = START + self.settings.seconds * SECOND;
        while let Some((instant, event)) = self.events.pop_before(end) {
            self.now = instant;
            self.happen(event)?;
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Step => self.step()?,
            Event::Look(host) => self.look(host)?,
            Event::Arrive(host, number, pipeline) => self.arrive(host, number, &pipeline),
            Event::Answer(host, number, answers) => {
                self.hosts[host].advance(START, self.now);
                if !self.hosts[host].is_cut_off && self.hosts[host].settle(number, answers) {
                    self.round_trips += 1;
                    self.look(host)?;
                }
            }
            Event::GiveUp(host, number) => {
                self.hosts[host].advance(START, self.now);
                let error = StoreError::Unavailable {
                    at: "the simulated store".to_owned(),
                    server: None,
                    problem: StoreProblem::TimedOut,
                    name: String::new(),
                    reason: "no answer in time".to_owned(),
                };
                if self.hosts[host].settle(number, Err(error)) {
                    self.failures += 1;
                    self.look(host)?;
                }
            }
            Event::CutOff(host, is_cut_off) => {
                self.hosts[host].is_cut_off = is_cut_off;
                self.hosts[host].was_hit = true;
            }
            Event::StoreOut(is_out) => {
                self.is_out = is_out;
                self.was_out |= is_out;
                self.dark = [0; 2];
            }
            Event::Suspend(host) => {
                let asleep = SECOND / 2 + self.random.u64(..4 * SECOND);
                self.hosts[host].suspended_until = self.now + asleep;
                self.hosts[host].was_hit = true;
            }
            Event::Replicate => self.replica = Some(self.store.clone()),
            Event::FailOver => {
                if let Some(replica) = self.replica.take() {
                    self.store = replica;
                }
                self.run.push_str(" and another");
                self.is_failing_over = self.now + SECOND;
            }
        }
        Ok(())
    }

    /// Lets all callers of all hosts take, in a changing order.
    fn step(&mut self) -> Result<(), Failure> {
        let count = self.hosts.len();
        let first = self.any_host();
        let mut demands = vec![0; count];
        let mut admitted_by_all = 0;
        for offset in 0..count {
            let index = (first + offset) % count;
            let host = &mut self.hosts[index];
            if host.suspended_until > self.now {
                continue;
            }
            host.advance(START, self.now);
            let admitted = match self.settings.quiet {
                Some(mean) => {
                    // Once all hosts have asked for the first time.
                    let is_time = self.now >= START + SECOND;
                    let comes = is_time && self.random.u64(..mean * SECOND) < STEP;
                    demands[index] = u64::from(comes);
                    let hold = self.settings.hold.map(|seconds| seconds * SECOND);
                    host.take_one(comes, self.now, hold)?
                }
                None => {
                    demands[index] = host.demand;
                    host.take()?
                }
            };
            admitted_by_all += admitted;
            self.note(admitted);
            self.look(index)?;
        }
        let [dark, longest] = self.dark;
        let dark = if admitted_by_all > 0 { 0 } else { dark + STEP };
        let counts = self.was_out && !self.is_out;
        self.dark = [dark, if counts { longest.max(dark) } else { 0 }];
        if self.turns_after(self.now - STEP) {
            self.omniscient.turn();
        }
        self.omniscient.step(&demands);
        if self.warm.is_none() && self.now >= START + 3 * LEASE {
            let hosts = self.hosts.iter().zip(&self.omniscient.admitted);
            self.warm = Some(
                hosts
                    .map(|(host, omniscient)| (host.admitted, *omniscient))
                    .collect(),
            );
        }
        self.at(self.now + STEP, Event::Step);
        Ok(())
    }

    /// Whether a window has turned since an instant.
    fn turns_after(&self, instant: u64) -> bool {
        let length = self.settings.window.map(|seconds| seconds * SECOND);
        length.is_some_and(|length| self.now / length > instant / length)
    }

    /// Checks what was admitted against the limit, at the instant of the admission.
    fn note(&mut self, admitted: u64) {
        if self.settings.hold.is_some() {
            let held: u64 = self.hosts.iter().map(Host::held).sum();
            self.overshoot = self
                .overshoot
                .max(held as f64 - Self::burst(self.settings) as f64);
            return;
        }
        let drained = match self.settings.window {
            None if self.settings.quiet.is_some() => {
                let per_micro = Self::burst(self.settings) as f64 / MINUTE as f64;
                (self.now - self.drained_at) as f64 * per_micro
            }
            None => {
                let per_micro = (self.settings.units * self.settings.hosts) as f64 / SECOND as f64;
                (self.now - self.drained_at) as f64 * per_micro
            }
            Some(_) if self.turns_after(self.drained_at) => self.level,
            Some(_) => 0.0,
        };
        self.level = (self.level - drained).max(0.0) + admitted as f64;
        self.drained_at = self.now;
        self.overshoot = self.overshoot.max(self.level - Self::burst(self.settings) as f64);
    }

    /// Lets a host ask if it should, and schedules its next look.
    fn look(&mut self, index: usize) -> Result<(), Failure> {
        let host = &mut self.hosts[index];
        if host.suspended_until > self.now {
            let until = host.suspended_until;
            self.at(until, Event::Look(index));
            return Ok(());
        }
        host.advance(START, self.now);
        let number = self.events.next_number();
        if let Some(pipeline) = host.ask(number)? {
            self.at(self.now + ANSWER_TIMEOUT, Event::GiveUp(index, number));
            if !self.hosts[index].is_cut_off && !self.is_lost() {
                let instant = self.now + self.latency();
                self.at(instant, Event::Arrive(index, number, pipeline));
            }
        } else if let Some(due) = host.due_in()
            && due > 0
            && due < STEP
        {
            self.at(self.now + due, Event::Look(index));
        }
        Ok(())
    }

    fn arrive(&mut self, host: usize, number: u64, pipeline: &Pipeline) {
        if self.is_out || self.is_failing_over > self.now {
            return;
        }
        let answers = pipeline
            .requests()
            .iter()
            .map(|(request, terms)| Ok(self.store.answer(&self.run, self.now, terms, request)))
            .collect();
        if !self.is_lost() {
            let instant = self.now + self.latency();
            self.at(instant, Event::Answer(host, number, Ok(answers)));
        }
    }

    fn is_lost(&mut self) -> bool {
        !self.settings.is_calm && self.random.u64(..200) == 0
    }

    /// Half a millisecond to four, and occasionally up to two hundred, which is longer than callers of quiet hosts wait.
    fn latency(&mut self) -> u64 {
        if self.settings.quiet.is_none() && self.random.u64(..100) == 0 {
            self.random.u64(..200_000)
        } else {
            500 + self.random.u64(..3_500)
        }
    }

    pub fn report(&self) -> Result<Report, Failure> {
        let warm = self.warm.as_deref().unwrap_or_default();
        let of = |index: usize| warm.get(index).copied().unwrap_or_default();
        let hosts = self.hosts.iter().enumerate();
        let spared = |index: &usize| !self.hosts[*index].was_hit;
        let fleet: Vec<u64> = hosts
            .filter(|(index, _)| spared(index))
            .map(|(index, host)| host.admitted - of(index).0)
            .collect();
        let hosts = self.omniscient.admitted.iter().enumerate();
        let possible: Vec<u64> = hosts
            .filter(|(index, _)| spared(index))
            .map(|(index, units)| units - of(index).1)
            .collect();
        let mut expired = 0;
        for host in &self.hosts {
            expired += host.expired()?;
        }
        Ok(Report {
            seed: self.settings.seed,
            overshoot: self.overshoot.max(0.0).ceil() as u64,
            admitted: self.hosts.iter().map(|host| host.admitted).sum(),
            omniscient: self.omniscient.admitted.iter().sum(),
            expired,
            is_window: self.settings.window.is_some(),
            jain: jain(&fleet),
            omniscient_jain: jain(&possible),
            round_trips: self.round_trips,
            failures: self.failures,
            refused: self
                .settings
                .quiet
                .map(|_| self.hosts.iter().map(|host| host.refused).sum()),
            dark: self.dark[1] as f64 / SECOND as f64,
        })
    }
}
