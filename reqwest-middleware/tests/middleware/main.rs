//! Limits in front of clients of reqwest, whose upstream is a server on a loopback connection.

mod panics;
mod requests;
#[path = "../../../tests/scene/mod.rs"]
mod scene;
#[path = "../../../tests/http/client/upstream.rs"]
// Other clients use more of it.
#[allow(dead_code)]
mod upstream;

/// Where an upstream listens.
fn url(upstream: &upstream::Upstream) -> String {
    format!("http://{}/", upstream.address)
}
