//! What can be wrong with the store or its answers.

use crate::words::words;

/// Why the store granted nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreProblem {
    /// It cannot be reached or does not answer in time. The [outage policy](crate::declare::Outage) applies.
    Unreachable,
    /// It answers but rejects this client: a wrong user or password, or a missing permission. The outage policy
    /// applies.
    Denied,
    /// It cannot run what it is asked to: a server without scripting, or one that is too old. The outage policy
    /// applies.
    Unsupported,
    /// The key holds something else. The outage policy applies.
    WrongKey,
    /// Another declaration of the limit is in force under the key. The outage policy applies.
    Mismatch,
    /// It answers and grants nothing new for a while, because it may have lost something that it had acknowledged. What
    /// is leased stays leased. The outage policy applies.
    Quarantine,
    /// The store has seen later requests or more spending of this host than the host knows of: the account is that of
    /// a copy of the host, or the host was restored from one. It leases nothing under this account any more: the
    /// limit's lease is over, and the host asks under a new number from now on.
    Stale,
}

impl StoreProblem {
    const ALL_CODES: [Self; 7] = [
        Self::Unreachable,
        Self::Denied,
        Self::Unsupported,
        Self::WrongKey,
        Self::Mismatch,
        Self::Quarantine,
        Self::Stale,
    ];

    /// The number that stands for it in the segment; not zero.
    pub(super) fn code(self) -> u64 {
        self as u64 + 1
    }

    /// The problem with that number, if there is one.
    pub(crate) fn from_code(code: u64) -> Option<Self> {
        let position = usize::try_from(code.checked_sub(1)?).ok()?;
        Self::ALL_CODES.get(position).copied()
    }

    /// Whether the store counts as down.
    pub(super) fn is_outage(self) -> bool {
        self != Self::Stale
    }
}

words!(StoreProblem, "a problem of a store", {
    Unreachable = "unreachable",
    Denied = "denied",
    Unsupported = "unsupported",
    WrongKey = "wrong_key",
    Mismatch = "mismatch",
    Quarantine = "quarantine",
    Stale = "stale",
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Words;

    #[test]
    fn every_problem_is_read_back_from_its_number() {
        for problem in StoreProblem::ALL {
            assert_eq!(StoreProblem::from_code(problem.code()), Some(*problem));
        }
        assert_eq!(StoreProblem::from_code(0), None);
        assert_eq!(StoreProblem::from_code(u64::MAX), None);
    }
}
