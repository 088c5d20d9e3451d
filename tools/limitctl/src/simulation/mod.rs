//! Replaying a trace of requests against a declaration, by the engine itself, on a clock that the trace advances.

pub mod comparison;
pub mod replay;
pub mod summary;
pub mod timeline;
pub mod trace;
pub mod verdict;
