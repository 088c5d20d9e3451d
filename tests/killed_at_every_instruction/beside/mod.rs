//! The processes beside the victim, and the room that they take in a segment.

pub mod bystanders;
pub mod clock;
pub mod crew;
pub mod gate;
pub mod room;
