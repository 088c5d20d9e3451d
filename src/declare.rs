//! What declarations are made of, beyond the types of the first examples.
//!
//! A [`Declaration`](crate::Declaration) has sets ([`SetDeclaration`](crate::SetDeclaration)), and these have limits
//! ([`Limit`](crate::Limit)). Here is what goes into them:
//!
//! | for | types |
//! |---|---|
//! | a segment | [`SegmentOptions`], [`ClockSource`], [`LockKind`], [`Checkpoint`], [`FleetOptions`] |
//! | a keyed set | [`WhenFull`] |
//! | a limit | [`Kind`], [`Scope`], [`LimitOptions`], [`Amount`], [`Align`], [`TimeZone`], [`Weekday`], [`Credit`], [`Adaptive`], [`FleetLease`], [`Outage`] |
//!
//! and what can be learnt about declarations: the most that a limit admits ([`Bound`]), how two declarations differ
//! ([`Difference`]), how `limitctl edit` takes a value ([`ValueForm`]), what a process does about a segment that was
//! declared differently ([`OnMismatch`], [`Mismatch`], [`MismatchOutcome`]), and what is wrong with a word that a
//! person wrote ([`ParseError`]).

pub use crate::api::segment::mismatch::{Mismatch, MismatchOutcome, OnMismatch};
pub use crate::choices::{Kind, LockKind, Outage, Scope, WhenFull};
pub use crate::declaration::{
    Adaptive, Align, Amount, Bound, Checkpoint, ClockSource, Credit, FleetLease, FleetOptions, LimitOptions,
    SegmentOptions, TimeZone, ValueForm, Weekday,
};
pub use crate::error::Difference;
pub use crate::words::ParseError;
