//! Limits by address, for every network that contains it.

use std::net::IpAddr;

use crate::api::set::limit_set::LimitSet;
use crate::engine::Networks;
use crate::error::Error;

/// An address and the networks that contain it. See [`LimitSet::address`].
#[derive(Clone, Debug)]
pub struct Address<'a> {
    pub(crate) set: &'a LimitSet,
    pub(crate) networks: Networks,
}

impl LimitSet {
    /// An address in a keyed set whose limits count [networks](crate::Limit::prefix). Use it to manage what its
    /// networks have used; [requests](crate::Request::for_address) take from it.
    ///
    /// # Errors
    ///
    /// [`RequestError::NoPrefixes`](crate::RequestError::NoPrefixes) if the limits of the set do not count networks.
    pub fn address(&self, address: IpAddr) -> Result<Address<'_>, Error> {
        self.require_networks()?;
        Ok(Address {
            set: self,
            networks: self.engine_set().networks_of(address),
        })
    }
}
