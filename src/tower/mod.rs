//! Limits before an HTTP service, and before what a client sends: layers for everything built on `tower`, such as axum,
//! tonic and hyper.
//!
//! Needs the feature `tower`, which brings no runtime.
//!
//! ```
//! use std::convert::Infallible;
//! use std::time::Duration;
//!
//! use http_body_util::Full;
//! use hyper::body::Bytes;
//! use hyper::{Request, Response};
//! use shmlimit::tower::{Demand, LimitLayer};
//! use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("api.limits");
//! let declaration = Declaration::new().add_set(
//!     SetDeclaration::new("api")
//!         .add_limit(Limit::calls("requests", 1, Duration::from_secs(60)))
//!         .add_limit(Limit::concurrency("in_flight", 8)),
//! );
//! // In each worker process, or once before they are forked.
//! let segment = Segment::open_or_create(&path, &declaration)?;
//! let every_request = Demand::new(segment.set("api")?.request())?;
//! let service = ServiceBuilder::new()
//!     .layer(LimitLayer::new(every_request))
//!     .service(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))));
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let first = service.clone().oneshot(Request::new(())).await?;
//! assert_eq!(first.status(), 200);
//! assert_eq!(first.headers()["ratelimit"], r#""requests";r=0;t=60, "in_flight";r=7"#);
//! let second = service.oneshot(Request::new(())).await?;
//! assert_eq!(second.status(), 429);
//! assert!(second.headers().contains_key("retry-after"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`ClientLimitLayer`] is for requests that go out; what follows is about those that come in.
//!
//! # What it does
//!
//! - It asks the limits when the service is called, not when it is asked whether it is ready: nothing is held for a
//!   request that never comes. The [`Extractor`] says what each request takes: the same always, or by route, method or
//!   length.
//! - The permit is held until the response's body has ended, has failed or is dropped: a slow download takes its place
//!   in flight for as long as it lasts, and a client that goes away gives it back. If the process is killed, the others
//!   take it back. A connection that is upgraded has no body: its permit ends with the head of the response, unless the
//!   service [carries](PermitHandle::carry) it on.
//!   A limit with a lease takes its place back when that runs out, also under a response that is still being sent:
//!   declare leases longer than the longest response.
//! - An [adaptive](crate::Limit::adaptive) concurrency limit learns how long each response took to its end, and whether
//!   it [failed](LimitLayer::fails_with).
//! - With [`wait`](LimitLayer::wait), requests wait their turn for a time before they are refused.
//! - Where the segment was [removed](crate::SegmentError::Removed), it goes on with the segment that is at the path by
//!   then, in the set of the same name and the limits of the same names: see
//!   [`Segment::successor`](crate::Segment::successor). Each process opens that once, for all its layers. As long as there
//!   is none, [`OnError`] says what to do. A limit that requests name and the successor does not have is an error; one that
//!   they take by default is taken no more.
//! - The service reaches the permit by the [`PermitHandle`] in the request's extensions: to settle what a request has
//!   really used.
//! - What is answered in its place the application [shapes](LimitLayer::on_rejection) as it likes; the
//!   [`Refusal`](crate::Refusal) is in the response's extensions.
//! - On a [keyed](crate::SetDeclaration::keyed) set it limits each client by itself: by a header
//!   ([`Demand::by_header`]), by address or network ([`Demand::by_address`]) or by whatever else the request's head says
//!   ([`Demand::key`]). What clients read is then how the limits of their key stand, and they wait in a queue of their
//!   key's own.
//!
//! Asking blocks a thread of the runtime for about a microsecond. Only where a process is stopped while it holds the
//! lock of the set is it longer: up to the segment's [`lock_timeout`](crate::OpenOptions::lock_timeout).
//!
//! # What clients read
//!
//! A refusal is answered 429, or 503 where no limit refused but there is no room, with problem details; a request without
//! a key 400; and where the limits could not be asked, [`OnError`] says whether the answer is 500. Unless [`Advertise`]
//! says otherwise, all responses carry `RateLimit-Policy` and `RateLimit`, and refusals `Retry-After` in any case: the
//! module [`http`](crate::http) says what is in them.
//!
//! Clients of gRPC, which say so by their content type, are answered as they understand it: 200 without a body, and
//! `grpc-status` 8 (resource exhausted) in place of 429, 14 (unavailable) of 503, 3 (invalid argument) of 400 and 13
//! (internal) of 500. `grpc-retry-pushback-ms` says what `Retry-After` says.

mod admission;
mod answer;
mod body;
mod client;
mod extract;
mod future;
mod held;
mod layer;
mod permit_handle;
mod service;
mod settings;

pub use answer::Rejection;
pub use body::LimitBody;
pub use client::{
    ClientError, ClientLimitFuture, ClientLimitLayer, ClientLimitService, retry_after, throttled_by,
};
pub use extract::by_address::ByAddress;
pub use extract::by_header::ByHeader;
pub use extract::client_address::ClientAddress;
pub use extract::demand::{Demand, Extractor};
pub use future::LimitFuture;
pub use layer::LimitLayer;
pub use permit_handle::{CarriedPermit, PermitHandle};
pub use service::LimitService;
pub use settings::OnError;

pub use crate::http::Advertise;
