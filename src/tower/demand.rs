//! What an HTTP request takes, and how it is found out.

use std::sync::Arc;

use http::request::Parts;

use super::fields::Policies;
use crate::error::Error;
use crate::limit_set::{LimitName, LimitSet};
use crate::request::Request;

/// Says of each HTTP request which limits it has to pass and what it takes of them.
///
/// A [`Demand`] is an extractor: it demands the same of every request. A function or closure of a request's head is
/// one, too; it is called once for each request and should be quick:
///
/// ```
/// # use std::time::Duration;
/// use http::request::Parts;
/// use shmlimit::tower::{Demand, LimitLayer};
/// # use shmlimit::{Declaration, Error, Limit, Segment, SetDeclaration};
/// # let folder = tempfile::tempdir()?;
/// # let second = Duration::from_secs(1);
/// # let declaration = Declaration::new()
/// #     .set(SetDeclaration::new("search").limit(Limit::calls("searches", 10, second)))
/// #     .set(SetDeclaration::new("upload").limit(Limit::rate("bytes", 1_000_000, second)));
/// # let segment = Segment::create(folder.path().join("limits"), &declaration)?;
///
/// let search = Demand::new(segment.set("search")?.request());
/// let upload = Demand::new(segment.set("upload")?.request()).quota_unit("bytes", "content-bytes")?;
/// let layer = LimitLayer::new(move |head: &Parts| {
///     Ok(match head.uri.path() {
///         "/health" => None, // not limited
///         "/upload" => {
///             let length = head.headers.get("content-length").and_then(|length| length.to_str().ok());
///             let length = length.and_then(|length| length.parse().ok()).unwrap_or(1_000);
///             Some(upload.clone().with("bytes", length)?)
///         }
///         _ => Some(search.clone()),
///     })
/// });
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Extractor {
    /// What the request with this head demands; none if it is not limited.
    ///
    /// # Errors
    ///
    /// What goes wrong on the way. The layer deals with it as with an error of the limits: see
    /// [`OnError`](super::OnError).
    fn extract(&self, head: &Parts) -> Result<Option<Demand>, Error>;
}

impl<F> Extractor for F
where
    F: Fn(&Parts) -> Result<Option<Demand>, Error>,
{
    fn extract(&self, head: &Parts) -> Result<Option<Demand>, Error> {
        self(head)
    }
}

impl Extractor for Demand {
    fn extract(&self, _: &Parts) -> Result<Option<Demand>, Error> {
        Ok(Some(self.clone()))
    }
}

/// A set of limits, what to take of it, and how clients are told of it.
///
/// Making one describes the set's limits once for all responses; clones share that, so make it at the start and
/// clone it for each request.
#[derive(Clone, Debug)]
#[must_use]
pub struct Demand {
    request: Request,
    policies: Arc<Policies>,
}

impl Demand {
    /// Demands what `request` takes, of the set that it was prepared for.
    pub fn new(request: Request) -> Self {
        Self {
            policies: Arc::new(Policies::of(request.limit_set())),
            request,
        }
    }

    /// Names a limit and what to take of it, in units: see [`Request::with`].
    ///
    /// # Errors
    ///
    /// As [`Request::set`].
    pub fn with(mut self, limit: impl LimitName, cost: u64) -> Result<Self, Error> {
        self.request.set(limit, cost)?;
        Ok(self)
    }

    /// Tells clients of a rate limit or budget, measured in a unit of the draft's registry: `requests` or
    /// `content-bytes`. Without it such a limit is kept out of the fields `RateLimit` and `RateLimit-Policy`: a
    /// client would take its units for requests. Limits of other kinds have units of their own and ignore this.
    ///
    /// # Errors
    ///
    /// As [`Request::set`].
    pub fn quota_unit(mut self, limit: impl LimitName, unit: impl Into<String>) -> Result<Self, Error> {
        let set = self.request.limit_set();
        if let Some(index) = set.resolve(&limit)? {
            Arc::make_mut(&mut self.policies).set_unit(set, index, unit.into());
        }
        Ok(self)
    }

    /// What stands before the names of limits wherever clients read them; nothing unless given. For services whose
    /// sets have limits of the same name, which clients would take for one.
    pub fn policy_prefix(mut self, prefix: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.policies).set_prefix(self.request.limit_set(), prefix.into());
        self
    }

    pub(super) fn request(&self) -> &Request {
        &self.request
    }

    pub(super) fn set(&self) -> &LimitSet {
        self.request.limit_set()
    }

    pub(super) fn policies(&self) -> &Policies {
        &self.policies
    }
}
