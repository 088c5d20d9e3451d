//! What one request gets: admitted or refused, and what is counted of it.

mod acquire;
mod adaptive;
mod check;
mod held;
mod paths;
mod largest_operations;
mod pool;
mod refusals;
mod reserve;
#[path = "../scene/mod.rs"]
mod scene;
mod throttled;
