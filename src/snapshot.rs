//! What inspection returns: snapshots, single keys, forecasts, diagnoses and reports.
//!
//! [`Segment::snapshot`](crate::Segment::snapshot) shows everything that a segment counts, without taking its lock, and
//! so does a [`SegmentReader`], which only needs read permission. All of these types are plain data, and most can be
//! serialized.
//!
//! ```
//! use shmlimit::snapshot::SegmentReader;
//! # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("limits");
//! # let declaration = Declaration::new()
//! #     .add_set(SetDeclaration::new("chat").add_limit(Limit::concurrency("in_flight", 64)));
//! # let _segment = Segment::create(&path, &declaration)?;
//! for set in SegmentReader::open(&path)?.snapshot()?.sets {
//!     for limit in &set.limits {
//!         println!("{}.{}: {} left", set.name, limit.name, limit.remaining);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | of | types |
//! |---|---|
//! | a segment | [`SegmentSnapshot`], [`SegmentMemory`], [`ParticipantSnapshot`], [`LockSnapshot`] |
//! | a set | [`SetSnapshot`], [`SetCounts`], [`SetMemory`], [`HoldSnapshot`], [`TicketSnapshot`] |
//! | a limit | [`LimitSnapshot`], [`LimitCounts`], [`Forecast`] |
//! | keys | [`KeysSnapshot`], [`TableUsage`], [`KeySnapshot`], [`KeyLimitSnapshot`], [`KeyInOrder`], [`KeyLeaseSnapshot`], [`KeyLabel`], [`KeyFingerprint`] |
//! | what is wrong | [`Diagnosis`], [`ShardDiagnosis`], [`ShardPoison`], [`SegmentPlace`], [`ClockCheck`] |
//! | what was repaired | [`RecoveryReport`], [`SetRecovery`], [`Repairs`] |
//! | what to monitor | [`Metric`], [`MetricKind`], [`MetricSample`], [`MetricValue`] |
//! | processes | [`ProcessId`] |

pub use crate::api::clock_check::ClockCheck;
pub use crate::api::metric::{Metric, MetricKind, MetricSample, MetricValue};
pub use crate::api::segment::recovery::{RecoveryReport, SetRecovery};
pub use crate::api::segment_memory::{SegmentMemory, SetMemory};
pub use crate::api::set::checked::Forecast;
pub use crate::api::snapshot::{
    Diagnosis, HoldSnapshot, KeyFingerprint, KeyInOrder, KeyLabel, KeyLeaseSnapshot, KeyLimitSnapshot,
    KeySnapshot, KeysSnapshot, LimitCounts, LimitSnapshot, LockSnapshot, ParticipantSnapshot, SegmentPlace,
    SegmentReader, SegmentSnapshot, SetCounts, SetSnapshot, ShardDiagnosis, TicketSnapshot,
};
pub use crate::choices::ShardPoison;
pub use crate::engine::{Repairs, TableUsage};
pub use crate::error::ProcessId;
