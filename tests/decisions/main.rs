//! What one request gets: admitted or refused, and what is counted.

mod acquire;
mod adaptive;
mod check;
mod held;
mod largest_operations;
mod paths;
mod pool;
mod refusals;
mod reserve;
#[path = "../scene/mod.rs"]
mod scene;
mod throttled;
