//! Why a request cannot be meant for the set that it is used on.

use std::path::PathBuf;

use super::listing::{join, some_of};

/// A request does not fit the set that it is used on. Nothing was taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The segment has no set of that name.
    #[error("there is no set `{name}`; the segment has {}", some_of(known))]
    UnknownSet {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The set has no limit of that name.
    #[error("set `{set}` has no limit `{limit}`; it has {}", join(known))]
    UnknownLimit {
        /// The set.
        set: String,
        /// The name asked for.
        limit: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The set has no tier of that name.
    #[error("set `{set}` has no tier `{tier}`; it has {}", join(known))]
    UnknownTier {
        /// The set.
        set: String,
        /// The name asked for.
        tier: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A rate limit has no default cost, and the request names nothing.
    #[error(
        "limit `{limit}` of set `{set}` is a rate: the request must name a cost (`forecast` says without one what is left)"
    )]
    CostRequired {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
    },
    /// The cost is more than the limit can ever admit. Nothing was taken.
    #[error(
        "a cost of {cost} on limit `{limit}` of set `{set}` can never be admitted: ask for at most {max}"
    )]
    NeverAdmissible {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
        /// The cost asked for.
        cost: u64,
        /// The most that can be taken at once.
        max: u64,
    },
    /// A reservation takes rate and calls limits only.
    #[error(
        "limit `{limit}` of set `{set}` cannot be reserved: name it with a cost of 0, or reserve from a set of rate and calls limits"
    )]
    NotReservable {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
    },
    /// A decimal amount that is not a whole number of the limit's units.
    #[error("`{given}` is not an amount of limit `{limit}` of set `{set}`: {why}")]
    InvalidAmount {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
        /// The amount given.
        given: String,
        /// Why not.
        why: String,
    },
    /// The set is keyed, so the limits are those of one key.
    #[error("set `{set}` is keyed: say whose limits are meant with `key`")]
    KeyRequired {
        /// The set.
        set: String,
    },
    /// The set is not keyed, so there are no limits of a key.
    #[error("set `{set}` is not keyed: use it without a key, or declare it with `keyed`")]
    NotKeyed {
        /// The set.
        set: String,
    },
    /// What is held must be given back, which needs a permit.
    #[error(
        "limit `{limit}` of set `{set}` is held until it is given back: take it with try_acquire or acquire, or ask for zero of it"
    )]
    MustBeHeld {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
    },
    /// Only budgets are debited.
    #[error(
        "limit `{limit}` of set `{set}` is not a budget: a budget is debited what was used, other limits take a cost"
    )]
    NotABudget {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
    },
    /// The limits of the set count networks, which are found by an address.
    #[error("the limits of set `{set}` count networks: say whose limits are meant with `address`")]
    AddressRequired {
        /// The set.
        set: String,
    },
    /// The limits of the set do not count networks.
    #[error("no limit of set `{set}` counts networks: declare `prefix` on each of them, or use a key")]
    NoPrefixes {
        /// The set.
        set: String,
    },
    /// Keys have from one byte to 64 KiB.
    #[error("a key for set `{set}` has {bytes} bytes: it must have from 1 to {max}")]
    InvalidKey {
        /// The set.
        set: String,
        /// What the key has.
        bytes: usize,
        /// The most that it may have.
        max: usize,
    },
    /// The request was prepared for another set, or for the set of that name in another segment. Any handle of the same
    /// set of the same segment will do.
    #[error(
        "the request was prepared for {prepared_for} and used on set `{set}` of {}: prepare it with `request` of the set \
         that it is used on",
        path.display()
    )]
    ForeignRequest {
        /// The set it was used on.
        set: String,
        /// The segment of that set.
        path: PathBuf,
        /// What it was prepared for, in words.
        prepared_for: String,
    },
    /// A pool of no sets.
    #[error("a pool needs at least one set: none was given")]
    EmptyPool,
}
