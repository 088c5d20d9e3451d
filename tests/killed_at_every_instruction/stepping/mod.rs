//! A victim, stepped one instruction at a time.

mod breakpoint;
mod memory_call;
pub mod trace;
pub mod tracee;
