//! Limits before requests that go out.

mod reqwest_client;
mod tower_client;
pub mod upstream;
