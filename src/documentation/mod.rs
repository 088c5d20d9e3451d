//! What is longer than a page: the caveats, the specification of the file, the history of the crate.
//!
//! These modules hold text only.

pub mod caveats;

#[doc = include_str!("../../shm-layout.md")]
pub mod layout_specification {}

#[doc = include_str!("../../CHANGELOG.md")]
pub mod changelog {}
