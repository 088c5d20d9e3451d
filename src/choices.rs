//! Choices that a declaration makes, and conditions that an inspection may find, with the same meaning at every layer.

use crate::words::words;

/// How a limit is taken and given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Takes a cost that the request must name, and settles to the actual usage.
    Rate,
    /// A rate counted in calls: takes one unless the request names more.
    Calls,
    /// Capacity that is held and given back: takes one unless the request names more.
    Concurrency,
    /// Takes nothing up front: admits while any budget remains, and is debited at settle.
    Budget,
}

words!(Kind, "a kind of limit", {
    Rate = "rate",
    Calls = "calls",
    Concurrency = "concurrency",
    Budget = "budget",
});

/// The kind of a segment's locks: `lock` in the table `[segment]`. It cannot be changed in an existing segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// A word that names the holding process, whose [file lock](crate::documentation::layout_specification) shows
    /// whether it is alive. For processes of any PID namespaces and C libraries: containers that share a directory, or
    /// a host with glibc and a container with musl. A waiting process finds out by itself that the holder died, which
    /// takes a few milliseconds. If it cannot look up the holder, because the holder is in another PID namespace, it
    /// takes as long as the kernel takes to free the memory of the dead process.
    #[default]
    Slot,
    /// The robust mutex of the C library. The kernel itself reports the death of a holder, in well under a millisecond.
    /// All processes must be in one PID namespace and use the same C library; others are rejected.
    RobustMutex,
}

words!(LockKind, "a kind of lock", {
    Slot = "slot",
    RobustMutex = "robust",
});

/// What happens to a limit that hosts share while the store does not answer. Each limit has its own policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outage {
    /// Refuse as soon as the store is known to be down, even what is leased already.
    Deny,
    /// Spend what is leased until the lease expires, then refuse.
    #[default]
    SpendOut,
    /// Continue with a part of the limit: what [`FleetLease::safe`](crate::declare::FleetLease::safe) says, or the
    /// capacity divided by the hosts that the store last knew of. Each host that is cut off may add that much to what the
    /// fleet admits, in each window.
    Safe,
    /// Admit everything, and count it.
    Open,
}

words!(Outage, "a policy for outages", {
    Deny = "deny",
    SpendOut = "spend_out",
    Safe = "safe",
    Open = "open",
});

/// Who has a limit of a [keyed](crate::SetDeclaration::keyed) set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// Each key has it for itself.
    #[default]
    Key,
    /// All keys have it together: what one of them takes is gone for the others.
    AllKeys,
}

words!(Scope, "a scope of a limit", {
    Key = "key",
    AllKeys = "all_keys",
});

/// What happens to a new key for which a keyed set has no room. [`Refuse`](Self::Refuse) by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// It is refused, so no limited key ever regains quota by being evicted.
    #[default]
    Refuse,
    /// It evicts the key that has used the least of its limits, among those in its two buckets. Keys that hold
    /// something, have waiters, or are limited (some limit would refuse one more unit) are never evicted, so a flood
    /// of new keys only evicts its own kind and keys that are hardly used, and a limited key stays limited. If all
    /// candidates are held, waited for or limited, the new key is refused. Keys with an assigned [tier](crate::Tier)
    /// or a [capacity of their own](crate::Key::override_capacity), which they would lose, are evicted last.
    EvictLeastUsed,
    /// It evicts the least recently used key, even one that is limited: its usage is forgotten, so it regains its
    /// quota.
    EvictOldest,
}

words!(WhenFull, "what can happen when a table is full", {
    Refuse = "refuse",
    EvictLeastUsed = "evict_least_used",
    EvictOldest = "evict_oldest",
});

/// Why a shard is out of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShardPoison {
    /// Its counts contradict its holds and tickets. [`recover`](crate::Segment::recover) counts again.
    Counts,
    /// What an operation had changed is no longer known. Only a [reset](crate::LimitSet::reset) helps.
    Journal,
}
