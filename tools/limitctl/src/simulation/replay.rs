//! A declaration under replay: a private segment, the trace's clock, and what the trace holds.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use shmlimit::declare::Kind;
use shmlimit::snapshot::SegmentSnapshot;
use shmlimit::{
    Declaration, Error, LimitSet, OpenError, OpenOptions, Outcome, Permit, PermitError, Request,
    RequestError, Segment, VirtualClock,
};
use tempfile::TempDir;

use super::trace::{Amounts, Take};
use super::verdict::Answer;
use crate::exit::Failure;

/// The usual file system in memory; without it, the directory for temporary files must do.
const SHARED_MEMORY: &str = "/dev/shm";

/// A declaration that a trace is replayed against.
#[derive(Debug)]
pub struct Simulation {
    segment: Segment,
    clock: VirtualClock,
    sets: Vec<LimitSet>,
    positions: HashMap<String, usize>,
    /// The requests that the trace may settle and release.
    known: HashMap<String, Known>,
}

/// The outcome of a request with an id, kept until it is released.
#[derive(Debug)]
struct Known {
    /// The position of the set that was asked.
    position: usize,
    /// `None` if it was refused: then there is nothing to settle or release.
    permit: Option<Permit<'static>>,
}

/// What a settlement charged in addition to what was taken.
#[derive(Debug)]
pub struct Charged {
    /// The position of the set.
    pub position: usize,
    /// By limit.
    pub units: Amounts,
}

impl Simulation {
    /// Creates a private segment and removes its name at once: nothing is left behind, however the program ends.
    pub fn new(declaration: &Declaration) -> Result<Self, Failure> {
        let clock = VirtualClock::new(Duration::ZERO);
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
        })
    }

    /// The declaration under replay.
    pub fn declaration(&self) -> &Declaration {
        self.segment.declaration()
    }

    /// Moves time on.
    pub fn advance_to(&self, at_ms: u64) {
        self.clock.advance_to(Duration::from_millis(at_ms));
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

    /// Takes what an event asks for.
    ///
    /// Without an id, holds are given back at once, and charges stay. A limit that the set does not have is skipped,
    /// and so is a key if the set is not keyed.
    pub fn take(&mut self, take: &Take) -> Result<Answer, Failure> {
        let Some(position) = self.position(&take.set) else {
            return Err(self.unknown_set(&take.set));
        };
        let set = &self.sets[position];
        let mut request = set.request();
        for (limit, cost) in &take.cost {
            request.set_cost(limit, *cost).map_err(of_event)?;
        }
        let (answer, permit) = decide(set, take.key.as_deref(), &request)?;
        match &take.id {
            Some(id) => {
                self.known.insert(id.clone(), Known { position, permit });
            }
            None => permit.map_or(Ok(()), release)?,
        }
        Ok(answer)
    }

    /// Settles the request with an id; returns what that charged in addition, and to which set. If the request was
    /// refused, there is nothing to settle.
    pub fn settle(&mut self, id: &str, usage: &Amounts) -> Result<Option<Charged>, Failure> {
        let Known { position, permit } = self.known.get_mut(id).ok_or_else(|| unknown_id(id))?;
        let Some(permit) = permit else {
            return Ok(None);
        };
        let position = *position;
        let limits = self.segment.declaration().sets()[position].limits();
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
        Ok(Some(Charged {
            position,
            units: usage.iter().map(on_top).collect(),
        }))
    }

    /// Gives back what is held under an id, which may then be reused.
    pub fn release(&mut self, id: &str) -> Result<(), Failure> {
        let known = self.known.remove(id).ok_or_else(|| unknown_id(id))?;
        known.permit.map_or(Ok(()), release)
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

/// Asks a set, or one of its keys.
fn decide(
    set: &LimitSet,
    key: Option<&str>,
    request: &Request<'_>,
) -> Result<(Answer, Option<Permit<'static>>), Failure> {
    match key {
        Some(name) if set.is_by_address() => match name.parse() {
            Ok(address) => decide_address(&request.for_address(address)?),
            Err(_) => {
                let error = set
                    .key(name)
                    .err()
                    .map_or_else(String::new, |error| error.to_string());
                Err(Failure::bad_trace(format!(
                    "{error}: `{name}` is none, write for example \"key\": \"203.0.113.7\""
                )))
            }
        },
        Some(name) if set.is_keyed() => answer(&request.for_key(name).map_err(of_event)?),
        _ => answer(request),
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

fn answer(request: &Request<'_>) -> Result<(Answer, Option<Permit<'static>>), Failure> {
    match request.try_acquire() {
        Ok(Outcome::Admitted(permit)) => Ok((Answer::admitted(&permit), Some(permit.into_owned()))),
        Ok(Outcome::Refused(refusal)) => Ok((Answer::refused(&refusal), None)),
        // A mistake in a program, but here it is what people try out limits for.
        Err(Error::Request(RequestError::NeverAdmissible { limit, .. })) => {
            Ok((Answer::never(limit, &request.peek()?), None))
        }
        Err(error) => Err(of_event(error)),
    }
}

fn release(mut permit: Permit<'static>) -> Result<(), Failure> {
    match permit.release() {
        // Its lease ran out, because the trace releases it late.
        Ok(()) | Err(Error::Permit(PermitError::Reclaimed { .. })) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn unknown_id(id: &str) -> Failure {
    Failure::bad_trace(format!(
        "no event before has the id `{id}`, or it was released: add \"id\" to the event that takes"
    ))
}

/// An error caused by the event itself.
fn of_event(error: Error) -> Failure {
    let is_of_event = matches!(
        error,
        Error::Request(RequestError::CostRequired { .. } | RequestError::UnknownLimit { .. })
            | Error::Permit(PermitError::AlreadySettled { .. })
            | Error::Request(RequestError::KeyRequired { .. } | RequestError::InvalidKey { .. })
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
