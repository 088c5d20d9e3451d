//! Replays a trace of requests against a declaration with the real engine, on a clock that the trace advances.

pub mod comparison;
pub mod pending;
pub mod replay;
pub mod shares;
pub mod summary;
pub mod timeline;
pub mod trace;
pub mod verdict;
