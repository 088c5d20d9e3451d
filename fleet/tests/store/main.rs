//! The store: its script, the client that asks it, and the servers that it may consist of.

mod client;
mod model;
mod requests;
#[path = "../scene/mod.rs"]
mod scene;
mod topologies;
