//! The words of a lease.

use crate::limit::{State, StateMut};

/// Writes the words down once, in their order, with a list of them for the test that holds the document to it.
macro_rules! lease_words {
    ($($(#[$documentation:meta])* $word:ident = $name:literal,)+) => {
        /// The words of a lease, behind those of the rule that decides where the limit is not shared.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum LeaseWord {
            $($(#[$documentation])* $word,)+
        }

        impl LeaseWord {
            /// Each with its name in the document, in their order.
            pub(crate) const ALL: &[(Self, &str)] = &[$((Self::$word, $name),)+];
        }
    };
}

lease_words! {
    /// Units spent since the host began. Never below what was reported.
    Spent = "spent",
    /// Up to which `Spent` may rise; of concurrency, the places that are leased.
    Allowance = "allowance",
    /// When the lease is over, on the segment clock; zero where there is none.
    ValidUntil = "valid_until",
    /// Since when the store has been out, on the segment clock; zero where it has not.
    OutSince = "out_since",
    /// With so much left or less, more is asked for.
    LowWater = "low_water",
    /// Not zero: the process that has duty was woken since it asked last. A hint, never journalled.
    Alerted = "alerted",
    /// The last fair share for one lease length.
    Share = "share",
    /// When what the store counts as used is replenished, on the segment clock.
    DrainedAt = "drained_at",
    /// Of the units spent and reported, those that were not used after all.
    Refunded = "refunded",
    /// Not zero: the host has granted itself what is leased.
    SelfGranted = "self_granted",
    /// The number of the latest request.
    Sequence = "sequence",
    /// The number of the request that is not answered; zero where there is none.
    Asked = "asked",
    /// What the latest request says.
    AskedSpent = "asked_spent",
    AskedRefunded = "asked_refunded",
    AskedHeld = "asked_held",
    AskedWanted = "asked_wanted",
    /// When it was kept, on the segment clock.
    AskedAt = "asked_at",
    /// The most that a single request asked for and did not get since then. A hint, never journalled.
    Unmet = "unmet",
    /// How much the host would like to have at once.
    Target = "target",
    /// Nothing is asked before then, on the segment clock.
    RetryAt = "retry_at",
    /// Why the store granted nothing the last time: a code; zero where it answered.
    Problem = "problem",
    /// When the store answered last, on the segment clock.
    AnsweredAt = "answered_at",
    /// The number of the latest grant in the store.
    GrantNumber = "grant_number",
    /// `Spent` when it was granted.
    SpentAtGrant = "spent_at_grant",
    /// Of concurrency, how many times places of that grant were taken.
    TakenOfGrant = "taken_of_grant",
    /// Leases in a row that ran out before any of them was spent.
    Unused = "unused",
    /// Which key of the store all this is of.
    Key = "key",
    /// Not zero: everything is given back, and nothing is asked for.
    Draining = "draining",
    /// Answers that granted something.
    Grants = "grants",
    /// Requests that were kept.
    Requests = "requests",
    /// Attempts that came to nothing.
    Failures = "failures",
    /// Units that were left when their lease ran out.
    ExpiredUnits = "expired_units",
    /// What the store knows the host by, for this limit; zero where by the number of the segment.
    Identity = "identity",
    /// Of `Spent`, what the store has accepted a report of.
    Reported = "reported",
    /// Of the first record of a segment: who asks the store, as an owner word.
    Duty = "duty",
    /// Of the first record: a futex, advanced when a request may be due.
    DutyFutex = "duty_futex",
    /// Of the first record: a futex, advanced when duty may be taken.
    DutyFree = "duty_free",
    /// Of the first record: how often duty was taken over from a process that had died with it or kept it for too long.
    Takeovers = "takeovers",
    /// Of the first record: when duty may be taken from its owner although that lives, on the segment clock.
    DutyUntil = "duty_until",
    /// Of the first record: how often duty was taken.
    DutyTaken = "duty_taken",
}

/// How many there are.
pub(crate) const LEASE_WORDS: usize = LeaseWord::ALL.len();

impl LeaseWord {
    /// What means nothing to another key of the store. The sequence number is not among them: an answer to a request of
    /// before is an answer to another. What requests could not have, they want of it all the same.
    pub(super) const OF_ONE_KEY: [Self; 26] = [
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
    ];
}

#[inline]
pub(super) fn get(state: &(impl State + ?Sized), local_words: usize, word: LeaseWord) -> u64 {
    state.load(local_words + word as usize)
}

/// Stores nothing where the word says so already.
#[inline]
pub(super) fn put(state: &mut (impl StateMut + ?Sized), local_words: usize, word: LeaseWord, value: u64) {
    if get(state, local_words, word) != value {
        state.store(local_words + word as usize, value);
    }
}
