//! Limits before requests that go out: see [`ClientLimitLayer`].

mod error;
mod layer;
#[cfg(feature = "reqwest-middleware")]
mod reqwest;
mod retry_after;
mod service;
mod upstream;

pub use error::ClientError;
pub use layer::ClientLimitLayer;
pub use retry_after::{retry_after, throttled_by};
pub use service::{ClientLimitFuture, ClientLimitService};
