//! Limits for outgoing requests.

mod tower_client;
pub mod upstream;
