//! Limits that hosts share: what a client of the store needs from a segment. This module does no networking.
//!
//! A limit declared with [`Limit::fleet`](crate::Limit::fleet) is spent from a *lease*: units that the store has
//! granted to this host for a short time. All processes of the host spend them together, in the segment, without
//! asking. One process of the host at a time has [`Duty`]: it asks the store in the background, before the leased
//! units run out.
//!
//! A client of a store is a loop like this; `send` stands for the network.
//!
//! ```no_run
//! use std::time::Duration;
//! use shmlimit::fleet::{LeaseReply, LeaseRequest, StoreProblem};
//! use shmlimit::Segment;
//!
//! fn send(request: &LeaseRequest) -> Result<LeaseReply, StoreProblem> {
//!     # let _ = request;
//!     Err(StoreProblem::Unreachable)
//! }
//!
//! let segment = Segment::open("/dev/shm/gateway.limits")?;
//! let fleet = segment.fleet();
//! loop {
//!     // Another process has duty. If it dies, this one takes over.
//!     let Some(duty) = fleet.wait_for_duty(Duration::from_secs(1))? else {
//!         continue;
//!     };
//!     while duty.is_held() {
//!         for asked in duty.ask()? {
//!             match send(asked.request()) {
//!                 Ok(reply) => duty.install(&asked, &reply)?,
//!                 Err(problem) => duty.report(&asked, problem, Duration::ZERO)?,
//!             }
//!         }
//!         duty.wait(Duration::from_secs(1));
//!     }
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), shmlimit::Error>(())
//! ```

mod duty_handle;
mod lease_request;
mod lease_snapshot;
mod store_problem;

pub use duty_handle::{Asked, Duty, Fleet};
pub use lease_request::{LeaseReply, LeaseRequest, LeasedKey, LeasedLimit, LeasedRule};
pub use lease_snapshot::{DutySnapshot, FleetSnapshot, LeaseCounts, LeaseSnapshot};
pub use store_problem::{NamedProblem, StoreProblem};
