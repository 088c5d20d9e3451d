//! One process on a virtual clock: a case, with every invariant after each of its steps, and what must be true at the
//! end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shmlimit::declare::{Checkpoint, Kind};
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Declaration, Error, Limit, OpenOptions, Outcome, RefusalReason, VirtualClock};
use tempfile::TempDir;

use super::actor::{Actor, Done, Subject, Way, key_name};
use super::declarations::{Lengths, SET, declaration};
use super::invariants::{
    Account, Admitted, Fencing, Found, Traits, attachers_agree, concurrency_is_within_capacity,
    holds_are_permits_that_are_out, recovery_finds_nothing,
};
use super::layout_mirror::RawSegment;
use super::operations::{Ask, Driver, Operation, Operations, Step};
use super::scene::process::eventually;

const NANOSECOND: Duration = Duration::from_nanos(1);
/// After this time, nothing is used any more.
const AGES: Duration = Duration::from_secs(100 * 86_400);

/// A case that can be written down, reduced, and tried again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    pub declaration: String,
    pub start: u64,
    pub steps: Vec<Step>,
}

impl Case {
    pub fn generate(seed: u64, steps: usize) -> Self {
        let mut dice = fastrand::Rng::with_seed(seed);
        let declaration = declaration(&mut dice, Lengths::Any);
        let mut operations = Operations::of(&declaration, Driver::Alone);
        Self {
            declaration: declaration.to_toml().expect("valid"),
            start: 1_700_000_000_000 + dice.u64(..100_000),
            steps: (0..steps).map(|_| operations.step(&mut dice)).collect(),
        }
    }

    /// What is violated, and where.
    pub fn violation(&self) -> Option<String> {
        let tried = catch_unwind(AssertUnwindSafe(|| {
            self.run(Way::AsWritten)?;
            if !self.steps.len().is_multiple_of(3) {
                return Ok(());
            }
            // Waiters are served by a thread, in the same step or in the next.
            let mut at_once = self.clone();
            at_once
                .steps
                .retain(|step| !matches!(step.operation, Operation::Wait(..)));
            let as_written = at_once.run(Way::AsWritten)?;
            let otherwise = at_once.run(Way::Otherwise)?;
            match as_written
                .iter()
                .zip(&otherwise)
                .find(|(one, other)| one != other)
            {
                Some((one, other)) => Err(format!("two ways to ask differ: {one} / {other}")),
                None => Ok(()),
            }
        }));
        match tried {
            Ok(found) => found.err(),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                Some(format!(
                    "panic: {}",
                    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")
                ))
            }
        }
    }

    /// The answers to all requests that are decided at once.
    fn run(&self, way: Way) -> Result<Vec<String>, String> {
        let Ok(declaration) = Declaration::from_toml(&self.declaration) else {
            return Ok(Vec::new());
        };
        let mut scene =
            Scene::new(declaration, self.start, way).map_err(|error| format!("created: {error}"))?;
        for (index, step) in self.steps.iter().enumerate() {
            scene
                .step(index, step)
                .map_err(|what| format!("{what}\nat step {index}, {:?}", step.operation))?;
        }
        scene.end().map_err(|what| format!("{what}\nat the end"))?;
        Ok(scene.answers)
    }
}

struct Scene {
    directory: TempDir,
    clock: VirtualClock,
    declaration: Declaration,
    limits: Vec<Limit>,
    traits: Traits,
    actor: Actor,
    fencing: Fencing,
    admitted: Admitted,
    /// Whether another definition may have put a limit in shadow, or out of it.
    was_applied: bool,
    answers: Vec<String>,
}

fn text(error: Error) -> String {
    error.to_string()
}

/// Whether no operation may end with this error.
fn is_wrong(error: &Error) -> bool {
    matches!(error, Error::Segment(_) | Error::Open(_))
}

impl Scene {
    fn new(declaration: Declaration, start: u64, way: Way) -> Result<Self, Error> {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let clock = VirtualClock::new(Duration::from_millis(start)).auto_advance(false);
        let path = directory.path().join("limits");
        let declaration = declaration.checkpoint(Checkpoint::new(directory.path().join("kept")));
        let options = OpenOptions::new()
            .virtual_clock(&clock)
            .lock_timeout(Duration::from_secs(60));
        let first = options.create(&path, &declaration)?;
        let second = options.open(&path)?;
        let mut actor = Actor::new(&path, &options, vec![first, second], &declaration);
        actor.way = way;
        Ok(Self {
            clock,
            limits: declaration.sets()[0].limits().to_vec(),
            traits: Traits::of(&declaration),
            actor,
            declaration,
            fencing: Fencing::default(),
            admitted: Admitted::default(),
            was_applied: false,
            answers: Vec::new(),
            directory,
        })
    }

    fn is_shadow(&self, name: &str) -> bool {
        // In the text that a segment keeps, each limit says for itself whether it is in shadow.
        let text: toml::Table = self.declaration.to_toml().expect("valid").parse().expect("TOML");
        let limits = text["set"][0]["limit"].as_array().expect("limits");
        let limit = limits.iter().find(|limit| limit["name"].as_str() == Some(name));
        limit
            .and_then(|limit| limit.get("shadow")?.as_bool())
            .unwrap_or(false)
    }

    fn step(&mut self, index: usize, step: &Step) -> Found {
        match &step.operation {
            Operation::Pass(micros) => self
                .clock
                .advance_to(self.clock.now() + Duration::from_micros(*micros)),
            Operation::Reboot => self.reborn(false)?,
            Operation::Restore => self.reborn(true)?,
            Operation::Peek(_) | Operation::Forecast => self.look(step)?,
            _ => self.perform(step)?,
        }
        self.actor.poll().or_else(|error| {
            if is_wrong(&error) {
                Err(text(error))
            } else {
                Ok(())
            }
        })?;
        // What was granted in this step is collected in any order.
        let mut numbers = std::mem::take(&mut self.actor.numbers);
        numbers.sort_unstable();
        for (number, key) in numbers {
            self.fencing.note(key, number)?;
        }
        if index.is_multiple_of(5) {
            let snapshot = self.actor.segment(0).snapshot().map_err(text)?;
            holds_are_permits_that_are_out(&self.actor, self.traits, &snapshot)?;
            attachers_agree(&self.actor, step.key)?;
        }
        if index.is_multiple_of(16) {
            recovery_finds_nothing(&self.actor)?;
        }
        Ok(())
    }

    fn perform(&mut self, step: &Step) -> Found {
        let asks = matches!(step.operation, Operation::TryAcquire(_) | Operation::Check(_));
        let settles = matches!(step.operation, Operation::Settle(..));
        let ask = match &step.operation {
            Operation::TryAcquire(ask) | Operation::Check(ask) => Some(ask),
            _ => None,
        };
        let is_plain = ask.is_none_or(|ask| ask.tier.is_none() && ask.capacity.is_none());
        // Waiters may be served in the same step.
        let is_alone =
            self.actor.waiting.is_empty() && is_plain && !self.traits.has_credit && !self.traits.has_lease;
        let key = match &step.operation {
            Operation::Settle(which, _) if !self.actor.held.is_empty() => {
                self.actor.held[usize::from(*which) % self.actor.held.len()].key
            }
            _ => step.key,
        };
        let is_counted = is_alone && (asks || settles);
        let before = is_counted
            .then(|| Account::of(&self.actor, step.attacher, key))
            .transpose()?;
        let is_queue_empty = self.actor.waiting.is_empty();
        let holds_before = self.actor.segment(0).snapshot().map_err(text)?.sets[0].active;
        self.note_what_ends_the_log(step);
        let done = match self.actor.perform(step) {
            Ok(done) => done,
            Err(error) if is_wrong(&error) => return Err(text(error)),
            Err(_) => Done::default(),
        };
        if asks {
            self.answers.push(format!(
                "{:?} {:?}",
                done.taken.is_some(),
                done.refusal.as_ref().map(|it| (it.reason(), it.retry_after()))
            ));
        }
        if matches!(step.operation, Operation::Check(_) | Operation::CheckMany(..))
            && is_queue_empty
            && !self.traits.has_credit
        {
            let holds = self.actor.segment(0).snapshot().map_err(text)?.sets[0].active;
            if holds > holds_before {
                return Err(format!(
                    "{holds} holds in use after a check, {holds_before} before it"
                ));
            }
        }
        if let Some(before) = before {
            let after = Account::of(&self.actor, step.attacher, key)?;
            self.check_account(&before, &after, &done)?;
        }
        if asks && done.taken.is_some() {
            self.check_admission(step, &done)?;
        }
        if let (Some(ask), Some(refusal)) = (ask, &done.refusal)
            && self.actor.waiting.is_empty()
            && !self.traits.has_adaptive
            && let Some(wait) = refusal.retry_after()
        {
            let reason = refusal.reason();
            return self.retry_after_is_exact(step, ask, wait, reason);
        }
        Ok(())
    }

    fn check_account(&self, before: &Account, after: &Account, done: &Done) -> Found {
        for limit in &self.limits {
            let name = limit.name();
            // Units of unlimited capacity are not counted, a capacity that is found moves, and a limit in shadow goes
            // below zero.
            if matches!(limit.capacity(), shmlimit::declare::Amount::Unlimited)
                || self.traits.has_adaptive
                || self.is_shadow(name)
                || self.was_applied
            {
                continue;
            }
            let mut taken = done
                .taken
                .iter()
                .flatten()
                .find(|(it, _)| it == name)
                .map_or(0, |it| it.1);
            let settled = done.settled.iter().flatten().find(|it| it.limit == name);
            let (refunded, overdraft) = settled.map_or((0, 0), |it| (it.refunded, it.overdraft));
            if limit.kind() == Kind::Budget {
                // Nothing of a budget need be reserved: what is used beyond that is taken then, and is no overdraft.
                taken += settled.map_or(0, |it| it.above);
            }
            // A part of a unit is given back as well, and may make another unit whole.
            let part = u64::from(settled.is_some_and(|it| it.is_less));
            before.became(after, limit, [taken, refunded, overdraft], part)?;
        }
        Ok(())
    }

    /// Ends the log of admissions if the step may admit more than the bound, by contract or because another definition
    /// applies.
    fn note_what_ends_the_log(&mut self, step: &Step) {
        let ends = match &step.operation {
            Operation::TryAcquire(ask) | Operation::Check(ask) => {
                ask.tier.is_some() || ask.capacity.is_some()
            }
            Operation::Peek(_) | Operation::Forecast | Operation::Pass(_) | Operation::Drop(_) => false,
            Operation::Throttle(_) | Operation::ThrottleSet(_) | Operation::Heartbeat(_) => false,
            Operation::Recover | Operation::Rebuild | Operation::Reattach | Operation::Neglect(_) => false,
            Operation::Apply(_) => {
                self.was_applied = true;
                true
            }
            _ => true,
        };
        self.admitted.is_over |= ends;
    }

    fn check_admission(&mut self, step: &Step, done: &Done) -> Found {
        let now = self.clock.now();
        // Keys that are evicted have all of their quota again, and a network has many addresses.
        let set = self.actor.set(0).map_err(text)?;
        let evicts = self
            .declaration
            .to_toml()
            .map_err(|error| error.to_string())?
            .contains("evict");
        for limit in self.limits.clone() {
            let taken = done.taken.iter().flatten().find(|(it, _)| it == limit.name());
            if let Some((_, units)) = taken
                && !evicts
                && !set.is_by_address()
                && !self.is_shadow(limit.name())
            {
                self.admitted.note(now, step.key, &limit, *units)?;
            }
        }
        if self.was_applied || !matches!(step.operation, Operation::TryAcquire(_)) {
            return Ok(());
        }
        concurrency_is_within_capacity(&self.actor, &self.limits, |name| self.is_shadow(name))
    }

    /// Checks that the request is not admitted a nanosecond earlier, and is admitted then.
    fn retry_after_is_exact(
        &mut self,
        step: &Step,
        ask: &Ask,
        wait: Duration,
        reason: RefusalReason,
    ) -> Found {
        if wait.is_zero() {
            return Err(format!("refused for {reason:?}, to be asked again after no time"));
        }
        self.admitted.is_over = true;
        let set = self.actor.set(step.attacher).map_err(text)?;
        if set.is_by_address() {
            return Ok(());
        }
        let request = self.actor.request(&set, ask);
        let subject = Subject::of(&set, step.key).map_err(text)?;
        let at = self.clock.now() + wait;
        // A wait for what others keep may be over sooner.
        let is_lower_bound =
            self.traits.has_lease || self.traits.has_credit || reason == RefusalReason::TableFull;
        if !is_lower_bound && wait > NANOSECOND {
            self.clock.advance_to(at - NANOSECOND);
            if subject
                .try_acquire(&request, Way::AsWritten)
                .map_err(text)?
                .is_admitted()
            {
                return Err(format!("admitted a nanosecond before {wait:?} ({reason:?})"));
            }
        }
        self.clock.advance_to(at);
        match subject.try_acquire(&request, Way::AsWritten).map_err(text)? {
            Outcome::Admitted(permit) => drop(permit),
            Outcome::Refused(again) if again.reason() == RefusalReason::HoldsFull => {}
            Outcome::Refused(again) => {
                return Err(format!(
                    "refused after {wait:?} ({reason:?}): {:?} {:?} {:?}",
                    again.reason(),
                    again.binding(),
                    again.retry_after()
                ));
            }
        }
        Ok(())
    }

    /// Checks that looking changes nothing. A definition that is not in force everywhere yet comes into force at the
    /// first look.
    fn look(&mut self, step: &Step) -> Found {
        let see = |actor: &mut Actor| -> Result<String, Error> {
            actor.perform(step).or_else(|error| {
                if is_wrong(&error) {
                    Err(error)
                } else {
                    Ok(Done::default())
                }
            })?;
            let segment = actor.segment(step.attacher);
            let mut seen = format!("{:?}", segment.snapshot()?);
            // When the copy was made says nothing about the segment.
            if let Some((before, begun)) = seen.split_once("begun: ") {
                let after = begun.trim_start_matches(|digit: char| digit.is_ascii_digit());
                seen = format!("{before}{after}");
            }
            if actor.set(step.attacher)?.is_keyed() {
                segment.key_snapshots(SET, |key| seen.push_str(&format!("\n{key:?}")))?;
            }
            Ok(seen)
        };
        let first = see(&mut self.actor).map_err(text)?;
        let second = see(&mut self.actor).map_err(text)?;
        // Waiters are served by a thread in the meantime.
        if first == second || !self.actor.waiting.is_empty() {
            Ok(())
        } else {
            let pairs = first.char_indices().zip(second.chars());
            let at = pairs.into_iter().find(|((_, one), other)| one != other);
            let at = at.map_or(0, |((at, _), _)| at.saturating_sub(60));
            let part = |text: &str| text.chars().skip(at).take(120).collect::<String>();
            Err(format!(
                "a look changed something: {} / {}",
                part(&first),
                part(&second)
            ))
        }
    }

    /// Gives everything back and detaches. The file is then taken over by another boot, or made again from a
    /// checkpoint.
    fn reborn(&mut self, from_checkpoint: bool) -> Found {
        self.admitted.is_over = true;
        self.actor.give_all_back().map_err(text)?;
        let path = self.actor.path.clone();
        if from_checkpoint {
            let kept = self.directory.path().join("kept");
            self.actor.segment(0).checkpoint(&kept).map_err(text)?;
            self.actor.attachers.clear();
            std::fs::remove_file(&path).map_err(|error| error.to_string())?;
        } else {
            self.actor.attachers.clear();
            // What was drawn in advance is given back by a thread, which stays attached until it has done so.
            eventually("nobody is attached", || {
                let snapshot = SegmentReader::open(&path).and_then(|reader| reader.snapshot());
                snapshot.expect("a copy").participants.iter().all(|it| !it.alive)
            });
            RawSegment::open(&path).set_another_boot();
        }
        let open = || match from_checkpoint {
            true => self.actor.options.open_or_create(&path, &self.declaration),
            false => self.actor.options.open(&path),
        };
        let first = open().map_err(text)?;
        let second = self.actor.options.open(&path).map_err(text)?;
        // What a former boot has left is repaired once.
        first.recover().map_err(text)?;
        self.actor.attachers = vec![first, second];
        Ok(())
    }

    /// Gives everything back and lets time pass, and checks that everything is as if it had never been used.
    fn end(&mut self) -> Found {
        self.actor.give_all_back().map_err(text)?;
        // What was drawn in advance is given back by a thread when the last handle is dropped.
        self.actor.attachers.clear();
        self.clock.advance_to(self.clock.now() + AGES);
        let open = || self.actor.options.open(&self.actor.path);
        self.actor.attachers = vec![open().map_err(text)?];
        recovery_finds_nothing(&self.actor).or_else(|found| {
            if self.traits.has_credit {
                Ok(())
            } else {
                Err(found)
            }
        })?;
        if self.traits.has_credit {
            return Ok(());
        }
        let snapshot = self.actor.segment(0).snapshot().map_err(text)?;
        let set = &snapshot.sets[0];
        if set.active != 0 || !set.tickets.is_empty() {
            return Err(format!("{} holds and {} tickets", set.active, set.tickets.len()));
        }
        let set = self.actor.set(0).map_err(text)?;
        let keys = if set.is_keyed() { 0..80 } else { 0..1 };
        for key in keys {
            let subject = Subject::of(&set, key).map_err(text)?;
            for (name, spendable, full_after) in subject.forecast().map_err(text)? {
                if full_after != Some(Duration::ZERO) && !self.traits.has_adaptive {
                    return Err(format!(
                        "{name} of key {key}: {spendable} spendable, full after {full_after:?}"
                    ));
                }
            }
        }
        if set.is_keyed() && !set.is_by_address() {
            // Any key may take any row again.
            let mut request = set.request();
            for limit in self.limits.iter().filter(|limit| limit.kind() != Kind::Budget) {
                request.set_cost(limit.name(), 1).map_err(text)?;
            }
            for key in 0..40_u8 {
                let outcome = request
                    .for_key(format!("new {}", key_name(key)))
                    .and_then(|request| request.try_acquire());
                match outcome.map_err(text)? {
                    Outcome::Admitted(_) => {}
                    Outcome::Refused(refusal) => {
                        return Err(format!(
                            "a new key was refused: {:?} {:?}",
                            refusal.reason(),
                            refusal.binding()
                        ));
                    }
                }
                self.clock.advance_to(self.clock.now() + AGES);
            }
        }
        Ok(())
    }
}
