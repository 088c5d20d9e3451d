//! Limits in HTTP responses: header fields and problem details, for integrations with any server.
//!
//! The layers of the module `layer` and the integrations of the Python package are built on this module. It needs no
//! feature and no HTTP crate: fields are text.
//! ```
//! use std::time::Duration;
//!
//! use shmlimit::headers::{Advertise, PolicyHeaders};
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
//! let permit = api.request().try_permit()?;
//! let fields = headers.admission(permit.verdicts(), Advertise::Always);
//! assert_eq!(fields.policy.as_deref(), Some(r#""requests";q=1;w=60"#)); // RateLimit-Policy
//! assert_eq!(fields.standing.as_deref(), Some(r#""requests";r=0;t=60"#)); // RateLimit
//!
//! if let Outcome::Refused(refusal) = api.request().try_acquire()? {
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
//! `RateLimit-Policy` and `RateLimit` follow [draft-ietf-httpapi-ratelimit-headers-11][draft]. Each limit is a policy
//! with the limit's name:
//!
//! ```text
//! RateLimit-Policy: "requests";q=200;w=1;shmlimit-burst=20, "in_flight";q=8;qu="concurrent-requests"
//! RateLimit: "requests";r=19;t=1, "in_flight";r=5
//! ```
//!
//! - `r` is what was left when the request was decided. `t` is the time until the limit is completely replenished or,
//!   in a refusal, until the request would be admitted.
//! - Windows that are not a whole number of seconds, and months, are left out. So are unlimited limits and those in
//!   [shadow](crate::Limit::shadow) mode. The quota of an [adaptive](crate::Limit::adaptive) limit is its capacity at
//!   the time of the decision.
//! - [Changed](crate::Segment::apply) limits are described in their current form, and those of a key as in its
//!   [tier](crate::Tier); for a request that could never be met, as they are declared.
//! - Rate limits and budgets are described only in a unit that clients know: see [`PolicyHeaders::quota_unit`].
//! - The key is not named (the draft's `pk`), because a key may be a secret and fields end up in logs.
//! - Names may contain bytes that a header field may not. All bytes except printable ASCII, as well as the percent
//!   sign, are percent-encoded, also in `violated-policies`, so that names are equal wherever they are read.
//!
//! `Retry-After` of a refusal is the longest wait of all limits that refused, in seconds, rounded up. If none of them
//! knows it, as with concurrency, it is 1: without a number, clients would be back at once. It is missing only if the
//! request takes more than a limit can ever admit, because no waiting helps then.
//!
//! # Problems
//!
//! | status | when | body |
//! |---|---|---|
//! | 429 | a limit of any kind refused, or can never admit so much | problem details of type [quota-exceeded], with `violated-policies` |
//! | 400 | the set is keyed, and the request names no key, several, or an invalid one | problem details |
//! | 503 | no limit refused, but there is no room to hold or queue the request, or for another key; or the upstream is [throttled](crate::Permit::throttled); or nothing is leased yet of a limit that [hosts share](crate::Limit::fleet), or their store is out | problem details |
//! | 500 | the limits could not be asked | problem details, which do not say why |
//!
//! A new key for which the table has no room gets 503: it has not used anything, so 429 would be wrong.
//!
//! Concurrency gets 429 too: the draft counts concurrent requests as a quota, and leaves 503 to a server with reduced
//! capacity.
//!
//! [quota-exceeded]: https://iana.org/assignments/http-problem-types#quota-exceeded
//! [draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/

mod fields;
mod policy_headers;
mod problem;

pub use fields::Fields;
pub use policy_headers::{Advertise, PolicyHeaders};
pub use problem::Problem;
