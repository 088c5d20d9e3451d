//! Tries out, on a file system and a kernel, what limits across processes rest on: with processes of its own, which it kills.

mod check;
mod child;
mod deaths;
mod stage;
mod wakes;

pub use check::Check;
pub use stage::Stage;
