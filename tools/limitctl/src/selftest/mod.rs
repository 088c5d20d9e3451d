//! Tries out, on a file system and a kernel, what limits across processes rely on. It uses processes of its own, which
//! it kills.

mod act;
mod check;
mod child;
mod deaths;
mod stage;
mod wakes;

pub use check::Check;
pub use stage::Stage;
