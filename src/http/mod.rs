//! What HTTP responses say of limits: header fields and problem details, for integrations with any server.
//!
//! The layer of the feature `tower` and the integrations of the Python package are made of this. It needs no feature and
//! no crate of HTTP: fields are text.
//!
//! ```
//! use std::time::Duration;
//!
//! use shmlimit::http::{Advertise, PolicyHeaders};
//! use shmlimit::{Declaration, Limit, Outcome, Segment, SetDeclaration};
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("api.limits");
//! let minute = Duration::from_secs(60);
//! let declaration = Declaration::new().add_set(SetDeclaration::new("api").add_limit(Limit::calls("requests", 1, minute)));
//! let segment = Segment::open_or_create(&path, &declaration)?;
//! let api = segment.set("api")?;
//! let headers = PolicyHeaders::new(&api); // once, for all responses
//!
//! let permit = api.try_acquire(&api.request())?.into_result()?;
//! let fields = headers.admission(permit.verdicts(), Advertise::Always);
//! assert_eq!(fields.policy.as_deref(), Some(r#""requests";q=1;w=60"#)); // RateLimit-Policy
//! assert_eq!(fields.standing.as_deref(), Some(r#""requests";r=0;t=60"#)); // RateLimit
//!
//! if let Outcome::Refused(refusal) = api.try_acquire(&api.request())? {
//!     let problem = headers.refusal(&refusal, Advertise::Always);
//!     assert_eq!(problem.status, 429);
//!     assert_eq!(problem.fields.retry_after, Some(60));
//!     assert!(problem.body.contains(r#""violated-policies":["requests"]"#)); // application/problem+json
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Fields
//!
//! `RateLimit-Policy` and `RateLimit` follow [draft-ietf-httpapi-ratelimit-headers-11][draft]. Each limit is a policy of
//! its name:
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
//! - Limits that [change](crate::Segment::apply) are described as they are then, and those of a key as its
//!   [tier](crate::Tier) has them; where a request could never be met, as they are declared.
//! - Rate limits and budgets are described only in a unit that clients know: see [`PolicyHeaders::with_quota_unit`].
//! - The key is not named (the draft's `pk`): a key may be a secret, and fields end up in logs.
//! - Names may hold what a header field may not. Bytes other than printable ASCII, and the percent sign, are
//!   percent-encoded, in `violated-policies` as well, so that they are equal wherever they are read.
//!
//! `Retry-After` of a refusal is the longest wait in seconds, rounded up, of all limits that refused, and 1 where none of
//! them can know, as is so with concurrency: without a number clients would be back at once. Only a request that takes
//! more than a limit can ever admit is answered without it: no waiting helps.
//!
//! # Problems
//!
//! | status | when | body |
//! |---|---|---|
//! | 429 | a limit refused, of whatever kind, or can never admit so much | problem details of type [quota-exceeded], with `violated-policies` |
//! | 400 | the set is keyed, and the request names no key, several, or one that cannot be | problem details |
//! | 503 | no limit refused, but there is no room to hold or queue the request, or for another key; or what is behind the limits is [throttled](crate::Permit::throttled) | problem details |
//! | 500 | the limits could not be asked | problem details, which do not say why |
//!
//! A new key for which the table has no room is answered 503: it has not used anything, so 429 would be wrong.
//!
//! Concurrency is answered 429 as well: the draft counts concurrent requests as a quota, and leaves 503 to a server
//! whose capacity is less than usual.
//!
//! [quota-exceeded]: https://iana.org/assignments/http-problem-types#quota-exceeded
//! [draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/

mod fields;
mod policy_headers;
mod problem;

pub use fields::Fields;
pub use policy_headers::{Advertise, PolicyHeaders};
pub use problem::Problem;
