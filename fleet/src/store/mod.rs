//! The store: its address, the connection to it, and its answers.

pub mod address;
pub mod answer;
pub(crate) mod calls;
pub mod client;
mod cluster;
pub mod credentials;
pub mod error;
mod failure;
mod sentinels;
mod server;
mod slots;
pub mod timeouts;
