//! Why a request cannot be meant for the set it is used on.

use super::listing::{join, some_of};
use crate::message::debug_is_message;

/// A request does not fit the set it is used on. Nothing was taken.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The segment has no set with this name.
    #[error("there is no set `{name}`; the segment has {}", some_of(known))]
    UnknownSet {
        /// The name asked for.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// The set has no limit with this name.
    #[error("set `{set}` has no limit `{limit}`; it has {}", join(known))]
    UnknownLimit {
        /// The set.
        set: String,
        /// The name asked for.
        limit: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// The set has no tier with this name.
    #[error(
        "set `{set}` has no tier `{tier}`; it has {}{}",
        join(known),
        if *has_overrides { ", because its keys have capacities of their own in place of tiers" } else { "" }
    )]
    UnknownTier {
        /// The set.
        set: String,
        /// The name asked for.
        tier: String,
        /// The names that exist.
        known: Vec<String>,
        /// Whether keys of the set can have [capacities of their own](crate::Keyed::overrides), for which it has no tiers.
        has_overrides: bool,
    },
    /// A rate limit has no default cost, and the request names none.
    #[error(
        "limit `{limit}` of set `{set}` is a rate: the request must name a cost (`forecast` says without one what is left)"
    )]
    CostRequired {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
    },
    /// The cost exceeds what the limit can ever admit. Nothing was taken.
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
    /// Only rate and calls limits that are not of [all keys](crate::Limit::scope) can be reserved.
    #[error(
        "limit `{limit}` of set `{set}` cannot be reserved: name it with a cost of 0, or reserve from a set of rate and calls limits, none of them of all keys"
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
    /// [All keys](crate::Limit::scope) share the limit, and this is done to a single key.
    #[error("limit `{limit}` of set `{set}` is shared by all keys: reset it for the set, not for a key")]
    NotOfOneKey {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
    },
    /// The set is keyed, so its limits are those of a key.
    #[error("set `{set}` is keyed: say whose limits are meant with `key`")]
    KeyRequired {
        /// The set.
        set: String,
    },
    /// The set is not keyed, so no key has limits in it.
    #[error("set `{set}` is not keyed: use it without a key, or declare it with `keyed`")]
    NotKeyed {
        /// The set.
        set: String,
    },
    /// What is held must be given back, and that takes a permit.
    #[error(
        "limit `{limit}` of set `{set}` is held until it is given back: take it with try_acquire or acquire, or ask for zero of it"
    )]
    MustBeHeld {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
    },
    /// Only budgets can be debited.
    #[error(
        "limit `{limit}` of set `{set}` is not a budget: a budget is debited what was used, other limits take a cost"
    )]
    NotABudget {
        /// The set.
        set: String,
        /// The limit.
        limit: String,
    },
    /// The limits of the set count networks, which are found by address.
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
    /// Keys have from 1 byte to 64 KiB.
    #[error("a key for set `{set}` has {bytes} bytes: it must have from 1 to {max}")]
    InvalidKey {
        /// The set.
        set: String,
        /// The length of the key.
        bytes: usize,
        /// The greatest length.
        max: usize,
    },
    /// The request is for an address, whose networks have no queues and hold nothing.
    #[error(
        "set `{set}` counts networks, from which nothing is held, reserved or waited for: use `check` for requests with an \
         address"
    )]
    CheckOnly {
        /// The set.
        set: String,
    },
    /// The request of a `layer::Demand` has a key or an address, which the demand itself must be given.
    #[error(
        "the request of set `{set}` already has a key or an address: make the demand from a request without one, and name it \
         with `Demand::key` or `Demand::address`"
    )]
    AlreadyKeyed {
        /// The set.
        set: String,
    },
    /// The pool has no sets.
    #[error("a pool needs at least one set: none was given")]
    EmptyPool,
}

debug_is_message!(RequestError);
