//! The layer for HTTP services, behind real servers on loopback connections.

mod addresses;
mod axum_gateway;
mod bodies;
mod decisions;
mod grpc;
mod keys;
mod other_layers;
mod permits;
mod rejections;
#[path = "../scene/mod.rs"]
mod scene;
mod server;
mod successors;
mod waiting;
