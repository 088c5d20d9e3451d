//! Limits per client, identified by a header.

use http::HeaderName;
use http::request::Parts;

use super::demand::{Demand, Extractor};
use super::extract_error::ExtractError;
use crate::error::Error;

/// Demands the same of every request, from the limits of the key in a header. See [`Demand::by_header`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ByHeader {
    header: HeaderName,
    demand: Demand,
    /// For requests without the header.
    unnamed: Demand,
}

impl Demand {
    /// Limits each client separately, with the value of this header as the key. If that is a secret, such as an API key
    /// or a bearer token, declare the set with [`store_keys(false)`](crate::Keyed::store_keys): otherwise its first
    /// bytes can be read in the segment's file.
    ///
    /// For [keyed](crate::SetDeclaration::keyed) sets; use [`key`](Self::key) for keys from elsewhere.
    ///
    /// Requests without the header are answered 400, unless [`or_key`](ByHeader::or_key) gives a key for them. So are
    /// requests whose header is empty or repeated, because no specification says which of several values counts.
    ///
    /// If nobody checks the keys, anyone can make one up and get fresh limits with it. Put a layer in front that
    /// checks them; otherwise invented keys fill the table and new clients are turned away.
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # use std::time::Duration;
    /// # use http_body_util::Full;
    /// # use hyper::body::Bytes;
    /// use http::HeaderName;
    /// # use http::{Request, Response};
    /// use shmlimit::layer::{Demand, LimitLayer};
    /// use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
    /// use tower::{ServiceBuilder, service_fn};
    /// # use tower::ServiceExt;
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// let declaration = Declaration::new().add_set(
    ///     SetDeclaration::new("clients")
    ///         .keyed(Keyed::new(100_000).store_keys(false))
    ///         .add_limit(Limit::calls("requests", 1, Duration::from_secs(60))),
    /// );
    /// let segment = Segment::open_or_create(&path, &declaration)?;
    /// let each_client = Demand::new(segment.set("clients")?.request())?
    ///     .by_header(HeaderName::from_static("x-api-key"))?
    ///     .or_key("anonymous")?; // all requests without the header together
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
        // Whatever the keys will be, the set must be keyed.
        self.set().identify(b"any")?;
        Ok(ByHeader {
            header,
            unnamed: self.clone(),
            demand: self,
        })
    }
}

impl ByHeader {
    /// Limits all requests without the header together, under this key, instead of answering 400.
    ///
    /// # Errors
    ///
    /// See [`Demand::key`].
    pub fn or_key(mut self, key: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.unnamed = self.unnamed.key(key)?;
        Ok(self)
    }
}

impl Extractor for ByHeader {
    fn extract(&self, head: &Parts) -> Result<Option<Demand>, ExtractError> {
        let mut keys = head.headers.get_all(&self.header).iter();
        Ok(Some(match (keys.next(), keys.next()) {
            (None, _) => self.unnamed.clone(),
            (Some(key), None) => self.demand.clone().key(key)?,
            // A demand without a key, which is refused.
            (Some(_), Some(_)) => self.demand.clone(),
        }))
    }
}
