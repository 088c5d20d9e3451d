//! A simulated contest for one rate: requests arrive, wait and are served on a virtual clock.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shmlimit::declare::Scope;
use shmlimit::{
    Algorithm, Declaration, Keyed, Limit, LimitSet, OpenOptions, Outcome, Permit, SetDeclaration, Tier,
    VirtualClock,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Units a second.
pub const RATE: u64 = 1_000;

/// The most that a request costs.
pub const LARGEST: u64 = 100;

/// Who is served next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// A set whose keys share the rate.
    Fair,
    /// A set without keys.
    FirstComeFirstServed,
    /// A semaphore of one place, which each request holds for as long as the rate needs for it.
    Semaphore,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub key: u64,
    /// What it reserves; after `hold`, it turns out to have used `used`.
    pub reserved: u64,
    pub used: u64,
    pub hold: Duration,
    /// The longest time that it waits.
    pub patience: Duration,
}

impl Ask {
    /// A request that at once uses exactly what it reserves.
    pub fn of(key: u64, cost: u64) -> Self {
        Self {
            key,
            reserved: cost,
            used: cost,
            hold: Duration::ZERO,
            patience: Duration::from_secs(3_600),
        }
    }
}

/// A request that was served.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    pub ask: Ask,
    pub asked_at: Duration,
    pub at: Duration,
}

type Waits = Pin<Box<dyn Future<Output = Option<Grant>>>>;

/// What is held until it is given back.
#[expect(dead_code, reason = "a place is held only to be dropped")]
enum Grant {
    Permit(Permit<'static>),
    Place(OwnedSemaphorePermit),
}

struct Waiting {
    ask: Ask,
    asked_at: Duration,
    waits: Waits,
}

enum Limiter {
    Set(LimitSet),
    Semaphore(Arc<Semaphore>),
}

/// A contest in progress.
pub struct Contest {
    discipline: Discipline,
    clock: VirtualClock,
    limiter: Limiter,
    tier_of: fn(u64) -> &'static str,
    /// By arrival time, then by the order in which they were added.
    arrivals: BTreeMap<(Duration, u64), Ask>,
    held: BTreeMap<(Duration, u64), (Ask, Grant)>,
    waiting: Vec<Waiting>,
    numbers: u64,
    pub served: Vec<Served>,
}

impl Contest {
    /// A contest of keys, each in the tier that `tier_of` names: `light` weighs 1, and `heavy` 10.
    pub fn new(directory: &Path, discipline: Discipline, tier_of: fn(u64) -> &'static str) -> Self {
        let clock = VirtualClock::new(Duration::from_secs(1)).auto_advance(false);
        let limit = Limit::rate("units", RATE, Duration::from_secs(1))
            .algorithm(Algorithm::Gcra)
            .burst(20 * LARGEST);
        let set = SetDeclaration::new("set").waiters(4_096);
        let set = match discipline {
            Discipline::Fair => set
                .keyed(Keyed::new(20_000))
                .add_limit(limit.scope(Scope::AllKeys))
                .add_tier(Tier::new("light"))
                .add_tier(Tier::new("heavy").weight(10)),
            _ => set.add_limit(limit),
        };
        let limiter = match discipline {
            Discipline::Semaphore => Limiter::Semaphore(Arc::new(Semaphore::new(1))),
            _ => {
                let options = OpenOptions::new().virtual_clock(&clock);
                let path = directory.join(format!("{discipline:?}-{}", fastrand::u64(..)));
                let segment = options
                    .create(path, &Declaration::new().add_set(set))
                    .expect("a segment");
                Limiter::Set(segment.set("set").expect("declared"))
            }
        };
        Self {
            discipline,
            clock,
            limiter,
            tier_of,
            arrivals: BTreeMap::new(),
            held: BTreeMap::new(),
            waiting: Vec::new(),
            numbers: 0,
            served: Vec::new(),
        }
    }

    /// How long the contest has gone on.
    pub fn now(&self) -> Duration {
        self.clock.now() - Duration::from_secs(1)
    }

    /// Lets a request arrive at `at`.
    pub fn add(&mut self, at: Duration, ask: Ask) {
        let number = self.next_number();
        self.arrivals.insert((at.max(self.now()), number), ask);
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// How many different keys wait now.
    pub fn waiting_keys(&self) -> usize {
        let mut keys: Vec<u64> = self.waiting.iter().map(|waiting| waiting.ask.key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.len()
    }

    /// Runs until `end`, and calls `served` with each request that is served.
    pub fn run(&mut self, end: Duration, mut served: impl FnMut(&mut Self, Served)) {
        loop {
            self.begin_and_end();
            while let Some(request) = self.next_served() {
                self.served.push(request);
                served(self, request);
                self.begin_and_end();
            }
            let by_time = self.clock.next_wake().map(|wake| wake - Duration::from_secs(1));
            let events = [self.arrivals.first_key_value().map(|((at, _), _)| *at)];
            let ends = [self.held.first_key_value().map(|((at, _), _)| *at)];
            let next = events.into_iter().chain(ends).chain([by_time]).flatten().min();
            match next.filter(|next| *next <= end) {
                Some(next) => self.clock.advance_to(next + Duration::from_secs(1)),
                None => return,
            }
        }
    }

    /// Ends the holds and starts the requests that are due.
    fn begin_and_end(&mut self) {
        let now = self.now();
        while let Some(entry) = self.held.first_entry().filter(|entry| entry.key().0 <= now) {
            let (ask, grant) = entry.remove();
            if let Grant::Permit(mut permit) = grant
                && ask.used != ask.reserved
            {
                permit.settle([("units", ask.used)]).expect("settled");
            }
        }
        while let Some(entry) = self.arrivals.first_entry().filter(|entry| entry.key().0 <= now) {
            let ask = entry.remove();
            let waits = self.waits(ask);
            self.waiting.push(Waiting {
                ask,
                asked_at: now,
                waits,
            });
        }
    }

    fn waits(&self, ask: Ask) -> Waits {
        match &self.limiter {
            Limiter::Semaphore(semaphore) => {
                let semaphore = Arc::clone(semaphore);
                Box::pin(async move { semaphore.acquire_owned().await.ok().map(Grant::Place) })
            }
            Limiter::Set(set) => {
                let mut request = set.request().with("units", ask.reserved).expect("declared");
                if self.discipline == Discipline::Fair {
                    request.set_key(ask.key.to_le_bytes()).expect("keyed");
                    request.set_tier((self.tier_of)(ask.key)).expect("declared");
                }
                let future = request.acquire_async(ask.patience).into_owned();
                Box::pin(async move {
                    match future.await.expect("works") {
                        Outcome::Admitted(permit) => Some(Grant::Permit(permit)),
                        Outcome::Refused(_) => None,
                    }
                })
            }
        }
    }

    /// A request that is served now. Requests whose patience has run out leave.
    fn next_served(&mut self) -> Option<Served> {
        let now = self.now();
        let mut context = Context::from_waker(Waker::noop());
        let mut index = 0;
        while let Some(waiting) = self.waiting.get_mut(index) {
            let is_over = self.discipline == Discipline::Semaphore
                && waiting.asked_at.saturating_add(waiting.ask.patience) <= now;
            match waiting.waits.as_mut().poll(&mut context) {
                Poll::Pending if !is_over => index += 1,
                Poll::Pending | Poll::Ready(None) => drop(self.waiting.remove(index)),
                Poll::Ready(Some(grant)) => {
                    let Waiting { ask, asked_at, .. } = self.waiting.remove(index);
                    let hold = match &grant {
                        Grant::Permit(_) => ask.hold,
                        Grant::Place(_) => Duration::from_secs_f64(ask.used as f64 / RATE as f64),
                    };
                    let number = self.next_number();
                    self.held.insert((now + hold, number), (ask, grant));
                    return Some(Served {
                        ask,
                        asked_at,
                        at: now,
                    });
                }
            }
        }
        None
    }
}
