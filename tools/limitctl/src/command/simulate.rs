//! `limitctl simulate`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use shmlimit::Declaration;

use crate::exit::{ExitCode, Failure};
use crate::output::{self, Lines};
use crate::simulation::comparison::{Comparison, Flip};
use crate::simulation::replay::{Decided, Happened, Simulation};
use crate::simulation::summary::Summary;
use crate::simulation::trace::{Action, Ends, Event, Take, Trace};
use crate::simulation::verdict::{Answer, EventVerdict};
use crate::text::{human, style};

/// Try limits out on a trace of requests
///
/// Replays the trace at once on a private segment, with the very code that decides in production and a clock that jumps from event to event. Leaves nothing behind.
///
/// The trace has one JSON object per line, in order of time. A request names the milliseconds since the Unix epoch, a set, a key if the set is keyed, and for each limit a cost, as a whole number of the units in which the limit counts. Limits that it does not name are taken as in production:
///
///     {"at_ms": 1000, "set": "api", "key": "tenant-7", "cost": {"tokens": 900}, "id": 7}
///
/// A request without an id gives back at once what it holds, and what it was charged stays charged. One with an id holds until it is released or the trace ends, and may be settled once before that; then the id may be used again. For a request that was refused, and in sets that count networks (whose keys are addresses), settle and release have no effect:
///
///     {"at_ms": 1500, "settle": 7, "usage": {"tokens": 350}}
///     {"at_ms": 1500, "release": 7}
///
/// Instead of an id, a request may say how long it waits, how long it then holds what it got, and what it has used by the end. Its verdict is printed once it is decided, with the time that it waited. If all keys share a limit, the summary shows what each key got of it, by the weight of the tier that its requests name:
///
///     {"at_ms": 1000, "set": "llm", "key": "tenant-7", "tier": "gold", "cost": {"tokens": 900}, "wait_ms": 30000,
///     "hold_ms": 800, "usage": {"tokens": 350}}
///
/// Prints what the limits say to each request. Amounts are in the same units, rounded down, and times in milliseconds, rounded up:
///
///     {"at_ms":1000,"set":"api","key":"tenant-7","admitted":true,"binding":null,"limits":{"tokens":{"remaining":100,"retry_after_ms":0,"reset_after_ms":900}}}
///
/// A cost that can never be admitted is refused, and a retry_after_ms of null says that time alone does not help. If the table of keys is full, the request is refused and "binding" is null, because no limit is to blame. Keys are printed whole, as in the trace. A line that makes no sense ends the replay (exit code 65).
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Simulate {
    /// The declaration to try out, in TOML
    ///
    /// As for `limitctl create`. Its path, if it has one, is not touched.
    declaration: PathBuf,

    /// The trace; - for standard input
    ///
    /// It is read line by line, so it may be larger than memory.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,

    /// Print a summary instead of each verdict
    ///
    /// That is: what was admitted, what was refused and why, the most in one second and at once, what each key got of the
    /// limits that all keys share, and a plot over time.
    #[arg(long)]
    summary: bool,

    /// Print the summary as JSON
    ///
    /// Amounts are in the units in which the limits count, times in milliseconds.
    #[arg(long, requires = "summary")]
    json: bool,

    /// Compare with what another declaration says, such as the one in force
    ///
    /// Replays both, and prints only the verdicts that flip: those of the declaration, with the line of the trace, and
    /// under "against" those of the other. The last line counts them. A declaration ignores limits that only the other
    /// has, and keys if its set is not keyed.
    #[arg(long, value_name = "OTHER")]
    against: Option<PathBuf>,

    /// Fail if more than COUNT verdicts flip (exit code 3)
    ///
    /// Serves as a gate for changes of limits.
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
    /// Requests that only one of the two declarations has decided, by line.
    undecided: HashMap<u64, Undecided>,
    /// Where verdicts or flips are printed; `None` if only the summary is printed.
    lines: Option<Lines>,
}

/// The verdict of the declaration and the answer of the other, as far as they are known.
#[derive(Default)]
struct Undecided {
    verdict: Option<EventVerdict>,
    against: Option<Answer>,
}

impl Simulate {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut replay = Replay {
            side: Side::new(&self.declaration)?,
            against: self.against.as_deref().map(Side::new).transpose()?,
            comparison: Comparison::default(),
            undecided: HashMap::new(),
            lines: (!self.summary).then(Lines::new),
        };
        let mut trace = self.open_trace()?;
        let replayed = replay.run(&mut trace, self.max_flips.is_some());
        if let Some(lines) = &mut replay.lines {
            if replayed.is_ok() && replay.against.is_some() {
                lines.print(&replay.comparison)?;
            }
            // Print them even if a line is invalid, because the verdicts before it stand.
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
        let summary = side.summed_up()?;
        let against = against.map(Side::summed_up).transpose()?;
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

/// Adds which of the two declarations is invalid. The error about an unreadable one already names it.
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

    /// Advances the clock, and adds up what happens until then.
    fn advance_to(&mut self, at_ms: u64) -> Result<Vec<Decided>, Failure> {
        let happened = self.simulation.advance_to(Duration::from_millis(at_ms))?;
        Ok(self.note(happened))
    }

    /// Does what a line says.
    fn step(&mut self, event: &Event) -> Result<Vec<Decided>, Failure> {
        let happened = match &event.action {
            Action::Take(take) => self.simulation.take(event.line, take)?,
            Action::Settle { id, usage } => self.simulation.settle(id, usage)?,
            Action::Release { id } => self.simulation.release(id)?,
        };
        Ok(self.note(happened))
    }

    /// Advances the clock until no request waits any more.
    fn finish(&mut self) -> Result<Vec<Decided>, Failure> {
        let happened = self.simulation.finish()?;
        Ok(self.note(happened))
    }

    /// Adds up what happened, and returns what was decided.
    fn note(&mut self, happened: Vec<Happened>) -> Vec<Decided> {
        for happened in &happened {
            self.summary.note(happened);
        }
        let decided = happened.into_iter().filter_map(|happened| match happened {
            Happened::Decided(decided) => Some(decided),
            Happened::Settled(_) => None,
        });
        decided.collect()
    }

    fn summed_up(mut self) -> Result<Summary, Failure> {
        self.summary.finish(&self.simulation.snapshot()?);
        Ok(self.summary)
    }
}

impl Replay {
    /// Replays the trace to its end or, unless the verdicts are counted, until no process reads them any more.
    fn run(&mut self, trace: &mut Trace<impl BufRead>, counts: bool) -> Result<(), Failure> {
        while let Some(event) = trace.next_event()? {
            self.step(&event).map_err(|failure| trace.locate(failure))?;
            if !counts && self.lines.as_ref().is_some_and(Lines::is_closed) {
                return Ok(());
            }
        }
        self.on_both(Side::finish)
    }

    fn step(&mut self, event: &Event) -> Result<(), Failure> {
        self.check(&event.action)?;
        let advance = |side: &mut Side| side.advance_to(event.at_ms);
        self.on_both(advance)?;
        self.on_both(|side| side.step(event))
    }

    /// Calls `go_on` for both declarations, and prints what they decide.
    fn on_both(
        &mut self,
        mut go_on: impl FnMut(&mut Side) -> Result<Vec<Decided>, Failure>,
    ) -> Result<(), Failure> {
        let decided = go_on(&mut self.side)?;
        let Some(against) = &mut self.against else {
            let mut lines = self.lines.iter_mut();
            return lines.try_for_each(|lines| {
                let mut verdicts = decided.iter().map(|decided| &decided.verdict);
                verdicts.try_for_each(|verdict| lines.print(verdict))
            });
        };
        let decided_against = go_on(against)?;
        for Decided { line, verdict, .. } in decided {
            self.compare(line, |both| both.verdict = Some(verdict))?;
        }
        for Decided { line, verdict, .. } in decided_against {
            self.compare(line, |both| both.against = Some(verdict.answer))?;
        }
        Ok(())
    }

    /// Records what one of the two declarations has decided about a line, and compares the verdicts once both are
    /// known.
    fn compare(&mut self, line: u64, note: impl FnOnce(&mut Undecided)) -> Result<(), Failure> {
        let mut both = self.undecided.remove(&line).unwrap_or_default();
        note(&mut both);
        let (Some(verdict), Some(against)) = (&both.verdict, &both.against) else {
            self.undecided.insert(line, both);
            return Ok(());
        };
        let flips = self.comparison.note(verdict.answer.admitted, against.admitted);
        match &mut self.lines {
            Some(lines) if flips => lines.print(&Flip {
                line,
                verdict,
                against,
            }),
            _ => Ok(()),
        }
    }

    /// Rejects an event that makes sense to neither declaration, before either decides about it.
    fn check(&self, action: &Action) -> Result<(), Failure> {
        match action {
            Action::Take(take) => self.check_take(take),
            Action::Settle { id, usage } => match self.side.simulation.set_asked(id) {
                Some(set) => self.check_limits(set, usage),
                None => Ok(()),
            },
            Action::Release { .. } => Ok(()),
        }
    }

    fn check_take(&self, take: &Take) -> Result<(), Failure> {
        for side in self.sides() {
            if side.simulation.position(&take.set).is_none() {
                return Err(side.simulation.unknown_set(&take.set));
            }
        }
        self.check_key(&take.set, take.key.as_deref())?;
        self.check_limits(&take.set, &take.cost)?;
        match &take.ends {
            Ends::ById(id) if self.side.simulation.set_asked(id).is_some() => Err(Failure::bad_trace(
                format!("the id `{id}` is in use: release it before, or give each request an id of its own"),
            )),
            Ends::ById(_) => Ok(()),
            Ends::ByTime(timing) => self.check_limits(&take.set, &timing.usage),
        }
    }

    /// In a comparison, the set may be keyed in only one of the two declarations; the other ignores the key.
    fn check_key(&self, set: &str, key: Option<&str>) -> Result<(), Failure> {
        let is_keyed = self.sides().any(|side| side.simulation.is_keyed(set));
        let mistake = match (is_keyed, key) {
            (true, None) => {
                format!(
                    "set `{set}` is keyed, and the event names no key: for example, add \"key\": \"tenant-7\""
                )
            }
            (false, Some(key)) => format!(
                "set `{set}` is not keyed, and the event names the key `{key}`: remove `key`, or name another set"
            ),
            _ => return Ok(()),
        };
        Err(Failure::bad_trace(mistake))
    }

    /// In a comparison, an event may name limits that only one of the two declarations has.
    fn check_limits(&self, set: &str, amounts: &[(String, u64)]) -> Result<(), Failure> {
        for (limit, _) in amounts {
            let is_known = self.sides().any(|side| side.simulation.has_limit(set, limit));
            if !is_known {
                return Err(self.side.simulation.unknown_limit(set, limit));
            }
        }
        Ok(())
    }

    fn sides(&self) -> impl Iterator<Item = &Side> {
        std::iter::once(&self.side).chain(&self.against)
    }
}
