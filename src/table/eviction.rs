//! Which key loses its row to a new one, where the declaration lets that happen.

use super::row_for_key::Place;

/// What the key of a row that is in use has to say when another needs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The row is held or waited for, and stays.
    Pinned,
    /// A limit refuses the key now, so the row stays: the key would regain quota.
    Limited {
        /// Nanoseconds, positive, until no limit does; `None` where time alone does not end it.
        ends_in: Option<u64>,
    },
    /// The row may be evicted.
    Used(Usage),
}

/// How much a key loses with its row, and whose loss is the least: they are compared field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Usage {
    /// The largest share that is used of any of its limits, in parts of 2^32; zero where shares are not compared, and
    /// above all shares where the key was given a tier or a capacity of its own.
    pub(crate) share: u64,
    /// Nanoseconds until all of its limits are completely replenished; zero where that is not compared.
    pub(crate) replenished_in: u64,
    /// When the key was used last.
    pub(crate) used_at: u64,
}

/// The row whose key loses the least, the first of equals; where none may be evicted, when the first of the limited
/// ones may be.
pub(super) fn choose(rows: impl Iterator<Item = u64>, mut claim: impl FnMut(u64) -> Claim) -> Place {
    let mut min: Option<(Usage, u64)> = None;
    let mut room_in: Option<u64> = None;
    for row in rows {
        match claim(row) {
            Claim::Pinned | Claim::Limited { ends_in: None } => {}
            Claim::Limited {
                ends_in: Some(ends_in),
            } => room_in = Some(room_in.map_or(ends_in, |earliest| earliest.min(ends_in))),
            Claim::Used(usage) if min.is_none_or(|(other, _)| usage < other) => min = Some((usage, row)),
            Claim::Used(_) => {}
        }
    }
    match min {
        Some((_, row)) => Place::Evicted(row),
        None => Place::None { room_in },
    }
}
