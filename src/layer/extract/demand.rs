//! What an HTTP request takes, and how that is determined.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use smallvec::SmallVec;

use super::extract_error::ExtractError;
use crate::api::request::{Request, Wanted};
use crate::api::set::limit_set::{LimitName, LimitSet};
use crate::error::{Error, SegmentError};
use crate::headers::PolicyHeaders;

/// Decides for each HTTP request which limits apply and what it takes from them.
///
/// A [`Demand`] is an extractor: it demands the same of every request. A function or closure of a request's head is
/// one too; it is called once for each request and should be quick:
///
/// ```
/// # use std::time::Duration;
/// use http::request::Parts;
/// use shmlimit::layer::{Demand, LimitLayer};
/// # use shmlimit::{Declaration, Error, Limit, Segment, SetDeclaration};
/// # let directory = tempfile::tempdir()?;
/// # let second = Duration::from_secs(1);
/// # let declaration = Declaration::new()
/// #     .add_set(SetDeclaration::new("search").add_limit(Limit::calls("searches", 10, second)))
/// #     .add_set(SetDeclaration::new("upload").add_limit(Limit::rate("bytes", 1_000_000, second)));
/// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
///
/// let search = Demand::new(segment.set("search")?.request())?;
/// let upload = Demand::new(segment.set("upload")?.request().with("bytes", 0)?)?; // each request has a cost of its own
/// let upload = upload.quota_unit("bytes", "content-bytes")?;
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
///
/// An extractor may answer a request itself, with a response that is sent as it is:
///
/// ```
/// # use std::time::Duration;
/// use http::request::Parts;
/// use http::{Response, StatusCode};
/// use shmlimit::layer::{Demand, LimitLayer};
/// # use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
/// # let directory = tempfile::tempdir()?;
/// # let declaration = Declaration::new().add_set(SetDeclaration::new("tenants")
/// #     .keyed(Keyed::new(1_000)).add_limit(Limit::calls("requests", 10, Duration::from_secs(1))));
/// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
/// # fn tenant_of(_: &Parts) -> Option<u64> { None }
///
/// fn unauthorized() -> Response<String> {
///     let mut response = Response::new("no valid token".to_owned());
///     *response.status_mut() = StatusCode::UNAUTHORIZED;
///     response
/// }
///
/// let each_tenant = Demand::new(segment.set("tenants")?.request())?;
/// let layer = LimitLayer::new(move |head: &Parts| {
///     let tenant = tenant_of(head).ok_or_else(unauthorized)?;
///     Ok(Some(each_tenant.clone().key(tenant.to_le_bytes())?))
/// });
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what each request takes",
    note = "wrap what every request takes in a demand, `Demand::new(request)?`, or write a closure, \
            `|head: &Parts| -> Result<Option<Demand>, ExtractError>`"
)]
pub trait Extractor {
    /// What the request with this head demands; `None` if it is not limited.
    ///
    /// # Errors
    ///
    /// A response with which the extractor answers the request itself, or any failure, which the layer handles like an
    /// error of the limits: see [`ExtractError`].
    fn extract(&self, head: &Parts) -> Result<Option<Demand>, ExtractError>;
}

impl<F> Extractor for F
where
    F: Fn(&Parts) -> Result<Option<Demand>, ExtractError>,
{
    fn extract(&self, head: &Parts) -> Result<Option<Demand>, ExtractError> {
        self(head)
    }
}

impl Extractor for Demand {
    fn extract(&self, _: &Parts) -> Result<Option<Demand>, ExtractError> {
        Ok(Some(self.clone()))
    }
}

/// A set of limits, what to take from it, the key, and how its limits are described to clients.
///
/// The set's limits are described once for all responses, until they [change](crate::Segment::apply). Clones share
/// that work, so create the demand at the start and clone it for each request.
#[derive(Clone, Debug)]
#[must_use]
pub struct Demand {
    set: LimitSet,
    wanted: Wanted,
    client: Client,
    headers: Arc<PolicyHeaders>,
}

/// Keys up to this length, that of a UUID as text, are stored without an allocation.
const KEY_BYTES: usize = 36;

/// Whose limits in the set the request takes from. A key is kept as given, because its hash differs in the table of
/// another segment.
#[derive(Clone, Debug)]
enum Client {
    /// The set as a whole; if it is keyed, the key is still missing.
    Everyone,
    Key(SmallVec<[u8; KEY_BYTES]>),
    /// The address whose networks are counted.
    Address(IpAddr),
}

impl Demand {
    /// Demands what `request` takes, from the set that it was prepared for. If the set is
    /// [keyed](crate::SetDeclaration::keyed), the demand also needs a [`key`](Self::key) or an
    /// [`address`](Self::address), and the request must have neither: what a key is in the segment that replaces a
    /// removed one cannot be told from a request.
    ///
    /// # Errors
    ///
    /// [`RequestError::CostRequired`](crate::RequestError::CostRequired) if it names nothing and a rate limit needs a
    /// cost. If each request has a cost of its own, [name](Self::with) a cost of zero here.
    /// [`RequestError::AlreadyKeyed`](crate::RequestError::AlreadyKeyed) if it has a key or an address.
    pub fn new(request: Request<'_>) -> Result<Self, Error> {
        request.require_no_client()?;
        request.require_costs()?;
        Ok(Self {
            headers: Arc::new(PolicyHeaders::new(request.set())),
            client: Client::Everyone,
            set: request.set().clone(),
            wanted: request.into_wanted(),
        })
    }

    /// Sets the key: any 1 to 65,536 bytes, such as an API key, a tenant or an address.
    /// [`by_header`](Self::by_header) takes it from a header of each request.
    ///
    /// A demand without a key on a keyed set is answered 400, whatever [`OnError`](crate::layer::OnError) says,
    /// because the request itself is incomplete.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use http::request::Parts;
    /// use shmlimit::layer::{Demand, LimitLayer};
    /// # use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("tenants")
    /// #     .keyed(Keyed::new(1_000)).add_limit(Limit::calls("requests", 10, Duration::from_secs(1))));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    ///
    /// // Inserted by the authentication layer.
    /// #[derive(Clone)]
    /// struct Tenant(u64);
    ///
    /// let each_tenant = Demand::new(segment.set("tenants")?.request())?;
    /// let layer = LimitLayer::new(move |head: &Parts| {
    ///     let demand = each_tenant.clone();
    ///     Ok(Some(match head.extensions.get() {
    ///         Some(Tenant(number)) => demand.key(number.to_le_bytes())?,
    ///         None => demand.key("no one")?,
    ///     }))
    /// });
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`Request::set_key`].
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Result<Self, Error> {
        let key = key.as_ref();
        self.client = Client::Key(SmallVec::from_slice(key));
        self.change(|request| request.set_key(key))
    }

    /// Sets the address. If the limits of the set count [networks](crate::Limit::prefix), the limits of every network
    /// that contains the address apply; nothing is held then, and requests do not wait. In other keyed sets, the
    /// textual form of the address is the key. [`by_address`](Self::by_address) takes it from each request.
    ///
    /// # Errors
    ///
    /// [`RequestError::NotKeyed`](crate::RequestError::NotKeyed).
    pub fn address(mut self, address: impl Into<IpAddr>) -> Result<Self, Error> {
        let address = address.into().to_canonical();
        if !self.set().is_by_address() {
            return self.key(address.to_string());
        }
        self.client = Client::Address(address);
        self.change(|request| request.set_address(address))
    }

    /// Names a limit and how many units of it to take: see [`Request::with`].
    ///
    /// # Errors
    ///
    /// See [`Request::set_cost`].
    pub fn with(self, limit: impl LimitName, cost: u64) -> Result<Self, Error> {
        self.change(|request| request.set_cost(limit, cost))
    }

    /// Names the [tier](crate::Tier) of the key, into which it is put before the decision: see
    /// [`Request::set_tier`]. If another extractor finds the key, such as [`ByHeader`](crate::layer::ByHeader), call it in
    /// a closure and name the tier of the demand that it returns.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use http::request::Parts;
    /// use shmlimit::layer::{Demand, LimitLayer};
    /// use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration, Tier};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    ///
    /// // Inserted by the authentication layer, from its token.
    /// #[derive(Clone)]
    /// struct Customer { id: u64, plan: &'static str }
    ///
    /// let minute = Duration::from_secs(60);
    /// let declaration = Declaration::new().add_set(
    ///     SetDeclaration::new("customers")
    ///         .keyed(Keyed::new(10_000))
    ///         .add_limit(Limit::calls("requests", 60, minute))
    ///         .add_tier(Tier::new("gold").capacity("requests", 6_000)),
    /// );
    /// let segment = Segment::open_or_create(&path, &declaration)?;
    /// let each_customer = Demand::new(segment.set("customers")?.request())?;
    /// let layer = LimitLayer::new(move |head: &Parts| {
    ///     let Some(customer) = head.extensions.get::<Customer>() else {
    ///         return Ok(None);
    ///     };
    ///     let demand = each_customer.clone().key(customer.id.to_le_bytes())?;
    ///     Ok(Some(demand.with_tier(customer.plan)?))
    /// });
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`Request::set_tier`].
    pub fn with_tier(self, tier: impl AsRef<str>) -> Result<Self, Error> {
        self.change(|request| request.set_tier(tier))
    }

    /// Gives the key a capacity of its own: see [`Request::set_override`].
    ///
    /// # Errors
    ///
    /// See [`Request::set_override`].
    pub fn with_override(
        self,
        limit: impl LimitName,
        capacity: impl Into<Option<u64>>,
    ) -> Result<Self, Error> {
        self.change(|request| request.set_override(limit, capacity))
    }

    /// Describes a rate limit or budget to clients, in a unit of the draft's registry: `requests` or `content-bytes`.
    /// Without it, such a limit is left out of the fields `RateLimit` and `RateLimit-Policy`, because a client would
    /// take its units for requests. Limits of other kinds have their own units and ignore this.
    ///
    /// # Errors
    ///
    /// See [`Request::set_cost`].
    pub fn quota_unit(mut self, limit: impl LimitName, unit: impl Into<String>) -> Result<Self, Error> {
        let set = &self.set;
        let index = set.resolve(&limit)?;
        if let Some(name) = index.and_then(|index| set.limits().nth(index)) {
            self.headers = Arc::new(Arc::unwrap_or_clone(self.headers).quota_unit(name, unit));
        }
        Ok(self)
    }

    /// A prefix for the names of limits wherever clients read them; none by default. For services with several sets
    /// whose limits have the same name, which clients would mistake for one.
    pub fn policy_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.headers = Arc::new(Arc::unwrap_or_clone(self.headers).policy_prefix(prefix));
        self
    }

    /// The demand to continue with after an error: the same one on the successor of its segment, if the segment was
    /// removed and has one.
    pub(in crate::layer) fn after(&self, error: &Error) -> Option<Result<Self, Error>> {
        if !matches!(error, Error::Segment(SegmentError::Removed { .. })) {
            return None;
        }
        Some(self.headers.successor()?.and_then(|headers| self.on(headers)))
    }

    fn on(&self, headers: Arc<PolicyHeaders>) -> Result<Self, Error> {
        let set = headers.set().clone();
        let demand = Self {
            wanted: self.request().on(&set)?.into_wanted(),
            client: Client::Everyone,
            set,
            headers,
        };
        match &self.client {
            Client::Everyone => Ok(demand),
            Client::Key(key) => demand.key(key),
            Client::Address(address) => demand.address(*address),
        }
    }

    pub(in crate::layer) fn request(&self) -> Request<'_> {
        Request::of(&self.set, self.wanted.clone())
    }

    /// How long a request that is decided at once may wait: nearly always not at all, otherwise with a timeout of zero,
    /// which lasts until the store of a fleet has answered.
    pub(in crate::layer) fn wait_for_store(&self) -> Option<Duration> {
        if !self.set.engine_set().has_lease_room {
            return None;
        }
        let cold_wait = self.request().cold_wait().ok()?;
        (!cold_wait.is_zero()).then_some(Duration::ZERO)
    }

    fn change(self, change: impl FnOnce(&mut Request<'_>) -> Result<(), Error>) -> Result<Self, Error> {
        let mut request = Request::of(&self.set, self.wanted);
        change(&mut request)?;
        let wanted = request.into_wanted();
        Ok(Self { wanted, ..self })
    }

    pub(in crate::layer) fn set(&self) -> &LimitSet {
        &self.set
    }

    /// Whether the request is for the networks of an address, which have no queues and hold nothing.
    pub(in crate::layer) fn is_by_network(&self) -> bool {
        matches!(self.client, Client::Address(_))
    }

    /// How the limits are described to clients.
    pub(in crate::layer) fn headers(&self) -> &PolicyHeaders {
        &self.headers
    }
}
