//! What `limitctl serve` serves: a page, the same data as JSON, and metrics for Prometheus. Nothing can be changed
//! through it.

mod answers;
mod server;
mod view;

pub use server::serve;
pub use view::{Segments, keep_looking};
