//! The segment that a victim leaves behind: its bytes, where operations are performed, and what is asked about it
//! afterwards.

pub mod image;
mod lease_words;
mod pieces;
pub mod stage;
pub mod survivor;
