//! The permits of a request, in its extensions.

use http::Extensions;
use smallvec::SmallVec;

use super::permit_handle::{PermitHandle, SharedPermit};

/// The permits of a request, found in the request's extensions: one for each layer that admitted it under a permit,
/// each found by the name of its set.
///
/// In axum, extract them with `Extension<Permits>`. They are in the extensions of every request that passed a
/// [`LimitLayer`](super::LimitLayer), whatever the number and order of layers. A set has no permit there if its layer
/// did not limit the request, if it admitted it although the limits [could not be asked](super::OnError::Admit), or if
/// it counts networks ([`Demand::address`](super::Demand::address)), which hold nothing.
///
/// ```
/// # use std::convert::Infallible;
/// # use std::time::Duration;
/// # use http_body_util::Full;
/// # use hyper::body::Bytes;
/// use http::{Request, Response};
/// use shmlimit::layer::{Demand, LimitLayer, Permits};
/// # use shmlimit::{Declaration, Error, Limit, Segment, SetDeclaration};
/// # use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # let directory = tempfile::tempdir()?;
/// # let declaration = Declaration::new()
/// #     .add_set(SetDeclaration::new("openai").add_limit(Limit::rate("tokens", 10_000, Duration::from_secs(3600))))
/// #     .add_set(SetDeclaration::new("backend").add_limit(Limit::concurrency("in_flight", 8)));
/// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
/// let estimate = Demand::new(segment.set("openai")?.request().with("tokens", 1_500)?)?;
/// let service = ServiceBuilder::new()
///     .layer(LimitLayer::new(estimate))
///     .layer(LimitLayer::new(Demand::new(segment.set("backend")?.request())?))
///     .service(service_fn(async |request: Request<()>| {
///         let permits = request.extensions().get::<Permits>().cloned().unwrap_or_default();
///         let used = 900; // the actual cost, taken from the answer
///         if let Some(permit) = permits.of("openai") {
///             permit.settle([("tokens", used)])?;
///         }
///         Ok::<_, Error>(Response::new(Full::<Bytes>::from("done")))
///     }));
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(service.oneshot(Request::new(())))?;
/// assert_eq!(segment.snapshot()?.sets[0].limits[0].counts.refunded, 600);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Permits {
    /// In the order in which layers have added them.
    handles: SmallVec<[PermitHandle; 2]>,
}

impl Permits {
    /// The permit of the set with this name. If several layers ask sets of this name, it is that of the innermost
    /// layer, or, in the extensions of a response, that of the outermost.
    pub fn of(&self, set: &str) -> Option<&PermitHandle> {
        self.iter().find(|permit| permit.set().name() == set)
    }

    /// All permits, that of the innermost layer first, or, in the extensions of a response, that of the outermost.
    pub fn iter(&self) -> impl Iterator<Item = &PermitHandle> {
        self.handles.iter().rev()
    }

    /// Adds what a layer holds for the request, if anything.
    pub(super) fn announce(held: Option<&SharedPermit>, extensions: &mut Extensions) {
        let mut permits: Self = extensions.remove().unwrap_or_default();
        permits.handles.extend(held.map(SharedPermit::handle));
        extensions.insert(permits);
    }
}
