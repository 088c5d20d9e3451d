//! Limits before requests that go out, to real servers on loopback connections.

mod reqwest_client;
mod tower_client;
mod upstream;
