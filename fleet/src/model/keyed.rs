//! The store's side of limits by key, in Rust: what `script/keyed.lua` does, on a clock that is passed in.

use std::collections::HashMap;
use std::time::Duration;

use shmlimit::fleet::{LeaseReply, LeaseRequest, LeasedKey};

use super::window::window_at;
use super::{DAY, LOST, MAX, PATIENCE, longest_lease, slot};
use crate::protocol::partition_of;
use crate::store::answer::{Grant, StoreAnswer};
use crate::terms::{Kind, Terms};

const SECOND: u64 = 1_000_000;
/// A hundred years.
const LONGEST: u64 = 3_155_760_000_000_000;

/// All keys of one limit in a store.
#[derive(Clone, Debug, Default)]
pub struct KeyedStoreModel {
    partitions: HashMap<u8, Partition>,
}

/// The record of a partition, and those of its keys.
#[derive(Clone, Debug)]
struct Partition {
    ruling: Ruling,
    /// In the time of the store.
    kept_until: u64,
    /// On the wall clock.
    gone_at: u64,
    keys: HashMap<u128, Record>,
    /// Beyond this number of keys, those that are gone are dropped.
    sweep_at: usize,
}

/// What is the same for all keys of a partition.
#[derive(Clone, Debug)]
struct Ruling {
    terms: Terms,
    run: String,
    created: u64,
    seen: u64,
    shift: u64,
    quarantine: u64,
    /// The second at which the terms came into force.
    generation: u64,
    /// The first generation of this kind of limit.
    of_kind: u64,
    /// How far the numbers of grants are ahead of the seconds of the store's time.
    ahead: u64,
}

/// What the store knows about one key.
#[derive(Clone, Debug)]
struct Record {
    generation: u64,
    base: u64,
    level: u64,
    period: u64,
    window: i64,
    /// For places: the number of the latest grant, and how far numbers were ahead when this was written.
    grants: u64,
    ahead: u64,
    hosts: Vec<Host>,
    gone_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Host {
    id: u64,
    sequence: u64,
    /// The number of the first request since the store last answered one; the following sums are from that answer on.
    began: u64,
    spent: u64,
    refunded: u64,
    ungranted: u64,
    out: u64,
    granted: u64,
    /// What it kept and wanted, whether it was granted or not.
    demand: u64,
    /// What was charged when its lease ran out, and may still be reported.
    off: u64,
    expiry: u64,
    seen: u64,
    /// For places: the number of the latest grant when it asked.
    grant_number: u64,
    /// Since when it has had places; zero if it has none.
    has_had: u64,
    /// Since when it waits for its share of the places; zero if it does not.
    waits: u64,
}

/// The instants of one answer.
#[derive(Clone, Copy)]
struct Instant {
    now: u64,
    utc: u64,
    window_end: i64,
}

impl Instant {
    fn window_left(&self) -> u64 {
        u64::try_from(self.window_end - self.utc.cast_signed()).unwrap_or(0)
    }
}

/// What a host reports beyond what it has reported before.
#[derive(Clone, Copy)]
struct Changed {
    /// What was spent of leases or before asking.
    report: u64,
    refund: u64,
    /// What an outage policy admitted.
    by_policy: u64,
}

/// Why a request changes nothing.
enum Unchanged {
    Repeated(Host),
    Stale { last: u64 },
    Fell { before: u64 },
}

impl Changed {
    const NOTHING: Self = Self {
        report: 0,
        refund: 0,
        by_policy: 0,
    };

    /// What was reported before, and not answered as far as the host knows, is not charged again.
    fn of(kind: Kind, host: Option<Host>, key: LeasedKey, request: &LeaseRequest) -> Result<Self, Unchanged> {
        if let Some(host) = host {
            if request.sequence < host.sequence {
                return Err(Unchanged::Stale { last: host.sequence });
            }
            if request.sequence == host.sequence {
                return Err(Unchanged::Repeated(host));
            }
        }
        if kind == Kind::Places {
            return Ok(Self::NOTHING);
        }
        let counted = host.filter(|host| host.began == key.began);
        let (spent, refunded, ungranted) =
            counted.map_or((0, 0, 0), |host| (host.spent, host.refunded, host.ungranted));
        let changed = (
            request.spent.checked_sub(spent),
            request.refunded.checked_sub(refunded),
            request.ungranted.checked_sub(ungranted),
        );
        let (Some(spent_since), Some(refund), Some(ungranted)) = changed else {
            return Err(Unchanged::Fell { before: spent });
        };
        let by_policy = ungranted.min(spent_since);
        Ok(Self {
            report: spent_since - by_policy,
            refund,
            by_policy,
        })
    }
}

impl Host {
    /// Whether it waits for its share of the places.
    fn is_waiting(&self, terms: &Terms, now: u64) -> bool {
        self.waits > 0 && now - self.seen <= PATIENCE.max(terms.lease / 2)
    }
}

impl KeyedStoreModel {
    /// A limit that no host has asked for yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The units of a key that were out or spent at the last answer, rounded up, and the burst.
    #[must_use]
    pub fn used_and_burst(&self, key: LeasedKey) -> (u64, u64) {
        let partition = self.partitions.get(&partition_of(key.hash));
        let record = partition.and_then(|partition| partition.keys.get(&key.hash));
        let burst = partition.map_or(0, |partition| partition.ruling.terms.burst);
        record.map_or((0, burst), |record| {
            (record.level.div_ceil(record.period) + record.outstanding(), burst)
        })
    }

    /// How long the store keeps the record of a key from `utc` on, in milliseconds; `None` if there is none.
    #[must_use]
    pub fn kept_for(&self, key: LeasedKey, utc: u64) -> Option<u64> {
        let partition = self.partitions.get(&partition_of(key.hash))?;
        let record = partition.keys.get(&key.hash)?;
        let left = record.gone_at.checked_sub(utc).filter(|left| *left > 0)?;
        Some(left / 1_000)
    }

    /// Drops what a server has dropped by `utc`. Answers do the same for what they come across.
    pub fn drop_gone(&mut self, utc: u64) {
        self.partitions.retain(|_, partition| partition.gone_at > utc);
        for partition in self.partitions.values_mut() {
            partition.drop_gone(utc);
        }
    }

    /// The number of keys that have a record, including those that are gone and have not been asked for since.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.partitions
            .values()
            .map(|partition| partition.keys.len())
            .sum()
    }

    /// The answer of a server with the run id `run` when its clock shows `utc`, in microseconds since the Unix epoch.
    pub fn answer(
        &mut self,
        run: &str,
        utc: u64,
        terms: &Terms,
        key: LeasedKey,
        request: &LeaseRequest,
    ) -> StoreAnswer {
        let number = partition_of(key.hash);
        let known = self.partitions.get(&number);
        let known = known.filter(|partition| partition.gone_at > utc);
        let mut ruling = known.map_or_else(|| Ruling::new(terms, run, utc), |known| known.ruling.clone());
        let now = match ruling.agree(run, utc, terms) {
            Ok(now) => now,
            Err(in_force) => return StoreAnswer::Declared { in_force },
        };
        if known.is_none() {
            self.partitions.remove(&number);
        }
        let partition = self.partitions.entry(number).or_insert_with(|| Partition {
            ruling: ruling.clone(),
            kept_until: 0,
            gone_at: 0,
            keys: HashMap::new(),
            sweep_at: 64,
        });
        partition.ruling = ruling;
        partition.ruling.seen = now;
        let kept_until = partition.ruling.kept_until(now, 0);
        partition.kept_until = partition.kept_until.max(kept_until);
        let answer = partition.answer(now, utc, key, request);
        partition.gone_at = utc + ((partition.kept_until - now) / 1_000 + 1) * 1_000;
        answer
    }
}

impl Ruling {
    fn new(terms: &Terms, run: &str, utc: u64) -> Self {
        Self {
            terms: terms.clone(),
            run: run.to_owned(),
            created: utc,
            seen: 0,
            shift: 0,
            quarantine: 0,
            generation: utc / SECOND,
            of_kind: utc / SECOND,
            ahead: 0,
        }
    }

    /// Until when to keep it if a key needs it for that long. Without it, grants would be numbered from the time again.
    fn kept_until(&self, now: u64, needed: u64) -> u64 {
        now + DAY + self.ahead * SECOND + needed
    }

    /// Decides which declaration is in force from now on, and returns the store's time. Returns the declaration if the
    /// request cannot be served under it.
    fn agree(&mut self, run: &str, utc: u64, terms: &Terms) -> Result<u64, String> {
        let now = (utc + self.shift).max(self.seen);
        self.shift = now - utc;
        if self.run != run {
            run.clone_into(&mut self.run);
            self.quarantine = now + longest_lease(&self.terms);
            if self.terms.kind == Kind::Places {
                self.ahead += LOST;
            }
        }
        if self.terms.fingerprint() == terms.fingerprint() {
            self.terms.version = self.terms.version.max(terms.version);
            return Ok(now);
        }
        let is_gone = now - self.seen > 4 * self.terms.lease;
        if terms.version > self.terms.version || is_gone {
            self.generation = (self.generation + 1).max(now / SECOND);
            if terms.kind != self.terms.kind {
                self.created = now;
                self.of_kind = self.generation;
                self.ahead += LOST;
                self.quarantine = self.quarantine.max(now + longest_lease(&self.terms));
            }
            self.terms = terms.clone();
        } else if terms.version == self.terms.version || terms.kind != self.terms.kind {
            return Err(self.terms.fingerprint().to_owned());
        }
        Ok(now)
    }
}

impl Partition {
    fn answer(&mut self, now: u64, utc: u64, key: LeasedKey, request: &LeaseRequest) -> StoreAnswer {
        let ruling = &mut self.ruling;
        let known = self.keys.get(&key.hash);
        let known = known.filter(|record| record.gone_at > utc && record.generation >= ruling.of_kind);
        let mut record = known.cloned().unwrap_or_else(|| Record {
            generation: ruling.generation,
            base: now,
            level: 0,
            period: ruling.terms.period,
            window: 0,
            grants: 0,
            ahead: 0,
            hosts: Vec::new(),
            gone_at: 0,
        });
        let mut at = Instant {
            now,
            utc,
            window_end: 0,
        };
        record.convert(ruling, &at);
        if ruling.terms.kind == Kind::Places {
            record.number_on(ruling, now, request.grant_number);
        }
        let has_turned = record.turn_window(&ruling.terms, &mut at);
        record.expire(&ruling.terms, has_turned, now);
        let position = record.hosts.iter().position(|host| host.id == request.host);
        let host = position.map(|index| record.hosts[index]);
        let changed = match Changed::of(ruling.terms.kind, host, key, request) {
            Ok(changed) => changed,
            Err(unchanged) => return record.answer_unchanged(ruling, unchanged, at),
        };
        let asking = record.settle_and_grant(ruling, (host, changed), key, request, at);
        let needed = record.needed_for(ruling, at);
        record.gone_at = utc + (needed / 1_000 + 1) * 1_000;
        record.generation = ruling.generation;
        record.period = ruling.terms.period;
        record.base = now;
        let kept = asking.out - asking.granted;
        let answer = record.reply(ruling, &asking, asking.granted, kept, at);
        let retained = longest_lease(&ruling.terms);
        record.hosts.retain(|host| {
            host.id == asking.id || host.out > 0 || now < host.expiry.max(host.seen) + retained
        });
        self.keys.insert(key.hash, record);
        self.kept_until = self.kept_until.max(self.ruling.kept_until(now, needed));
        if self.keys.len() > self.sweep_at {
            self.drop_gone(utc);
        }
        answer
    }

    fn drop_gone(&mut self, utc: u64) {
        self.keys.retain(|_, record| record.gone_at > utc);
        self.sweep_at = 2 * self.keys.len() + 64;
    }
}

impl Record {
    fn outstanding(&self) -> u64 {
        self.hosts.iter().map(|host| host.out).sum()
    }

    /// If other terms have come into force since it was written, what was spent still counts.
    fn convert(&mut self, ruling: &Ruling, at: &Instant) {
        if self.generation == ruling.generation {
            return;
        }
        let terms = &ruling.terms;
        if terms.kind == Kind::Backlog {
            let level = u128::from(self.level.div_ceil(self.period)) * u128::from(terms.period);
            self.level = capped(level);
        }
        if let Some(window) = terms.window {
            self.window = window_at(window, at.utc.cast_signed().max(self.window)).0;
        }
    }

    /// No grant number is given twice, whatever the store has lost.
    fn number_on(&mut self, ruling: &Ruling, now: u64, known: u64) {
        self.grants += ruling.ahead - self.ahead;
        self.ahead = ruling.ahead;
        self.grants = self.grants.max(now / SECOND + ruling.ahead).max(known);
    }

    fn turn_window(&mut self, terms: &Terms, at: &mut Instant) -> bool {
        let Some(window) = terms.window else { return false };
        let (begins, ends) = window_at(window, at.utc.cast_signed());
        at.window_end = if begins < self.window {
            window_at(window, self.window).1
        } else {
            ends
        };
        let has_turned = begins > self.window;
        if has_turned {
            self.window = begins;
            self.level = 0;
        }
        has_turned
    }

    fn expire(&mut self, terms: &Terms, has_turned: bool, now: u64) {
        let mut drained = self.base / terms.quantum;
        let mut expired: Vec<_> = self
            .hosts
            .iter_mut()
            .filter(|host| host.out > 0 && host.expiry <= now)
            .collect();
        expired.sort_by_key(|host| host.expiry);
        for host in expired {
            let out = std::mem::take(&mut host.out);
            if terms.kind == Kind::Places {
                continue;
            }
            host.off = out;
            if !has_turned {
                let to = host.expiry / terms.quantum;
                self.level = level_after(terms, self.level, to - drained);
                self.level = capped(u128::from(self.level) + u128::from(host.off) * u128::from(terms.period));
                drained = to;
            }
        }
        self.level = level_after(terms, self.level, now / terms.quantum - drained);
    }

    /// The answer to a request that changes nothing.
    fn answer_unchanged(&self, ruling: &Ruling, unchanged: Unchanged, at: Instant) -> StoreAnswer {
        match unchanged {
            Unchanged::Repeated(host) => self.reply(
                ruling,
                &host,
                host.granted,
                host.out.saturating_sub(host.granted),
                at,
            ),
            Unchanged::Stale { last } => StoreAnswer::Stale { last },
            Unchanged::Fell { before } => StoreAnswer::SpentFell { before },
        }
    }

    /// Settles what a host reports and grants. Returns what is known of the host from then on.
    fn settle_and_grant(
        &mut self,
        ruling: &mut Ruling,
        (known, changed): (Option<Host>, Changed),
        key: LeasedKey,
        request: &LeaseRequest,
        at: Instant,
    ) -> Host {
        let terms = ruling.terms.clone();
        let Changed {
            report,
            refund,
            by_policy,
        } = changed;

        let young_until = ruling.created + longest_lease(&terms);
        let is_lost = known.is_none() && request.held > 0 && at.now < young_until;
        if is_lost && ruling.quarantine < young_until {
            ruling.quarantine = young_until;
            if terms.kind == Kind::Places {
                ruling.ahead += LOST;
                self.grants += LOST;
                self.ahead = ruling.ahead;
            }
        }
        let is_quarantined = ruling.quarantine > at.now;

        let (out, off) = known.map_or((0, 0), |host| (host.out, host.off));
        let mut kept = request.held.min(out);
        let has_lapsed = request.held > kept;
        if is_quarantined {
            kept = request.held;
        } else if has_lapsed {
            kept = 0;
        }
        let absorbed = report.min(off);
        self.charge(report - absorbed, &terms);
        let refunded = u128::from(refund) * u128::from(terms.period);
        self.level = capped(u128::from(self.level).saturating_sub(refunded));
        let off = if has_lapsed {
            (off - absorbed).min(request.held)
        } else {
            0
        };

        let mut asking = Host {
            id: request.host,
            sequence: request.sequence,
            began: key.began,
            spent: request.spent,
            refunded: request.refunded,
            ungranted: request.ungranted,
            out: kept,
            granted: 0,
            demand: MAX.min(kept + request.wanted),
            off,
            expiry: at.now,
            seen: at.now,
            grant_number: 0,
            has_had: known.map_or(0, |host| host.has_had),
            waits: known.map_or(0, |host| host.waits),
        };
        let may_be_granted = !has_lapsed && !is_quarantined;
        if terms.kind == Kind::Places {
            self.grant_places(&terms, &mut asking, request.wanted, may_be_granted, at.now);
        } else if may_be_granted {
            asking.granted = self.granted(&terms, &asking, request.wanted, at.now);
        }
        asking.out += asking.granted;
        if asking.out > 0 {
            asking.expiry = at.now + terms.lease + slot(&terms);
            if terms.kind == Kind::Window {
                asking.expiry = asking.expiry.min(at.now + at.window_left());
            }
        }
        match self.hosts.iter_mut().find(|host| host.id == asking.id) {
            Some(host) => *host = asking,
            None => self.hosts.push(asking),
        }
        let room = terms.burst.saturating_sub(self.outstanding()) * terms.period;
        let charged = u128::from(by_policy) * u128::from(terms.period);
        self.level += capped(charged.min(u128::from(room.saturating_sub(self.level))));
        if is_lost && terms.kind == Kind::Backlog {
            let quanta = ruling.quarantine / terms.quantum - at.now / terms.quantum;
            let full = u128::from(room) + u128::from(quanta) * u128::from(terms.units);
            let held = u128::from(request.held) * u128::from(terms.period);
            self.level = capped(u128::from(self.level).saturating_sub(held).max(full));
        }
        asking
    }

    fn charge(&mut self, units: u64, terms: &Terms) {
        self.level = capped(u128::from(self.level) + u128::from(units) * u128::from(terms.period));
    }

    /// The other hosts that have a lease, or have asked within the length of one.
    fn others(&self, id: u64, lease: u64, now: u64) -> impl Iterator<Item = &Host> {
        let hosts = self.hosts.iter().filter(move |host| host.id != id);
        hosts.filter(move |host| host.out > 0 || now - host.seen <= lease)
    }

    /// What the host is granted in addition to what it keeps, which is its `out`.
    fn granted(&self, terms: &Terms, asking: &Host, wanted: u64, now: u64) -> u64 {
        let others = || self.others(asking.id, terms.lease, now);
        let demand_of = |host: &Host| host.demand.max(1);
        let active = 1 + others().count() as u64;
        let outstanding = asking.out + others().map(|host| host.out).sum::<u64>();
        let available = left_beside(terms, self.level, outstanding);
        if available == 0 {
            return 0;
        }
        let pool = available + outstanding;
        let demands =
            others().map(|host| u128::from(demand_of(host))).sum::<u128>() + u128::from(asking.demand);
        let mut limit = wanted;
        if demands > u128::from(pool) {
            let even = pool / active;
            let (mut spare, mut hungry) = (pool - even * active, 1);
            for demand in others().map(demand_of) {
                if demand < even {
                    spare += even - demand;
                } else {
                    hungry += 1;
                }
            }
            limit = (even + spare / hungry).max(1).saturating_sub(asking.out);
        }
        if terms.kind == Kind::Window && active > 1 {
            limit = limit.min(available.div_ceil(2 * active).max(1));
        }
        wanted.min(available).min(limit)
    }

    /// Notes whether a host waits for its share of the places, and grants it some in addition to what it keeps, which
    /// is its `out`.
    fn grant_places(
        &mut self,
        terms: &Terms,
        asking: &mut Host,
        wanted: u64,
        may_be_granted: bool,
        now: u64,
    ) {
        let (even, fair) = self.shares(terms, asking, now);
        let own = self.hosts.iter().position(|host| host.id == asking.id);
        let own = own.unwrap_or(self.hosts.len());
        let is_waiting = wanted > 0 && asking.out < even.max(1);
        let since = match (is_waiting, asking.waits) {
            (false, _) => 0,
            (true, 0) => now,
            (true, since) => since,
        };
        let before = self.hosts.iter().enumerate().filter(|(index, host)| {
            let is_before = since == 0 || (host.waits, *index) < (since, own);
            *index != own && is_before && host.is_waiting(terms, now)
        });
        let before = before.count() as u64;
        let available = if may_be_granted {
            let of_others: u64 = self
                .others(asking.id, terms.lease, now)
                .map(|host| host.out)
                .sum();
            left_beside(terms, 0, asking.out + of_others)
        } else {
            0
        };
        let limit = if is_waiting { even.max(1) } else { fair };
        let limit = limit.saturating_sub(asking.out);
        asking.granted = wanted.min(available.saturating_sub(before)).min(limit);
        let total = asking.out + asking.granted;
        let is_served = asking.granted == wanted || total >= even.max(1);
        asking.waits = if is_served { 0 } else { since };
        asking.has_had = match (asking.out, total) {
            (0, 0) => 0,
            (0, _) => now,
            _ => asking.has_had,
        };
        self.grants += u64::from(asking.granted > 0);
        asking.grant_number = self.grants;
    }

    /// How many places each host may have if those that want fewer leave the rest to the others, rounded down and up.
    fn shares(&self, terms: &Terms, asking: &Host, now: u64) -> (u64, u64) {
        let others = self.others(asking.id, terms.lease, now);
        let mut wants: Vec<_> = others.map(|host| host.demand).collect();
        wants.push(asking.demand);
        if wants.iter().map(|wanted| u128::from(*wanted)).sum::<u128>() <= u128::from(terms.burst) {
            return (MAX, MAX);
        }
        wants.sort_unstable();
        let mut rest = terms.burst;
        for (index, wanted) in wants.iter().enumerate() {
            let hosts = (wants.len() - index) as u64;
            if u128::from(*wanted) * u128::from(hosts) > u128::from(rest) {
                return (rest / hosts, rest.div_ceil(hosts));
            }
            rest -= wanted;
        }
        (MAX, MAX)
    }

    /// The number of places up to which a host may take new ones.
    fn ceiling(&self, terms: &Terms, asking: &Host, now: u64) -> u64 {
        let mut hosts = self.hosts.iter();
        if !hosts.any(|host| host.id != asking.id && host.is_waiting(terms, now)) {
            return MAX;
        }
        let (even, _) = self.shares(terms, asking, now);
        let is_new = asking.out > 0 && 2 * (now - asking.has_had) < terms.lease;
        even.max(u64::from(is_new))
    }

    /// How long the store has to keep this record.
    fn needed_for(&self, ruling: &Ruling, at: Instant) -> u64 {
        let terms = &ruling.terms;
        let needed = match terms.kind {
            Kind::Backlog => {
                let used = u128::from(self.level) + u128::from(self.outstanding()) * u128::from(terms.period);
                let drained = used.div_ceil(u128::from(terms.units)) * u128::from(terms.quantum);
                u64::try_from(drained).unwrap_or(LONGEST).min(LONGEST)
            }
            Kind::Window => at.window_left(),
            Kind::Places => {
                let seconds = self.grants.saturating_sub(ruling.ahead + at.now / SECOND);
                seconds * SECOND
            }
        };
        needed + 2 * longest_lease(terms)
    }

    fn reply(&self, ruling: &Ruling, asking: &Host, granted: u64, kept: u64, at: Instant) -> StoreAnswer {
        let terms = &ruling.terms;
        let others = || self.others(asking.id, terms.lease, at.now);
        let active = 1 + others().count() as u64;
        let unmet_of = |host: &Host| host.demand.saturating_sub(host.out);
        let unmet =
            others().map(|host| u128::from(unmet_of(host))).sum::<u128>() + u128::from(unmet_of(asking));
        let left = left_beside(terms, self.level, self.outstanding());
        let (share, drained_in) = if terms.kind == Kind::Backlog {
            let replenished = terms.lease / terms.quantum * terms.units / terms.period;
            let drained = u128::from(self.level.div_ceil(terms.units)) * u128::from(terms.quantum);
            (terms.burst.min(replenished) / active, capped(drained))
        } else {
            (terms.burst.saturating_sub(self.level) / active, 0)
        };
        StoreAnswer::Granted(Grant {
            reply: LeaseReply {
                sequence: asking.sequence,
                granted,
                remaining: Duration::from_micros(asking.expiry.saturating_sub(at.now)),
                share,
                grant_number: asking.grant_number,
                drained_in: Duration::from_micros(drained_in),
                ceiling: if terms.kind == Kind::Places {
                    self.ceiling(terms, asking, at.now)
                } else {
                    MAX
                },
                hosts: active,
                quarantine: Duration::from_micros(ruling.quarantine.saturating_sub(at.now)),
                available: if unmet <= u128::from(left) { left } else { 0 },
                free_in: Duration::from_micros(self.free_in(terms, at)),
            },
            kept,
            store_time: at.utc,
        })
    }

    /// How long the store will have no unit to grant if no host returns one.
    fn free_in(&self, terms: &Terms, at: Instant) -> u64 {
        let mut outstanding = self.outstanding();
        if terms.kind == Kind::Places || left_beside(terms, self.level, outstanding) > 0 {
            return 0;
        }
        if terms.kind == Kind::Window {
            return at.window_left();
        }
        let mut leases: Vec<_> = self
            .hosts
            .iter()
            .filter(|host| host.out > 0)
            .map(|host| (host.expiry, host.out))
            .collect();
        leases.sort_unstable();
        let (mut level, mut from) = (self.level, at.now / terms.quantum);
        let free_at = |level: u64, outstanding: u64, from: u64| {
            let below = (terms.burst.checked_sub(outstanding + 1)? * terms.period).min(level);
            let quanta = u128::from(from) + u128::from((level - below).div_ceil(terms.units));
            Some(quanta * u128::from(terms.quantum))
        };
        for (expiry, units) in leases {
            match free_at(level, outstanding, from) {
                Some(free) if free < u128::from(expiry) => {
                    return capped(free.saturating_sub(u128::from(at.now)));
                }
                _ => {}
            }
            let to = expiry / terms.quantum;
            level = level_after(terms, level, to - from);
            level = capped(u128::from(level) + u128::from(units) * u128::from(terms.period));
            from = to;
            outstanding -= units;
        }
        let free = free_at(level, outstanding, from).unwrap_or_default();
        capped(free.saturating_sub(u128::from(at.now)))
    }
}

fn capped(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(MAX).min(MAX)
}

fn level_after(terms: &Terms, level: u64, quanta: u64) -> u64 {
    let fallen = u128::from(quanta) * u128::from(terms.units);
    capped(u128::from(level).saturating_sub(fallen))
}

/// The whole units that are neither used nor leased.
fn left_beside(terms: &Terms, level: u64, outstanding: u64) -> u64 {
    let used = u128::from(level) + u128::from(outstanding) * u128::from(terms.period);
    let free = u128::from(terms.burst * terms.period).saturating_sub(used);
    capped(free / u128::from(terms.period))
}
