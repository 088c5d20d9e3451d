//! A process that performs operations: it attaches once or twice, and keeps what it is given.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shmlimit::request::{AcquireFuture, KeyReset, LimitName, SetReset};
use shmlimit::{
    Address, Checked, Declaration, Error, Key, LimitSet, OpenOptions, Outcome, Permit, Refusal, Request,
    ReserveOutcome, Segment, Verdict,
};

use super::declarations::SET;
use super::operations::{Ask, LABEL, Operation, Step, limit_name};

/// A permit, and the key to which it was given.
pub struct Held {
    pub permit: Permit<'static>,
    pub key: u8,
}

pub struct Waiting {
    pub future: Pin<Box<AcquireFuture<'static>>>,
    pub key: u8,
}

/// The result of an operation.
#[derive(Debug, Default)]
pub struct Done {
    /// Units that were taken at once, by limit, whether they are held or not.
    pub taken: Option<Vec<(String, u64)>>,
    pub refusal: Option<Refusal>,
    pub settled: Option<Vec<Settled>>,
}

/// What a settlement did to one limit.
#[derive(Debug)]
pub struct Settled {
    pub limit: String,
    /// Whether some of what was reserved was not used.
    pub is_less: bool,
    /// How much was used beyond what was reserved.
    pub above: u64,
    pub refunded: u64,
    pub overdraft: u64,
}

/// How to make a request that is decided at once. All ways must have the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    AsWritten,
    /// `try_acquire` becomes `acquire` with no time to wait, and `check` becomes `try_acquire` if nothing is held.
    Otherwise,
}

/// What is limited: the set, one of its keys, or an address.
pub enum Subject<'a> {
    Set(&'a LimitSet),
    Key(Key<'a>, String),
    Address(Address<'a>, IpAddr),
}

impl<'a> Subject<'a> {
    pub fn of(set: &'a LimitSet, key: u8) -> Result<Self, Error> {
        if set.is_by_address() {
            let address = IpAddr::V4(Ipv4Addr::new(10, key % 4, key / 4, key));
            return Ok(Self::Address(set.address(address)?, address));
        }
        if set.is_keyed() {
            return Ok(Self::Key(set.key(key_name(key))?, key_name(key)));
        }
        Ok(Self::Set(set))
    }

    /// The request for this subject.
    fn ask<'s>(&self, request: &Request<'s>) -> Result<Request<'s>, Error> {
        match self {
            Self::Set(_) => Ok(request.clone()),
            Self::Key(_, key) => request.for_key(key),
            Self::Address(_, address) => request.for_address(*address),
        }
    }

    /// An address is only checked, because nothing is held of networks.
    pub fn try_acquire<'s>(&self, request: &Request<'s>, way: Way) -> Result<Outcome<'s>, Error> {
        let request = self.ask(request)?;
        match way {
            Way::AsWritten => request.try_acquire(),
            Way::Otherwise => request.acquire(Duration::ZERO),
        }
    }

    pub fn check<'s>(&self, request: &Request<'s>) -> Result<Checked<'s>, Error> {
        self.ask(request)?.check()
    }

    pub fn peek<'s>(&self, request: &Request<'s>) -> Result<Vec<Verdict<'s>>, Error> {
        self.ask(request)?.peek()
    }

    fn debit(&self, limit: impl LimitName, used: u64) -> Result<Option<Checked<'a>>, Error> {
        match self {
            Self::Set(set) => set.debit(limit, used).map(Some),
            Self::Key(key, _) => key.debit(limit, used).map(Some),
            Self::Address(..) => Ok(None),
        }
    }

    /// What could be spent of each limit, and how long until the limit is full.
    pub fn forecast(&self) -> Result<Vec<(String, u64, Option<Duration>)>, Error> {
        let forecasts = match self {
            Self::Set(set) => set.forecast()?,
            Self::Key(key, _) => key.forecast()?,
            Self::Address(..) => return Ok(Vec::new()),
        };
        let of = |it: &shmlimit::snapshot::Forecast<'_>| (it.limit.to_owned(), it.spendable, it.full_after);
        Ok(forecasts.iter().map(of).collect())
    }
}

pub fn key_name(key: u8) -> String {
    format!("key{key}")
}

pub struct Actor {
    pub path: PathBuf,
    pub options: OpenOptions,
    pub declaration: Declaration,
    /// The first attached before the others.
    pub attachers: Vec<Segment>,
    pub held: Vec<Held>,
    pub waiting: Vec<Waiting>,
    /// The fencing numbers that were given out since the driver last looked, and the keys to which they were given.
    pub numbers: Vec<(u64, u8)>,
    pub way: Way,
    /// For how many more steps no future is polled.
    neglects: u8,
    /// Whether what is collected next may have been granted before what was given out in the meantime.
    was_neglected: bool,
}

/// So few that a case does not consist of waiting only.
const MAX_WAITING: usize = 6;

impl Actor {
    pub fn new(
        path: &Path,
        options: &OpenOptions,
        attachers: Vec<Segment>,
        declaration: &Declaration,
    ) -> Self {
        Self {
            path: path.to_owned(),
            options: options.clone(),
            declaration: declaration.clone(),
            attachers,
            held: Vec::new(),
            waiting: Vec::new(),
            numbers: Vec::new(),
            way: Way::AsWritten,
            neglects: 0,
            was_neglected: false,
        }
    }

    pub fn segment(&self, attacher: u8) -> &Segment {
        &self.attachers[usize::from(attacher) % self.attachers.len()]
    }

    pub fn set(&self, attacher: u8) -> Result<LimitSet, Error> {
        self.segment(attacher).set(SET)
    }

    /// The request, with as much of what it names as the set has.
    pub fn request<'a>(&self, set: &'a LimitSet, ask: &Ask) -> Request<'a> {
        let mut request = set.request();
        let limits = self.declaration.sets()[0].limits();
        for (limit, cost) in limits.iter().zip(&ask.costs) {
            // The cost is ignored for budgets, of which nothing is reserved.
            let _ = request.set_cost(limit.name(), *cost);
        }
        if let Some(tier) = ask.tier {
            let _ = request.set_tier(tier_name(tier));
        }
        if let Some((limit, capacity)) = ask.capacity {
            let _ = request.set_override(limit_name(&self.declaration, limit), capacity);
        }
        if ask.label { request.label(LABEL) } else { request }
    }

    fn reset<'a>(&self, set: &'a LimitSet, limit: Option<u8>) -> SetReset<'a> {
        match limit {
            Some(limit) => set.reset().limits([limit_name(&self.declaration, limit)]),
            None => set.reset(),
        }
    }

    fn reset_key<'a>(&self, reset: KeyReset<'a>, limit: Option<u8>) -> KeyReset<'a> {
        match limit {
            Some(limit) => reset.limits([limit_name(&self.declaration, limit)]),
            None => reset,
        }
    }

    fn take(&mut self, which: u8) -> Option<Held> {
        let count = self.held.len();
        (count > 0).then(|| self.held.swap_remove(usize::from(which) % count))
    }

    fn keep(&mut self, permit: Permit<'_>, key: u8) -> Done {
        let taken = permit
            .taken()
            .map(|(name, units)| (name.to_owned(), units))
            .collect();
        let permit = permit.into_owned();
        self.numbers
            .extend(permit.fencing_number().map(|number| (number, key)));
        self.held.push(Held { permit, key });
        Done {
            taken: Some(taken),
            ..Done::default()
        }
    }

    /// Performs what a single process can do. Time, and the lives of processes and files, are up to the driver.
    pub fn perform(&mut self, step: &Step) -> Result<Done, Error> {
        let set = self.set(step.attacher)?;
        let subject = Subject::of(&set, step.key)?;
        match &step.operation {
            Operation::TryAcquire(ask) if !set.is_by_address() => {
                match subject.try_acquire(&self.request(&set, ask), self.way)? {
                    Outcome::Admitted(permit) => return Ok(self.keep(permit, step.key)),
                    Outcome::Refused(refusal) => return Ok(refused(refusal)),
                }
            }
            Operation::TryAcquire(ask) | Operation::Check(ask) => {
                let request = self.request(&set, ask);
                if self.way == Way::Otherwise && !set.is_by_address() && self.holds_nothing() {
                    return Ok(match subject.try_acquire(&request, Way::AsWritten)? {
                        Outcome::Admitted(permit) => Done {
                            taken: Some(
                                permit
                                    .taken()
                                    .map(|(name, units)| (name.to_owned(), units))
                                    .collect(),
                            ),
                            ..Done::default()
                        },
                        Outcome::Refused(refusal) => refused(refusal),
                    });
                }
                let checked = subject.check(&request)?;
                return Ok(match checked.refusal() {
                    Some(refusal) => refused(refusal),
                    None => Done {
                        taken: Some(
                            checked
                                .taken()
                                .map(|(name, units)| (name.to_owned(), units))
                                .collect(),
                        ),
                        ..Done::default()
                    },
                });
            }
            Operation::CheckMany(ask, keys) => {
                let keys: Vec<String> = keys.iter().map(|key| key_name(*key)).collect();
                drop(self.request(&set, ask).check_many(&keys)?);
            }
            Operation::Reserve(ask, delay, is_cancelled) => {
                let (request, delay) = (self.request(&set, ask), Duration::from_micros(*delay));
                if set.is_by_address() {
                    return Ok(Done::default());
                }
                let outcome = subject.ask(&request)?.reserve(delay)?;
                match outcome {
                    ReserveOutcome::Reserved(mut reservation) if *is_cancelled => {
                        reservation.cancel()?;
                    }
                    ReserveOutcome::Reserved(reservation) => {
                        return Ok(self.keep(reservation.into_permit(), step.key));
                    }
                    ReserveOutcome::Refused(refusal) => return Ok(refused(refusal)),
                }
            }
            Operation::Wait(ask, timeout) => {
                let timeout = timeout.map(Duration::from_micros);
                let request = self.request(&set, ask);
                if set.is_by_address() {
                    return Ok(Done::default());
                }
                let future = subject.ask(&request)?.acquire_async(timeout).into_owned();
                if self.waiting.len() < MAX_WAITING {
                    self.waiting.push(Waiting {
                        future: Box::pin(future),
                        key: step.key,
                    });
                }
            }
            Operation::WaitHere(ask, timeout) => {
                let (request, timeout) = (self.request(&set, ask), Duration::from_micros(*timeout));
                if set.is_by_address() {
                    return Ok(Done::default());
                }
                let outcome = subject.ask(&request)?.acquire(timeout)?;
                match outcome {
                    Outcome::Admitted(permit) => return Ok(self.keep(permit, step.key)),
                    Outcome::Refused(refusal) => return Ok(refused(refusal)),
                }
            }
            Operation::Neglect(steps) => {
                self.neglects = self.neglects.max(*steps);
                self.was_neglected = true;
            }
            Operation::StopWaiting(which) if !self.waiting.is_empty() => {
                let index = usize::from(*which) % self.waiting.len();
                self.waiting.swap_remove(index);
            }
            Operation::Settle(which, amounts) => {
                let Some(mut held) = self.take(*which) else {
                    return Ok(Done::default());
                };
                let limits = self.declaration.sets()[0].limits();
                let named: Vec<(&str, u64)> = limits
                    .iter()
                    .map(|limit| limit.name())
                    .zip(amounts.iter().copied())
                    .collect();
                // A permit settles what it took, and for budgets what was used.
                let took: HashMap<String, u64> = held
                    .permit
                    .taken()
                    .map(|(name, units)| (name.to_owned(), units))
                    .collect();
                let named: Vec<(&str, u64)> = named
                    .into_iter()
                    .filter(|(name, _)| took.contains_key(*name))
                    .collect();
                let settlement = held.permit.settle(named.iter().copied());
                let of = |settlement: &shmlimit::Settlement<'_>| {
                    named
                        .iter()
                        .map(|(name, used)| Settled {
                            limit: (*name).to_owned(),
                            is_less: *used < took[*name],
                            above: used.saturating_sub(took[*name]),
                            refunded: settlement.refunded(*name),
                            overdraft: settlement.overdraft(*name),
                        })
                        .collect()
                };
                let settled = settlement.as_ref().map(of).map_err(|_| ()).ok();
                let result = settlement.map(drop);
                self.held.push(held);
                result?;
                return Ok(Done {
                    settled,
                    ..Done::default()
                });
            }
            Operation::Release(which) => {
                if let Some(mut held) = self.take(*which) {
                    held.permit.release()?;
                }
            }
            Operation::ReleaseFailed(which) => {
                if let Some(mut held) = self.take(*which) {
                    held.permit.release_failed()?;
                }
            }
            Operation::Cancel(which) => {
                if let Some(mut held) = self.take(*which) {
                    held.permit.cancel()?;
                }
            }
            Operation::Abandon(which) => {
                if let Some(mut held) = self.take(*which) {
                    held.permit.abandon();
                }
            }
            Operation::Drop(which) => drop(self.take(*which)),
            Operation::Heartbeat(which) if !self.held.is_empty() => {
                let index = usize::from(*which) % self.held.len();
                self.held[index].permit.heartbeat()?;
            }
            Operation::Throttled(which, micros) if !self.held.is_empty() => {
                let index = usize::from(*which) % self.held.len();
                self.held[index]
                    .permit
                    .throttled(Duration::from_micros(*micros))?;
            }
            Operation::DebitUnder(which, limit, used) if !self.held.is_empty() => {
                let index = usize::from(*which) % self.held.len();
                let limit = limit_name(&self.declaration, *limit).to_owned();
                drop(self.held[index].permit.debit(limit.as_str(), *used)?);
            }
            Operation::Debit(limit, used) => {
                drop(subject.debit(limit_name(&self.declaration, *limit), *used)?);
            }
            Operation::Throttle(micros) => match &subject {
                Subject::Set(set) => set.throttle(Duration::from_micros(*micros))?,
                Subject::Key(key, _) => key.throttle(Duration::from_micros(*micros))?,
                Subject::Address(..) => {}
            },
            Operation::ThrottleSet(micros) => set.throttle(Duration::from_micros(*micros))?,
            Operation::Reset(limit) => match &subject {
                Subject::Set(set) => self.reset(set, *limit).run()?,
                Subject::Key(key, _) => drop(self.reset_key(key.reset(), *limit).run()?),
                Subject::Address(address, _) => drop(self.reset_key(address.reset(), *limit).run()?),
            },
            Operation::ResetSet(limit, true) => self.reset(&set, *limit).counters().run()?,
            Operation::ResetSet(limit, false) => self.reset(&set, *limit).run()?,
            Operation::Assign(tier) => {
                if let Subject::Key(key, _) = &subject {
                    key.assign(tier_name(*tier))?;
                }
            }
            Operation::Override(limit, capacity) => {
                if let Subject::Key(key, _) = &subject {
                    let limit = limit_name(&self.declaration, *limit);
                    match capacity {
                        Some(capacity) => key.override_capacity(limit, *capacity)?,
                        None => key.clear_override(limit)?,
                    }
                }
            }
            Operation::Peek(ask) => drop(subject.peek(&self.request(&set, ask))?),
            Operation::Forecast => drop(subject.forecast()?),
            Operation::Apply(text) => {
                self.segment(step.attacher)
                    .apply(&Declaration::from_toml(text)?)?;
            }
            Operation::Recover => drop(self.segment(step.attacher).recover()?),
            Operation::Rebuild => drop(self.segment(step.attacher).rebuild()?),
            Operation::Reattach => {
                let index = usize::from(step.attacher) % self.attachers.len();
                self.attachers[index] = self.options.open(&self.path)?;
            }
            _ => {}
        }
        Ok(Done::default())
    }

    /// Whether no limit gives anything back, so that a check is the same as an acquisition.
    pub fn holds_nothing(&self) -> bool {
        let text = self.declaration.to_toml().expect("valid");
        !text.contains("kind = \"concurrency\"") && !text.contains("credit")
    }

    /// Polls the futures that wait, as an event loop does, until each that is granted has its permit.
    pub fn poll(&mut self) -> Result<(), Error> {
        if self.neglects > 0 {
            self.neglects -= 1;
            return Ok(());
        }
        let mut result = self.poll_each();
        while !self.waiting.is_empty() && self.is_any_granted()? {
            result = result.and(self.poll_each());
        }
        self.was_neglected = false;
        result
    }

    fn is_any_granted(&self) -> Result<bool, Error> {
        let snapshot = self.attachers[0].snapshot()?;
        let (tickets, own) = (&snapshot.sets[0].tickets, std::process::id());
        Ok(tickets
            .iter()
            .any(|ticket| ticket.granted && ticket.owner_pid == Some(own.into())))
    }

    fn poll_each(&mut self) -> Result<(), Error> {
        let mut context = Context::from_waker(Waker::noop());
        let mut result = Ok(());
        let mut index = 0;
        while index < self.waiting.len() {
            match self.waiting[index].future.as_mut().poll(&mut context) {
                Poll::Pending => index += 1,
                Poll::Ready(outcome) => {
                    let waiting = self.waiting.swap_remove(index);
                    match outcome {
                        Ok(Outcome::Admitted(permit)) => {
                            drop(self.keep(permit, waiting.key));
                            if self.was_neglected {
                                self.numbers.pop();
                            }
                        }
                        Ok(Outcome::Refused(_)) => {}
                        Err(error) => result = Err(error),
                    }
                }
            }
        }
        result
    }

    pub fn give_all_back(&mut self) -> Result<(), Error> {
        self.waiting.clear();
        for mut held in self.held.drain(..) {
            held.permit.release()?;
        }
        Ok(())
    }
}

fn tier_name(tier: u8) -> &'static str {
    ["default", "gold", "other"][usize::from(tier) % 3]
}

fn refused(refusal: Refusal) -> Done {
    Done {
        refusal: Some(refusal),
        ..Done::default()
    }
}
