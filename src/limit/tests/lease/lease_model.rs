//! Explores the exchange between a host and the store: every order in which two processes of the host take duty, keep
//! a request, send it and install the answer, while callers spend, another host spends whatever it can get, and time
//! passes. Between any two of these steps messages may be lost, and processes may be stopped or die.
//!
//! The host's part is played by the rule that the engine uses; what surrounds it follows `duty.rs`, `duty_handle.rs`
//! and the refresher step by step.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::lease_store::{Host, OUT, SCALE, SECOND, SLOWEST, Store, backlog, leased, stale};
use crate::choices::Outage;
use crate::explorer;
use crate::limit::{Answer, Ask, LEASE_WORDS, LeaseWord};

/// Nanoseconds between two instants of the model.
const TICK: u64 = SECOND;

/// Units that come back per minute: one with every tick.
const CAPACITY: u64 = 60;

/// When the model starts.
const BEGINNING: u64 = 3600 * SECOND;

/// Words that only count and decide nothing.
const COUNTS: [LeaseWord; 6] = [
    LeaseWord::Grants,
    LeaseWord::Requests,
    LeaseWord::Failures,
    LeaseWord::ExpiredUnits,
    LeaseWord::Unused,
    LeaseWord::AnsweredAt,
];

/// The numbers of the accounts in the store.
const HOST: usize = 0;
const OTHER: usize = 1;

/// A deliberate mistake, to show that the model would find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// The request is not in the segment before it is sent.
    RequestIsNotKept,
    /// A grant's time runs from when the answer arrives.
    CountsFromTheAnswer,
    /// Any answer is taken to be for the latest request, even by a process that is not on duty.
    BelievesAnyAnswer,
}

#[derive(Clone, Debug)]
struct Bounds {
    burst: u64,
    /// How often time passes.
    ticks: u64,
    /// How many processes die; each is replaced by another.
    deaths: u8,
    /// How often a process is stopped while on duty and exceeds its time: another takes over, and the first goes on
    /// later.
    stops: u8,
    /// How many messages are lost.
    losses: u8,
    mistake: Option<Mistake>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Nothing,
    /// Has kept a request and handed it out at that time.
    Sends(Ask, u64),
    /// Has the store's answer; `None` if the store said that the host's account belongs to another host.
    Answers(Ask, u64, Option<Answer>),
}

/// The whole system at one moment.
#[derive(Clone, Debug)]
struct Fleet {
    host: Host,
    /// The host's words before its request was kept.
    before: Option<Vec<u64>>,
    processes: [Doing; 2],
    duty: Option<usize>,
    store: Store,
    other: Ask,
    ticks: u64,
    deaths: u8,
    stops: u8,
    losses: u8,
    /// What both hosts admitted in each tick.
    admitted: Vec<u64>,
    violation: Option<&'static str>,
}

impl Hash for Fleet {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let words = self.host.limit.words.iter().enumerate();
        let counts = COUNTS.map(|word| self.place(word));
        words
            .filter(|(index, _)| !counts.contains(index))
            .for_each(|word| word.hash(hasher));
        (&self.before, &self.processes, self.duty, &self.store, self.other).hash(hasher);
        (self.ticks, self.deaths, self.stops, self.losses).hash(hasher);
        (&self.admitted, self.violation).hash(hasher);
    }
}

struct Step {
    label: String,
    is_death: bool,
    fleet: Fleet,
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.label)
    }
}

impl explorer::Step for Step {
    type System = Fleet;

    fn is_death(&self) -> bool {
        self.is_death
    }

    fn system(&self) -> &Fleet {
        &self.fleet
    }

    fn into_system(self) -> Fleet {
        self.fleet
    }
}

impl explorer::System for Fleet {
    type Bounds = Bounds;
    type Step = Step;

    fn first(bounds: &Bounds) -> Self {
        let rule = leased(&backlog(CAPACITY, bounds.burst), Outage::SpendOut);
        let mut store = Store::new(CAPACITY, bounds.burst);
        store.level_at = BEGINNING;
        Self {
            host: Host::new(rule, SLOWEST),
            before: None,
            processes: [Doing::Nothing, Doing::Nothing],
            duty: None,
            store,
            other: Ask {
                identity: 0,
                sequence: 0,
                spent: 0,
                refunded: 0,
                ungranted: 0,
                held: 0,
                wanted: bounds.burst,
                grant_number: 0,
                began: 0,
            },
            ticks: 0,
            deaths: 0,
            stops: 0,
            losses: 0,
            admitted: vec![0],
            violation: None,
        }
    }

    fn steps(&self, bounds: &Bounds) -> Vec<Step> {
        let mut steps = Vec::new();
        for number in 0..self.processes.len() {
            self.steps_of(number, bounds, &mut steps);
        }
        self.spend(&mut steps);
        self.let_the_other_spend(&mut steps);
        if self.ticks < bounds.ticks {
            self.push(&mut steps, "time passes".to_owned(), |next| {
                next.ticks += 1;
                next.admitted.push(0);
            });
        }
        steps
    }

    /// More was admitted between two instants than the burst and what came back.
    fn violation(&self, bounds: &Bounds) -> Option<&'static str> {
        let is_exceeded = (0..self.admitted.len()).any(|from| {
            let mut sum = 0;
            self.admitted.iter().enumerate().skip(from).any(|(to, units)| {
                sum += u128::from(*units);
                let back = u128::from((to - from) as u64 * TICK) * u128::from(CAPACITY);
                sum * SCALE > u128::from(bounds.burst) * SCALE + back
            })
        });
        self.violation.or_else(|| is_exceeded.then_some(EXCEEDED))
    }

    /// A process is on duty, and no request is unanswered.
    fn is_good_end(&self, _: &Bounds) -> bool {
        self.duty.is_some() && self.processes.iter().all(|doing| *doing == Doing::Nothing)
    }
}

const EXCEEDED: &str = "more is admitted than the limit allows";
const ANOTHER: &str = "a host that was never copied goes on as another";

impl Fleet {
    /// Where a word of the lease is among those of the limit.
    fn place(&self, word: LeaseWord) -> usize {
        self.host.limit.words.len() - LEASE_WORDS + word as usize
    }

    fn time(&self) -> u64 {
        BEGINNING + self.ticks * TICK
    }

    fn push(&self, steps: &mut Vec<Step>, label: String, change: impl FnOnce(&mut Self)) {
        let mut fleet = self.clone();
        change(&mut fleet);
        steps.push(Step {
            label,
            is_death: false,
            fleet,
        });
    }

    fn steps_of(&self, number: usize, bounds: &Bounds, steps: &mut Vec<Step>) {
        let has_duty = self.duty == Some(number);
        match self.processes[number].clone() {
            Doing::Nothing if has_duty => self.ask(number, bounds, steps),
            // Of two idle processes the first takes duty: they are alike.
            Doing::Nothing if self.duty.is_none() && !self.processes[..number].contains(&Doing::Nothing) => {
                self.push(steps, format!("process {number} takes duty"), |next| {
                    next.duty = Some(number);
                });
            }
            Doing::Nothing if self.duty.is_some() && self.stops < bounds.stops => {
                self.push(steps, format!("process {number} takes duty over"), |next| {
                    next.duty = Some(number);
                    next.stops += 1;
                    next.forget();
                });
            }
            Doing::Nothing => {}
            Doing::Sends(ask, at) => {
                self.push(steps, format!("{ask:?} reaches the store"), |next| {
                    let answer = next.store.answer(HOST, ask, next.time());
                    next.processes[number] = Doing::Answers(ask, at, answer);
                });
                self.lose(number, ask, bounds, steps);
            }
            Doing::Answers(ask, at, answer) => {
                let label = format!("process {number} installs {answer:?}");
                self.push(steps, label, |next| {
                    next.install(number, (ask, at, answer), bounds)
                });
                self.lose(number, ask, bounds, steps);
            }
        }
        let is_missed = has_duty || self.processes[number] != Doing::Nothing;
        if is_missed && self.deaths < bounds.deaths {
            let mut fleet = self.clone();
            fleet.deaths += 1;
            fleet.processes[number] = Doing::Nothing;
            if has_duty {
                fleet.duty = None;
                fleet.forget();
            }
            steps.push(Step {
                label: format!("process {number} dies"),
                is_death: true,
                fleet,
            });
        }
    }

    fn ask(&self, number: usize, bounds: &Bounds, steps: &mut Vec<Step>) {
        let mut next = self.clone();
        let Some(ask) = next.host.ask(next.time()) else {
            if next.host.limit.words != self.host.limit.words {
                self.push(steps, "the lease is over".to_owned(), |fleet| *fleet = next);
            }
            return;
        };
        if bounds.mistake == Some(Mistake::RequestIsNotKept) {
            next.before = Some(self.host.limit.words.clone());
        }
        next.processes[number] = Doing::Sends(ask, next.time());
        self.push(steps, format!("process {number} keeps {ask:?}"), |fleet| {
            *fleet = next
        });
    }

    /// A request that was not kept is lost with the process that would have sent it.
    fn forget(&mut self) {
        if let Some(words) = self.before.take() {
            self.host.limit.words = words;
        }
    }

    fn lose(&self, number: usize, ask: Ask, bounds: &Bounds, steps: &mut Vec<Step>) {
        if self.losses < bounds.losses {
            self.push(steps, format!("a message of process {number} is lost"), |next| {
                next.losses += 1;
                next.processes[number] = Doing::Nothing;
                if next.duty == Some(number) {
                    next.host.fail_by(next.time(), ask.sequence, OUT);
                }
            });
        }
    }

    fn install(&mut self, number: usize, (ask, at, answer): (Ask, u64, Option<Answer>), bounds: &Bounds) {
        self.processes[number] = Doing::Nothing;
        let believes_any = bounds.mistake == Some(Mistake::BelievesAnyAnswer);
        if self.duty != Some(number) && !believes_any {
            return;
        }
        let now = self.time();
        match answer {
            Some(mut answer) => {
                if believes_any {
                    answer.sequence = self.host.limit.words[self.place(LeaseWord::Asked)];
                }
                let from = if bounds.mistake == Some(Mistake::CountsFromTheAnswer) {
                    now
                } else {
                    at
                };
                self.host.install(from, now, answer);
                self.before = None;
            }
            None => {
                let before = self.host.limit.words.clone();
                self.host.fail_by(now, ask.sequence, stale(2));
                if self.host.limit.words != before {
                    self.violation = Some(ANOTHER);
                }
            }
        }
    }

    /// A caller takes a unit, or finds none.
    fn spend(&self, steps: &mut Vec<Step>) {
        let mut next = self.clone();
        let is_admitted = next.host.take(next.time(), 1);
        if is_admitted && let Some(now) = next.admitted.last_mut() {
            *now += 1;
        }
        if next.host.limit.words != self.host.limit.words {
            let label = format!("a caller is {}", if is_admitted { "admitted" } else { "refused" });
            self.push(steps, label, |fleet| *fleet = next);
        }
    }

    /// The other host asks for everything and spends it at once.
    fn let_the_other_spend(&self, steps: &mut Vec<Step>) {
        let mut next = self.clone();
        next.other.sequence += 1;
        let answer = next.store.answer(OTHER, next.other, next.time());
        let granted = answer.map_or(0, |answer| answer.granted);
        if granted > 0
            && let Some(now) = next.admitted.last_mut()
        {
            *now += granted;
            next.other.spent += granted;
            self.push(steps, format!("the other host spends {granted}"), |fleet| {
                *fleet = next
            });
        }
    }
}

impl Bounds {
    fn new(burst: u64, ticks: u64) -> Self {
        Self {
            burst,
            ticks,
            deaths: 0,
            stops: 0,
            losses: 0,
            mistake: None,
        }
    }
}

fn nothing_is_wrong(bounds: &Bounds, at_least: u32) {
    explorer::nothing_is_wrong::<Fleet>(bounds, at_least);
}

fn is_found(mistake: Mistake, bounds: Bounds) {
    let bounds = Bounds {
        mistake: Some(mistake),
        ..bounds
    };
    explorer::is_found::<Fleet>(&bounds, EXCEEDED);
}

#[test]
fn two_hosts_admit_what_one_limit_would() {
    nothing_is_wrong(&Bounds::new(2, 3), 40_000);
}

#[test]
fn a_process_may_die_between_asking_and_installing() {
    nothing_is_wrong(
        &Bounds {
            deaths: 1,
            ..Bounds::new(2, 2)
        },
        30_000,
    );
}

#[test]
fn a_process_may_be_stopped_and_go_on_when_another_has_duty() {
    nothing_is_wrong(
        &Bounds {
            stops: 1,
            ..Bounds::new(1, 2)
        },
        10_000,
    );
}

#[test]
fn requests_and_answers_may_be_lost() {
    nothing_is_wrong(
        &Bounds {
            losses: 1,
            ..Bounds::new(2, 2)
        },
        30_000,
    );
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless it is optimised")]
fn as_far_as_an_optimised_explorer_gets() {
    nothing_is_wrong(&Bounds::new(2, 4), 500_000);
    let three = Bounds::new(2, 3);
    nothing_is_wrong(
        &Bounds {
            deaths: 1,
            ..three.clone()
        },
        500_000,
    );
    nothing_is_wrong(
        &Bounds {
            losses: 1,
            ..three.clone()
        },
        500_000,
    );
    nothing_is_wrong(&Bounds { stops: 1, ..three }, 4_000_000);
    let all_at_once = Bounds {
        deaths: 1,
        stops: 1,
        losses: 1,
        ..Bounds::new(1, 2)
    };
    nothing_is_wrong(&all_at_once, 10_000);
}

#[test]
fn a_request_that_is_not_kept_before_it_is_sent_is_found() {
    let bounds = Bounds {
        deaths: 1,
        ..Bounds::new(2, 1)
    };
    is_found(Mistake::RequestIsNotKept, bounds);
}

#[test]
fn a_lease_that_counts_from_the_answer_is_found() {
    is_found(Mistake::CountsFromTheAnswer, Bounds::new(2, 3));
}

#[test]
fn an_answer_to_another_request_that_is_believed_is_found() {
    let bounds = Bounds {
        stops: 1,
        ..Bounds::new(2, 2)
    };
    is_found(Mistake::BelievesAnyAnswer, bounds);
}
