//! The words of a lease.

use crate::limit::{State, StateMut};

/// Lists the words once, in order, and generates the list that a test compares with the document.
macro_rules! lease_words {
    ($($(#[$documentation:meta])* $word:ident = $name:literal,)+) => {
        /// The words of a lease. They follow those of the rule that decides when the limit is not shared.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum LeaseWord {
            $($(#[$documentation])* $word,)+
        }

        impl LeaseWord {
            /// Each word with its name in the document, in order.
            pub(crate) const ALL: &[(Self, &str)] = &[$((Self::$word, $name),)+];
        }
    };
}

lease_words! {
    /// Units spent since the host began. Never below what was reported.
    Spent = "spent",
    /// The bound of `Spent`; for concurrency, the places that are leased.
    Allowance = "allowance",
    /// When the lease ends, on the segment clock; zero if there is none.
    ValidUntil = "valid_until",
    /// Since when the store has been out, on the segment clock; zero if it is not.
    OutSince = "out_since",
    /// When this much or less is left, the host asks for more.
    LowWater = "low_water",
    /// Not zero: the process on duty has been woken since it last asked. A hint, never journalled.
    Alerted = "alerted",
    /// The latest fair share for one lease length.
    Share = "share",
    /// When the units that the store counts as used will be replenished, on the segment clock.
    DrainedAt = "drained_at",
    /// How many of the spent and reported units were not used after all.
    Refunded = "refunded",
    /// Not zero: the host has granted itself the lease.
    SelfGranted = "self_granted",
    /// The number of the latest request.
    Sequence = "sequence",
    /// The number of the unanswered request; zero if there is none.
    Asked = "asked",
    /// What the latest request says.
    AskedSpent = "asked_spent",
    AskedRefunded = "asked_refunded",
    AskedHeld = "asked_held",
    AskedWanted = "asked_wanted",
    /// When the latest request was kept, on the segment clock.
    AskedAt = "asked_at",
    /// The most that a single request has asked for and not got since then. A hint, never journalled.
    Unmet = "unmet",
    /// How much the host would like to have at once.
    Target = "target",
    /// The host asks for nothing before then, on the segment clock.
    RetryAt = "retry_at",
    /// Why the store last granted nothing: a code; zero if it answered.
    Problem = "problem",
    /// When the store last answered, on the segment clock.
    AnsweredAt = "answered_at",
    /// The number of the latest grant in the store.
    GrantNumber = "grant_number",
    /// `Spent` at the time of that grant.
    SpentAtGrant = "spent_at_grant",
    /// For concurrency: how many times places of that grant were taken.
    TakenOfGrant = "taken_of_grant",
    /// How many leases in a row ran out wholly unspent.
    Unused = "unused",
    /// Which key of the store all this belongs to.
    Key = "key",
    /// Not zero: everything is given back, and nothing more is asked for.
    Draining = "draining",
    /// Answers that granted something.
    Grants = "grants",
    /// Requests that were kept.
    Requests = "requests",
    /// Attempts that failed.
    Failures = "failures",
    /// Units that were left when their lease ran out.
    ExpiredUnits = "expired_units",
    /// The identity the store knows the host by for this limit; zero if that is the number of the segment.
    Identity = "identity",
    /// How much of `Spent` the store has accepted a report of.
    Reported = "reported",
    /// How much of `Spent` the host granted itself while the store was out. Never below what was reported.
    Ungranted = "ungranted",
    /// `Ungranted` when the latest request was kept.
    AskedUngranted = "asked_ungranted",
    /// Until when the outage policy goes on although the store answers again, on the segment clock, because it has
    /// granted nothing yet; zero otherwise.
    PolicyUntil = "policy_until",
    /// For concurrency: the most places that may be taken anew, because other hosts wait for theirs.
    Ceiling = "ceiling",
    /// How many hosts wanted something of the limit at the last answer.
    Hosts = "hosts",
    /// Not zero: the latest answer granted less than was wanted.
    Short = "short",
    /// The largest cost that was charged or asked for since the minute began in which the limit was last used.
    Largest = "largest",
    /// The same for the minute of use before that.
    LargestBefore = "largest_before",
    /// When the limit was last used, as far as is known, on the segment clock; zero if it never was.
    UsedAt = "used_at",
    /// What the store had left for all hosts after its last answer; zero if they wanted more than that.
    Available = "available",
    /// What paces the requests, on the segment clock: each moves it on by one pace.
    PacedUntil = "paced_until",
    /// How long answers have taken lately, in nanoseconds; zero before the first.
    RoundTrip = "round_trip",
    /// By key: the number of the first request since the store last answered one; zero if there is none.
    Began = "began",
    /// By key: until when the store has no unit to grant, on the segment clock.
    FreeAt = "free_at",
    /// First record of a segment only: the process that asks the store, as an owner word.
    Duty = "duty",
    /// First record only: a futex, advanced when a request may be due.
    DutyFutex = "duty_futex",
    /// First record only: a futex, advanced when duty may be taken.
    DutyFree = "duty_free",
    /// First record only: how often duty was taken over from a process that died on duty or stayed on duty too long.
    Takeovers = "takeovers",
    /// First record only: when duty may be taken from its owner even if it is alive, on the segment clock.
    DutyUntil = "duty_until",
    /// First record only: how often duty was taken.
    DutyTaken = "duty_taken",
    /// First record only: a futex, advanced when an answer of the store was put into force, or did not come.
    Answered = "answered",
    /// First record only: not zero: the store evicts keys when its memory is used up.
    Evicts = "evicts",
}

pub(crate) const LEASE_WORDS: usize = LeaseWord::ALL.len();

impl LeaseWord {
    /// The words that mean nothing under another key of the store. The sequence number stays, so that an answer to an
    /// earlier request is not taken for one to a new request. `Unmet` stays because those requests still want the
    /// units.
    pub(super) const OF_ONE_KEY: [Self; 39] = [
        Self::Spent,
        Self::Allowance,
        Self::ValidUntil,
        Self::OutSince,
        Self::LowWater,
        Self::Share,
        Self::DrainedAt,
        Self::Refunded,
        Self::SelfGranted,
        Self::Asked,
        Self::AskedSpent,
        Self::AskedRefunded,
        Self::AskedHeld,
        Self::AskedWanted,
        Self::AskedAt,
        Self::Target,
        Self::RetryAt,
        Self::Problem,
        Self::AnsweredAt,
        Self::GrantNumber,
        Self::SpentAtGrant,
        Self::TakenOfGrant,
        Self::Unused,
        Self::Key,
        Self::Draining,
        Self::Reported,
        Self::Ungranted,
        Self::AskedUngranted,
        Self::PolicyUntil,
        Self::Ceiling,
        Self::Hosts,
        Self::Short,
        Self::Largest,
        Self::LargestBefore,
        Self::UsedAt,
        Self::Available,
        Self::PacedUntil,
        Self::Began,
        Self::FreeAt,
    ];
}

#[inline]
pub(super) fn get(state: &(impl State + ?Sized), local_words: usize, word: LeaseWord) -> u64 {
    state.load(local_words + word as usize)
}

/// Stores nothing if the word already has that value.
#[inline]
pub(super) fn put(state: &mut (impl StateMut + ?Sized), local_words: usize, word: LeaseWord, value: u64) {
    if get(state, local_words, word) != value {
        state.store(local_words + word as usize, value);
    }
}
