//! Limits for outgoing requests: see [`ClientLimitLayer`].

mod client_error;
mod client_layer;
mod client_service;
mod exhausted_quotas;
#[cfg(feature = "reqwest-middleware")]
mod reqwest;
mod retry_after;
mod time_in_words;
mod upstream;

pub use client_error::ClientError;
pub use client_layer::ClientLimitLayer;
pub use client_service::{ClientLimitFuture, ClientLimitService};
pub use retry_after::{retry_after, throttled_by};
