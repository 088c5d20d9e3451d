//! What the definitions in force allow, worked out slowly and in a different way from the engine.
//!
//! Models err on one side only: what they allow to be admitted is never less than what the definitions allow, and what
//! they say is left of a reservation is never less than what may come back. Units are exact: all windows are multiples
//! of [`BASE`], up to ten times as long, so that a nanosecond always replenishes a whole number of parts of a unit.

use std::collections::VecDeque;

use shmlimit::Algorithm;

/// A window of 1, in nanoseconds: so long that the time a test takes does not matter.
pub const BASE: u64 = 1_000_000_000_000;

/// The least common multiple of all windows.
const DIVISIBLE: i128 = 2_520;

/// Parts of one unit.
const UNIT: i128 = DIVISIBLE * BASE as i128;

/// The number of sub-windows of a sliding window counter.
pub const BUCKETS: u64 = 5;

/// The fields of a limit that can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub capacity: u64,
    /// In multiples of [`BASE`], from 1 to 10.
    pub window: u64,
    pub burst: u64,
    /// For adaptive concurrency.
    pub ceiling: u64,
    /// For rates.
    pub algorithm: Algorithm,
    /// For rates without keys: the batches that a process draws.
    pub credit: Option<CreditSize>,
}

/// The size of batches of credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditSize {
    Fixed(u64),
    Auto,
}

impl Terms {
    /// Whether what a settlement under these terms leaves unused comes back.
    pub fn refund(self) -> bool {
        matches!(
            self.algorithm,
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket
        )
    }

    pub fn window_nanos(self) -> u64 {
        self.window * BASE
    }

    /// Parts of units that are replenished in this many nanoseconds.
    fn replenished(self, nanos: u64) -> i128 {
        i128::from(self.capacity) * i128::from(nanos) * (DIVISIBLE / i128::from(self.window))
    }
}

/// What one reservation may still get back.
#[derive(Clone, Debug)]
pub struct Slot {
    pub number: u64,
    /// How many parts of units must be replenished until the last of its own is.
    end: i128,
    /// Parts of the reservation's own units that time has not replenished.
    left: i128,
}

impl Slot {
    pub fn pass(&mut self, terms: Terms, nanos: u64) {
        self.end = (self.end - terms.replenished(nanos)).max(0);
        self.left = self.left.min(self.end);
    }

    /// A change leaves as much free as before in every backlog, and at most the new burst.
    pub fn change(&mut self, old: Terms, new: Terms) {
        self.end = (self.end + (i128::from(new.burst) - i128::from(old.burst)) * UNIT).max(0);
        self.left = self.left.min(self.end);
    }

    /// The most whole units that may come back. A migrated state is rounded to the nanosecond.
    pub fn max(&self) -> u64 {
        u64::try_from((self.left + UNIT / 1_000_000) / UNIT).expect("never negative")
    }

    pub fn forget(&mut self) {
        self.left = 0;
    }
}

/// Tokens that are replenished continuously: GCRA, the token bucket and the leaky bucket.
#[derive(Clone, Debug, Default)]
struct Tokens {
    /// Parts of units that are missing, at least and at most; more than the burst if the limit is overdrawn. The two
    /// differ because each refund leaves out a fraction of a unit.
    missing: i128,
    max_missing: i128,
    /// Who took the missing parts, in the order in which they are replenished. Zero: nobody.
    queue: VecDeque<(u64, i128)>,
    /// What was used, and when: the slot's number, the instant, and parts of units.
    used: Vec<(u64, u64, i128)>,
    /// The terms that applied, and since when.
    terms: Vec<(u64, Terms)>,
    /// Parts of units that came back out of what others had taken, because some of the slot's own had already come
    /// back, and when.
    ahead_of_others: Vec<(u64, i128)>,
    /// Whether anything was reserved for later, to be used at another instant than the one at which it was admitted.
    reaches_ahead: bool,
}

impl Tokens {
    fn take_from_front(&mut self, mut parts: i128) {
        while parts > 0
            && let Some((_, first)) = self.queue.front_mut()
        {
            let taken = parts.min(*first);
            *first -= taken;
            parts -= taken;
            if *first == 0 {
                self.queue.pop_front();
            }
        }
    }

    fn pass(&mut self, terms: Terms, nanos: u64) {
        let replenished = terms.replenished(nanos);
        self.missing = (self.missing - replenished).max(0);
        self.max_missing = (self.max_missing - replenished).max(0);
        self.take_from_front(replenished);
    }

    fn change(&mut self, old: Terms, new: Terms, now: u64) {
        let more = (i128::from(new.burst) - i128::from(old.burst)) * UNIT;
        self.missing = (self.missing + more).max(0);
        self.max_missing = (self.max_missing + more).max(0);
        if more > 0 {
            self.queue.push_front((0, more));
        }
        self.take_from_front(-more);
        self.terms.push((now, new));
    }

    fn charge(&mut self, slot: u64, now: u64, terms: Terms, delay: u64, units: u64) -> Slot {
        let until_then = terms.replenished(delay) - self.missing;
        if until_then > 0 {
            self.missing += until_then;
            self.queue.push_back((0, until_then));
        }
        self.reaches_ahead |= delay > 0;
        let parts = i128::from(units) * UNIT;
        self.missing += parts;
        self.max_missing = self.max_missing.max(terms.replenished(delay)) + parts;
        self.queue.push_back((slot, parts));
        self.used.push((slot, now, parts));
        Slot {
            number: slot,
            end: self.max_missing,
            left: parts,
        }
    }

    /// Takes back what the limit says it refunded, plus up to a part of a unit that it does not report.
    fn refund(&mut self, slot: &Slot, now: u64, units: u64) {
        let told = i128::from(units) * UNIT;
        let parts = slot.left.min(told + UNIT - 1).max(told).min(self.missing);
        self.missing -= parts;
        self.max_missing -= i128::from(units) * UNIT;
        if let Some((_, _, used)) = self.used.iter_mut().find(|(number, ..)| *number == slot.number) {
            *used -= parts;
        }
        let mut rest = parts;
        for (_, own) in self.queue.iter_mut().filter(|(number, _)| *number == slot.number) {
            let taken = rest.min(*own);
            *own -= taken;
            rest -= taken;
        }
        if rest > 0 {
            self.ahead_of_others.push((now, rest));
            self.take_from_front(rest);
        }
        self.queue.retain(|(_, parts)| *parts > 0);
    }

    /// Checks that no more was used between any two instants than the burst and what was replenished.
    fn check(&self) {
        if self.reaches_ahead {
            return;
        }
        for (first, (_, from, _)) in self.used.iter().enumerate() {
            let mut used = 0;
            for (_, until, parts) in &self.used[first..] {
                used += parts;
                let extra: i128 = self
                    .ahead_of_others
                    .iter()
                    .filter(|(at, _)| (*from..=*until).contains(at))
                    .map(|(_, parts)| parts)
                    .sum();
                let allowed = self.allowed(*from, *until) + extra;
                assert!(
                    used <= allowed,
                    "{} used from {from} to {until}, where {} are allowed",
                    used / UNIT,
                    allowed / UNIT,
                );
            }
        }
    }

    fn allowed(&self, from: u64, until: u64) -> i128 {
        let mut burst = 0;
        let mut replenished = 0;
        for (index, (begin, terms)) in self.terms.iter().enumerate() {
            let end = self.terms.get(index + 1).map_or(u64::MAX, |(end, _)| *end);
            if (*begin..=end).contains(&from) {
                burst = burst.max(terms.burst);
            }
            let overlap = until.min(end).saturating_sub(from.max(*begin));
            replenished += terms.replenished(overlap);
        }
        i128::from(burst) * UNIT + replenished
    }
}

/// A count that starts again when its window turns over.
#[derive(Clone, Debug, Default)]
struct Turning {
    used: u64,
    end: u64,
}

/// Charges, each of which counts in full until some instant.
#[derive(Clone, Debug, Default)]
struct Log(Vec<Charge>);

#[derive(Clone, Debug)]
struct Charge {
    units: u64,
    at: u64,
    until: u64,
}

impl Log {
    fn counted(&self, now: u64) -> u64 {
        let counts = self.0.iter().filter(|charge| charge.until > now);
        counts.map(|charge| charge.units).sum()
    }
}

/// The rule that a limit is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Tokens,
    WindowOfUtc,
    WindowOfFirstUse,
    Budget,
    Log,
    Counter,
    Concurrency,
    Adaptive,
}

/// One limit of one key, since it last was like an unused one.
#[derive(Clone, Debug)]
pub struct Model {
    rule: Rule,
    tokens: Tokens,
    window: Turning,
    log: Log,
    pub held: u64,
    /// Whether an adaptive limit may have learnt something, or been declared differently.
    pub has_learnt: bool,
}

impl Model {
    pub fn new(rule: Rule, terms: Terms) -> Self {
        let tokens = Tokens {
            terms: vec![(0, terms)],
            ..Tokens::default()
        };
        Self {
            rule,
            tokens,
            window: Turning::default(),
            log: Log::default(),
            held: 0,
            has_learnt: false,
        }
    }

    /// Starts over as if no process had used the limit, except for what is held.
    pub fn begin_again(&mut self, terms: Terms) {
        self.check();
        *self = Self {
            held: self.held,
            ..Self::new(self.rule, terms)
        };
    }

    pub fn pass(&mut self, terms: Terms, nanos: u64) {
        self.tokens.pass(terms, nanos);
    }

    fn window_end(&self, terms: Terms, now: u64, start: u64) -> u64 {
        let window = terms.window_nanos();
        match self.rule {
            Rule::WindowOfFirstUse => start + window,
            _ => now / window * window + window,
        }
    }

    pub fn change(&mut self, old: Terms, new: Terms, now: u64) {
        self.has_learnt = true;
        self.tokens.change(old, new, now);
        if now < self.window.end {
            // A shorter window may have been moved into the future, although what it counts was charged before now.
            let start = (self.window.end - old.window_nanos()).min(now);
            self.window.end = self.window.end.max(self.window_end(new, now, start));
        }
        for charge in self.log.0.iter_mut().filter(|charge| charge.until > now) {
            charge.until = match self.rule {
                Rule::Counter if new.window != old.window => now + Self::in_full(new),
                Rule::Counter => charge.until,
                _ => charge.until.max(charge.at + new.window_nanos()),
            };
        }
    }

    /// For how long, at least, a sliding window counter counts a charge in full.
    fn in_full(terms: Terms) -> u64 {
        terms.window_nanos() - terms.window_nanos() / BUCKETS
    }

    /// The most units that may be admitted for use `delay` nanoseconds from now.
    pub fn room(&self, terms: Terms, now: u64, delay: u64) -> u64 {
        let left_of = |used: u64| terms.capacity.saturating_sub(used);
        match self.rule {
            Rule::Tokens => {
                let missing = (self.tokens.missing - terms.replenished(delay)).max(0);
                let free = (i128::from(terms.burst) * UNIT - missing).max(0);
                u64::try_from(free / UNIT).expect("at most the burst")
            }
            Rule::WindowOfUtc | Rule::WindowOfFirstUse | Rule::Budget if now < self.window.end => {
                left_of(self.window.used)
            }
            Rule::WindowOfUtc | Rule::WindowOfFirstUse | Rule::Budget => terms.capacity,
            Rule::Log | Rule::Counter => left_of(self.log.counted(now)),
            Rule::Concurrency => left_of(self.held),
            Rule::Adaptive if !self.has_learnt => left_of(self.held),
            Rule::Adaptive => terms.ceiling.saturating_sub(self.held),
        }
    }

    /// Charges what was admitted, or used beyond what was reserved.
    pub fn charge(&mut self, slot: u64, terms: Terms, now: u64, delay: u64, units: u64) -> Slot {
        if now >= self.window.end {
            self.window = Turning {
                used: 0,
                end: self.window_end(terms, now, now),
            };
        }
        self.window.used += units;
        let until = match self.rule {
            Rule::Counter => now + Self::in_full(terms),
            _ => now + terms.window_nanos(),
        };
        self.log.0.push(Charge {
            units,
            at: now,
            until,
        });
        if matches!(self.rule, Rule::Concurrency | Rule::Adaptive) {
            self.held += units;
        }
        self.tokens.charge(slot, now, terms, delay, units)
    }

    /// Charges usage that nothing could have refused, so that it only counts against those who come later.
    pub fn overdraw(&mut self, terms: Terms, now: u64, units: u64) {
        self.charge(0, terms, now, 0, units);
        self.tokens.used.pop();
    }

    pub fn refund(&mut self, slot: &Slot, now: u64, units: u64) {
        self.tokens.refund(slot, now, units);
    }

    pub fn check(&self) {
        if self.rule == Rule::Tokens {
            self.tokens.check();
        }
    }
}
