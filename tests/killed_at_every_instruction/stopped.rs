//! Stopped at every instruction: the victim does not die. It is stopped, with the lock or without it, while the crew
//! gives back what it has, and then goes on to its end.
//!
//! Nothing may leak because of that: in the end, live processes hold nothing, what the dead held has been given back,
//! and of each rate as much is used as if the crew had come before the victim or after it. No process may be blocked
//! for longer than is stated. A call that found the lock stuck is repeated with the same value, and then has its
//! result.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use shmlimit::declare::Kind;
use shmlimit::snapshot::SegmentSnapshot;

use crate::beside::bystanders::{HandedOver, TIMEOUT, monotonic_nanos, pause_for_a_moment};
use crate::beside::crew::{BOUND_WITH_RESULT, Crew, MEMBERS};
use crate::beside::gate::{Gate, Step};
use crate::copies::note;
use crate::operations::{Operation, Victim};
use crate::report::Tally;
use crate::sample::Sample;
use crate::state::stage::{Others, Stage};
use crate::state::survivor::Judgement;
use crate::stepping::trace::Trace;
use crate::stepping::tracee::{Place, Stop};

/// How long it may take to see what others do in the background.
const SOON: Duration = Duration::from_secs(2);

/// How much is used of each rate of a set without keys, by position, except for the charges of crew calls that the
/// order of events may admit or refuse.
type Used = Vec<u64>;

/// Where the victim stands while the crew acts.
#[derive(Clone, Copy, Debug)]
enum Stand {
    AtTheBeginning,
    At(Place),
    AtTheEnd,
}

/// The places of a run, from the addresses after each of its instructions.
fn places(addresses: &[u64]) -> impl Iterator<Item = Place> {
    let mut arrivals: HashMap<u64, u64> = HashMap::new();
    let mut last = 0;
    addresses.iter().zip(1..).map(move |(address, instructions)| {
        let arrivals = arrivals.entry(*address).or_default();
        // An instruction that repeats itself counts only once.
        *arrivals += u64::from(*address != last);
        last = *address;
        Place {
            instructions,
            address: *address,
            arrivals: *arrivals,
        }
    })
}

struct Rehearsal<'a> {
    stage: &'a Stage,
    gate: Gate,
}

/// Tries `max` places to stop at within the critical section and four times as many outside of it, or all if there are
/// fewer. Also stops at one in `between` of all instructions.
pub fn stop_everywhere(operation: Operation, max: usize, between: Option<usize>, sample: Sample) -> Tally {
    let stage = Stage::with_room(operation);
    let rehearsal = Rehearsal {
        stage: &stage,
        gate: Gate::new(MEMBERS),
    };
    let mut tally = Tally::default();
    let Some((trace, addresses)) = rehearsal.record() else {
        let judgement = Judgement::Stuck("the crew does not come to the start".to_owned());
        note(&mut tally, || operation.name.to_owned(), &judgement);
        return tally;
    };
    let last = trace.instructions;
    // While the lock is free, others also change what changes while the victim is stepped.
    let parts = [max, max.saturating_mul(4)];
    let mut stops: BTreeSet<u64> = trace
        .stops(&stage.layout)
        .into_iter()
        .zip(parts)
        .flat_map(|(stops, max)| {
            let step = stops.len().div_ceil(max).max(1);
            stops.into_iter().step_by(step)
        })
        .collect();
    if let Some(between) = between {
        stops.extend((1..last).skip(sample.turn(between)).step_by(between));
    }
    let stops: BTreeSet<u64> = sample.of(stops.len(), stops).collect();
    let between = places(&addresses).filter(|place| stops.contains(&place.instructions));
    // The first and the last run show what is used if the crew comes first and if it comes last.
    let mut expected: Option<Vec<RangeInclusive<u64>>> = None;
    let ends = [Stand::AtTheBeginning, Stand::AtTheEnd];
    let between = between.map(Stand::At);
    for stand in ends.into_iter().chain(between) {
        let is_end = !matches!(stand, Stand::At(_));
        let allowed = expected.as_deref().filter(|_| !is_end);
        let judgement = match rehearsal.stop_at(stand, allowed, &mut tally.repeated) {
            Ok(used) => {
                if is_end {
                    widen(&mut expected, &used);
                }
                Judgement::Sound(used)
            }
            Err(judgement) => judgement,
        };
        note(
            &mut tally,
            || format!("{}, stopped {stand:?} of {last}", operation.name),
            &judgement,
        );
    }
    tally
}

/// Widens the ranges. A unit may be replenished in the meantime, and the victim's own call may be admitted or refused.
fn widen(expected: &mut Option<Vec<RangeInclusive<u64>>>, used: &[u64]) {
    let around = used.iter().map(|used| used.saturating_sub(1)..=used + 1);
    let wider = match expected.take() {
        None => around.collect(),
        Some(other) => other
            .into_iter()
            .zip(around)
            .map(|(one, other)| *one.start().min(other.start())..=*one.end().max(other.end()))
            .collect(),
    };
    *expected = Some(wider);
}

impl Rehearsal<'_> {
    /// The victim's instructions, beside a crew that does nothing, and the address after each of them.
    fn record(&self) -> Option<(Trace, Vec<u64>)> {
        self.stage.clear();
        let crew = self.start_crew()?;
        let mut scene = self.let_victim_come();
        crew.announce(Step::Join);
        crew.all_arrive_within(BOUND_WITH_RESULT).then_some(())?;
        let mut addresses = Vec::new();
        let trace = Trace::record_with(&mut scene.victim, self.stage, |victim| {
            addresses.push(victim.next_instruction());
        });
        Some((trace, addresses))
    }

    fn start_crew(&self) -> Option<Crew<'_>> {
        Crew::start(self.stage.path(), &self.gate, self.stage.operation())
    }

    fn let_victim_come(&self) -> crate::state::stage::Scene<'_> {
        self.stage
            .let_victim_come(Others::Stopped, Victim::attach_beside_a_crew)
    }

    /// Stops the victim, lets the crew act, and lets the victim go on. Returns what is used in the end.
    fn stop_at(
        &self,
        stand: Stand,
        allowed: Option<&[RangeInclusive<u64>]>,
        repeated: &mut u64,
    ) -> Result<Used, Judgement> {
        let stuck = |what: &str| Judgement::Stuck(what.to_owned());
        self.stage.clear();
        let mut crew = self.start_crew().ok_or_else(|| stuck("the crew does not come"))?;
        let mut scene = self.let_victim_come();
        crew.announce(Step::Join);
        if !crew.all_arrive_within(BOUND_WITH_RESULT) {
            return Err(stuck("the crew does not come to the start"));
        }
        let has_ended = match stand {
            Stand::AtTheBeginning => false,
            Stand::At(place) => scene.victim.run_to_place(place) == Stop::Mark,
            Stand::AtTheEnd => {
                scene.victim.run_to_mark();
                true
            }
        };

        crew.lose_one();
        scene.line.all_go_on();
        crew.announce(Step::Act);
        let acted = crew.all_arrive_within(BOUND_WITH_RESULT);
        let looked = check_capacity(&self.stage.witness.snapshot());

        crew.announce(Step::Repeat);
        scene.victim.thaw_other_threads();
        let deadline = Instant::now() + TIMEOUT;
        let victim = &mut scene.victim;
        let ended = if has_ended {
            Ok(())
        } else {
            victim.try_to_run_to_mark(deadline)
        };
        let ended = ended.and_then(|()| victim.try_to_run_to_mark(deadline));
        scene.line.is_over();
        ended.map_err(|what| Judgement::Stuck(format!("the victim goes on, and {what}")))?;
        let all_repeated = crew.all_arrive_within(TIMEOUT);
        *repeated += self.gate.repeated();
        if !acted || !all_repeated {
            return Err(Judgement::Stuck(format!(
                "a call is blocked beyond its bound: {:?}",
                crew.complaints()
            )));
        }
        looked.map_err(Judgement::Torn)?;
        if let HandedOver::NotTo(left_out) = scene.line.is_served(monotonic_nanos()) {
            return Err(Judgement::Stuck(format!("{left_out} are waiting in vain")));
        }
        let pids: Vec<u32> = crew
            .pids()
            .chain([scene.victim.pid().as_raw().unsigned_abs()])
            .collect();
        self.recount(&pids)?;
        match &crew.complaints()[..] {
            [] => self.settles_at(allowed),
            complaints => Err(Judgement::Stuck(format!("{complaints:?}"))),
        }
    }

    /// Counts what is held in the file, without the library: live processes have given back everything. Then what the
    /// dead held is given back as well, and nothing may be left.
    fn recount(&self, alive: &[u32]) -> Result<(), Judgement> {
        let soon = Instant::now() + SOON;
        loop {
            let held = self.stage.layout.owned_by(&self.stage.file.copy(), alive);
            if held == 0 {
                break;
            }
            if Instant::now() > soon {
                let what = "holds and tickets belong to live processes without a permit";
                return Err(Judgement::Lost(format!("leaked: {held} {what}")));
            }
            pause_for_a_moment();
        }
        loop {
            let witness = &self.stage.witness;
            let left = witness
                .recover()
                .and_then(|()| witness.check_that_nothing_is_left(&witness.snapshot()));
            if left.is_ok() || Instant::now() > soon {
                return left;
            }
            pause_for_a_moment();
        }
    }

    /// What is used once the background threads are done: everything that can be given back has been.
    fn settles_at(&self, allowed: Option<&[RangeInclusive<u64>]>) -> Result<Used, Judgement> {
        let soon = Instant::now() + SOON;
        let mut used = self.used();
        loop {
            pause_for_a_moment();
            let before = std::mem::replace(&mut used, self.used());
            let allowed = allowed.unwrap_or_default();
            let wrong = used
                .iter()
                .zip(allowed)
                .position(|(used, range)| !range.contains(used));
            match wrong {
                None if before == used => return Ok(used),
                Some(limit) if Instant::now() > soon => {
                    let (used, allowed) = (used[limit], &allowed[limit]);
                    let message = format!("{used} units of limit {limit} are used instead of {allowed:?}");
                    return Err(Judgement::Lost(message));
                }
                _ => {}
            }
        }
    }

    fn used(&self) -> Used {
        if self.stage.operation().is_keyed {
            return Vec::new();
        }
        let snapshot = self.stage.witness.snapshot();
        snapshot.sets[0]
            .limits
            .iter()
            .map(|limit| {
                let is_rate = matches!(limit.kind, Kind::Rate | Kind::Calls);
                let max = limit.capacity.filter(|_| is_rate);
                max.map_or(0, |max| {
                    let used = max.saturating_sub(limit.remaining);
                    used.saturating_sub(self.gate.admitted())
                })
            })
            .collect()
    }
}

/// Checks that no more is held than there is, whatever the state of the segment.
fn check_capacity(snapshot: &SegmentSnapshot) -> Result<(), String> {
    let set = &snapshot.sets[0];
    for limit in &set.limits {
        // In a keyed set, each key has its own capacity. A limit that adapts may have held more a moment ago.
        let is_one_capacity = limit.kind == Kind::Concurrency && set.keys.is_none();
        let Some(max) = limit
            .capacity
            .filter(|_| is_one_capacity && limit.name == "in_flight")
        else {
            continue;
        };
        let amounts = set.holds.iter().filter_map(|hold| hold.amounts.get(&limit.name));
        let held: u64 = amounts.sum();
        if held > max {
            return Err(format!("{held} of {max} are held of `{}`", limit.name));
        }
    }
    Ok(())
}
