//! A store of a limit that hosts share, and a host with a clock of its own.

use std::collections::BTreeMap;

use crate::choices::Outage;
use crate::limit::tests::{Limit, at};
use crate::limit::{
    Answer, Ask, Assessment, Backlog, LeaseTerms, Leased, Now, Problem, Rule, RuleOperations, SafeTerms,
};

pub(super) const MILLISECOND: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1000 * MILLISECOND;
pub(super) const LEASE: u64 = 2 * SECOND;

/// A thousandth slower than the store's clock.
pub(super) const SLOWEST: u64 = 999;

pub(super) const OUT: Problem = Problem {
    code: 1,
    is_outage: true,
    new_identity: None,
};

/// The store's account of the host is later than the host's own.
pub(super) fn stale(identity: u64) -> Problem {
    Problem {
        code: 7,
        is_outage: false,
        new_identity: Some(identity),
    }
}

pub(super) fn backlog(capacity: u64, burst: u64) -> Rule {
    Rule::Backlog(Backlog::new(capacity, 60 * SECOND, burst).expect("valid"))
}

pub(super) fn leased(rule: &Rule, outage: Outage) -> Rule {
    leased_for(LEASE, rule, outage)
}

pub(super) fn leased_for(length: u64, rule: &Rule, outage: Outage) -> Rule {
    let terms = LeaseTerms {
        length,
        outage,
        key: 7,
        cold_wait: 0,
        unleased: None,
        safe: SafeTerms {
            units: rule.capacity(),
            is_divided: true,
            window: 60 * SECOND,
        },
    };
    Rule::Leased(rule.leased(terms, true).expect("valid"))
}

/// What the store knows about a host.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Account {
    pub(super) sequence: u64,
    spent: u64,
    refunded: u64,
    outstanding: u64,
    expires_at: u64,
    written_off: u64,
    reply: Option<(u64, u64)>,
}

/// A store of one limit whose units come back evenly: what is used and what is leased never exceed the burst
/// together.
#[derive(Clone, Debug, Hash)]
pub(super) struct Store {
    capacity: u128,
    burst: u64,
    lease: u64,
    /// Units times the nanoseconds of a minute.
    level: u128,
    pub(super) level_at: u64,
    pub(super) accounts: BTreeMap<usize, Account>,
}

pub(super) const SCALE: u128 = 60 * SECOND as u128;

impl Store {
    pub(super) fn new(capacity: u64, burst: u64) -> Self {
        Self {
            capacity: u128::from(capacity),
            burst,
            lease: LEASE,
            level: 0,
            level_at: 0,
            accounts: BTreeMap::new(),
        }
    }

    pub(super) fn with_lease(self, lease: u64) -> Self {
        Self { lease, ..self }
    }

    pub(super) fn outstanding(&self) -> u64 {
        self.accounts.values().map(|account| account.outstanding).sum()
    }

    fn drain_to(&mut self, now: u64) {
        let passed = u128::from(now.saturating_sub(self.level_at));
        self.level = self.level.saturating_sub(passed * self.capacity);
        self.level_at = self.level_at.max(now);
    }

    fn pass_to(&mut self, now: u64) {
        let mut over: Vec<(u64, usize)> = self
            .accounts
            .iter()
            .filter(|(_, account)| account.outstanding > 0 && account.expires_at <= now)
            .map(|(host, account)| (account.expires_at, *host))
            .collect();
        over.sort_unstable();
        for (instant, host) in over {
            self.drain_to(instant);
            let account = self.accounts.get_mut(&host).expect("found");
            self.level += u128::from(account.outstanding) * SCALE;
            account.written_off += account.outstanding;
            account.outstanding = 0;
        }
        self.drain_to(now);
    }

    fn available(&self) -> u64 {
        let used = self.level.div_ceil(SCALE) as u64;
        self.burst.saturating_sub(used).saturating_sub(self.outstanding())
    }

    pub(super) fn answer(&mut self, host: usize, ask: Ask, now: u64) -> Option<Answer> {
        self.pass_to(now);
        let account = self.accounts.entry(host).or_default();
        if ask.sequence < account.sequence {
            return None;
        }
        if ask.sequence > account.sequence || account.reply.is_none() {
            let spent = ask.spent.checked_sub(account.spent).expect("never falls");
            let refunded = ask.refunded.checked_sub(account.refunded).expect("never falls");
            let charged = spent.saturating_sub(account.written_off);
            // This request says once and for all how much was spent of the lease that ran out.
            account.written_off = 0;
            // What was spent may belong to the previous lease, that of an unanswered request. Then it counts twice,
            // and takes nothing from what is held.
            let held = ask.held.min(account.outstanding);
            (account.sequence, account.spent, account.refunded) = (ask.sequence, ask.spent, ask.refunded);
            account.outstanding = held;
            self.level += u128::from(charged) * SCALE;
            self.level = self.level.saturating_sub(u128::from(refunded) * SCALE);
            let granted = self.available().min(ask.wanted);
            let account = self.accounts.get_mut(&host).expect("there");
            account.outstanding += granted;
            account.expires_at = now + self.lease;
            account.reply = Some((granted, account.expires_at));
        }
        let drained_in = self.level / self.capacity;
        let (granted, expires_at) = self.accounts[&host].reply?;
        Some(Answer {
            sequence: ask.sequence,
            granted,
            remaining: expires_at.saturating_sub(now),
            share: self.burst / self.accounts.len() as u64,
            grant_number: ask.sequence,
            drained_in: drained_in as u64,
            ceiling: u64::MAX,
            hosts: self.accounts.len() as u64,
            quarantine: None,
            available: self.available(),
            free_in: 0,
        })
    }
}

/// One host: its limit, and the rate of its clock, in thousandths of the store's.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) limit: Limit,
    rate: u64,
}

impl Host {
    pub(super) fn new(rule: Rule, rate: u64) -> Self {
        Self {
            limit: Limit::new(rule),
            rate,
        }
    }

    pub(super) fn now(&self, time: u64) -> Now {
        at(time / 1000 * self.rate)
    }

    pub(super) fn leased(&self) -> Leased {
        match self.limit.rule {
            Rule::Leased(leased) => leased,
            other => panic!("{other:?} is not shared"),
        }
    }

    pub(super) fn ask(&mut self, time: u64) -> Option<Ask> {
        let now = self.now(time);
        self.leased().ask(self.limit.words.as_mut_slice(), now)
    }

    pub(super) fn install(&mut self, attempt: u64, time: u64, answer: Answer) -> bool {
        let (attempt, now) = (self.now(attempt).monotonic, self.now(time));
        let leased = self.leased();
        let words = self.limit.words.as_mut_slice();
        leased.install(words, now, attempt, answer).is_some()
    }

    pub(super) fn fail(&mut self, time: u64, sequence: u64) {
        self.fail_by(time, sequence, OUT);
    }

    pub(super) fn fail_by(&mut self, time: u64, sequence: u64, problem: Problem) {
        let now = self.now(time);
        let leased = self.leased();
        let words = self.limit.words.as_mut_slice();
        leased.fail(words, now, sequence, problem, 0);
    }

    /// Takes `cost`, or notes that it is missing.
    pub(super) fn take(&mut self, time: u64, cost: u64) -> bool {
        let now = self.now(time);
        match self.limit.take(now, cost) {
            Assessment::Admissible => true,
            Assessment::Refused { .. } => {
                self.leased()
                    .note_unmet(self.limit.words.as_mut_slice(), now, cost);
                false
            }
        }
    }
}

/// The answer of a store that grants this many units for one lease from now on.
pub(super) fn answered(ask: Ask, granted: u64, grant_number: u64) -> Answer {
    Answer {
        sequence: ask.sequence,
        granted,
        remaining: LEASE,
        share: 4,
        grant_number,
        drained_in: 0,
        ceiling: u64::MAX,
        hosts: 1,
        quarantine: None,
        available: 0,
        free_in: 0,
    }
}
