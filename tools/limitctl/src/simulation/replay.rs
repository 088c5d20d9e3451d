//! A declaration under replay: a private segment, the trace's clock, and what the trace holds.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use shmlimit::declare::Kind;
use shmlimit::snapshot::SegmentSnapshot;
use shmlimit::{
    Declaration, Error, Limit, LimitSet, OpenError, OpenOptions, Outcome, Permit, PermitError, Request,
    RequestError, Segment, Verdict, VirtualClock,
};
use tempfile::TempDir;

use super::pending::{Held, Pending, Waiting};
use super::trace::{Amounts, Ends, Take, Timing};
use super::verdict::{Answer, EventVerdict, millis};
use crate::exit::Failure;

/// The usual file system in memory. Without it, the directory for temporary files is used.
const SHARED_MEMORY: &str = "/dev/shm";

/// A declaration that a trace is replayed against.
#[derive(Debug)]
pub struct Simulation {
    segment: Segment,
    clock: VirtualClock,
    sets: Vec<LimitSet>,
    positions: HashMap<String, usize>,
    /// By id, the requests that the trace may settle and release.
    known: HashMap<String, Known>,
    pending: Pending,
}

/// The outcome of a request with an id, kept until it is released.
#[derive(Debug)]
struct Known {
    /// The position of the set that was asked.
    position: usize,
    key: Option<String>,
    /// `None` if the request was refused, so that there is nothing to settle or release.
    permit: Option<Permit<'static>>,
}

/// Something that happened to a request of the trace.
#[derive(Debug)]
pub enum Happened {
    Decided(Decided),
    Settled(Settled),
}

/// A request was admitted or refused.
#[derive(Debug)]
pub struct Decided {
    /// Its line in the trace.
    pub line: u64,
    /// The position of the set.
    pub position: usize,
    pub verdict: EventVerdict,
}

/// A request reported what it had used.
#[derive(Debug)]
pub struct Settled {
    pub at_ms: u64,
    /// The position of the set.
    pub position: usize,
    pub key: Option<String>,
    pub changes: Changes,
}

/// What a settlement changed, by limit.
#[derive(Debug)]
pub struct Changes {
    /// What was charged on top of what was taken.
    pub charged: Amounts,
    pub returned: Amounts,
}

impl Simulation {
    /// Creates a private segment, and removes its name at once, so that nothing is left behind, however the program
    /// ends.
    pub fn new(declaration: &Declaration) -> Result<Self, Failure> {
        // The clock advances only to lines of the trace, and to what is due between them.
        let clock = VirtualClock::new(Duration::ZERO).auto_advance(false);
        let options = OpenOptions::new().virtual_clock(&clock);
        let declaration = declaration.clone().mode(0o600);
        let open_in = |place: &Path| -> Result<Segment, Error> {
            let directory = private_directory(place)?;
            let segment = options.create(directory.path().join("segment"), &declaration)?;
            directory
                .close()
                .map_err(|source| io_error("empty", place, source))?;
            Ok(segment)
        };
        let segment = open_in(Path::new(SHARED_MEMORY))
            .or_else(|_| open_in(&std::env::temp_dir()))
            .map_err(Failure::while_creating)?;
        // In a comparison, the trace may name limits that only one of the declarations has.
        let sets: Vec<LimitSet> = segment.sets().map(|set| set.strict(false)).collect();
        let positions = (0..)
            .zip(&sets)
            .map(|(position, set)| (set.name().to_owned(), position))
            .collect();
        Ok(Self {
            segment,
            clock,
            sets,
            positions,
            known: HashMap::new(),
            pending: Pending::default(),
        })
    }

    /// The declaration under replay.
    pub fn declaration(&self) -> &Declaration {
        self.segment.declaration()
    }

    /// Advances the clock, stopping at each instant at which a wait or a hold ends.
    pub fn advance_to(&mut self, at: Duration) -> Result<Vec<Happened>, Failure> {
        let mut happened = Vec::new();
        while let Some(next) = self.next_instant().filter(|next| *next <= at) {
            self.clock.advance_to(next);
            while let Some(held) = self.pending.end_of_hold(self.clock.now()) {
                happened.extend(self.end(held)?);
            }
            self.see_who_is_decided(&mut happened)?;
        }
        self.clock.advance_to(at);
        Ok(happened)
    }

    /// Advances the clock until no request waits and no permit is held for a time any more.
    pub fn finish(&mut self) -> Result<Vec<Happened>, Failure> {
        let mut happened = Vec::new();
        while let Some(next) = self.next_instant() {
            happened.extend(self.advance_to(next)?);
        }
        Ok(happened)
    }

    /// The next instant at which something may happen without a line of the trace.
    fn next_instant(&self) -> Option<Duration> {
        let turn = self
            .clock
            .next_wake()
            .filter(|_| self.pending.is_anybody_waiting());
        turn.into_iter().chain(self.pending.next_end()).min()
    }

    /// The position of a set in the declaration.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.positions.get(name).copied()
    }

    /// Whether a set has a limit of this name.
    pub fn has_limit(&self, set: &str, limit: &str) -> bool {
        self.position(set)
            .is_some_and(|position| self.sets[position].limit_index(limit).is_some())
    }

    /// The name of the set that was asked under an id.
    pub fn set_asked(&self, id: &str) -> Option<&str> {
        let known = self.known.get(id)?;
        Some(self.sets[known.position].name())
    }

    /// Takes what a line asks for, or queues the request if it may wait.
    ///
    /// A limit that the set does not have is skipped, and so is a key or a tier if the set has none.
    pub fn take(&mut self, line: u64, take: &Take) -> Result<Vec<Happened>, Failure> {
        let Some(position) = self.position(&take.set) else {
            return Err(self.unknown_set(&take.set));
        };
        let (set, asked_at) = (&self.sets[position], self.clock.now());
        let request = request(set, take)?;
        let mut happened = Vec::new();
        match &take.ends {
            Ends::ByTime(Timing {
                wait_ms: Some(wait_ms),
                ..
            }) => {
                if set.is_by_address() {
                    return Err(Failure::bad_trace(format!(
                        "set `{}` counts networks, for which requests cannot wait: leave out `wait_ms`",
                        take.set
                    )));
                }
                let future = request.acquire_async(Duration::from_millis(*wait_ms));
                self.pending.wait(Waiting {
                    line,
                    position,
                    take: take.clone(),
                    asked_at,
                    future: Box::pin(future.into_owned()),
                });
            }
            _ => {
                let answered = decide(set, take.key.as_deref(), &request)?;
                self.conclude((line, position, asked_at), take, answered, &mut happened)?;
            }
        }
        self.see_who_is_decided(&mut happened)?;
        Ok(happened)
    }

    /// Settles the request with an id. If it was refused, there is nothing to settle.
    pub fn settle(&mut self, id: &str, usage: &Amounts) -> Result<Vec<Happened>, Failure> {
        let known = self.known.get_mut(id).ok_or_else(|| unknown_id(id))?;
        let Some(permit) = &mut known.permit else {
            return Ok(Vec::new());
        };
        let limits = self.segment.declaration().sets()[known.position].limits();
        let mut happened = vec![Happened::Settled(Settled {
            at_ms: whole_millis(self.clock.now()),
            position: known.position,
            key: known.key.clone(),
            changes: settle(limits, permit, usage)?,
        })];
        self.see_who_is_decided(&mut happened)?;
        Ok(happened)
    }

    /// Gives back what is held under an id, which may then be reused.
    pub fn release(&mut self, id: &str) -> Result<Vec<Happened>, Failure> {
        let known = self.known.remove(id).ok_or_else(|| unknown_id(id))?;
        known.permit.map_or(Ok(()), release)?;
        let mut happened = Vec::new();
        self.see_who_is_decided(&mut happened)?;
        Ok(happened)
    }

    /// Keeps a permit for as long as its line says.
    fn hold(&mut self, line: u64, held: Held, timing: &Timing) -> Result<Option<Happened>, Failure> {
        if timing.hold_ms == 0 {
            return self.end(held);
        }
        let end = self
            .clock
            .now()
            .saturating_add(Duration::from_millis(timing.hold_ms));
        self.pending.hold(end, line, held);
        Ok(None)
    }

    /// Settles what was held, if its line says what was used, and gives it back.
    fn end(&self, held: Held) -> Result<Option<Happened>, Failure> {
        let Held {
            position,
            key,
            mut permit,
            usage,
        } = held;
        let limits = self.segment.declaration().sets()[position].limits();
        let settled = match usage.is_empty() {
            true => None,
            false => Some(Settled {
                at_ms: whole_millis(self.clock.now()),
                position,
                key,
                changes: settle(limits, &mut permit, &usage)?,
            }),
        };
        release(permit)?;
        Ok(settled.map(Happened::Settled))
    }

    /// Answers the waiting requests that are decided, until no more are, because what one request gives back at once
    /// may admit another.
    fn see_who_is_decided(&mut self, happened: &mut Vec<Happened>) -> Result<(), Failure> {
        loop {
            let decided = self.pending.decided();
            if decided.is_empty() {
                return Ok(());
            }
            for (waiting, outcome) in decided {
                self.answer_waiting(waiting, outcome, happened)?;
            }
        }
    }

    /// Records the answer to a request that waited.
    fn answer_waiting(
        &mut self,
        waiting: Waiting,
        outcome: Result<Outcome<'static>, Error>,
        happened: &mut Vec<Happened>,
    ) -> Result<(), Failure> {
        let (position, take) = (waiting.position, &waiting.take);
        let answered = answer_of(outcome, || Ok(request(&self.sets[position], take)?.peek()?))?;
        self.conclude(
            (waiting.line, position, waiting.asked_at),
            take,
            answered,
            happened,
        )
    }

    /// Records the answer to the request that this line made to this set at this time, and keeps what was granted.
    fn conclude(
        &mut self,
        (line, position, asked_at): (u64, usize, Duration),
        take: &Take,
        (answer, permit): (Answer, Option<Permit<'static>>),
        happened: &mut Vec<Happened>,
    ) -> Result<(), Failure> {
        let (key, now) = (take.key.clone(), self.clock.now());
        let may_wait = matches!(&take.ends, Ends::ByTime(timing) if timing.wait_ms.is_some());
        let verdict = EventVerdict {
            at_ms: whole_millis(asked_at),
            set: take.set.clone(),
            key: key.clone(),
            waited_ms: may_wait.then(|| millis(now.saturating_sub(asked_at))),
            decided_ms: whole_millis(now),
            answer,
        };
        happened.push(Happened::Decided(Decided {
            line,
            position,
            verdict,
        }));
        match (&take.ends, permit) {
            (Ends::ById(id), permit) => {
                let known = Known {
                    position,
                    key,
                    permit,
                };
                self.known.insert(id.clone(), known);
            }
            (Ends::ByTime(timing), Some(permit)) => {
                let held = Held::new(position, key, permit, timing);
                happened.extend(self.hold(line, held, timing)?);
            }
            (Ends::ByTime(_), None) => {}
        }
        Ok(())
    }

    /// The segment's counters.
    pub fn snapshot(&self) -> Result<SegmentSnapshot, Failure> {
        Ok(self.segment.snapshot()?)
    }

    /// Whether each key of a set has its own limits.
    pub fn is_keyed(&self, set: &str) -> bool {
        self.position(set)
            .is_some_and(|position| self.sets[position].is_keyed())
    }

    /// The failure for an unknown set.
    pub fn unknown_set(&self, name: &str) -> Failure {
        let known: Vec<&str> = self.sets.iter().map(LimitSet::name).collect();
        Failure::bad_trace(format!(
            "there is no set `{name}`; the declaration has {}: correct the event or declare it",
            known.join(", ")
        ))
    }

    /// The failure for an unknown limit.
    pub fn unknown_limit(&self, set: &str, limit: &str) -> Failure {
        let known: Vec<&str> = self
            .position(set)
            .into_iter()
            .flat_map(|position| self.sets[position].limits())
            .collect();
        Failure::bad_trace(format!(
            "set `{set}` has no limit `{limit}`; it has {}: correct the event or declare it",
            known.join(", ")
        ))
    }
}

/// The request that a line makes of a set, without the key if that is an address.
fn request<'a>(set: &'a LimitSet, take: &Take) -> Result<Request<'a>, Failure> {
    let mut request = set.request();
    for (limit, cost) in &take.cost {
        request.set_cost(limit, *cost).map_err(of_event)?;
    }
    if let Some(key) = &take.key
        && set.is_keyed()
        && !set.is_by_address()
    {
        request.set_key(key).map_err(of_event)?;
    }
    if let Some(tier) = &take.tier
        && set.tiers().next().is_some()
    {
        request.set_tier(tier).map_err(of_event)?;
    }
    Ok(request)
}

/// Asks a set, one of its keys, or the networks of an address.
fn decide(
    set: &LimitSet,
    key: Option<&str>,
    request: &Request<'_>,
) -> Result<(Answer, Option<Permit<'static>>), Failure> {
    let Some(name) = key.filter(|_| set.is_by_address()) else {
        return answer_of(request.try_acquire(), || Ok(request.peek()?));
    };
    match name.parse() {
        Ok(address) => decide_address(&request.for_address(address)?),
        Err(_) => {
            let error = set
                .key(name)
                .err()
                .map_or_else(String::new, |error| error.to_string());
            Err(Failure::bad_trace(format!(
                "{error}: `{name}` is not an address; write, for example, \"key\": \"203.0.113.7\""
            )))
        }
    }
}

/// Asks all networks that contain an address, which leaves nothing to hold or settle.
fn decide_address(request: &Request<'_>) -> Result<(Answer, Option<Permit<'static>>), Failure> {
    match request.check() {
        Ok(checked) => Ok((Answer::checked(&checked), None)),
        Err(Error::Request(RequestError::NeverAdmissible { limit, .. })) => {
            Ok((Answer::never(limit, &request.peek()?), None))
        }
        Err(error) => Err(of_event(error)),
    }
}

/// The answer, and what was granted. `peek` returns the state of the limits.
fn answer_of<'a>(
    outcome: Result<Outcome<'a>, Error>,
    peek: impl FnOnce() -> Result<Vec<Verdict<'a>>, Failure>,
) -> Result<(Answer, Option<Permit<'static>>), Failure> {
    match outcome {
        Ok(Outcome::Admitted(permit)) => Ok((Answer::admitted(&permit), Some(permit.into_owned()))),
        Ok(Outcome::Refused(refusal)) => Ok((Answer::refused(&refusal), None)),
        // In a program this is a mistake, but here it is what people try out limits for.
        Err(Error::Request(RequestError::NeverAdmissible { limit, .. })) => {
            Ok((Answer::never(limit, &peek()?), None))
        }
        Err(error) => Err(of_event(error)),
    }
}

fn settle(limits: &[Limit], permit: &mut Permit<'_>, usage: &Amounts) -> Result<Changes, Failure> {
    let is_budget = |name: &str| {
        limits
            .iter()
            .any(|limit| limit.name() == name && limit.kind() == Kind::Budget)
    };
    let taken: HashMap<String, u64> = permit
        .taken()
        .map(|(limit, units)| (limit.to_owned(), units))
        .collect();
    let settlement = permit
        .settle(usage.iter().map(|(limit, used)| (limit, *used)))
        .map_err(of_event)?;
    let on_top = |(limit, used): &(String, u64)| {
        let units = match taken.get(limit) {
            // A budget is debited, which is not an overdraft.
            Some(taken) if is_budget(limit) => used.saturating_sub(*taken),
            _ => settlement.overdraft(limit),
        };
        (limit.clone(), units)
    };
    let back = |(limit, _): &(String, u64)| (limit.clone(), settlement.refunded(limit));
    Ok(Changes {
        charged: usage.iter().map(on_top).collect(),
        returned: usage.iter().map(back).collect(),
    })
}

/// The milliseconds that have passed since the Unix epoch.
fn whole_millis(utc: Duration) -> u64 {
    u64::try_from(utc.as_millis()).unwrap_or(u64::MAX)
}

fn release(mut permit: Permit<'static>) -> Result<(), Failure> {
    match permit.release() {
        // The lease has run out, because the trace releases the permit late.
        Ok(()) | Err(Error::Permit(PermitError::Reclaimed { .. })) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn unknown_id(id: &str) -> Failure {
    Failure::bad_trace(format!(
        "no earlier event has the id `{id}`, or it was released: add \"id\" to the event that takes"
    ))
}

/// Turns an error into a failure, which is one of the trace if the event itself caused it.
fn of_event(error: Error) -> Failure {
    let is_of_event = matches!(
        error,
        Error::Request(RequestError::CostRequired { .. } | RequestError::UnknownLimit { .. })
            | Error::Permit(PermitError::AlreadySettled { .. })
            | Error::Request(RequestError::KeyRequired { .. } | RequestError::InvalidKey { .. })
            | Error::Request(RequestError::UnknownTier { .. })
    );
    let failure = Failure::from(error);
    if is_of_event {
        Failure::bad_trace(failure.message)
    } else {
        failure
    }
}

fn private_directory(place: &Path) -> Result<TempDir, Error> {
    tempfile::Builder::new()
        .prefix("limitctl-simulate-")
        .tempdir_in(place)
        .map_err(|source| io_error("make a directory in", place, source))
}

fn io_error(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::Open(OpenError::Io {
        action,
        path: path.to_owned(),
        source,
    })
}
