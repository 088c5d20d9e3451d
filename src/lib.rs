//! Limits shared by every process of a host.
#![deny(missing_docs, unsafe_op_in_unsafe_fn, unsafe_code)]

mod clock;
mod config;
mod engine;
mod error;
mod limit;
mod limit_set;
mod permit;
mod refusal;
mod request;
mod segment;
mod shm;
mod snapshot;
mod units;

pub use config::{
    Algorithm, Align, Amount, Declaration, Difference, Limit, OnDeath, SegmentOptions, SetDeclaration,
    Weekday, Window,
};
pub use engine::plan::Kind;
pub use engine::{RefusalReason, Repairs};
pub use error::{DeclarationError, Error};
pub use limit_set::{LimitIndex, LimitName, LimitSet};
pub use permit::{Outcome, Permit, Settlement};
pub use refusal::{Refusal, Verdict};
pub use request::Request;
pub use segment::{OpenOptions, RecoveryReport, Removal, Segment, SetRecovery};
pub use snapshot::{
    HoldSnapshot, LimitCounts, LimitSnapshot, LockSnapshot, ParticipantSnapshot, SegmentReader,
    SegmentSnapshot, SetCounts, SetSnapshot,
};
