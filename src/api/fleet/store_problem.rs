//! What can be wrong with the store or its answers.

use crate::words::words;

/// Why the store granted nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreProblem {
    /// It cannot be reached: no route leads there, its name is unknown, or the connection broke. The
    /// [outage policy](crate::declare::Outage) applies, as with all problems except [`Stale`](Self::Stale).
    Unreachable,
    /// It answers but does not accept the user or the password.
    Denied,
    /// It cannot run what it is asked to: a server without scripting, or one that is too old.
    Unsupported,
    /// The key holds something else.
    WrongKey,
    /// Another declaration of the limit is in force under the key.
    Mismatch,
    /// It answers and grants nothing new for a while, because it may have lost something that it had acknowledged. What
    /// is leased stays leased.
    Quarantine,
    /// The store has seen later requests or more spending of this host than the host knows of: the account is that of
    /// a copy of the host, or the host was restored from one. It leases nothing under this account any more: the
    /// limit's lease is over, and the host asks under a new number from now on.
    Stale,
    /// Nothing listens at its address.
    Refused,
    /// It does not answer in time.
    TimedOut,
    /// It is out of memory (`OOM`).
    OutOfMemory,
    /// It is a replica (`READONLY`).
    ReadOnly,
    /// It is busy with a script of somebody else (`BUSY`).
    Busy,
    /// It is still loading its data (`LOADING`).
    Loading,
    /// It is a replica without its primary (`MASTERDOWN`).
    PrimaryDown,
    /// Part of the cluster is down or moving (`CLUSTERDOWN`, `TRYAGAIN`).
    ClusterDown,
    /// It cannot save its data, and therefore takes no writes (`MISCONF`).
    CannotSave,
    /// It has fewer replicas than it needs to take writes (`NOREPLICAS`).
    TooFewReplicas,
    /// It does not have the database that the URL names.
    WrongDatabase,
    /// The user may not run a command, or may not use the key (`NOPERM`).
    NotPermitted,
    /// No secure connection can be made: its certificate is not trusted, or it does not speak TLS.
    TlsFailed,
    /// The sentinels know no primary by the name in the URL.
    NoPrimary,
    /// It answers something that is not part of the protocol.
    Unexpected,
}

/// A [`StoreProblem`] and what the store named with it, in at most seven letters, digits, dashes and underscores: the
/// command that the user may not run, or the first word of an unexpected answer. A longer name is truncated, and other
/// characters are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamedProblem {
    pub(super) problem: StoreProblem,
    name: [u8; NAME_BYTES],
}

const NAME_BYTES: usize = 7;

impl From<StoreProblem> for NamedProblem {
    fn from(problem: StoreProblem) -> Self {
        problem.naming("")
    }
}

impl NamedProblem {
    /// Its code in the segment: the problem's number in the least significant byte, and the name in the others.
    pub(super) fn code(self) -> u64 {
        let mut bytes = [0; 1 + NAME_BYTES];
        bytes[0] = self.problem as u8 + 1;
        bytes[1..].copy_from_slice(&self.name);
        u64::from_le_bytes(bytes)
    }
}

impl StoreProblem {
    const ALL_CODES: [Self; 22] = [
        Self::Unreachable,
        Self::Denied,
        Self::Unsupported,
        Self::WrongKey,
        Self::Mismatch,
        Self::Quarantine,
        Self::Stale,
        Self::Refused,
        Self::TimedOut,
        Self::OutOfMemory,
        Self::ReadOnly,
        Self::Busy,
        Self::Loading,
        Self::PrimaryDown,
        Self::ClusterDown,
        Self::CannotSave,
        Self::TooFewReplicas,
        Self::WrongDatabase,
        Self::NotPermitted,
        Self::TlsFailed,
        Self::NoPrimary,
        Self::Unexpected,
    ];

    /// The problem, with what the store named.
    #[must_use]
    pub fn naming(self, name: &str) -> NamedProblem {
        let mut bytes = [0; NAME_BYTES];
        let kept = name.bytes().filter(|&byte| is_of_a_name(byte));
        for (place, byte) in bytes.iter_mut().zip(kept) {
            *place = byte;
        }
        NamedProblem {
            problem: self,
            name: bytes,
        }
    }

    /// The problem that a [code](NamedProblem::code) stands for, and what the store named, if anything.
    pub(crate) fn from_code(code: u64) -> Option<(Self, Option<String>)> {
        let [number, name @ ..] = code.to_le_bytes();
        let problem = *Self::ALL_CODES.get(usize::from(number.checked_sub(1)?))?;
        let kept = name.into_iter().take_while(|&byte| is_of_a_name(byte));
        let name: String = kept.map(char::from).collect();
        Some((problem, (!name.is_empty()).then_some(name)))
    }

    /// Whether the store counts as down.
    pub(super) fn is_outage(self) -> bool {
        self != Self::Stale
    }

    /// Whether it may pass without anyone on this host doing something about it: an outage rather than a mistake.
    #[must_use]
    pub fn may_pass(self) -> bool {
        !matches!(
            self,
            Self::Denied
                | Self::Unsupported
                | Self::WrongKey
                | Self::Mismatch
                | Self::WrongDatabase
                | Self::NotPermitted
                | Self::TlsFailed
                | Self::Unexpected
        )
    }

    /// Whether the user or password of the process that asked is wrong. Another process may have the right ones.
    #[must_use]
    pub fn is_denial(self) -> bool {
        matches!(self, Self::Denied | Self::NotPermitted)
    }

    /// The rest of a sentence that begins with "the store".
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Unreachable => "cannot be reached",
            Self::Denied => "does not accept the user or password",
            Self::Unsupported => "cannot run scripts",
            Self::WrongKey => "holds something else under the key",
            Self::Mismatch => "has another declaration under the key",
            Self::Quarantine => {
                "grants nothing new for one lease length, because it may have lost what it had acknowledged"
            }
            Self::Stale => "knows a later request of this host",
            Self::Refused => "refuses connections: nothing listens at its address",
            Self::TimedOut => "does not answer in time",
            Self::OutOfMemory => "is out of memory",
            Self::ReadOnly => "is a replica, which takes no writes",
            Self::Busy => "is busy with a script of somebody else",
            Self::Loading => "is still loading its data",
            Self::PrimaryDown => "is a replica that has lost its primary",
            Self::ClusterDown => "is a cluster that is down in part",
            Self::CannotSave => "takes no writes because it cannot save its data",
            Self::TooFewReplicas => "takes no writes because it has too few replicas",
            Self::WrongDatabase => "does not have the database of the URL",
            Self::NotPermitted => "does not permit the user what is needed",
            Self::TlsFailed => "is not trusted, or does not speak TLS",
            Self::NoPrimary => "has no primary by the name in the URL, as its sentinels say",
            Self::Unexpected => "answers what is not expected",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::Unreachable => "see whether it runs, and whether this host can reach it",
            Self::Denied => "see SHMLIMIT_FLEET_USERNAME and SHMLIMIT_FLEET_PASSWORD_FILE",
            Self::Unsupported => "it must be Redis 5 or later, Valkey, or compatible with them",
            Self::WrongKey => "declare another key, or remove what is there",
            Self::Mismatch => {
                "declare the limit alike on every host under a version that rises with each change, or give it another \
                 key"
            }
            Self::Quarantine => "it passes by itself",
            Self::Stale => "the segment was copied or restored: it goes on as another host by itself",
            Self::Refused => "start it, or correct the address in the URL",
            Self::TimedOut => "see how busy it is (INFO, SLOWLOG GET), and the network to it",
            Self::OutOfMemory => "raise its maxmemory, or remove what else it holds",
            Self::ReadOnly => {
                "the URL must name the primary; if it was failed over, name the sentinels with redis+sentinel://"
            }
            Self::Busy => "SCRIPT KILL there ends the script; leases take far less than lua-time-limit",
            Self::Loading => "it passes once it has loaded: INFO persistence says when",
            Self::PrimaryDown => "see its primary and the failover",
            Self::ClusterDown => "CLUSTER INFO and CLUSTER SHARDS there say which slots lack a server",
            Self::CannotSave => "see its log and its disk: saving fails",
            Self::TooFewReplicas => "see its replicas, or lower min-replicas-to-write",
            Self::WrongDatabase => "correct the number at the end of the URL; a cluster only has 0",
            Self::NotPermitted => {
                "permit the user what the guide to fleets lists: ACL SETUSER, then ACL DRYRUN to check"
            }
            Self::TlsFailed => "see SHMLIMIT_FLEET_CA_FILE, the server's certificate and its tls-port",
            Self::NoPrimary => "correct the name in the URL: SENTINEL MASTERS lists them",
            Self::Unexpected => "see whether a Redis or Valkey server is at that address, and its log",
        }
    }
}

fn is_of_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

words!(StoreProblem, "a problem of a store", {
    Unreachable = "unreachable",
    Denied = "denied",
    Unsupported = "unsupported",
    WrongKey = "wrong_key",
    Mismatch = "mismatch",
    Quarantine = "quarantine",
    Stale = "stale",
    Refused = "refused",
    TimedOut = "timed_out",
    OutOfMemory = "out_of_memory",
    ReadOnly = "read_only",
    Busy = "busy",
    Loading = "loading",
    PrimaryDown = "primary_down",
    ClusterDown = "cluster_down",
    CannotSave = "cannot_save",
    TooFewReplicas = "too_few_replicas",
    WrongDatabase = "wrong_database",
    NotPermitted = "not_permitted",
    TlsFailed = "tls_failed",
    NoPrimary = "no_primary",
    Unexpected = "unexpected",
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Words;

    #[test]
    fn every_problem_is_read_back_from_its_code() {
        assert_eq!(StoreProblem::ALL.len(), StoreProblem::ALL_CODES.len());
        for &problem in StoreProblem::ALL {
            let code = NamedProblem::from(problem).code();
            assert_eq!(StoreProblem::from_code(code), Some((problem, None)));
            let named = problem.naming("evalsha").code();
            assert_eq!(
                StoreProblem::from_code(named),
                Some((problem, Some("evalsha".to_owned())))
            );
        }
        assert_eq!(StoreProblem::from_code(0), None);
        assert_eq!(StoreProblem::from_code(u64::MAX), None);
    }

    #[test]
    fn what_a_store_named_is_kept_without_what_could_deceive_a_reader() {
        for (given, kept) in [
            ("a key of another", "akeyofa"),
            ("\u{1b}[2J", "2J"),
            ("häuser", "huser"),
        ] {
            let code = StoreProblem::Unexpected.naming(given).code();
            assert_eq!(
                StoreProblem::from_code(code),
                Some((StoreProblem::Unexpected, Some(kept.to_owned())))
            );
        }
    }

    #[test]
    fn the_document_of_the_layout_numbers_every_problem() {
        let document = include_str!("../../../shm-layout.md");
        for &problem in StoreProblem::ALL {
            let numbered = format!("{} {}", problem as u8 + 1, problem.as_str().replace('_', " "));
            assert!(document.contains(&numbered), "{numbered}");
        }
    }
}
