//! Limits for outgoing requests: see [`ClientLimitLayer`].

mod client_error;
mod client_layer;
mod client_service;
mod exhausted_quotas;
mod not_sent;
mod outgoing_permit;
mod retry_after;
mod time_in_words;
mod upstream;

pub use client_error::ClientError;
pub use client_layer::ClientLimitLayer;
pub use client_service::{ClientLimitFuture, ClientLimitService};
pub use not_sent::NotSent;
pub use outgoing_permit::OutgoingPermit;
pub use retry_after::{retry_after, throttled_by};
