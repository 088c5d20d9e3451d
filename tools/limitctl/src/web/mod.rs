//! What `limitctl serve` answers: a page, the same as JSON, and metrics for Prometheus. Nothing can be changed by it.

mod answers;
mod server;
mod view;

pub use server::serve;
pub use view::{Segments, keep_looking};
