//! Limits by address, for every network that contains it.

use std::net::IpAddr;

use crate::api::refusal::Verdict;
use crate::api::request::Request;
use crate::api::set::checked::Checked;
use crate::api::set::limit_set::LimitSet;
use crate::engine::{Decision, Networks};
use crate::error::{Error, RequestError};

/// An address and the networks that contain it. See [`LimitSet::address`].
#[derive(Clone, Debug)]
pub struct Address<'a> {
    set: &'a LimitSet,
    networks: Networks,
}

impl LimitSet {
    /// The limits of an address, in a keyed set whose limits count [networks](crate::Limit::prefix). Each limit
    /// counts what all addresses of the surrounding network take together. An IPv4-mapped IPv6 address is treated as
    /// the IPv4 address.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// let second = Duration::from_secs(1);
    /// let declaration = Declaration::new().add_set(
    ///     SetDeclaration::new("logins")
    ///         .keyed(Keyed::new(100_000))
    ///         .add_limit(Limit::calls("address", 2, second).prefix(32, 64))
    ///         .add_limit(Limit::calls("network", 3, second).prefix(24, 48)),
    /// );
    /// let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let logins = segment.set("logins")?;
    /// let request = logins.request();
    /// for (address, binding) in [
    ///     ("203.0.113.7", None),
    ///     ("203.0.113.7", None),
    ///     ("203.0.113.7", Some("address")), // takes nothing from the network either
    ///     ("203.0.113.8", None),
    ///     ("203.0.113.9", Some("network")),
    ///     ("203.0.114.9", None),
    /// ] {
    ///     assert_eq!(logins.address(address.parse()?)?.check(&request)?.binding(), binding);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::NoPrefixes`] if the limits of the set do not count networks.
    pub fn address(&self, address: IpAddr) -> Result<Address<'_>, Error> {
        let set = self.engine_set();
        if set.levels.is_empty() {
            return Err(Error::Request(RequestError::NoPrefixes {
                set: self.name().to_owned(),
            }));
        }
        Ok(Address {
            set: self,
            networks: set.networks_of(address),
        })
    }
}

impl<'a> Address<'a> {
    /// Takes everything that the request names or nothing, each limit from its own network: see [`LimitSet::check`].
    ///
    /// # Errors
    ///
    /// See [`LimitSet::check`].
    pub fn check(&self, request: &Request) -> Result<Checked<'a>, Error> {
        let costs = request.costs_for(self.set)?;
        let mut decision = Decision::pending(costs, self.set.engine_set().notes_beside);
        let engine = &self.set.shared().engine;
        let set = self.set.engine_set();
        let is_admitted = engine.check_networks(set, &self.networks, costs, &mut decision)?;
        let checked = Checked::new(self.set, decision, is_admitted);
        checked.report(request.label_text());
        Ok(checked)
    }

    /// What each limit would answer now. Takes and counts nothing: see [`LimitSet::peek`].
    ///
    /// # Errors
    ///
    /// See [`LimitSet::peek`].
    pub fn peek(&self, request: &Request) -> Result<Vec<Verdict<'a>>, Error> {
        let costs = request.costs_for(self.set)?;
        let engine = &self.set.shared().engine;
        let decision = engine.peek_networks(self.set.engine_set(), &self.networks, costs)?;
        Ok(decision
            .iter()
            .map(|(index, decided)| Verdict::refused(self.set, &decision, index, decided))
            .collect())
    }

    /// Replenishes the named limits, or all limits if none is named, for all networks that contain the address.
    /// Returns whether any of the networks had used something. The networks are replenished one by one.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownLimit`], [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned).
    pub fn reset(&self, limits: &[&str]) -> Result<bool, Error> {
        let named = self.set.mask_of(limits)?;
        let engine = &self.set.shared().engine;
        Ok(engine.reset_networks(self.set.engine_set(), &self.networks, named)?)
    }
}
