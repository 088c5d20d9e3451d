//! The store's side of the protocol in Rust: what the script does, on a clock that is passed in.
//!
//! It stands in for the server in the simulator, and `fleet/tests/store/model.rs` compares it with a real one, reply
//! by reply. Every change of the script must be made here too.

mod histogram;
mod keyed;
mod place_queue;
mod window;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use shmlimit::fleet::{LeaseReply, LeaseRequest};

use crate::store::answer::{Grant, StoreAnswer};
use crate::terms::{Kind, Terms};
use histogram::Histogram;
use place_queue::PlaceQueue;
use window::window_at;

pub use keyed::KeyedStoreModel;

const MAX: u64 = (1 << 53) - 1;
const MODULUS: u64 = 1 << 52;
const SLOTS: u64 = 16;
const LOST: u64 = 65_536;
const PATIENCE: u64 = 250_000;
const DAY: u64 = 86_400_000_000;

/// What the store knows about one host.
#[derive(Clone, Debug, Default)]
struct Host {
    sequence: u64,
    outstanding: u64,
    expiry: u64,
    spent: u64,
    refunded: u64,
    ungranted: u64,
    written_off: u64,
    granted: u64,
    kept: u64,
    grant_number: u64,
    share: u64,
    epoch: u64,
    granted_in_epoch: u64,
    wanted: u64,
    wanted_before: u64,
    counted: u64,
    seen: u64,
    /// Since when it has had places.
    since: u64,
    ceiling: u64,
    /// The hosts of the last answer.
    hosts: u64,
    left_for_all: u64,
}

/// The content of one limit's key.
#[derive(Clone, Debug)]
struct Record {
    terms: Terms,
    run: String,
    created: u64,
    seen: u64,
    shift: u64,
    quarantine: u64,
    level: u64,
    drained: u64,
    outstanding: u64,
    slots: BTreeMap<u64, u64>,
    window: i64,
    grants: u64,
    epoch: u64,
    granted: u64,
    wants: Histogram,
    former_epoch: u64,
    former_wants: Histogram,
    hosts: HashMap<u64, Host>,
    queue: PlaceQueue,
}

/// One limit in a store.
#[derive(Clone, Debug, Default)]
pub struct StoreModel {
    record: Option<Record>,
}

/// What a host reports, modulo 2^52, or how much that has grown.
#[derive(Clone, Copy, Default)]
struct Reported {
    spent: u64,
    refunded: u64,
    ungranted: u64,
}

/// The instants of one answer.
#[derive(Clone, Copy)]
struct Instant {
    /// The store's clock, never going back.
    now: u64,
    utc: u64,
    window_end: i64,
}

/// Leases end at multiples of this.
fn slot(terms: &Terms) -> u64 {
    (terms.lease / SLOTS).max(1)
}

/// After this, every lease that was granted until now has ended.
fn longest_lease(terms: &Terms) -> u64 {
    terms.lease + 2 * slot(terms)
}

impl StoreModel {
    /// A key that does not exist yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The units that were out or spent at the last answer, rounded up, and the burst.
    #[must_use]
    pub fn used_and_burst(&self) -> (u64, u64) {
        self.record.as_ref().map_or((0, 0), |record| {
            let level = record.level.div_ceil(record.terms.period);
            (level + record.outstanding, record.terms.burst)
        })
    }

    /// The answer of a server with the run id `run` when its clock shows `utc`, in microseconds since the Unix epoch.
    pub fn answer(&mut self, run: &str, utc: u64, terms: &Terms, request: &LeaseRequest) -> StoreAnswer {
        let record = self.record.get_or_insert_with(|| Record::new(terms, run, utc));
        record.answer(run, utc, terms, request)
    }
}

impl Record {
    fn new(terms: &Terms, run: &str, utc: u64) -> Self {
        Self {
            terms: terms.clone(),
            run: run.to_owned(),
            created: utc,
            seen: 0,
            shift: 0,
            quarantine: 0,
            level: 0,
            drained: utc / terms.quantum,
            outstanding: 0,
            slots: BTreeMap::new(),
            window: 0,
            grants: 0,
            epoch: 0,
            granted: 0,
            wants: Histogram::default(),
            former_epoch: 0,
            former_wants: Histogram::default(),
            hosts: HashMap::new(),
            queue: PlaceQueue::default(),
        }
    }

    fn answer(&mut self, run: &str, utc: u64, terms: &Terms, request: &LeaseRequest) -> StoreAnswer {
        // The script writes nothing if it refuses the declaration.
        let before = (self.terms.fingerprint() != terms.fingerprint()).then(|| self.clone());
        let mut now = utc + self.shift;
        if now < self.seen {
            self.shift += self.seen - now;
            now = self.seen;
        }
        if self.run != run {
            run.clone_into(&mut self.run);
            self.quarantine = now + longest_lease(&self.terms);
            self.grants += LOST;
        }
        let mut at = Instant {
            now,
            utc,
            window_end: 0,
        };
        self.turn_window(&mut at);
        self.expire(now);
        if let Err(in_force) = self.agree(terms, &mut at) {
            if let Some(before) = before {
                *self = before;
            }
            return StoreAnswer::Declared { in_force };
        }
        self.seen = now;
        let reported = Reported {
            spent: request.spent % MODULUS,
            refunded: request.refunded % MODULUS,
            ungranted: request.ungranted % MODULUS,
        };
        let known = self
            .hosts
            .get(&request.host)
            .filter(|host| host.seen >= self.created);
        let host = known.cloned();
        let host = host.unwrap_or_else(|| self.newcomer(request, reported, now));
        self.grants = self.grants.max(request.grant_number);
        if request.sequence < host.sequence {
            return StoreAnswer::Stale { last: host.sequence };
        }
        if request.sequence == host.sequence {
            let reply = LeaseReply {
                sequence: request.sequence,
                granted: host.granted,
                remaining: Duration::from_micros(host.expiry.saturating_sub(now)),
                share: host.share,
                grant_number: host.grant_number,
                drained_in: self.drained_in(),
                ceiling: host.ceiling,
                hosts: host.hosts,
                quarantine: Duration::from_micros(self.quarantine.saturating_sub(now)),
                available: host.left_for_all,
                free_in: Duration::ZERO,
            };
            let grant = Grant {
                reply,
                kept: host.kept,
                store_time: utc,
            };
            return StoreAnswer::Granted(grant);
        }
        let change = Reported {
            spent: reported.spent.wrapping_sub(host.spent) % MODULUS,
            refunded: reported.refunded.wrapping_sub(host.refunded) % MODULUS,
            ungranted: reported.ungranted.wrapping_sub(host.ungranted) % MODULUS,
        };
        if change.spent.max(change.refunded).max(change.ungranted) >= MODULUS / 2 {
            return StoreAnswer::SpentFell { before: host.spent };
        }
        self.settle_and_grant(request, reported, change, host, at)
    }

    fn turn_window(&mut self, at: &mut Instant) {
        let Some(window) = self.terms.window else { return };
        let (mut start, mut end) = window_at(window, at.utc.cast_signed());
        if start > self.window {
            self.window = start;
            self.level = 0;
            self.outstanding = 0;
            self.slots.clear();
        } else if start < self.window {
            (start, end) = window_at(window, self.window);
        }
        debug_assert!(start <= end);
        at.window_end = end;
    }

    fn drain(&mut self, to: u64) {
        if to <= self.drained {
            return;
        }
        let fallen = u128::from(to - self.drained) * u128::from(self.terms.units);
        self.level = u64::try_from(u128::from(self.level).saturating_sub(fallen)).unwrap_or(0);
        self.drained = to;
    }

    fn expire(&mut self, now: u64) {
        let live = self.slots.split_off(&(now + 1));
        for (expiry, units) in std::mem::replace(&mut self.slots, live) {
            self.outstanding -= units;
            if self.terms.kind != Kind::Places {
                self.drain(expiry / self.terms.quantum);
                self.level = MAX.min(self.level + units * self.terms.period);
            }
        }
        self.drain(now / self.terms.quantum);
    }

    /// Decides which declaration is in force from now on. Returns it if the request cannot be served under it.
    fn agree(&mut self, terms: &Terms, at: &mut Instant) -> Result<(), String> {
        let ruling = self.terms.clone();
        if ruling.fingerprint() == terms.fingerprint() {
            self.terms.version = ruling.version.max(terms.version);
            return Ok(());
        }
        let is_gone = self.outstanding == 0 && at.now.saturating_sub(self.seen) > 4 * ruling.lease;
        if terms.version > ruling.version || is_gone {
            self.terms = terms.clone();
            self.wants = Histogram::default();
            self.former_wants = Histogram::default();
            self.epoch = 0;
            self.former_epoch = 0;
            self.granted = 0;
            self.drained = at.now / terms.quantum;
            if terms.kind == ruling.kind {
                self.level = MAX.min(self.level.div_ceil(ruling.period) * terms.period);
                if let Some(window) = terms.window {
                    self.window = window_at(window, at.utc.cast_signed().max(self.window)).0;
                }
            } else {
                self.created = at.now;
                self.level = 0;
                self.outstanding = 0;
                self.slots.clear();
                self.window = 0;
                self.quarantine = self.quarantine.max(at.now + longest_lease(&ruling));
            }
            self.turn_window(at);
            return Ok(());
        }
        if terms.version == ruling.version || terms.kind != ruling.kind {
            return Err(ruling.fingerprint().to_owned());
        }
        Ok(())
    }

    fn retention(&self) -> u64 {
        let terms = &self.terms;
        let retention = DAY + 16 * terms.lease;
        match terms.kind {
            Kind::Backlog => retention + terms.burst * terms.period / terms.units * terms.quantum,
            Kind::Window => retention + 31 * DAY,
            Kind::Places => retention,
        }
    }

    fn newcomer(&mut self, request: &LeaseRequest, reported: Reported, now: u64) -> Host {
        if request.sequence > 1 && now - self.created < self.retention() && self.quarantine == 0 {
            self.quarantine = now + longest_lease(&self.terms);
            self.grants += LOST;
            if self.terms.kind == Kind::Backlog {
                self.drained = self.quarantine / self.terms.quantum;
            }
        }
        let known = if request.sequence == 1 {
            Reported::default()
        } else {
            reported
        };
        Host {
            spent: known.spent,
            refunded: known.refunded,
            ungranted: known.ungranted,
            seen: now,
            ceiling: MAX,
            hosts: 1,
            ..Host::default()
        }
    }

    fn add_to_slot(&mut self, expiry: u64, units: u64) {
        if units > 0 {
            *self.slots.entry(expiry).or_default() += units;
        }
    }

    fn take_from_slot(&mut self, expiry: u64, units: u64) {
        if let Some(slot) = self.slots.get_mut(&expiry) {
            *slot -= units;
            if *slot == 0 {
                self.slots.remove(&expiry);
            }
        }
    }

    /// How long it takes to replenish what is used.
    fn drained_in(&self) -> Duration {
        if self.terms.kind != Kind::Backlog {
            return Duration::ZERO;
        }
        Duration::from_micros(self.level.div_ceil(self.terms.units) * self.terms.quantum)
    }

    fn settle_and_grant(
        &mut self,
        request: &LeaseRequest,
        reported: Reported,
        change: Reported,
        host: Host,
        at: Instant,
    ) -> StoreAnswer {
        let terms = self.terms.clone();
        let is_places = terms.kind == Kind::Places;
        let by_policy = if is_places {
            0
        } else {
            change.ungranted.min(change.spent)
        };
        let change = Reported {
            spent: change.spent - by_policy,
            ..change
        };
        let (mut kept, mut off) = (0, host.written_off);
        if host.outstanding > 0 && host.expiry <= at.now {
            if !is_places {
                off = host.outstanding;
            }
        } else if host.outstanding > 0 {
            self.outstanding -= host.outstanding;
            self.take_from_slot(host.expiry, host.outstanding);
            let left = if is_places {
                host.outstanding
            } else {
                host.outstanding.saturating_sub(change.spent)
            };
            kept = request.held.min(left);
        }
        let lapsed = request.held > kept;
        let quarantined_for = self.quarantine.saturating_sub(at.now);
        if quarantined_for > 0 {
            kept = request.held;
        }
        if !is_places {
            let absorbed = change.spent.min(off);
            let charged = u128::from(change.spent - absorbed) * u128::from(terms.period);
            let level = (u128::from(self.level) + charged).min(u128::from(MAX));
            let given_back = u128::from(change.refunded) * u128::from(terms.period);
            self.level = u64::try_from(level.saturating_sub(given_back)).unwrap_or(MAX);
            off = if lapsed {
                (off - absorbed).min(request.held)
            } else {
                0
            };
        }
        if lapsed && quarantined_for == 0 {
            kept = 0;
        }

        let epoch = at.now / terms.lease;
        if epoch != self.epoch {
            self.former_wants = std::mem::take(&mut self.wants);
            self.former_epoch = self.epoch;
            self.granted = 0;
            let (retention, asking) = (self.retention(), request.host);
            self.hosts
                .retain(|id, other| *id == asking || at.now - other.seen <= retention);
        }
        let (mut granted_before, mut most, most_before);
        if host.epoch == epoch {
            self.wants.remove(host.counted);
            (granted_before, most, most_before) = (host.granted_in_epoch, host.wanted, host.wanted_before);
        } else if host.epoch == self.former_epoch {
            self.former_wants.remove(host.counted);
            (granted_before, most, most_before) = (0, 0, host.wanted);
        } else {
            (granted_before, most, most_before) = (0, 0, 0);
        }
        let most_before = if is_places {
            (granted_before, most) = (kept, kept + request.wanted);
            0
        } else {
            let replenished = match terms.kind {
                Kind::Backlog => terms.lease / terms.quantum * terms.units / terms.period,
                Kind::Window | Kind::Places => 0,
            };
            most = most.max((terms.burst + replenished).min(granted_before + request.wanted));
            most_before
        };
        let counted = most.max(most_before);
        self.wants.add(counted);

        let epoch_left = (epoch + 1) * terms.lease - at.now;
        let used = u128::from(self.level) + u128::from(self.outstanding + kept) * u128::from(terms.period);
        let free = u128::from(terms.burst * terms.period).saturating_sub(used);
        let available = u64::try_from(free / u128::from(terms.period)).unwrap_or(0);
        let supply = match terms.kind {
            Kind::Places => terms.burst,
            Kind::Window => self.granted + available,
            Kind::Backlog => {
                self.granted + available + epoch_left / terms.quantum * terms.units / terms.period
            }
        };
        let wants = self.wants.joined_with(&self.former_wants);
        let active = wants.hosts().max(1);
        let (fair, even) = wants.fair_level(supply).unwrap_or((MAX, MAX));
        let is_waiting = is_places && request.wanted > 0 && kept < even.max(1);
        let ahead = if is_places {
            let patience = PATIENCE.max(terms.lease / 2);
            self.queue.note(request.host, is_waiting, at.now, patience)
        } else {
            0
        };
        let mut granted = 0;
        if !lapsed && request.wanted > 0 && quarantined_for == 0 {
            let mut limit = fair.saturating_sub(granted_before);
            if terms.kind == Kind::Backlog && fair < MAX && available > 0 {
                limit = limit.div_ceil((supply - self.granted).div_ceil(available));
            }
            if is_places && epoch_left * 4 <= terms.lease {
                limit = MAX;
            }
            if terms.kind == Kind::Window {
                limit = limit.min(available.div_ceil(2 * active).max(1));
            }
            if is_waiting {
                limit = even.max(1) - kept;
            }
            granted = request.wanted.min(available.saturating_sub(ahead)).min(limit);
        }
        if is_places {
            granted_before = 0;
            self.granted = 0;
        } else {
            granted_before += granted;
            self.granted += granted;
        }
        if granted > 0 {
            self.grants += 1;
        }
        let total = kept + granted;
        self.outstanding += total;
        let room = terms.burst.saturating_sub(self.outstanding) * terms.period;
        let charged = u64::try_from(u128::from(by_policy) * u128::from(terms.period)).unwrap_or(MAX);
        self.level += charged.min(room.saturating_sub(self.level));
        if terms.kind == Kind::Backlog && self.drained > at.now / terms.quantum {
            self.level = room;
        }
        let share = match terms.kind {
            Kind::Places => terms.burst / active,
            Kind::Backlog => {
                let replenished = terms.lease / terms.quantum * terms.units / terms.period;
                terms.burst.min(replenished) / active
            }
            Kind::Window => terms.burst.saturating_sub(self.level) / active,
        };
        let left_for_all = if fair < MAX { 0 } else { available - granted };
        let expiry = self.expiry(total, at);
        self.add_to_slot(expiry, total);
        let (mut since, mut ceiling) = (0, MAX);
        if is_places {
            since = match (kept, total) {
                (0, 0) => 0,
                (0, _) => at.now,
                _ => host.since,
            };
            if granted == request.wanted || total >= even.max(1) {
                self.queue.leave(request.host);
            }
            if self.queue.is_waited_in_by_others(request.host) {
                let is_new = total > 0 && 2 * (at.now - since) < terms.lease;
                ceiling = even.max(u64::from(is_new));
            }
        }
        self.epoch = epoch;
        self.hosts.insert(
            request.host,
            Host {
                sequence: request.sequence,
                outstanding: total,
                expiry,
                spent: reported.spent,
                refunded: reported.refunded,
                ungranted: reported.ungranted,
                written_off: off,
                granted,
                kept,
                grant_number: self.grants,
                share,
                epoch,
                granted_in_epoch: granted_before,
                wanted: most,
                wanted_before: most_before,
                counted,
                seen: at.now,
                since,
                ceiling,
                hosts: active,
                left_for_all,
            },
        );
        StoreAnswer::Granted(Grant {
            reply: LeaseReply {
                sequence: request.sequence,
                granted,
                remaining: Duration::from_micros(expiry.saturating_sub(at.now)),
                share,
                grant_number: self.grants,
                drained_in: self.drained_in(),
                ceiling,
                hosts: active,
                quarantine: Duration::from_micros(quarantined_for),
                available: left_for_all,
                free_in: Duration::ZERO,
            },
            kept,
            store_time: at.utc,
        })
    }

    fn expiry(&self, total: u64, at: Instant) -> u64 {
        let is_window = self.terms.kind == Kind::Window;
        if total == 0 && !is_window {
            return at.now;
        }
        let slot = slot(&self.terms);
        let whole = (at.now + self.terms.lease + slot).next_multiple_of(slot);
        if !is_window {
            return whole;
        }
        let turns_in = u64::try_from(at.window_end - at.utc.cast_signed()).unwrap_or(0);
        whole.min(at.now + turns_in)
    }
}
