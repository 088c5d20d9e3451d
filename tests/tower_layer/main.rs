//! The layer for HTTP services, behind real servers on loopback connections.

mod addresses;
mod axum_gateway;
mod bodies;
mod decisions;
mod grpc;
mod keys;
mod other_layers;
mod permits;
#[path = "../process/mod.rs"]
mod process;
mod rejections;
mod server;
mod successors;
mod waiting;
