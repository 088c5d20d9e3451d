//! The store: its script, its client, and the kinds of servers it may run on.

mod client;
mod cluster;
mod keyed;
mod keyed_model;
mod model;
mod problems;
mod requests;
mod rules;
#[path = "../scene/mod.rs"]
mod scene;
mod seen;
mod stopped;
mod topologies;
