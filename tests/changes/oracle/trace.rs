//! A random trace, followed side by side by a segment and by the model.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use fastrand::Rng;
use shmlimit::declare::{Adaptive, Align, Credit, WhenFull};
use shmlimit::snapshot::LimitCounts;
use shmlimit::{
    Algorithm, Declaration, Error, Keyed, Limit, LimitSet, OpenOptions, Permit, Request, RequestError,
    Reservation, ReserveOutcome, Segment, SetDeclaration, VirtualClock,
};
use tempfile::TempDir;

use super::model::{BASE, BUCKETS, CreditSize, Model, Rule, Slot, Terms};

/// Keys that are followed. Others come in crowds now and then, and push them out of the table.
const KEYS: u64 = 6;
const ROWS: u64 = 32;
const STEPS: usize = 120;

/// 2026-01-01T00:00:00Z.
const NEW_YEAR: u64 = 1_767_225_600_000_000_000;

/// The kind of limit that a trace is about.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// One of these, changed to another by each change.
    Rate(&'static [Algorithm]),
    Budget,
    Concurrency(Option<Adaptive>),
}

/// What follows a trace.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    pub kind: Kind,
    pub rule: Rule,
    pub is_keyed: bool,
}

impl Subject {
    fn may_have_credit(self) -> bool {
        matches!(self.kind, Kind::Rate(_)) && !self.is_keyed
    }

    fn declaration(self, terms: Terms) -> Declaration {
        let window = Duration::from_nanos(terms.window_nanos());
        let limit = match self.kind {
            Kind::Rate(_) => {
                let limit = Limit::calls("units", terms.capacity, window).algorithm(terms.algorithm);
                let limit = match terms.credit {
                    Some(CreditSize::Fixed(units)) => limit.credit(Credit::batch(units)),
                    Some(CreditSize::Auto) => limit.credit(Credit::auto()),
                    None => limit,
                };
                let limit = match terms.refund() {
                    true => limit,
                    // How windows refund is tested with the models of the rules.
                    false => limit.refund(false),
                };
                match terms.algorithm {
                    Algorithm::FixedWindow if self.rule == Rule::WindowOfFirstUse => {
                        limit.align(Align::FirstUse)
                    }
                    Algorithm::SlidingWindow => limit.entries(8),
                    Algorithm::SlidingWindowCounter => limit.buckets(BUCKETS as u32),
                    Algorithm::FixedWindow => limit,
                    _ => limit.burst(terms.burst),
                }
            }
            Kind::Budget => Limit::budget("units", terms.capacity, window),
            Kind::Concurrency(None) => Limit::concurrency("units", terms.capacity),
            Kind::Concurrency(Some(algorithm)) => Limit::concurrency("units", terms.capacity)
                .adaptive(algorithm)
                .floor(1)
                .ceiling(terms.ceiling),
        };
        let set = SetDeclaration::new("api").add_limit(limit);
        let set = match self.kind {
            Kind::Concurrency(_) => set.holds(STEPS as u32),
            Kind::Rate(_) | Kind::Budget => set,
        };
        Declaration::new().add_set(if self.is_keyed {
            set.keyed(Keyed::new(ROWS).when_full(WhenFull::EvictOldest))
        } else {
            set
        })
    }

    fn terms(self, dice: &mut Rng, before: Option<Terms>) -> Terms {
        let max = match self.kind {
            Kind::Concurrency(_) => 12,
            _ => [10, 100, 100_000][dice.u64(..3) as usize],
        };
        let capacity = 1 + dice.u64(..max);
        let window = 1 + dice.u64(..10);
        // In a live limit, the size of batches can change, but not whether there are any.
        let has_credit = match before {
            Some(before) => before.credit.is_some(),
            None => self.may_have_credit() && dice.u64(..2) == 0,
        };
        let credit = has_credit.then(|| match dice.u64(..3) {
            0 if self.rule == Rule::Tokens => CreditSize::Auto,
            _ => CreditSize::Fixed(2 + dice.u64(..20)),
        });
        Terms {
            capacity,
            // The counter's window can only grow.
            window: match (self.rule, before) {
                (Rule::Counter, Some(before)) => window.max(before.window),
                _ => window,
            },
            burst: if dice.u64(..2) == 0 {
                capacity
            } else {
                1 + dice.u64(..max)
            },
            ceiling: capacity + dice.u64(..5),
            algorithm: match self.kind {
                Kind::Rate([algorithm]) => *algorithm,
                Kind::Rate(algorithms) => algorithms[dice.u64(..algorithms.len() as u64) as usize],
                _ => Algorithm::default(),
            },
            credit,
        }
    }
}

/// What a caller holds.
enum Held<'a> {
    Permit(Permit<'a>),
    Reservation(Reservation<'a>),
}

/// What was reserved, and what of it may still come back.
struct Outstanding<'a> {
    held: Held<'a>,
    key: usize,
    reserved: u64,
    slot: Slot,
}

/// The batch that the process drew last.
#[derive(Default)]
struct Batch {
    /// The most that may be spent of it.
    left: u64,
    /// The most that may come back of what was charged for it.
    unspent: u64,
    slot: Option<Slot>,
}

/// A segment, and what the model says about it.
struct Scene<'a> {
    subject: Subject,
    clock: &'a VirtualClock,
    segments: &'a [Segment; 2],
    sets: &'a [LimitSet; 2],
    dice: Rng,
    terms: Terms,
    models: Vec<Model>,
    outstanding: Vec<Outstanding<'a>>,
    batch: Batch,
    /// What has come back to the limit so far, including what came back of batches.
    refunded: u64,
    /// Whether anything is reserved for later. If so, the model cannot compare what is used between two instants.
    reserves: bool,
    next_slot: u64,
    retry_after: u64,
    steps: String,
}

/// Follows the trace of a seed.
pub fn follow(subject: Subject, seed: u64) {
    let directory: TempDir = tempfile::tempdir().expect("a directory");
    let clock = VirtualClock::new(Duration::from_nanos(NEW_YEAR)).auto_advance(false);
    let mut dice = Rng::with_seed(seed);
    let terms = subject.terms(&mut dice, None);
    let path = directory.path().join("limits");
    let options = OpenOptions::new().virtual_clock(&clock);
    let created = options
        .create(&path, &subject.declaration(terms))
        .expect("a segment");
    let opened = options.open(&path).expect("opens");
    let segments = [created, opened];
    let sets = segments
        .each_ref()
        .map(|segment| segment.set("api").expect("declared"));
    let accounts = if subject.is_keyed { KEYS } else { 1 };
    let mut scene = Scene {
        subject,
        clock: &clock,
        segments: &segments,
        sets: &sets,
        dice,
        terms,
        models: vec![Model::new(subject.rule, terms); accounts as usize],
        outstanding: Vec::new(),
        batch: Batch::default(),
        refunded: 0,
        reserves: seed.is_multiple_of(2),
        next_slot: 1,
        retry_after: 0,
        steps: String::new(),
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        writeln!(scene.steps, "begin with {terms:?}").expect("a string");
        for _ in 0..STEPS {
            scene.step();
            scene.look();
        }
        scene.models.iter().for_each(Model::check);
    }));
    if let Err(failure) = outcome {
        eprintln!("{subject:?}, seed {seed}:\n{}", scene.steps);
        resume_unwind(failure);
    }
}

impl<'a> Scene<'a> {
    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().as_nanos()).expect("a time in range")
    }

    fn note(&mut self, step: std::fmt::Arguments<'_>) {
        self.steps.write_fmt(step).expect("a string");
        self.steps.push('\n');
    }

    /// One of the two attachments.
    fn set(&mut self) -> &'a LimitSet {
        &self.sets[self.dice.u64(..2) as usize]
    }

    fn step(&mut self) {
        self.take_batch_back(false);
        match self.dice.u64(..100) {
            0..18 => self.pass(),
            18..62 if self.terms.credit.is_some() => self.spend(),
            18..62 => self.acquire(),
            62..76 => self.settle(),
            76..80 => self.drop_one(),
            80..87 => self.reserve(),
            87..95 => self.apply(),
            95..97 => self.reset(),
            _ => self.crowd(),
        }
    }

    fn pass(&mut self) {
        let window = self.terms.window_nanos();
        let nanos = match self.dice.u64(..6) {
            0 => 1,
            1 => self.retry_after,
            2 => window,
            3 => window - self.now() % window,
            4 => window / 64 * self.dice.u64(..64),
            _ => self.dice.u64(..window / 8),
        };
        self.note(format_args!("pass {nanos}"));
        self.clock
            .advance_to(self.clock.now() + Duration::from_nanos(nanos));
        for model in &mut self.models {
            model.pass(self.terms, nanos);
        }
        for slot in self.slots() {
            slot.0.pass(slot.1, nanos);
        }
    }

    /// Everything that may come back, each with the terms in force.
    fn slots(&mut self) -> impl Iterator<Item = (&mut Slot, Terms)> {
        let terms = self.terms;
        let of_permits = self.outstanding.iter_mut().map(|out| &mut out.slot);
        of_permits
            .chain(&mut self.batch.slot)
            .map(move |slot| (slot, terms))
    }

    fn key_name(key: usize) -> String {
        format!("key-{key}")
    }

    fn some_key(&mut self) -> usize {
        self.dice.u64(..self.models.len() as u64) as usize
    }

    fn request(set: &LimitSet, cost: u64) -> Request<'_> {
        set.request().with("units", cost).expect("declared")
    }

    /// A cost that is likely to be interesting.
    fn some_cost(&mut self, key: usize) -> u64 {
        let room = self.models[key].room(self.terms, self.now(), 0);
        match self.dice.u64(..5) {
            0 => 1,
            1 => room,
            2 => room + 1,
            _ => 1 + self.dice.u64(..self.terms.capacity.min(self.terms.burst)),
        }
        .max(1)
    }

    fn next_slot(&mut self) -> u64 {
        self.next_slot += 1;
        self.next_slot
    }

    /// Checks that the model allows what was admitted, for use after a delay, and charges it.
    fn charge(&mut self, key: usize, delay: u64, cost: u64) -> Slot {
        let (terms, now, slot) = (self.terms, self.now(), self.next_slot());
        let room = self.models[key].room(terms, now, delay);
        match self.subject.rule {
            Rule::Budget => assert!(room > 0, "admitted to a budget that is spent"),
            _ => assert!(cost <= room, "{cost} admitted where there is room for {room}"),
        }
        self.models[key].charge(slot, terms, now, delay, cost)
    }

    fn acquire(&mut self) {
        let (set, key) = (self.set(), self.some_key());
        let cost = self.some_cost(key);
        let request = Self::request(set, cost);
        self.note(format_args!("acquire {cost} for {key}"));
        let outcome = if self.subject.is_keyed {
            request.for_key(Self::key_name(key)).expect("a key").try_acquire()
        } else {
            request.try_acquire()
        };
        let outcome = match outcome {
            Err(Error::Request(RequestError::NeverAdmissible { .. })) => return,
            outcome => outcome.expect("a decision"),
        };
        // The key's row may have just been made, after the row of another key was freed.
        self.forget_keys_without_a_row(Some(key));
        self.take_batch_back(false);
        match outcome.into_result() {
            Ok(permit) => {
                self.note(format_args!("  admitted"));
                let slot = self.charge(key, 0, cost);
                self.outstanding.push(Outstanding {
                    held: Held::Permit(permit),
                    key,
                    reserved: cost,
                    slot,
                });
            }
            Err(refusal) => {
                let wait = refusal.retry_after().unwrap_or_default();
                self.retry_after = u64::try_from(wait.as_nanos()).unwrap_or(0).min(100 * BASE);
            }
        }
    }

    fn some_outstanding(&mut self) -> Option<usize> {
        let count = self.outstanding.len() as u64;
        (count > 0).then(|| self.dice.u64(..count) as usize)
    }

    /// Settles a permit, or cancels a reservation.
    fn settle(&mut self) {
        if matches!(self.subject.kind, Kind::Concurrency(_)) {
            return self.drop_one();
        }
        let Some(index) = self.some_outstanding() else {
            return;
        };
        let Outstanding {
            held,
            key,
            reserved,
            slot,
        } = self.outstanding.swap_remove(index);
        let mut permit = match held {
            Held::Permit(permit) => permit,
            Held::Reservation(mut reservation) if self.dice.u64(..2) == 0 => {
                self.note(format_args!("cancel {reserved} of {key}"));
                let before = self.counts().refunded;
                reservation.cancel().expect("works");
                let refunded = self.counts().refunded - before;
                self.refunded += refunded;
                return self.take_back(key, &slot, reserved, refunded);
            }
            Held::Reservation(reservation) => reservation.into_permit(),
        };
        let used = match self.dice.u64(..4) {
            0 => 0,
            1 => self.dice.u64(..reserved + 1),
            2 => reserved,
            _ => reserved + self.dice.u64(..reserved + 1),
        };
        self.note(format_args!("settle {reserved} of {key} to {used}"));
        let (refunded, overdraft) = {
            let settlement = permit.settle([("units", used)]).expect("works");
            (settlement.refunded("units"), settlement.overdraft("units"))
        };
        drop(permit);
        self.refunded += refunded;
        if used > reserved && (overdraft > 0 || self.subject.rule == Rule::Budget) {
            let (terms, now) = (self.terms, self.now());
            self.models[key].overdraw(terms, now, used - reserved);
        }
        self.take_back(key, &slot, reserved.saturating_sub(used), refunded);
    }

    /// Checks that no more came back than may.
    fn take_back(&mut self, key: usize, slot: &Slot, unused: u64, refunded: u64) {
        self.note(format_args!("  {refunded} came back"));
        let max = match self.subject.kind {
            Kind::Rate(_) if self.terms.refund() => slot.max().min(unused),
            _ => 0,
        };
        assert!(refunded <= max, "{refunded} came back of {max} that were left");
        let now = self.now();
        // Even if less than a unit is left, that comes back.
        if matches!(self.subject.kind, Kind::Rate(_)) && self.terms.refund() && unused > 0 {
            self.models[key].refund(slot, now, refunded);
        }
    }

    fn counts(&self) -> LimitCounts {
        self.segments[0].snapshot().expect("a copy").sets[0].limits[0].counts
    }

    fn drop_one(&mut self) {
        let Some(index) = self.some_outstanding() else {
            return;
        };
        let out = self.outstanding.swap_remove(index);
        self.note(format_args!("drop {} of {}", out.reserved, out.key));
        let model = &mut self.models[out.key];
        if let (Held::Permit(mut permit), Kind::Concurrency(_)) = (out.held, self.subject.kind) {
            if self.dice.u64(..2) == 0 {
                permit.release_failed().expect("works");
            }
            model.held -= out.reserved;
            model.has_learnt = true;
        }
    }

    fn reserve(&mut self) {
        if !matches!(self.subject.kind, Kind::Rate(_)) || !self.reserves {
            return;
        }
        let (set, key) = (self.set(), self.some_key());
        let cost = self.some_cost(key);
        let request = Self::request(set, cost);
        let max = Duration::from_nanos(self.terms.window_nanos());
        self.note(format_args!("reserve {cost} for {key}"));
        let reserved = if self.subject.is_keyed {
            request.for_key(Self::key_name(key)).expect("a key").reserve(max)
        } else {
            request.reserve(max)
        };
        self.forget_keys_without_a_row(Some(key));
        let reservation = match reserved {
            Err(Error::Request(RequestError::NeverAdmissible { .. })) => return,
            reserved => match reserved.expect("works") {
                ReserveOutcome::Reserved(reservation) => reservation,
                ReserveOutcome::Refused(_) => return,
            },
        };
        let delay = u64::try_from(reservation.delay().as_nanos()).expect("at most a window");
        self.note(format_args!("  after {delay}"));
        self.take_batch_back(false);
        let slot = self.charge(key, delay, cost);
        self.outstanding.push(Outstanding {
            held: Held::Reservation(reservation),
            key,
            reserved: cost,
            slot,
        });
    }

    /// Asks a limit with credit: whatever it admits was charged before, here or in a batch.
    fn spend(&mut self) {
        let set = self.set();
        let cost = if self.dice.u64(..4) == 0 {
            self.some_cost(0)
        } else {
            1 + self.dice.u64(..6)
        };
        let request = Self::request(set, cost);
        self.note(format_args!("spend {cost}"));
        let before = self.counts().taken;
        let is_admitted = match request.check() {
            Err(Error::Request(RequestError::NeverAdmissible { .. })) => false,
            checked => checked.expect("a decision").is_admitted(),
        };
        let charged = self.counts().taken - before;
        self.note(format_args!("  {is_admitted}, {charged} charged"));
        let is_drawn = charged > cost;
        // If the algorithm refunds, what was left of the previous batch comes back first; otherwise it is spent.
        let comes_back = is_drawn && self.terms.refund();
        self.take_batch_back(comes_back);
        if comes_back {
            self.batch = Batch::default();
        }
        if charged > 0 {
            let slot = self.charge(0, 0, charged);
            if is_drawn {
                self.batch.slot = Some(slot);
            }
        }
        if is_admitted {
            let had = self.batch.left + charged;
            assert!(cost <= had, "{cost} admitted of {had} that were charged");
            self.batch.left = had - cost;
            self.batch.unspent = self.batch.unspent.max(self.batch.left);
        }
    }

    /// Checks what came back of the last batch: an unused batch may come back by itself. `certainly`: it has, give or
    /// take less than a unit.
    fn take_batch_back(&mut self, certainly: bool) {
        if !self.subject.may_have_credit() {
            return;
        }
        let refunded = self.counts().refunded - self.refunded;
        if refunded == 0 && !certainly {
            return;
        }
        self.refunded += refunded;
        let unspent = self.batch.unspent;
        match self.batch.slot.take() {
            Some(slot) => {
                self.note(format_args!("a batch comes back, with {unspent} at most"));
                self.take_back(0, &slot, unspent, refunded);
                self.batch.slot = Some(slot);
            }
            None => assert_eq!(refunded, 0, "no batch was drawn"),
        }
    }

    fn apply(&mut self) {
        let (old, now) = (self.terms, self.now());
        let new = self.subject.terms(&mut self.dice, Some(old));
        self.note(format_args!("apply {new:?}"));
        let segment = &self.segments[self.dice.u64(..2) as usize];
        segment.apply(&self.subject.declaration(new)).expect("applies");
        if new != old && old.credit == Some(CreditSize::Auto) {
            // It comes back by the rule under which it was drawn.
            self.take_batch_back(self.batch.slot.is_some());
            self.batch = Batch::default();
        }
        for model in &mut self.models {
            model.change(old, new, now);
        }
        for (slot, _) in self.slots() {
            slot.change(old, new);
        }
        self.terms = new;
        if new != old {
            // A batch of a declared size comes back when the process asks again, and is no longer spent.
            self.batch.left = 0;
            self.take_batch_back(self.batch.slot.is_some());
        }
    }

    fn reset(&mut self) {
        let (set, terms) = (self.set(), self.terms);
        let key = (self.subject.is_keyed && self.dice.u64(..2) == 0).then(|| self.some_key());
        self.note(format_args!("reset {key:?}"));
        match key {
            Some(key) => {
                set.key(Self::key_name(key))
                    .expect("a key")
                    .reset()
                    .run()
                    .expect("works");
            }
            None => set.reset().run().expect("works"),
        }
        let is_reset = |other: usize| key.is_none_or(|key| key == other);
        for (_, model) in self
            .models
            .iter_mut()
            .enumerate()
            .filter(|(other, _)| is_reset(*other))
        {
            model.begin_again(terms);
        }
        for out in self.outstanding.iter_mut().filter(|out| is_reset(out.key)) {
            out.slot.forget();
        }
        self.batch = Batch::default();
    }

    /// Many new keys come once each, and each takes a row from another key.
    fn crowd(&mut self) {
        if !self.subject.is_keyed {
            return;
        }
        let set = self.set();
        let request = Self::request(set, 1);
        let count = 1 + self.dice.u64(..2 * ROWS);
        self.note(format_args!("{count} others come"));
        for _ in 0..count {
            let request = request
                .for_key(format!("other-{}", self.next_slot()))
                .expect("keyed");
            drop(request.try_acquire().expect("a decision").into_result());
        }
    }

    /// A key without a row is as if it had never been used. So is a key that has a row now but had none a moment ago.
    fn forget_keys_without_a_row(&mut self, but: Option<usize>) {
        if !self.subject.is_keyed {
            return;
        }
        for key in 0..self.models.len() {
            // Names would not do: a row that was made to charge a permit's overdraft has none.
            let row = self.segments[0]
                .key_snapshot("api", Self::key_name(key))
                .expect("keyed");
            if Some(key) != but && row.is_none() {
                self.models[key].begin_again(self.terms);
                for out in self.outstanding.iter_mut().filter(|out| out.key == key) {
                    out.slot.forget();
                }
            }
        }
    }

    /// Checks that no limit claims that more is left than there is.
    fn look(&mut self) {
        self.forget_keys_without_a_row(None);
        let (set, key, now) = (self.set(), self.some_key(), self.now());
        let request = Self::request(set, 0);
        let remaining = if self.subject.is_keyed {
            let key = Self::key_name(key);
            request.for_key(key).expect("keyed").peek().expect("works")[0].remaining
        } else {
            request.peek().expect("works")[0].remaining
        };
        let room = self.models[key].room(self.terms, now, 0);
        assert!(
            remaining <= room,
            "{remaining} of {key} are said to remain of {room}"
        );
    }
}
