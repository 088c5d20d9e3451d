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
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("api.limits");
//! let declaration = Declaration::new().set(
//!     SetDeclaration::new("api")
//!         .limit(Limit::calls("requests", 1, Duration::from_secs(60)))
//!         .limit(Limit::concurrency("in_flight", 8)),
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
//! - Where the segment was [removed](crate::Error::Removed), it goes on with the segment that is at the path by then, in the
//!   set of the same name and the limits of the same names: see [`Segment::successor`](crate::Segment::successor). Each
//!   process opens that once, for all its layers. As long as there is none, [`OnError`] says what to do. A limit that
//!   requests name and the successor does not have is an error; one that they take by default is taken no more.
//! - The service reaches the permit by the [`PermitHandle`] in the request's extensions: to settle what a request has
//!   really used.
//! - What is answered in its place the application [shapes](LimitLayer::on_rejection) as it likes; the
//!   [`Refusal`](crate::Refusal) is in the response's extensions.
//! - On a [keyed](crate::SetDeclaration::keyed) set it limits each client by itself: by a header
//!   ([`Demand::by_header`]), by address or network ([`Demand::by_address`]) or by whatever else the request's head says ([`Demand::key`]). What clients are told is then
//!   how the limits of their key stand, and they wait in a line of their key's own.
//!
//! Asking blocks a thread of the runtime for about a microsecond. Only where a process is stopped while it holds the
//! lock of the set is it longer: up to the segment's [`lock_timeout`](crate::OpenOptions::lock_timeout).
//!
//! # What clients are told
//!
//! | status | when | body |
//! |---|---|---|
//! | 429 | a limit refused, of whatever kind, or can never admit so much | problem details of type [quota-exceeded], with `violated-policies` |
//! | 400 | the set is keyed, and the request names no key, several, or one that cannot be | problem details |
//! | 503 | no limit refused, but there is no room to hold or queue the request, or for another key; or what is behind the limits is [throttled](crate::Permit::throttled) | problem details |
//! | 500 | the limits could not be asked, and [`OnError`] says to refuse | problem details, which do not say why |
//!
//! A new key for which the table has no room is answered 503: it has not used anything, so 429 would be a lie.
//!
//! Clients of gRPC, which say so by their content type, are answered as they understand it: 200 without a body, and
//! `grpc-status` 8 (resource exhausted) in place of 429, 14 (unavailable) of 503, 3 (invalid argument) of 400 and 13
//! (internal) of 500. `grpc-retry-pushback-ms` says what `Retry-After` says.
//!
//! Concurrency is answered 429 as well: the draft counts concurrent requests as a quota, and leaves 503 to a server
//! whose capacity is less than usual.
//!
//! `Retry-After` of a refusal is the longest wait in seconds, rounded up, of all limits that refused, and 1 where none of them
//! can know, as is so with concurrency: without a number clients would be back at once. Only a request that takes more than
//! a limit can ever admit is answered without it: no waiting helps.
//!
//! `RateLimit-Policy` and `RateLimit` follow [draft-ietf-httpapi-ratelimit-headers-11][draft] and are on all responses
//! unless [`Advertise`] says otherwise. Each limit is a policy of its name:
//!
//! ```text
//! RateLimit-Policy: "requests";q=200;w=1;shmlimit-burst=20, "in_flight";q=8;qu="concurrent-requests"
//! RateLimit: "requests";r=19;t=1, "in_flight";r=5
//! ```
//!
//! - `r` is what was left when the request was decided. `t` is when the limit will be completely replenished, or, in a
//!   refusal, when the request would be admitted.
//! - Windows that are no whole number of seconds, and months, are left out, and so are unlimited limits and those in
//!   [shadow](crate::Limit::shadow). The quota of an [adaptive](crate::Limit::adaptive) limit is the capacity
//!   that it had found when the request was decided.
//! - Limits that [change](crate::Segment::apply) are told as they are then, and those of a key as its [tier](crate::Tier) has
//!   them; where a request could never be met, as they are declared.
//! - Rate limits and budgets are told only in a unit that clients know: see [`Demand::quota_unit`].
//! - Which key it is about is not told (the draft's `pk`): a key may be a secret, and fields end up in logs.
//! - Names may hold what a header field may not. Bytes other than printable ASCII, and the percent sign, are
//!   percent-encoded, in `violated-policies` as well, so that they are equal wherever they are read.
//!
//! [quota-exceeded]: https://iana.org/assignments/http-problem-types#quota-exceeded
//! [draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/

mod answer;
mod body;
mod by_address;
mod by_header;
mod client;
mod client_address;
mod decision;
mod demand;
mod fields;
mod future;
mod held;
mod layer;
mod permit_handle;
mod problem;
mod service;
mod told;

pub use answer::Rejection;
pub use body::LimitBody;
pub use by_address::ByAddress;
pub use by_header::ByHeader;
pub use client::{
    ClientError, ClientLimitFuture, ClientLimitLayer, ClientLimitService, retry_after, throttled_by,
};
pub use client_address::ClientAddress;
pub use demand::{Demand, Extractor};
pub use future::LimitFuture;
pub use layer::{Advertise, LimitLayer, OnError};
pub use permit_handle::{CarriedPermit, PermitHandle};
pub use service::LimitService;
