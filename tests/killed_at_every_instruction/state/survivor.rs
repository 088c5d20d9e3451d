//! What is asked about a segment in which a process was killed.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use shmlimit::declare::Kind;
use shmlimit::fleet::Asked;
use shmlimit::snapshot::SegmentSnapshot;
use shmlimit::{Error, LimitSet, RefusalReason, Segment, SegmentError, VirtualClock};

use crate::beside::bystanders::pause_for_a_moment;
use crate::beside::clock;
use crate::operations::changes::{ADAPTING, KEYS};
use crate::operations::drawing::BATCH;
use crate::operations::labels::check_labels;
use crate::operations::leases::{LEASE, LEFT, SEQUENCE, answer, answer_for_key};
use crate::operations::subject::Subject;
use crate::operations::{SET, everything};
use crate::state::image::{Image, Layout, RawFile};

/// No other process is running that could hold the lock, so a lock that cannot be had at once never can be.
const TIMEOUT: Duration = Duration::from_millis(200);

/// By then, the waiters have looked for themselves, which they do once a second.
const WAITERS_LOOK: Duration = Duration::from_secs(5);

/// By then, both lists of keys for which the store is asked are looked at again.
const LISTS_LOOKED_AT: Duration = Duration::from_millis(250);

/// How often a store is asked until everything has been reported.
const ROUNDS: usize = 3;

/// What was found after a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Everything is as it must be. This is what a user could see of the set once the lock had been recovered.
    Sound(Vec<u64>),
    Torn(String),
    Stuck(String),
    /// Something is held, or waits in the queue, on behalf of a process that is dead.
    Lost(String),
}

/// An attached process: the harness itself.
#[derive(Debug)]
pub struct Survivor {
    segment: Segment,
    set: LimitSet,
    /// How much it takes of every limit.
    cost: u64,
    /// How many places there are, if the set has places.
    places: Option<u64>,
    file: RawFile,
    layout: Layout,
    /// Its clock, if that stands still.
    clock: Option<VirtualClock>,
    _bytes: Option<File>,
}

impl Survivor {
    pub fn attach(path: &Path) -> Self {
        let (options, clock) = clock::options();
        let segment = options.lock_timeout(TIMEOUT).open(path).expect("the segment");
        let set = segment.set(SET).expect("declared");
        let file = RawFile::open(path);
        let snapshot = segment.snapshot().expect("memory for a copy");
        let places = snapshot.sets[0]
            .limits
            .iter()
            .find(|limit| limit.name == "in_flight");
        let places = places.and_then(|limit| limit.capacity);
        let layout = Layout::of(&file);
        // What it takes is charged to the limit itself, because otherwise some of a batch would be left.
        let cost = if layout.draws { BATCH } else { 1 };
        Self {
            cost,
            places,
            layout,
            segment,
            set,
            file,
            clock,
            _bytes: None,
        }
    }

    /// As [`attach`](Self::attach), for a segment that becomes a copy of others, whose participants must not be taken
    /// for dead because they are not attached to this one: the bytes of all of them are locked.
    pub fn attach_to_copies(path: &Path, participants: u32) -> Self {
        let survivor = Self::attach(path);
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .expect("the segment");
        // The first byte is the survivor's own.
        let range = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: (1 << 40) + 1,
            l_len: i64::from(participants) - 1,
            l_pid: 0,
        };
        fcntl(&file, FcntlArg::F_OFD_SETLK(&range)).expect("no other process is attached");
        Self {
            _bytes: Some(file),
            ..survivor
        }
    }

    fn subject(&self) -> Subject {
        Subject::of(&self.set)
    }

    pub fn snapshot(&self) -> SegmentSnapshot {
        self.segment.snapshot().expect("memory for a copy")
    }

    /// What is left of every limit, for every key that has used any, in a copy of `image`, once what the dead hold
    /// there has been reclaimed: until then, what they had drawn of a rate counts as used.
    pub fn standing_of(&self, image: &[u64]) -> Result<Vec<u64>, Judgement> {
        self.file.become_copy_of(image);
        self.segment
            .recover()
            .map_err(|error| failure("recover", &error))?;
        let subjects: Vec<Subject> = if self.set.is_keyed() {
            KEYS.map(Subject::key).to_vec()
        } else {
            vec![self.subject()]
        };
        let mut standing = Vec::new();
        for subject in subjects {
            let verdicts = subject
                .peek(&everything(&self.set, 0))
                .map_err(|error| failure("peek", &error))?;
            standing.extend(verdicts.iter().map(|verdict| verdict.remaining));
        }
        Ok(standing)
    }

    /// Recovers a copy of `image`. Dead in it are the processes that have been buried or have died.
    pub fn judge_copy(
        &self,
        image: &[u64],
        is_legal: impl FnOnce(&Image) -> Result<(), String>,
    ) -> Judgement {
        self.file.become_copy_of(image);
        self.judge(is_legal)
    }

    /// Takes the lock of the segment as it is, which recovers it; asks `is_legal` about what is found; takes back what
    /// the dead held and waited for; then lets every other process die as well; and uses the set.
    pub fn judge(&self, is_legal: impl FnOnce(&Image) -> Result<(), String>) -> Judgement {
        match self.judge_in_steps(is_legal) {
            Ok(seen) => Judgement::Sound(seen),
            Err(judgement) => judgement,
        }
    }

    fn judge_in_steps(
        &self,
        is_legal: impl FnOnce(&Image) -> Result<(), String>,
    ) -> Result<Vec<u64>, Judgement> {
        if crate::is_without_journal() {
            self.file.empty_journal(&self.layout);
        }
        let found = self.file.word(self.layout.journal_word());
        // A peek takes the lock and changes nothing that a user can see, so what it leaves is what recovery left.
        self.subject()
            .peek(&everything(&self.set, 0))
            .map_err(|error| failure("peek", &error))?;
        let image = self.file.copy();
        let torn = |what: &str| Judgement::Torn(what.to_owned());
        let (count, sequence) = (found & 0xff, found >> 8);
        if count != 0 && sequence == self.layout.journal_sequence(&image) {
            return Err(torn(
                "a reader without the lock is not told that something was in progress",
            ));
        }
        is_legal(&image).map_err(Judgement::Torn)?;
        self.layout.check_table(&image).map_err(Judgement::Torn)?;
        check_labels(&self.layout, &image).map_err(Judgement::Torn)?;
        self.layout.check_generation(&image).map_err(Judgement::Torn)?;
        if self.layout.journal_count(&image) != 0 {
            return Err(torn("the journal is not empty"));
        }
        if self.layout.is_poisoned(&image) {
            return Err(torn("the set is poisoned"));
        }
        let lock = self.file.lock_word(&self.layout).load(Ordering::Relaxed);
        if lock != 0 {
            return Err(Judgement::Stuck(format!("the lock word was left at {lock:#x}")));
        }
        self.recover()?;
        let snapshot = self.snapshot();
        self.check_those_alive(&snapshot)?;
        if !snapshot.sets[0].tickets.is_empty() || !snapshot.sets[0].holds.is_empty() {
            self.layout.bury_all_but(std::process::id(), &self.file);
            self.recover()?;
        }
        self.check_that_nothing_is_left(&self.snapshot())?;
        if self.layout.leases.are_of_keys() {
            self.check_leases_of_keys()?;
        } else if self.layout.leases.are_there() {
            self.check_lease()?;
        }
        let outcome = self
            .subject()
            .try_acquire(&everything(&self.set, self.cost))
            .map_err(|error| failure("try_acquire", &error))?;
        self.check_that_holds_are_of_permits(usize::from(outcome.is_admitted()))?;
        if self.layout.keeps_labels() && self.layout.labels(&self.file.copy()).next().is_some() {
            return Err(torn("what was taken without a label has one"));
        }
        drop(outcome);
        self.check_that_nothing_is_left(&self.snapshot())?;
        // A queue in which no process has waited is as it was created.
        if let Some(places) = self.places
            && self.layout.has_used_tickets(&image)
        {
            self.wait_in_vain(places)?;
        }
        Ok(self.layout.canonical(&image))
    }

    /// Resets the tokens, as an operator would, if the process that used up the tokens for which others wait died
    /// before it gave them back. If tokens are there, or were granted to the waiters, nothing is done: then the waiters
    /// must be served without help.
    pub fn reset_what_is_used_up(&self) {
        let deadline = Instant::now() + WAITERS_LOOK;
        while Instant::now() < deadline {
            let set = &self.snapshot().sets[0];
            let left = set.limits.iter().find(|limit| limit.name == "tokens");
            let is_at_rest = !set.torn && set.words_in_flight == Some(0);
            if set.tickets.iter().all(|ticket| ticket.granted) {
                return;
            }
            if is_at_rest && left.is_some_and(|limit| limit.remaining == 0) {
                self.set
                    .reset()
                    .limits(["tokens"])
                    .run()
                    .expect("no process has the lock");
                return;
            }
            pause_for_a_moment();
        }
    }

    pub fn recover(&self) -> Result<(), Judgement> {
        let report = self
            .segment
            .recover()
            .map_err(|error| failure("recover", &error))?;
        let had_more = report
            .sets
            .iter()
            .any(|set| set.problem.is_some() || set.repairs.is_some());
        if had_more {
            return Err(Judgement::Torn(format!("there was more to repair: {report:?}")));
        }
        Ok(())
    }

    /// Checks that the dead have nothing any more, and that no live process is kept waiting for what is there.
    fn check_those_alive(&self, snapshot: &SegmentSnapshot) -> Result<(), Judgement> {
        let set = &snapshot.sets[0];
        if let Some(hold) = set.holds.iter().find(|hold| !hold.owner_alive) {
            return Err(Judgement::Lost(format!("a dead process holds {hold:?}")));
        }
        if let Some(ticket) = set.tickets.iter().find(|ticket| !ticket.owner_alive) {
            return Err(Judgement::Stuck(format!("a dead process waits by {ticket:?}")));
        }
        let verdicts = self
            .subject()
            .peek(&everything(&self.set, 0))
            .map_err(|error| failure("peek", &error))?;
        let remaining = |name: &String| {
            let limit = verdicts.iter().find(|verdict| verdict.limit == *name);
            limit.map_or(0, |limit| limit.remaining)
        };
        // When a process claims what it was granted, it serves the next one. A process that was passed over must look
        // first.
        let first = set
            .tickets
            .iter()
            .find(|ticket| !ticket.granted && !ticket.passed_over);
        let first = first.filter(|_| set.tickets.iter().all(|ticket| !ticket.granted));
        if let Some(first) = first.filter(|it| it.costs.iter().all(|(name, cost)| *cost <= remaining(name))) {
            return Err(Judgement::Stuck(format!("no process serves {first:?}")));
        }
        Ok(())
    }

    /// Goes on asking the store where the dead process left off: with the same request, if that was kept, and for the
    /// same grant, which counts once.
    fn check_lease(&self) -> Result<(), Judgement> {
        if self.snapshot().sets[0].limits[0].kind == Kind::Concurrency {
            // For places, what is asked for depends on who holds them.
            return Ok(());
        }
        self.layout.bury_all_but(std::process::id(), &self.file);
        let fleet = self.segment.fleet();
        let taken = fleet
            .try_take_duty()
            .map_err(|error| failure("take duty", &error))?;
        let duty = taken.ok_or_else(|| Judgement::Stuck("no process gets duty".to_owned()))?;
        let ask = || duty.ask().map_err(|error| failure("ask", &error));
        let (first, again) = (ask()?, ask()?);
        if !first
            .iter()
            .map(Asked::request)
            .eq(again.iter().map(Asked::request))
        {
            return Err(Judgement::Torn(format!("asked {first:?}, then {again:?}")));
        }
        // An answer that comes twice counts once.
        for asked in first.iter().chain(&again) {
            duty.install(asked, &answer(asked.request()))
                .map_err(|error| failure("install", &error))?;
        }
        let snapshot = self.snapshot();
        let lease = snapshot.sets[0].limits[0].lease.as_ref();
        let lease = lease.ok_or_else(|| Judgement::Torn("no lease".to_owned()))?;
        if lease.asking || (lease.sequence, lease.left) != (SEQUENCE, LEFT) {
            return Err(Judgement::Torn(format!(
                "the second grant did not come into force once: {lease:?}"
            )));
        }
        Ok(())
    }

    /// Goes on asking the store for keys where the dead process left off: each row that has something to report is
    /// looked at, all that is spent is reported once, and all that is granted comes into force once.
    fn check_leases_of_keys(&self) -> Result<(), Judgement> {
        self.layout.bury_all_but(std::process::id(), &self.file);
        let leases = &self.layout.leases;
        let before = self.file.copy();
        let clock = self.clock.as_ref().expect("a clock that stands still");
        // The dead process may have let more time pass than this one, and have died before it noted that.
        let passed = leases.last_look(&before);
        let now = || clock.now().max(self.layout.last_seen(&self.file)).max(passed);
        leases.check_lists(&before, now()).map_err(Judgement::Lost)?;
        let are_places = self.snapshot().sets[0].limits[0].kind == Kind::Concurrency;
        // Places that nobody holds are given back in time.
        let looked_at = if are_places { LEASE / 4 } else { LISTS_LOOKED_AT };
        let taken = self.segment.fleet().try_take_duty();
        let duty = taken.map_err(|error| failure("take duty", &error))?;
        let duty = duty.ok_or_else(|| Judgement::Stuck("no process gets duty".to_owned()))?;
        let ask = || {
            clock.advance_to(now() + looked_at);
            duty.ask().map_err(|error| failure("ask", &error))
        };
        let (mut reported, mut granted) = (0, 0);
        for _ in 0..ROUNDS {
            let first = ask()?;
            let one_ends = leases.one_ends(&self.file.copy(), now(), now() + looked_at);
            let again = ask()?;
            let is_repeated = |asked: &Asked| {
                let asked = asked.request();
                again.iter().map(Asked::request).any(|again| {
                    // What was leased is no longer claimed once its lease has ended.
                    let corrects = one_ends && again.of_key == asked.of_key && again.held == 0;
                    again == asked || corrects
                })
            };
            if !first.iter().all(is_repeated) {
                return Err(Judgement::Torn(format!("asked {first:?}, then {again:?}")));
            }
            // An answer that comes twice counts once.
            for asked in again.iter().chain(&first) {
                duty.install(asked, &answer_for_key(asked.request()))
                    .map_err(|error| failure("install", &error))?;
            }
            for asked in &again {
                reported += asked.request().spent;
                granted += asked.request().wanted;
            }
        }
        let after = self.file.copy();
        leases.check_lists(&after, now()).map_err(Judgement::Lost)?;
        if (reported, leases.spent(&after)) != (leases.spent(&before), 0) {
            return Err(Judgement::Lost(format!(
                "{} were spent, of which {reported} were reported",
                leases.spent(&before)
            )));
        }
        if are_places && leases.left(&after) != 0 {
            return Err(Judgement::Lost(format!(
                "{} places that nobody holds are still leased",
                leases.left(&after)
            )));
        }
        if !are_places && leases.left(&after) != leases.left(&before) + granted {
            return Err(Judgement::Torn(format!(
                "{} are left of all leases, and {} were before {granted} were granted",
                leases.left(&after),
                leases.left(&before)
            )));
        }
        Ok(())
    }

    /// Checks, when every process but the survivor is dead, that everything they had was given back.
    pub fn check_that_nothing_is_left(&self, snapshot: &SegmentSnapshot) -> Result<(), Judgement> {
        let set = &snapshot.sets[0];
        if set.torn || set.poisoned || set.words_in_flight != Some(0) {
            return Err(Judgement::Torn(
                "the set is torn, poisoned or has words in flight".to_owned(),
            ));
        }
        if !set.tickets.is_empty() {
            return Err(Judgement::Stuck(format!("left in the queue: {:?}", set.tickets)));
        }
        if set.active != 0 || !set.holds.is_empty() {
            return Err(Judgement::Lost(format!(
                "{} permits are active and {} held",
                set.active,
                set.holds.len()
            )));
        }
        let verdicts = self
            .subject()
            .peek(&everything(&self.set, 0))
            .map_err(|error| failure("peek", &error))?;
        let half_empty = set.limits.iter().find(|limit| {
            let verdict = verdicts.iter().find(|verdict| verdict.limit == limit.name);
            let has_one_capacity =
                limit.kind == Kind::Concurrency && limit.name != ADAPTING && limit.lease.is_none();
            // Compared with the capacity of the definition with which the peek was answered: this process may know a
            // later one, which a copy from before a change does not have.
            has_one_capacity && verdict.is_none_or(|verdict| verdict.remaining != verdict.burst)
        });
        if let Some(limit) = half_empty {
            return Err(Judgement::Lost(format!(
                "`{}` was not given back in full: {:?} of {limit:?}",
                limit.name,
                verdicts.iter().find(|verdict| verdict.limit == limit.name),
            )));
        }
        // The pins of all rows are the holds that name them, so no pins are left either.
        self.layout
            .check_table(&self.file.copy())
            .map_err(Judgement::Torn)
    }

    /// Checks that there is a hold for each of the permits that are out, and for nothing else, since only the survivor
    /// lives. If batches are drawn, they have the holds.
    fn check_that_holds_are_of_permits(&self, permits: usize) -> Result<(), Judgement> {
        let set = &self.snapshot().sets[0];
        let is_held = set.limits.iter().any(|limit| limit.kind == Kind::Concurrency);
        let owned = if is_held { permits } else { 0 };
        if self.layout.draws || set.holds.len() == owned {
            return Ok(());
        }
        Err(Judgement::Torn(format!(
            "{permits} permits are out: {:?}",
            set.holds
        )))
    }

    /// Takes all places and waits for one more, which must end when the wait is given up.
    fn wait_in_vain(&self, places: u64) -> Result<(), Judgement> {
        let of_places = |count| {
            everything(&self.set, 0)
                .with("in_flight", count)
                .expect("declared")
        };
        let (all, one) = (of_places(places), of_places(1));
        let held = self
            .subject()
            .try_acquire(&all)
            .map_err(|error| failure("try_acquire", &error))?;
        let outcome = self
            .subject()
            .wait_in_vain(&one)
            .map_err(|error| failure("acquire", &error))?;
        let held = held.into_result().map_err(|refusal| refusal.reason());
        let in_vain = outcome.into_result().map_err(|refusal| refusal.reason());
        // A rate that is overdrawn refuses every request, and so does throttling.
        let refuses_all = held
            .as_ref()
            .err()
            .filter(|reason| matches!(reason, RefusalReason::Rate | RefusalReason::Throttled));
        let expected = refuses_all.unwrap_or(&RefusalReason::Concurrency);
        if in_vain.as_ref().err() != Some(expected) || (held.is_err() && refuses_all.is_none()) {
            return Err(Judgement::Lost(format!(
                "all places were to be had with {held:?}, then one more with {in_vain:?}"
            )));
        }
        drop(held);
        self.check_that_nothing_is_left(&self.snapshot())
    }
}

fn failure(operation: &str, error: &Error) -> Judgement {
    let message = format!("{operation}: {error}");
    match error {
        Error::Segment(SegmentError::LockStuck { .. } | SegmentError::LockLost { .. }) => {
            Judgement::Stuck(message)
        }
        _ => Judgement::Torn(message),
    }
}
