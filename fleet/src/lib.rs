//! Limits that a fleet of hosts shares: leases from Redis or Valkey for segments of `shmlimit`.
//!
//! Every decision stays in the segment of the host; this crate asks the store for leases, in the background.

mod address;
mod answer;
mod backoff;
mod client;
mod credentials;
mod error;
mod exchange;
pub mod model;
pub mod protocol;
mod refresher;
mod terms;

pub use address::{AddressError, StoreAddress};
pub use answer::{Grant, StoreAnswer};
pub use backoff::Backoff;
pub use client::{StoreClient, Timeouts};
pub use credentials::{CA_FILE, Credentials, CredentialsError, PASSWORD, PASSWORD_FILE, USERNAME};
pub use error::StoreError;
pub use exchange::{Answers, Exchange, Pipeline};
pub use refresher::{Refresher, RefresherCounts, RefresherError};
pub use terms::{Terms, TermsError, difference};
