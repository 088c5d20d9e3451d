//! Limits shared by every process of a Linux host.
//!
//! A *segment* is one memory-mapped file. It holds *sets* of limits: calls and cost per time, budgets, concurrency. A
//! request takes everything it needs from a set or nothing, in one step, whichever process asks. There is no server. A
//! process-shared, robust lock and an undo journal guard the state, so a process that is killed at any instruction
//! leaves no half-done operation, no stuck lock and no leaked permit.
//!
//! ```
//! use std::time::Duration;
//! use shmlimit::{Algorithm, Declaration, Limit, Segment, SetDeclaration};
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("gateway.limits");
//! # fn call_the_model() -> u64 { 900 }
//! let minute = Duration::from_secs(60);
//! let declaration = Declaration::new().add_set(
//!     SetDeclaration::new("chat")
//!         // Never more than 10,000 in any minute; tokens the way the model's provider limits them.
//!         .add_limit(Limit::calls("requests", 10_000, minute).algorithm(Algorithm::SlidingWindow))
//!         .add_limit(Limit::rate("tokens", 2_000_000, minute).algorithm(Algorithm::TokenBucket))
//!         .add_limit(Limit::concurrency("in_flight", 64)),
//! );
//! // Any number of processes may do this at once, with a path such as /dev/shm/gateway.limits.
//! let segment = Segment::open_or_create(&path, &declaration)?;
//! let chat = segment.set("chat")?;
//! let request = chat.request().with("tokens", 1_500)?; // and one of each of the other two
//! let mut permit = request.try_permit()?; // or the refusal: which limit, why, how long to wait
//! let used = call_the_model();
//! permit.settle([("tokens", used)])?; // 600 tokens come back
//! drop(permit); // gives back its place in flight
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is here
//!
//! | to | use |
//! |---|---|
//! | declare limits in code or TOML | [`Declaration`], [`SetDeclaration`], [`Limit`], [`Algorithm`], [`Window`] |
//! | choose an algorithm, and know the most it admits | the table at [`Algorithm`], [`Limit::bound`] |
//! | count by days, weeks or months of a time zone | [`Window::Day`], [`Limit::time_zone`] |
//! | know how much memory a declaration takes | [`Declaration::memory`]; `limitctl create --dry-run` |
//! | open or create a segment | [`Segment`], [`OpenOptions`] |
//! | take limits | [`LimitSet::request`], [`Request::try_permit`], [`Request::try_acquire`]; [`Request::check`] if nothing is held |
//! | limit each client separately | [`SetDeclaration::keyed`], [`Keyed`], [`Request::for_key`], [`Request::check_many`] |
//! | give keys quotas by plan | [`SetDeclaration::add_tier`], [`Tier`], [`Request::with_tier`], [`Key::assign`] |
//! | give a single key a capacity of its own | [`Keyed::overrides`], [`Key::override_capacity`] |
//! | limit addresses by network | [`Limit::prefix`], [`Request::for_address`] |
//! | ask without taking anything | [`Request::peek`], [`LimitSet::forecast`] |
//! | count what is only known afterwards | [`Limit::budget`], [`LimitSet::debit`], [`Permit::debit`] |
//! | hold back for as long as an upstream says | [`Permit::throttled`], [`LimitSet::throttle`] |
//! | find the right concurrency | [`Limit::adaptive`], [`Permit::release_failed`] |
//! | try limits before they bite | [`SetDeclaration::shadow`], [`Limit::shadow`]; `limitctl simulate` on a trace |
//! | change limits of a live segment | [`Segment::apply`]; `limitctl apply`, `limitctl edit` |
//! | wait in the queue | [`Request::acquire`], [`Request::acquire_async`]; [`Request::reserve`] charges now for later |
//! | choose among several sets | [`LimitPool`], [`PoolStrategy`](pool::PoolStrategy), [`PoolRequest`](pool::PoolRequest) |
//! | admit without the lock, from batches that each process draws | [`Limit::credit`], [`Credit`](declare::Credit) |
//! | settle, release, hold | [`Permit`], [`Settlement`]; [`Permit::heartbeat`] renews a [lease](Limit::lease) |
//! | learn why not, and how long | [`Refusal`], [`Verdict`], [`RefusalReason`] |
//! | share limits with other hosts | [`Declaration::fleet_url`], [`Limit::fleet`], [`Outage`](declare::Outage); [`fleet`] for clients of a store |
//! | look without a lock | [`Segment::snapshot`], or [`SegmentReader`](snapshot::SegmentReader), which only needs read permission |
//! | see which key uses what | [`SegmentReader::key_snapshots`](snapshot::SegmentReader::key_snapshots), [`SegmentReader::key_snapshot`](snapshot::SegmentReader::key_snapshot), and the same methods of [`Segment`] |
//! | find out what is wrong | [`SegmentReader::diagnose`](snapshot::SegmentReader::diagnose); `limitctl doctor`, `limitctl selftest` |
//! | repair and start again | [`Segment::recover`], [`LimitSet::reset`], [`Segment::retire`] |
//! | try limits out in no time | [`VirtualClock`], [`OpenOptions::virtual_clock`] |
//! | limit only this process and its children | [`Segment::anonymous`] |
//! | limit an HTTP service | the feature `tower`: `layer::LimitLayer`, `layer::Demand::by_header`; for other servers [`headers::PolicyHeaders`] |
//! | be notified of refusals and waits | [`OpenOptions::on_request_event`], [`Request::label`] |
//! | see what live permits are for | [`SetDeclaration::labels`], [`Request::label`]; `limitctl inspect` |
//! | collect counters and gauges | the feature `metrics`: `SegmentSnapshot::record_metrics`; `limitctl export` |
//! | report to a subscriber | the feature `tracing`: recoveries, what dead processes held, stuck locks, unknown names, permits that could not be released, removed segments; each refusal and wait, if asked for by `OpenOptions::trace_requests` |
//! | let tracers on the host attach | the feature `usdt`: probes for bpftrace, free while none is attached |
//!
//! A refusal is a value, not a failure. [`Outcome::into_result`] makes it the error of a `Result` for use with `?`, but
//! it remains a type of its own. An [`Error`] says what went wrong, where, and what to do. [`AcquireError`] is either
//! of them: the error of [`Request::try_permit`], and of functions that use several verbs with `?`.
//!
//! # What to read before relying on it
//!
//! The [caveats](documentation::caveats): trust, containers, file systems, fork, stopped processes, and what a full
//! table of keys does. The [layout specification](documentation::layout_specification) describes the whole protocol,
//! and the [changelog](documentation::changelog) what has changed.
//!
//! Linux 4.14 or later with glibc (2.30 or later) or musl.

// The documentation says which feature brings an item. docs.rs, which builds it with a nightly compiler, sets `docsrs`.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "shmlimit is for Linux, whose robust futexes, file locks and process descriptors it is built on: develop in a container \
     on other systems, see CONTRIBUTING.md"
);

mod api;
mod callers_code;
mod choices;
mod declaration;
pub mod declare;
#[cfg(doc)]
pub mod documentation;
mod engine;
mod error;
#[cfg(test)]
mod explorer;
pub mod headers;
#[cfg(feature = "tower")]
pub mod layer;
mod limit;
mod message;
mod mutex;
mod order;
pub mod pool;
mod queue;
pub mod request;
mod shm;
pub mod snapshot;
mod sorting;
mod table;
mod units;
#[cfg(test)]
mod weak_memory;
mod words;

pub use api::fleet;
pub use api::key::Key;
pub use api::key::address::Address;
pub use api::permit::{Outcome, Permit, Settlement};
pub use api::pool::LimitPool;
pub use api::refusal::{Refusal, Verdict};
pub use api::request::{AcquireError, Request, Reservation, ReserveOutcome};
pub use api::segment::open_options::OpenOptions;
pub use api::segment::{Removal, Segment};
pub use api::set::checked::Checked;
pub use api::set::limit_set::LimitSet;
pub use declaration::{Algorithm, Declaration, Keyed, Limit, SetDeclaration, Tier, Window};
pub use engine::RefusalReason;
pub use error::{
    ChangeError, DeclarationError, Error, OpenError, PermitError, RemovalCause, RequestError, SegmentError,
};
pub use shm::time::virtual_clock::VirtualClock;

// Compiles and runs the examples of documents with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

#[cfg(doctest)]
#[doc = include_str!("README.md")]
struct ExamplesOfTheCratesPage;

#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
struct GuideExamples;

#[cfg(all(doctest, feature = "tower"))]
#[doc = include_str!("../docs/moving/tower-governor.md")]
struct MovingFromTowerGovernor;

#[cfg(all(doctest, feature = "tower"))]
#[doc = include_str!("../docs/how-to/answer-in-your-own-words.md")]
struct AnsweringInYourOwnWords;

#[cfg(doctest)]
#[doc = include_str!("../docs/moving/governor.md")]
struct MovingFromGovernor;

#[cfg(doctest)]
#[doc = include_str!("../docs/moving/leaky-bucket.md")]
struct MovingFromLeakyBucket;

#[cfg(doctest)]
#[doc = include_str!("../docs/moving/tokio-semaphore.md")]
struct MovingFromTokioSemaphore;
