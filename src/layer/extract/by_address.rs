//! Limits per address or network of clients.

use std::net::IpAddr;

use http::request::Parts;

use super::client_address::ClientAddress;
use super::demand::{Demand, Extractor};
use super::extract_error::ExtractError;
use crate::error::Error;

/// Demands the same of every request, from the limits of its client's address. See [`Demand::by_address`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ByAddress {
    source: ClientAddress,
    demand: Demand,
    /// For requests without a known address.
    without_address: Demand,
}

impl Demand {
    /// Limits each client by its address or, if the limits of the set count [networks](crate::Limit::prefix), by all
    /// of its networks: see [`address`](Self::address). For [keyed](crate::SetDeclaration::keyed) sets.
    ///
    /// Requests without a known address are answered 400, unless [`or_address`](ByAddress::or_address) gives an
    /// address for them.
    ///
    /// ```
    /// # use std::net::SocketAddr;
    /// # use std::time::Duration;
    /// use shmlimit::layer::{ClientAddress, Demand, LimitLayer};
    /// use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// let minute = Duration::from_secs(60);
    /// let declaration = Declaration::new().add_set(
    ///     SetDeclaration::new("visitors")
    ///         .keyed(Keyed::new(100_000))
    ///         .add_limit(Limit::calls("address", 60, minute).prefix(32, 64))
    ///         .add_limit(Limit::calls("network", 600, minute).prefix(24, 48)),
    /// );
    /// let segment = Segment::open_or_create(&path, &declaration)?;
    /// let each_visitor = Demand::new(segment.set("visitors")?.request())?;
    /// let layer = LimitLayer::new(each_visitor.by_address(ClientAddress::x_forwarded_for(1))?);
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::NotKeyed`](crate::RequestError::NotKeyed).
    pub fn by_address(self, source: ClientAddress) -> Result<ByAddress, Error> {
        // Whatever the addresses will be, the set must have limits for them.
        let _ = self.clone().address(IpAddr::from([0, 0, 0, 0]))?;
        Ok(ByAddress {
            source,
            without_address: self.clone(),
            demand: self,
        })
    }
}

impl ByAddress {
    /// Limits all requests without a known address together, under this address, instead of answering 400.
    ///
    /// # Errors
    ///
    /// See [`Demand::address`].
    pub fn or_address(mut self, address: impl Into<IpAddr>) -> Result<Self, Error> {
        self.without_address = self.without_address.address(address)?;
        Ok(self)
    }
}

impl Extractor for ByAddress {
    fn extract(&self, head: &Parts) -> Result<Option<Demand>, ExtractError> {
        Ok(Some(match self.source.find(head) {
            Some(address) => self.demand.clone().address(address)?,
            None => self.without_address.clone(),
        }))
    }
}
