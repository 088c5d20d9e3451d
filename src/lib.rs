//! Limits shared by every process of a host.
#![deny(missing_docs, unsafe_op_in_unsafe_fn, unsafe_code)]

mod clock;
mod config;
mod engine;
mod error;
mod limit;
mod shm;
mod units;

pub use error::Error;
