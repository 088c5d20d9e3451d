//! Limits for HTTP services and clients: layers for everything built on `tower`, such as axum, tonic and hyper.
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
//! use shmlimit::layer::{Demand, LimitLayer};
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
//! [`ClientLimitLayer`] is for outgoing requests; the rest of this page is about incoming ones.
//!
//! # What it does
//!
//! - It asks the limits when the service is called, not when it is polled for readiness, so nothing is held for a
//!   request that never comes. The [`Extractor`] says what each request takes: always the same, or by route, method
//!   or length.
//! - The permit is held until the response's body has ended, has failed or is dropped: a slow download keeps its
//!   place in flight for as long as it lasts, and a client that goes away gives it back. If the process is killed,
//!   other processes take the place back. An upgraded connection has no body: its permit ends with the head of the
//!   response, unless the service [carries](PermitHandle::carry) it on. A limit with a lease takes its place back
//!   when the lease runs out, even while the response is still being sent, so declare leases longer than the longest
//!   response.
//! - An [adaptive](crate::Limit::adaptive) concurrency limit learns how long each response took to complete, and
//!   whether it [failed](LimitLayer::fails_with).
//! - With [`wait`](LimitLayer::wait), requests wait for some time before they are refused.
//! - If the segment was [removed](crate::SegmentError::Removed), it continues with the segment that is now at the
//!   path, using the set and the limits of the same names: see [`Segment::successor`](crate::Segment::successor).
//!   Each process opens that once, for all its layers. While there is none, [`OnError`] says what to do. A limit that
//!   requests name but the successor lacks is an error; one that they take by default is no longer taken.
//! - If a layer further in refuses the request, everything that this one took comes back, holds and rates: the request
//!   never happened. [`LimitLayer::refund_when`] can say the same of other responses.
//! - The service reaches the permit through the [`Permits`] in the request's extensions, by the name of the set, to
//!   settle what a request has really used.
//! - The application can [shape](LimitLayer::on_rejection) answers in place of the service; the
//!   [`Refusal`](crate::Refusal) is in the response's extensions.
//! - On a [keyed](crate::SetDeclaration::keyed) set it limits each client separately: by a header
//!   ([`Demand::by_header`]), by address or network ([`Demand::by_address`]) or by anything else in the request's
//!   head ([`Demand::key`]). Clients then see the limits of their own key, and wait in its queue. The same extractor
//!   may name the key's tier ([`Demand::with_tier`]), or [answer](ExtractError::Answered) a request whose key it does
//!   not accept.
//!
//! Asking blocks a thread of the runtime for about a microsecond. It takes longer only if a process is stopped while
//! it holds the lock of the set: up to the segment's [`lock_timeout`](crate::OpenOptions::lock_timeout).
//!
//! # What clients see
//!
//! A refusal is answered 429, or 503 if no limit refused but there is no room, with problem details; a request
//! without a key, 400. If the limits could not be asked, [`OnError`] says whether the answer is 500. Unless
//! [`Advertise`](crate::headers::Advertise) says otherwise, all responses carry `RateLimit-Policy` and `RateLimit`;
//! refusals always carry `Retry-After`. The module [`headers`](crate::headers) describes their content.
//!
//! gRPC clients, recognized by their content type, get answers in their own terms: 200 without a body, and
//! `grpc-status` 8 (resource exhausted) for 429, 14 (unavailable) for 503, 3 (invalid argument) for 400 and 13
//! (internal) for 500. In place of `Retry-After`, they get `grpc-retry-pushback-ms` and, in the details of the status,
//! a `google.rpc.RetryInfo`.

mod admission;
mod answer;
mod body;
mod callback;
mod client;
mod extract;
mod future;
mod held;
mod limit_layer;
mod permit_handle;
mod permits;
mod refused_inside;
mod service;
mod settings;
mod shared_layer;

pub use answer::Rejection;
pub use body::LimitBody;
pub use client::{
    ClientError, ClientLimitFuture, ClientLimitLayer, ClientLimitService, NotSent, OutgoingPermit,
    retry_after, throttled_by,
};
pub use extract::by_address::ByAddress;
pub use extract::by_header::ByHeader;
pub use extract::client_address::ClientAddress;
pub use extract::demand::{Demand, Extractor};
pub use extract::extract_error::ExtractError;
pub use future::LimitFuture;
pub use limit_layer::LimitLayer;
pub use permit_handle::{CarriedPermit, PermitHandle};
pub use permits::Permits;
pub use refused_inside::refused_inside;
pub use service::LimitService;
pub use settings::OnError;
