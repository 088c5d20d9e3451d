//! The layers for HTTP services and for clients, with real servers, on loopback connections.

mod client;
mod frameworks;
mod layer;
mod panics;
#[path = "../scene/mod.rs"]
mod scene;
mod server;
