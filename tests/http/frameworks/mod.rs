//! The layer in services of other frameworks, and among other layers.

mod axum_gateway;
mod grpc;
mod other_layers;
