//! Limits per client, where a header says which.

use http::HeaderName;
use http::request::Parts;

use super::demand::{Demand, Extractor};
use crate::error::Error;

/// Demands the same of every request, of the limits of the key that the request names in a header: see
/// [`Demand::by_header`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ByHeader {
    header: HeaderName,
    demand: Demand,
    /// For requests without the header.
    unnamed: Demand,
}

impl Demand {
    /// Limits each client by itself: the value of this header is the key. For [keyed](crate::SetDeclaration::keyed)
    /// sets; [`key`](Self::key) is for keys from elsewhere.
    ///
    /// Requests without the header are answered 400, unless [`or_key`](ByHeader::or_key) has a key for them, and so are
    /// those whose header is empty or repeated: which of several values counts is not specified anywhere.
    ///
    /// Anyone can make up a key that no one checks, and has fresh limits by it. Let requests come through a layer that
    /// checks it first, or keys that are made up fill the table and new clients are turned away.
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # use std::time::Duration;
    /// # use http_body_util::Full;
    /// # use hyper::body::Bytes;
    /// use http::HeaderName;
    /// # use http::{Request, Response};
    /// use shmlimit::tower::{Demand, LimitLayer};
    /// use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
    /// use tower::{ServiceBuilder, service_fn};
    /// # use tower::ServiceExt;
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// let declaration = Declaration::new().add_set(
    ///     SetDeclaration::new("clients")
    ///         .keyed(Keyed::new(100_000))
    ///         .add_limit(Limit::calls("requests", 1, Duration::from_secs(60))),
    /// );
    /// let segment = Segment::open_or_create(&path, &declaration)?;
    /// let each_client = Demand::new(segment.set("clients")?.request())?
    ///     .by_header(HeaderName::from_static("x-api-key"))?
    ///     .or_key("anonymous")?; // all of them together
    /// let service = ServiceBuilder::new()
    ///     .layer(LimitLayer::new(each_client))
    ///     .service(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))));
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// # for (key, status) in [("ann", 200), ("ann", 429), ("bob", 200), ("", 400)] {
    /// #     let request = Request::get("/").header("x-api-key", key).body(())?;
    /// #     assert_eq!(service.clone().oneshot(request).await?.status(), status);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::NotKeyed`](crate::RequestError::NotKeyed),
    /// [`RequestError::AddressRequired`](crate::RequestError::AddressRequired).
    pub fn by_header(self, header: HeaderName) -> Result<ByHeader, Error> {
        // Whatever the keys will be, the set must be one that has some.
        self.set().identify(b"any")?;
        Ok(ByHeader {
            header,
            unnamed: self.clone(),
            demand: self,
        })
    }
}

impl ByHeader {
    /// Limits all requests without the header together, as this key, instead of answering them 400.
    ///
    /// # Errors
    ///
    /// As [`Demand::key`].
    pub fn or_key(mut self, key: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.unnamed = self.unnamed.key(key)?;
        Ok(self)
    }
}

impl Extractor for ByHeader {
    fn extract(&self, head: &Parts) -> Result<Option<Demand>, Error> {
        let mut keys = head.headers.get_all(&self.header).iter();
        Ok(Some(match (keys.next(), keys.next()) {
            (None, _) => self.unnamed.clone(),
            (Some(key), None) => self.demand.clone().key(key)?,
            // A demand without a key, which is refused.
            (Some(_), Some(_)) => self.demand.clone(),
        }))
    }
}
