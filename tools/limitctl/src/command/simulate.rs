//! `limitctl simulate`.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use shmlimit::Declaration;

use crate::exit::{ExitCode, Failure};
use crate::output::{self, Lines};
use crate::simulation::comparison::{Comparison, Flip};
use crate::simulation::replay::Simulation;
use crate::simulation::summary::Summary;
use crate::simulation::trace::{Action, Event, Take, Trace};
use crate::simulation::verdict::EventVerdict;
use crate::text::{human, style};

/// Try limits out on a trace of requests
///
/// Replays the trace in no time, on a clock that stands at the time of each event, by the very code that decides in production, on a private segment. Nothing is left behind.
///
/// The trace is one JSON object a line, in the order of time. A request has the milliseconds since the Unix epoch, a set, a key where the set is keyed, and by limit a whole number of the units that it counts in; what is not named is taken as in production:
///
///     {"at_ms": 1000, "set": "api", "key": "tenant-7", "cost": {"tokens": 900}, "id": 7}
///
/// Without an id, what a request holds is given back at once, and what it is charged stays charged. With one, it holds until a release (or the end), and may be settled once before; then the id is free again. To a request that was refused, or of limits that count networks, whose key is an address, both mean nothing:
///
///     {"at_ms": 1500, "settle": 7, "usage": {"tokens": 350}}
///     {"at_ms": 1500, "release": 7}
///
/// Prints what the limits say to each request, in the same units, rounded down, and in milliseconds, rounded up:
///
///     {"at_ms":1000,"set":"api","key":"tenant-7","admitted":true,"binding":null,"limits":{"tokens":{"remaining":100,"retry_after_ms":0,"reset_after_ms":900}}}
///
/// A cost that can never be admitted is refused, and a retry_after_ms of null says that time alone does not help. Where a table of keys has no room for another, nothing binds: the request is refused, and "binding" is null. Keys are printed whole, as the trace has them. A line that makes no sense ends the replay (exit code 65).
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Simulate {
    /// The declaration to try out, in TOML
    ///
    /// As for `limitctl create`. Its path, if it has one, is not touched.
    declaration: PathBuf,

    /// The trace; - for standard input
    ///
    /// It is read line by line, so it may be longer than what fits in memory.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,

    /// Print a summary instead of each verdict
    ///
    /// That is: what was admitted, what was refused and why, the most in one second and at once, and a plot over time.
    #[arg(long)]
    summary: bool,

    /// Print the summary as JSON
    ///
    /// Amounts are in the units that the limits count in, times in milliseconds.
    #[arg(long, requires = "summary")]
    json: bool,

    /// Compare with what another declaration says, such as the one in force
    ///
    /// Replays both, and prints the verdicts that flip instead of all: those of the declaration, with the line of the trace, and under "against" those of the other. The last line counts them. A limit that only one of the two has is not taken where it is not, and a key counts only where the set is keyed.
    #[arg(long, value_name = "OTHER")]
    against: Option<PathBuf>,

    /// Fail if more verdicts flip (exit code 3)
    ///
    /// For a gate that a change of limits has to pass.
    #[arg(long, value_name = "COUNT", requires = "against")]
    max_flips: Option<u64>,
}

/// A declaration under replay.
struct Side {
    simulation: Simulation,
    summary: Summary,
}

/// The results of the whole replay.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<Comparison>,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<&'a Summary>,
}

/// A replay in progress.
struct Replay {
    side: Side,
    against: Option<Side>,
    comparison: Comparison,
    /// Where verdicts or flips are printed; `None` if only the summary is.
    lines: Option<Lines>,
}

impl Simulate {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut replay = Replay {
            side: Side::new(&self.declaration)?,
            against: self.against.as_deref().map(Side::new).transpose()?,
            comparison: Comparison::default(),
            lines: (!self.summary).then(Lines::new),
        };
        let mut trace = self.open_trace()?;
        let replayed = replay.run(&mut trace, self.max_flips.is_some());
        if let Some(lines) = &mut replay.lines {
            if replayed.is_ok() && replay.against.is_some() {
                lines.print(&replay.comparison)?;
            }
            // Even if a line is invalid: the verdicts before it stand.
            lines.flush()?;
        }
        replayed?;
        if self.summary {
            self.report(replay.side, replay.against, replay.comparison)?;
        }
        match self.max_flips {
            Some(max) if replay.comparison.flips > max => Err(Failure::new(
                ExitCode::FLIPS,
                format!(
                    "{} verdicts flip, and --max-flips allows {max}",
                    replay.comparison.flips
                ),
            )),
            _ => Ok(ExitCode::DONE),
        }
    }

    fn open_trace(&self) -> Result<Trace<Box<dyn BufRead>>, Failure> {
        if self.trace == Path::new("-") {
            let input = Box::new(io::stdin().lock());
            return Ok(Trace::new(input, "standard input".to_owned()));
        }
        let name = human::path(&self.trace);
        let file = File::open(&self.trace)
            .map_err(|error| Failure::of_system(&error, format!("cannot open the trace {name}")))?;
        Ok(Trace::new(Box::new(BufReader::new(file)), name))
    }

    fn report(&self, side: Side, against: Option<Side>, comparison: Comparison) -> Result<(), Failure> {
        let summary = side.finish()?;
        let against = against.map(Side::finish).transpose()?;
        if self.json {
            return output::print_json(&Report {
                summary: &summary,
                comparison: against.is_some().then_some(comparison),
                against: against.as_ref(),
            });
        }
        let mut text = String::new();
        if let (Some(against), Some(path)) = (against, &self.against) {
            text.push_str(&comparison.text());
            text.push_str(&headed(&self.declaration, &summary));
            text.push_str(&headed(path, &against));
        } else {
            text = summary.text();
        }
        output::print(&text)
    }
}

fn headed(path: &Path, summary: &Summary) -> String {
    format!("\n{}\n{}", style::title(&human::path(path)), summary.text())
}

fn read(path: &Path) -> Result<Declaration, Failure> {
    Ok(Declaration::from_toml_file(path)?)
}

/// Adds which of the two declarations is invalid; the error of an unreadable one already says it.
fn located(path: &Path, failure: Failure) -> Failure {
    match failure.code {
        ExitCode::DECLARATION => Failure {
            message: format!("{}: {}", human::path(path), failure.message),
            ..failure
        },
        _ => failure,
    }
}

impl Side {
    fn new(path: &Path) -> Result<Self, Failure> {
        let simulation = read(path)
            .and_then(|declaration| Simulation::new(&declaration))
            .map_err(|failure| located(path, failure))?;
        Ok(Self {
            summary: Summary::new(simulation.declaration()),
            simulation,
        })
    }

    fn take(&mut self, at_ms: u64, take: &Take) -> Result<EventVerdict, Failure> {
        self.simulation.advance_to(at_ms);
        let verdict = EventVerdict {
            at_ms,
            set: take.set.clone(),
            key: take.key.clone(),
            answer: self.simulation.take(take)?,
        };
        if let Some(position) = self.simulation.position(&take.set) {
            self.summary.note(position, &verdict);
        }
        Ok(verdict)
    }

    fn finish(mut self) -> Result<Summary, Failure> {
        self.summary.finish(&self.simulation.snapshot()?);
        Ok(self.summary)
    }
}

impl Replay {
    /// Replays the trace to its end, or until nobody reads the verdicts any more, unless they are counted.
    fn run(&mut self, trace: &mut Trace<impl BufRead>, counts: bool) -> Result<(), Failure> {
        while let Some(event) = trace.next_event()? {
            self.step(&event).map_err(|failure| trace.locate(failure))?;
            if !counts && self.lines.as_ref().is_some_and(Lines::is_closed) {
                break;
            }
        }
        Ok(())
    }

    fn step(&mut self, event: &Event) -> Result<(), Failure> {
        match &event.action {
            Action::Take(take) => self.take(event.line, event.at_ms, take),
            Action::Settle { id, usage } => {
                if let Some(set) = self.side.simulation.set_asked(id) {
                    self.check_limits(set, usage)?;
                }
                for side in self.sides() {
                    side.simulation.advance_to(event.at_ms);
                    if let Some(charged) = side.simulation.settle(id, usage)? {
                        side.summary.charge(event.at_ms, &charged);
                    }
                }
                Ok(())
            }
            Action::Release { id } => {
                for side in self.sides() {
                    side.simulation.advance_to(event.at_ms);
                    side.simulation.release(id)?;
                }
                Ok(())
            }
        }
    }

    fn take(&mut self, line: u64, at_ms: u64, take: &Take) -> Result<(), Failure> {
        self.check(take)?;
        let verdict = self.side.take(at_ms, take)?;
        let against = match &mut self.against {
            Some(against) => Some(against.take(at_ms, take)?.answer),
            None => None,
        };
        let Some(against) = against else {
            return self.lines.as_mut().map_or(Ok(()), |lines| lines.print(&verdict));
        };
        let flips = self.comparison.note(verdict.answer.admitted, against.admitted);
        match &mut self.lines {
            Some(lines) if flips => lines.print(&Flip {
                line,
                verdict: &verdict,
                against: &against,
            }),
            _ => Ok(()),
        }
    }

    /// Rejects an event that makes sense to neither declaration, before either is asked.
    fn check(&self, take: &Take) -> Result<(), Failure> {
        for side in self.sides_looked_at() {
            if side.simulation.position(&take.set).is_none() {
                return Err(side.simulation.unknown_set(&take.set));
            }
        }
        self.check_key(&take.set, take.key.as_deref())?;
        self.check_limits(&take.set, &take.cost)?;
        match &take.id {
            Some(id) if self.side.simulation.set_asked(id).is_some() => Err(Failure::bad_trace(format!(
                "the id `{id}` is in use: release it before, or give each request an id of its own"
            ))),
            _ => Ok(()),
        }
    }

    /// In a comparison, the set may be keyed in only one of the two; the other ignores the key.
    fn check_key(&self, set: &str, key: Option<&str>) -> Result<(), Failure> {
        let is_keyed = self.sides_looked_at().any(|side| side.simulation.is_keyed(set));
        let mistake = match (is_keyed, key) {
            (true, None) => {
                format!(
                    "set `{set}` is keyed, and the event names no key: add for example \"key\": \"tenant-7\""
                )
            }
            (false, Some(key)) => format!(
                "set `{set}` is not keyed, and the event names the key `{key}`: remove `key`, or name another set"
            ),
            _ => return Ok(()),
        };
        Err(Failure::bad_trace(mistake))
    }

    /// In a comparison, limits that only one of the two has may be named.
    fn check_limits(&self, set: &str, amounts: &[(String, u64)]) -> Result<(), Failure> {
        for (limit, _) in amounts {
            let is_known = self
                .sides_looked_at()
                .any(|side| side.simulation.has_limit(set, limit));
            if !is_known {
                return Err(self.side.simulation.unknown_limit(set, limit));
            }
        }
        Ok(())
    }

    fn sides(&mut self) -> impl Iterator<Item = &mut Side> {
        std::iter::once(&mut self.side).chain(&mut self.against)
    }

    fn sides_looked_at(&self) -> impl Iterator<Item = &Side> {
        std::iter::once(&self.side).chain(&self.against)
    }
}
