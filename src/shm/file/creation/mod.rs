//! Files that are complete before they get their names: segments, and the checkpoints that segments are restored
//! from.

pub(crate) mod checkpoint_file;
mod construction;
pub(crate) mod create;
mod unnamed;
