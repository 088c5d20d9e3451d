//! The layer for HTTP services, behind real servers on loopback connections.

mod bodies;
mod decisions;
mod keys;
#[path = "../process/mod.rs"]
mod process;
mod server;
mod waiting;
