//! Limits by address, for every network that contains it.

use std::net::IpAddr;

use crate::api::set::limit_set::LimitSet;
use crate::engine::Networks;
use crate::error::Error;

/// An address and the networks that contain it. See [`LimitSet::address`].
#[derive(Clone, Debug)]
pub struct Address<'a> {
    set: &'a LimitSet,
    networks: Networks,
}

impl LimitSet {
    /// An address, in a keyed set whose limits count [networks](crate::Limit::prefix): to look after what its networks
    /// have used. [Requests](crate::Request::for_address) take from them.
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

impl Address<'_> {
    /// Replenishes the named limits, or all limits if none is named, for all networks that contain the address.
    /// Returns whether any of the networks had used something. The networks are replenished one by one.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownLimit`](crate::RequestError::UnknownLimit), [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned).
    pub fn reset(&self, limits: &[&str]) -> Result<bool, Error> {
        let named = self.set.mask_of(limits)?;
        let engine = &self.set.shared().engine;
        Ok(engine.reset_networks(self.set.engine_set(), &self.networks, named)?)
    }
}
