//! Limits before requests that go out.

mod tower_client;
pub mod upstream;
