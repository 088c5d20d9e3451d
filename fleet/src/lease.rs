//! What a host asks of the store for one limit, and what the store answers.

use std::time::Duration;

/// How time is cut into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasedWindow {
    /// Multiples of this many nanoseconds since the Unix epoch.
    Length(u64),
    /// Days at this offset from UTC, in seconds, positive east of Greenwich.
    Day(i32),
    /// Weeks at this offset from UTC, in seconds, that begin this many days after Monday.
    Week(i32, u8),
    /// Months at this offset from UTC, in seconds.
    Month(i32),
}

/// How a limit counts in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasedRule {
    /// `units` per `period` nanoseconds, of which up to `burst` at once.
    Backlog {
        /// Units that are replenished in a period.
        units: u64,
        /// Nanoseconds.
        period: u64,
        /// Units that may come at once.
        burst: u64,
    },
    /// At most `capacity` units in each window; also for budgets.
    Window {
        /// Units of a window.
        capacity: u64,
        /// Where windows begin and end.
        window: LeasedWindow,
    },
    /// `capacity` places that are held at the same time.
    Places {
        /// Places of the fleet.
        capacity: u64,
    },
}

/// What the fingerprint of a declaration is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedLimit {
    /// How it counts.
    pub rule: LeasedRule,
    /// For how long units are leased to a host.
    pub lease: Duration,
    /// The version of the declaration: of two, the higher is in force.
    pub version: u64,
}

/// What a host asks the store for one limit. A repeat has the same sequence and the same content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Names the limit in the store, as `org/openai/tokens`.
    pub key: String,
    /// The limit as this host declares it.
    pub declared: LeasedLimit,
    /// A random number that stands for the host.
    pub host: u64,
    /// Counts the requests of the host for this limit, from 1.
    pub sequence: u64,
    /// Units spent since this host began; never falls.
    pub spent: u64,
    /// Units of the present lease that the host keeps. What it was granted and neither spent nor holds, it returns.
    pub held: u64,
    /// Units that it would like in addition.
    pub wanted: u64,
}

/// What the store granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseReply {
    /// Of the request.
    pub sequence: u64,
    /// Units granted.
    pub granted: u64,
    /// Units of those that the host held which are still leased to it; what is missing expired before it asked.
    pub kept: u64,
    /// For how long all of them are leased, counted from before the attempt was sent.
    pub remaining: Duration,
    /// The fair share of one host for one lease length.
    pub share: u64,
    /// Counts the grants of this limit in the store.
    pub grant_number: u64,
    /// When to ask again, where less was granted than wanted; zero where it does not matter.
    pub ask_again: Duration,
    /// The store's clock when it answered, in microseconds since the Unix epoch.
    pub store_time: u64,
}

/// What the store answers to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAnswer {
    /// A grant, perhaps of nothing.
    Granted(LeaseReply),
    /// Nothing is granted for so long, because what the store knows may be older than what it acknowledged.
    Quarantine {
        /// How long nothing is granted.
        remaining: Duration,
        /// The store's clock when it answered, in microseconds since the Unix epoch.
        store_time: u64,
    },
    /// Another declaration of this limit is in force.
    Declared {
        /// The declaration in force, as text.
        in_force: String,
    },
    /// The host has asked with a higher sequence before.
    Stale {
        /// The last sequence that the store has seen of the host.
        last: u64,
    },
    /// The host reports less than it reported before.
    SpentFell {
        /// What it reported before, modulo 2^52.
        before: u64,
    },
    /// The key holds something that no fleet has written.
    Foreign {
        /// What it holds, in the store's words.
        found: String,
    },
    /// The key was written by another version of this protocol.
    Protocol {
        /// The version that was found.
        found: String,
    },
}
