//! Limits that a fleet of hosts shares: leases from Redis or Valkey for segments of `shmlimit`.
//!
//! Every decision stays in the segment of the host; the [`Refresher`] asks the store for leases in the background.
//! The [guide] says what is promised, and how to choose.
//!
//! The parts that another client would need are public too: the [protocol] of the store's script, the [`Exchange`]
//! between a segment and a store, and the [model] of the store, which stands in for it in simulations.

mod backoff;
mod exchange;
pub mod model;
mod outages;
pub mod protocol;
mod refresher;
mod store;
mod terms;

/// This page is also in the repository, and the paths in it are paths there.
#[doc = "\n"]
#[doc = include_str!("../guide.md")]
pub mod guide {}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ExamplesOfTheCratesPage;

pub use backoff::Backoff;
pub use exchange::{Answers, Exchange, Pipeline};
pub use outages::StoreEvent;
pub use refresher::{Refresher, RefresherCounts, RefresherError};
pub use store::address::{AddressError, StoreAddress};
pub use store::answer::{Grant, StoreAnswer};
pub use store::client::StoreClient;
pub use store::credentials::{CA_FILE, Credentials, CredentialsError, PASSWORD, PASSWORD_FILE, USERNAME};
pub use store::error::StoreError;
pub use store::timeouts::Timeouts;
pub use terms::{Terms, TermsError, difference};
