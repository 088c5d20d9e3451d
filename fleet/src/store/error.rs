//! What can go wrong between a host and the store.

use shmlimit::fleet::{NamedProblem, StoreProblem};
use thiserror::Error;

use crate::store::address::AddressError;
use crate::store::credentials::CredentialsError;
use crate::terms::TermsError;
use shmlimit::debug_is_message;

/// Why the store gave no answer. No message contains a password.
#[derive(Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The address of the store cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// User and password could not be read.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The store cannot count the limit.
    #[error("limit {key}: {source}")]
    Terms {
        /// The limit's key in the store.
        key: String,
        /// What is wrong with it.
        source: TermsError,
    },
    /// Another declaration of the limit is in force in the store.
    #[error(
        "limit {key} is declared otherwise in the store: {difference}; hosts that share a key declare it alike, or the \
         change has a higher version ([segment] version)"
    )]
    Mismatch {
        /// The limit's key in the store.
        key: String,
        /// What differs.
        difference: String,
    },
    /// The key holds something that was not written by a fleet, or was written by another version of this client.
    #[error(
        "the key of limit {key} holds something else ({found}): declare another key, or remove what it holds"
    )]
    WrongKey {
        /// The limit's key in the store.
        key: String,
        /// What it holds.
        found: String,
    },
    /// The store has seen later requests of this host.
    #[error(
        "the store has answered later requests of this host for limit {key}: the segment was copied or restored; it goes on \
         as another host"
    )]
    Stale {
        /// The limit's key in the store.
        key: String,
    },
    /// The store did not answer, or answered with an error.
    #[error("the store at {} {}: {reason}; {}", place(.at, .server.as_deref()), .problem.description(), .problem.advice())]
    Unavailable {
        /// The declared address.
        at: String,
        /// The server of a cluster that failed; `None` if the store is not a cluster, or fails as a whole.
        server: Option<String>,
        /// What is wrong.
        problem: StoreProblem,
        /// What the server named with it, such as the command that the user may not run; empty if nothing.
        name: String,
        /// What the network or the server said.
        reason: String,
    },
}

debug_is_message!(StoreError);

/// Where a store, or a server of it, is.
fn place(at: &str, server: Option<&str>) -> String {
    server.map_or_else(|| at.to_owned(), |server| format!("{server} of {at}"))
}

impl StoreError {
    /// What is wrong, as the segment records it.
    #[must_use]
    pub fn problem(&self) -> StoreProblem {
        match self {
            Self::Unavailable { problem, .. } => *problem,
            Self::Credentials(_) => StoreProblem::Denied,
            Self::Terms { .. } | Self::Address(_) => StoreProblem::Unsupported,
            Self::Mismatch { .. } => StoreProblem::Mismatch,
            Self::WrongKey { .. } => StoreProblem::WrongKey,
            Self::Stale { .. } => StoreProblem::Stale,
        }
    }

    /// The same with what the server named.
    #[must_use]
    pub fn named_problem(&self) -> NamedProblem {
        match self {
            Self::Unavailable { problem, name, .. } => problem.naming(name),
            _ => self.problem().into(),
        }
    }

    /// The key, in the store, of the limit that this is about; `None` if it is about the store.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Terms { key, .. }
            | Self::Mismatch { key, .. }
            | Self::WrongKey { key, .. }
            | Self::Stale { key } => Some(key),
            Self::Address(_) | Self::Credentials(_) | Self::Unavailable { .. } => None,
        }
    }

    /// Whether time alone can fix it: an outage rather than a mistake.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Unavailable { problem, .. } if problem.may_pass())
    }

    /// Whether the user or password of this process is wrong. Another process may have the right ones.
    #[must_use]
    pub fn is_denial(&self) -> bool {
        self.problem().is_denial()
    }
}
