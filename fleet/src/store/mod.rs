//! The store: where it is, the connection to it, and what it answers.

pub mod address;
pub mod answer;
pub mod client;
pub mod credentials;
pub mod error;
