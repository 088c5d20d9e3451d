//! What can go wrong between a host and the store.

use thiserror::Error;

use crate::message::debug_is_message;
use crate::store::address::AddressError;
use crate::store::credentials::CredentialsError;
use crate::terms::TermsError;

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
    /// The store did not answer, or said that it is out of service. It is asked again later.
    #[error("the store at {at} cannot be reached: {reason}")]
    Unreachable {
        /// The declared address.
        at: String,
        /// What the network or the server said.
        reason: String,
    },
    /// The server does not accept the user or password, or does not allow this user the commands.
    #[error(
        "the store at {at} denies access: {reason}; it needs the user of SHMLIMIT_FLEET_USERNAME with the password of \
         SHMLIMIT_FLEET_PASSWORD or SHMLIMIT_FLEET_PASSWORD_FILE, who may use EVALSHA, EVAL, INFO, and hashes with \
         keys shmlimit:*"
    )]
    AccessDenied {
        /// The declared address.
        at: String,
        /// What the server said.
        reason: String,
    },
    /// The server does not support scripts.
    #[error(
        "the store at {at} runs no scripts ({reason}): it must be Redis 5 or later, Valkey, or compatible with them"
    )]
    NoScripts {
        /// The declared address.
        at: String,
        /// What the server said.
        reason: String,
    },
    /// An answer that is not part of the protocol.
    #[error("the store at {at} answered what was not expected: {reason}")]
    Unexpected {
        /// The declared address.
        at: String,
        /// What the server answered.
        reason: String,
    },
}

debug_is_message!(StoreError);

impl StoreError {
    /// Whether time alone can fix it: an outage rather than a mistake.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Whether the user or password of this process is wrong. Another process may have the right ones.
    #[must_use]
    pub fn is_denial(&self) -> bool {
        matches!(self, Self::AccessDenied { .. } | Self::Credentials(_))
    }
}
