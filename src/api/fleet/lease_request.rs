//! A host's requests to the store, and the answers.

use std::fmt;
use std::time::Duration;

use crate::choices::Kind;
use crate::declaration::{Limit, Weekday, Window};

/// How a limit that hosts share is counted, in whole units. Hosts that use the same key of the store must declare it
/// alike; their [texts](Self#impl-Display-for-LeasedLimit) are compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeasedLimit {
    /// How it is taken and given back.
    pub kind: Kind,
    /// The size of one unit, a decimal such as `"0.01"`; `"1"` if units are whole.
    pub unit: String,
    /// The rule that counts it.
    pub rule: LeasedRule,
    /// How long units are leased for.
    pub lease: Duration,
}

/// The rule that counts a limit that hosts share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeasedRule {
    /// `capacity` units come back evenly over each `window`; at most `burst` at once.
    Backlog {
        /// Units that come back per window: at least 1.
        capacity: u64,
        /// The length of the window: at least 1 ms.
        window: Duration,
        /// The most units at once: at least 1.
        burst: u64,
    },
    /// `capacity` units in each window. Windows start at multiples of their length since the Unix epoch.
    Window {
        /// Units per window: at least 1.
        capacity: u64,
        /// The length of the window: at least 1 ms.
        window: Duration,
    },
    /// `capacity` units in each day, week or month.
    Calendar {
        /// Units per window: at least 1.
        capacity: u64,
        /// [`Window::Day`], [`Window::Week`] or [`Window::Month`].
        window: Window,
        /// The offset of its days from UTC in minutes, positive to the east: -1080 to 1080.
        utc_offset_minutes: i16,
        /// The day on which weeks begin.
        week_start: Weekday,
    },
    /// `places` that are held and given back.
    Concurrency {
        /// The places of all hosts together: at least 1.
        places: u64,
    },
}

impl LeasedLimit {
    /// The key of a validated limit and how it is counted, if hosts share it.
    pub(super) fn of(limit: &Limit) -> Option<(String, Self)> {
        let (fleet, quota) = limit.shared_quota()?;
        let capacity = quota.capacity;
        let rule = match (quota.window, quota.burst) {
            (None, _) => LeasedRule::Concurrency { places: capacity },
            (Some(Window::Span(window)), Some(burst)) => LeasedRule::Backlog {
                capacity,
                window,
                burst,
            },
            (Some(Window::Span(window)), None) => LeasedRule::Window { capacity, window },
            (Some(window), _) => LeasedRule::Calendar {
                capacity,
                window,
                utc_offset_minutes: quota.utc_offset_minutes,
                week_start: quota.week_start,
            },
        };
        let leased = Self {
            kind: limit.kind(),
            unit: quota.unit,
            rule,
            lease: quota.length,
        };
        Some((fleet.key().to_owned(), leased))
    }
}

/// The declaration in one line, the same on every host, such as `rate unit=1 backlog capacity=100 window=60s burst=100
/// lease=2s`.
impl fmt::Display for LeasedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            unit,
            rule,
            lease,
        } = self;
        write!(f, "{kind} unit={unit} ")?;
        match rule {
            LeasedRule::Backlog {
                capacity,
                window,
                burst,
            } => write!(
                f,
                "backlog capacity={capacity} window={} burst={burst}",
                Window::Span(*window)
            ),
            LeasedRule::Window { capacity, window } => {
                write!(f, "window capacity={capacity} window={}", Window::Span(*window))
            }
            LeasedRule::Calendar {
                capacity,
                window,
                utc_offset_minutes,
                week_start,
            } => write!(
                f,
                "calendar capacity={capacity} window={window} utc_offset_minutes={utc_offset_minutes} \
                 week_start={week_start}"
            ),
            LeasedRule::Concurrency { places } => write!(f, "concurrency places={places}"),
        }?;
        write!(f, " lease={}", Window::Span(*lease))
    }
}

/// Which key a request is about, if each key of a set has a limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeasedKey {
    /// The name by which the store knows the key: a hash, which does not reveal the key. Its seed follows from the
    /// limit's key in the store, so all hosts compute the same hash.
    pub hash: u128,
    /// The number of the host's first request for this key since the store last answered one. What was spent, refunded
    /// and ungranted counts from that answer on.
    pub began: u64,
}

/// A host's request to the store, for one limit. It is recorded in the segment before it is sent; a repetition has the
/// same sequence number and content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRequest {
    /// The limit's key in the store, such as `org/openai/tokens`.
    pub key: String,
    /// The key of the set whose limit this is; `None` if all requests share the limit.
    pub of_key: Option<LeasedKey>,
    /// How the limit is counted.
    pub declared: LeasedLimit,
    /// The version of the declaration that says so; zero if it has none.
    pub version: u64,
    /// The host: a random number that is new for each segment, after each cold start, and after
    /// [`StoreProblem::Stale`](super::StoreProblem::Stale).
    pub host: u64,
    /// Starts at 1 and grows by one with each request of this host for this limit. For a key it starts anywhere above
    /// the number of any earlier request of this host for that key.
    pub sequence: u64,
    /// Units spent since this host began. Never decreases: the store takes the difference to the last value it saw.
    /// When a lease runs out, the store counts its units as spent, so the first new request after that is not charged
    /// for them again. Later requests get no such credit, because they report what was leased since. Zero for
    /// concurrency.
    pub spent: u64,
    /// Of these, units that proved unused after they had been reported. Never decreases: the store subtracts the
    /// difference from what it counts as used, down to zero.
    pub refunded: u64,
    /// Those of the units spent that no store had granted: the outage policy admitted them. Never decreases. After the
    /// store has granted what it can, it charges them as far as what is leased leaves room, and writes off the rest.
    pub ungranted: u64,
    /// Units of the current lease that the host keeps; for concurrency, places. Units that are outstanding in the store
    /// and neither spent nor held have been returned. Never more than is outstanding, unless the lease has run out:
    /// then nothing is held any longer.
    pub held: u64,
    /// Units that the host wants in addition.
    pub wanted: u64,
    /// The greatest grant number that the host knows. The store's next one is greater.
    pub grant_number: u64,
}

/// The store's answer to a [`LeaseRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseReply {
    /// The sequence number of the request that this answers.
    pub sequence: u64,
    /// Units granted in addition to those held: at most as many as wanted.
    pub granted: u64,
    /// How long what is held and granted is leased for, counted from before the attempt was sent. It ends with the
    /// limit's window at the latest.
    pub remaining: Duration,
    /// The host's fair share for one lease length, in units.
    pub share: u64,
    /// Grows with each grant of this limit in the store. Fencing numbers are this x 2^32 + a number within the grant.
    pub grant_number: u64,
    /// For limits whose units come back evenly: how long it takes to replenish what the store counts as used. Leased
    /// units are not included, because they may come back unused. Units that are later reported as unused are
    /// refunded accordingly; with zero, only what time cannot have replenished.
    pub drained_in: Duration,
    /// For concurrency: the most places that the host may take anew, because other hosts wait for theirs. It keeps those
    /// that are in use above that, and gives them back as they are released. `u64::MAX` if nobody waits.
    pub ceiling: u64,
    /// The hosts that want something of the limit, this one included: [`Outage::Safe`](crate::declare::Outage::Safe)
    /// divides the capacity by this number.
    pub hosts: u64,
    /// How long the store will grant nothing, because it may have lost something that it had acknowledged; zero if it
    /// has not. What is held stays leased, and the limit's outage policy applies to everything else.
    pub quarantine: Duration,
    /// What the store has left for all hosts after this answer, or zero if they want more than there is. It decides
    /// how much a host keeps in hand while it is idle.
    pub available: u64,
    /// How long the store will have no unit to grant for this key if no host returns any; zero if it has some. Zero for
    /// limits that all requests share.
    pub free_in: Duration,
}

impl LeaseReply {
    /// An answer that grants `granted` units for `remaining`, as a store would give it that has only this host and has
    /// nothing left. The other fields are for the caller to set.
    pub fn granting(request: &LeaseRequest, granted: u64, remaining: Duration) -> Self {
        Self {
            sequence: request.sequence,
            granted,
            remaining,
            share: 0,
            grant_number: 0,
            drained_in: Duration::ZERO,
            ceiling: u64::MAX,
            hosts: 1,
            quarantine: Duration::ZERO,
            available: 0,
            free_in: Duration::ZERO,
        }
    }
}
