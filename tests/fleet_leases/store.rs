//! The smallest possible store that keeps its promises: of each limit, what is used and what is leased together never
//! exceed the burst.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shmlimit::fleet::{LeaseReply, LeaseRequest, LeasedRule, StoreProblem};

/// What a host has of one limit.
#[derive(Clone, Debug, Default)]
struct Host {
    sequence: u64,
    /// For a limit by key: where the count of what the host reports begins.
    began: u64,
    spent: u64,
    refunded: u64,
    ungranted: u64,
    /// Granted, and neither spent, nor returned, nor expired.
    outstanding: u64,
    expires_at: Duration,
    /// Expired without a report, and so counted as spent already.
    written_off: u64,
    reply: Option<(u64, Duration, u64)>,
}

#[derive(Clone, Debug, Default)]
pub struct Limit {
    /// What is used: units multiplied by the nanoseconds of a window.
    level: u128,
    level_at: Duration,
    window_number: u128,
    grants: u64,
    hosts: HashMap<u64, Host>,
}

/// All limits of one store. A clone is the same store.
#[derive(Clone, Debug, Default)]
pub struct Store {
    /// By their names in the store.
    pub limits: Arc<Mutex<HashMap<String, Limit>>>,
}

impl Limit {
    /// Lets time pass: what is used is replenished, and leases run out one after the other.
    fn pass_to(&mut self, rule: &LeasedRule, now: Duration) {
        loop {
            let next = self
                .hosts
                .values_mut()
                .filter(|host| host.outstanding > 0 && host.expires_at <= now)
                .min_by_key(|host| host.expires_at);
            let Some(host) = next else { break };
            let (units, at) = (host.outstanding, host.expires_at);
            host.outstanding = 0;
            host.written_off += units;
            self.replenish(rule, at);
            if !matches!(rule, LeasedRule::Concurrency { .. }) {
                self.charge(rule, units);
            }
        }
        self.replenish(rule, now);
    }

    fn scale(rule: &LeasedRule) -> u128 {
        match rule {
            LeasedRule::Backlog { window, .. } => window.as_nanos(),
            _ => 1,
        }
    }

    fn charge(&mut self, rule: &LeasedRule, units: u64) {
        self.level += u128::from(units) * Self::scale(rule);
    }

    fn replenish(&mut self, rule: &LeasedRule, now: Duration) {
        match rule {
            LeasedRule::Backlog { capacity, .. } => {
                let passed = now.saturating_sub(self.level_at).as_nanos();
                self.level = self.level.saturating_sub(passed * u128::from(*capacity));
            }
            LeasedRule::Window { window, .. } => {
                let number = now.as_nanos() / window.as_nanos();
                if number > self.window_number {
                    self.window_number = number;
                    self.level = 0;
                }
            }
            _ => {}
        }
        self.level_at = self.level_at.max(now);
    }

    fn used(&self, rule: &LeasedRule) -> u64 {
        u64::try_from(self.level.div_ceil(Self::scale(rule))).expect("in range")
    }

    /// How long until a unit can be granted, if nothing is returned.
    fn free_in(&self, rule: &LeasedRule, now: Duration) -> Duration {
        if matches!(rule, LeasedRule::Concurrency { .. }) {
            return Duration::ZERO;
        }
        let used = self.level + u128::from(self.outstanding()) * Self::scale(rule);
        let room = u128::from(burst(rule) - 1) * Self::scale(rule);
        let excess = used.saturating_sub(room);
        match rule {
            _ if excess == 0 => Duration::ZERO,
            LeasedRule::Backlog { capacity, .. } => {
                Duration::from_nanos(excess.div_ceil(u128::from(*capacity)) as u64)
            }
            LeasedRule::Window { window, .. } => {
                let passed = now.as_nanos() % window.as_nanos();
                Duration::from_nanos((window.as_nanos() - passed) as u64)
            }
            other => panic!("not by key: {other:?}"),
        }
    }

    fn outstanding(&self) -> u64 {
        self.hosts.values().map(|host| host.outstanding).sum()
    }
}

fn burst(rule: &LeasedRule) -> u64 {
    match rule {
        LeasedRule::Backlog { burst, .. } => *burst,
        LeasedRule::Window { capacity, .. } | LeasedRule::Calendar { capacity, .. } => *capacity,
        LeasedRule::Concurrency { places } => *places,
        other => panic!("a rule that is not known: {other:?}"),
    }
}

/// The store's name for the limit of a request.
fn name(request: &LeaseRequest) -> String {
    match request.of_key {
        None => request.key.clone(),
        Some(key) => format!("{}/{:x}", request.key, key.hash),
    }
}

impl Store {
    /// Answers a request at an instant of the store's clock.
    pub fn answer(&self, request: &LeaseRequest, now: Duration) -> Result<LeaseReply, StoreProblem> {
        let mut limits = self.limits.lock().expect("no panic while locked");
        let limit = limits.entry(name(request)).or_default();
        let rule = &request.declared.rule;
        limit.pass_to(rule, now);
        let mut host = limit.hosts.entry(request.host).or_default().clone();
        let began = request.of_key.map_or(0, |key| key.began);
        if host.began != began {
            // Everything before that was answered.
            (host.spent, host.refunded, host.ungranted) = (0, 0, 0);
        }
        let reply_of = |limit: &Limit, granted: u64, until: Duration, grant: u64| LeaseReply {
            sequence: request.sequence,
            granted,
            remaining: until.saturating_sub(now),
            share: burst(rule) / limit.hosts.len() as u64,
            grant_number: grant,
            ceiling: u64::MAX,
            hosts: limit.hosts.len() as u64,
            quarantine: Duration::ZERO,
            drained_in: match rule {
                LeasedRule::Backlog { capacity, .. } => {
                    let level = limit.level + u128::from(limit.outstanding()) * Limit::scale(rule);
                    Duration::from_nanos((level / u128::from(*capacity)) as u64)
                }
                _ => Duration::ZERO,
            },
            available: burst(rule)
                .saturating_sub(limit.used(rule))
                .saturating_sub(limit.outstanding()),
            free_in: if request.of_key.is_some() {
                limit.free_in(rule, now)
            } else {
                Duration::ZERO
            },
        };
        if request.sequence < host.sequence {
            return Err(StoreProblem::Stale);
        }
        if let Some((granted, until, grant)) = host.reply.filter(|_| request.sequence == host.sequence) {
            return Ok(reply_of(limit, granted, until, grant));
        }
        let spent = request.spent.checked_sub(host.spent).expect("never falls");
        let refunded = request.refunded.checked_sub(host.refunded).expect("never falls");
        let ungranted = request
            .ungranted
            .checked_sub(host.ungranted)
            .expect("never falls");
        let to_charge = spent.saturating_sub(host.written_off);
        let by_policy = ungranted.min(to_charge);
        let to_charge = to_charge - by_policy;
        limit.charge(rule, to_charge);
        limit.level = limit
            .level
            .saturating_sub(u128::from(refunded) * Limit::scale(rule));
        let held = request.held.min(host.outstanding);
        let outstanding_of_others = limit.outstanding() - host.outstanding;
        let free = burst(rule)
            .saturating_sub(limit.used(rule))
            .saturating_sub(outstanding_of_others)
            .saturating_sub(held);
        let granted = free.min(request.wanted);
        let mut until = now + request.declared.lease;
        if let LeasedRule::Window { window, .. } = rule {
            let end = (now.as_nanos() / window.as_nanos() + 1) * window.as_nanos();
            until = until.min(Duration::from_nanos(end as u64));
        }
        limit.grants += 1;
        let grant = limit.grants;
        limit.hosts.insert(
            request.host,
            Host {
                sequence: request.sequence,
                began,
                spent: request.spent,
                refunded: request.refunded,
                ungranted: request.ungranted,
                outstanding: held + granted,
                expires_at: until,
                // This request settles how much was spent of what ran out.
                written_off: 0,
                reply: Some((granted, until, grant)),
            },
        );
        let free = burst(rule)
            .saturating_sub(limit.used(rule))
            .saturating_sub(limit.outstanding());
        limit.charge(rule, by_policy.min(free));
        let used = limit.used(rule);
        // What a host admits before it has asked may exceed the burst, but is charged all the same.
        assert!(
            used + limit.outstanding() <= burst(rule) || granted == 0,
            "the store promises no more than there is"
        );
        Ok(reply_of(limit, granted, until, grant))
    }

    /// Units that are leased to hosts.
    pub fn outstanding(&self, key: &str) -> u64 {
        let limits = self.limits.lock().expect("no panic while locked");
        limits.get(key).map_or(0, Limit::outstanding)
    }

    /// Units that count as used.
    pub fn used(&self, key: &str, rule: &LeasedRule) -> u64 {
        let limits = self.limits.lock().expect("no panic while locked");
        limits.get(key).map_or(0, |limit| limit.used(rule))
    }
}
