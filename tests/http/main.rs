//! The layers for HTTP services and for clients of others, behind real servers and before them, on loopback connections.

mod client;
mod frameworks;
mod layer;
mod panics;
#[path = "../scene/mod.rs"]
mod scene;
mod server;
