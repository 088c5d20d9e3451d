//! Which key loses its row to a new one, if the declaration permits eviction.

use super::row_for_key::NewRow;

/// The claim of a used row's key to keep the row when another key needs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The row is held or waited for, and stays.
    Pinned,
    /// A limit refuses the key now, so the row stays: evicting it would give the key new quota.
    Limited {
        /// Nanoseconds, positive, until no limit refuses it; `None` if time alone does not end that.
        ends_in: Option<u64>,
    },
    /// The row may be evicted.
    Used(Usage),
}

/// How much a key loses with its row. The fields are compared in order, and the key that loses least is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Usage {
    /// The largest used share of any of its limits, in parts of 2^32. Zero if shares are not compared; above all
    /// shares if the key was given a tier or a capacity of its own.
    pub(crate) share: u64,
    /// Nanoseconds until all of its limits are fully replenished; zero if that is not compared.
    pub(crate) replenished_in: u64,
    /// When the key was last used.
    pub(crate) used_at: u64,
}

/// The row whose key loses the least, the first of equals. If none may be evicted, says when the first limited one
/// may be.
pub(super) fn choose(rows: impl Iterator<Item = u64>, mut claim: impl FnMut(u64) -> Claim) -> NewRow {
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
        Some((_, row)) => NewRow::Evicted(row),
        None => NewRow::None { room_in },
    }
}
