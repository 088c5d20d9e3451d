//! Limits shared by every process of a host.
#![deny(missing_docs, unsafe_op_in_unsafe_fn, unsafe_code)]

mod config;
mod engine;
mod limit;
mod units;

pub use config::{
    Algorithm, Align, Amount, Declaration, DeclarationError, Difference, Limit, OnDeath, SegmentOptions,
    SetDeclaration, Weekday, Window,
};
pub use engine::plan::Kind;
