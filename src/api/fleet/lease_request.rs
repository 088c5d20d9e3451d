//! What a host asks the store for, and what the store answers.

use std::fmt;
use std::time::Duration;

use crate::api::declaration::{Kind, Limit, Weekday, Window};

/// How a limit that hosts share is counted, in whole units. Hosts that use one key of the store must declare it alike:
/// its [text](Self#impl-Display-for-LeasedLimit) is what they are compared by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeasedLimit {
    /// How it is taken and given back.
    pub kind: Kind,
    /// The size of one unit, a decimal such as `"0.01"`; `"1"` where units are whole.
    pub unit: String,
    /// What it is counted by.
    pub rule: LeasedRule,
    /// For how long units are leased.
    pub lease: Duration,
}

/// What a limit that hosts share is counted by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeasedRule {
    /// `capacity` units come back in each `window`, evenly; at most `burst` at once.
    Backlog {
        /// Units that come back in a window: at least 1.
        capacity: u64,
        /// In what time: at least 1 ms.
        window: Duration,
        /// The most units at once: at least 1.
        burst: u64,
    },
    /// `capacity` units in each window; windows start at multiples of their length since the Unix epoch.
    Window {
        /// Units of a window: at least 1.
        capacity: u64,
        /// Its length: at least 1 ms.
        window: Duration,
    },
    /// `capacity` units in each day, week or month.
    Calendar {
        /// Units of a window: at least 1.
        capacity: u64,
        /// [`Window::Day`], [`Window::Week`] or [`Window::Month`].
        window: Window,
        /// Minutes east of UTC at which its days begin: -1080 to 1080.
        utc_offset_minutes: i16,
        /// The day on which weeks begin.
        week_start: Weekday,
    },
    /// `places` that are held and given back.
    Concurrency {
        /// Places of all hosts together: at least 1.
        places: u64,
    },
}

impl LeasedLimit {
    /// How a validated limit is counted, and under which key, where hosts share it.
    pub(super) fn of(limit: &Limit) -> Option<(String, Self)> {
        let (fleet, terms) = limit.lease_terms()?;
        let capacity = terms.capacity;
        let rule = match (terms.window, terms.burst) {
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
                utc_offset_minutes: terms.utc_offset_minutes,
                week_start: terms.week_start,
            },
        };
        let leased = Self {
            kind: limit.kind(),
            unit: terms.unit,
            rule,
            lease: fleet.lease_length(),
        };
        Some((fleet.key().to_owned(), leased))
    }
}

/// The declaration in one line that is the same on every host, such as `rate unit=1 backlog capacity=100 window=60s
/// burst=100 lease=2s`.
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

/// What a host asks the store for one limit. It is kept in the segment before it is sent, and a repeated one has the same
/// sequence number and the same content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRequest {
    /// The limit's key in the store, such as `org/openai/tokens`.
    pub key: String,
    /// How the limit is counted.
    pub declared: LeasedLimit,
    /// The version of the declaration that says so; zero where it has none.
    pub version: u64,
    /// The host: random, another one for each segment, after each cold start, and after
    /// [`StoreProblem::Stale`](super::StoreProblem::Stale).
    pub host: u64,
    /// From 1, one more for each request of this host for this limit.
    pub sequence: u64,
    /// Units spent since this host began. Never falls: the store takes the difference to what it saw last. Of it, what the
    /// store has counted as spent already, because a lease ran out, is not counted again, in the first new request after
    /// that; later ones must not profit from it, because what they report was leased since. Zero for concurrency.
    pub spent: u64,
    /// Of these, units that turned out not to be used after they had been reported. Never falls: the store takes the
    /// difference off what it counts as used, which does not fall below zero.
    pub refunded: u64,
    /// Units of the present lease that the host keeps: of concurrency, places. What is outstanding in the store and
    /// neither spent nor held has been returned. Never more than is outstanding, unless the lease has run out: then nothing
    /// is held any more.
    pub held: u64,
    /// Units that the host would like in addition.
    pub wanted: u64,
    /// The greatest grant number that the host knows of: the store's next exceeds it.
    pub grant_number: u64,
}

/// What the store answers to a [`LeaseRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseReply {
    /// That of the request which is answered.
    pub sequence: u64,
    /// Units that were granted in addition to those held: at most as many as wanted.
    pub granted: u64,
    /// For how long what is held and granted is leased, counted from before the attempt was sent. Cut at the end of the
    /// limit's window.
    pub remaining: Duration,
    /// The host's fair share for one lease length, in units: what [`Outage::Safe`](crate::Outage::Safe) goes on with.
    pub share: u64,
    /// Grows with each grant of this limit in the store. Fencing numbers are this x 2^32 + a number within the grant.
    pub grant_number: u64,
    /// How long what the store counts as used or leased takes to be replenished, of limits whose units come back
    /// evenly: what is reported later as unused is refunded by it. Zero refunds only what time cannot have replenished.
    pub drained_in: Duration,
}
