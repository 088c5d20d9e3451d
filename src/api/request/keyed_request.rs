//! Requests for a key or an address.

use std::net::IpAddr;

use super::Request;
use super::client::Client;
use crate::api::set::limit_set::LimitSet;
use crate::engine::Target;
use crate::error::{Error, RequestError};

impl LimitSet {
    /// Whether each key has limits of its own.
    pub fn is_keyed(&self) -> bool {
        self.engine_set().is_keyed()
    }

    /// Whether the limits count networks, so that the set is used by [address](Request::for_address) rather than by
    /// [key](Request::for_key).
    pub fn is_by_address(&self) -> bool {
        !self.engine_set().levels.is_empty()
    }

    /// Requires limits that count networks.
    pub(crate) fn require_networks(&self) -> Result<(), Error> {
        if self.is_by_address() {
            return Ok(());
        }
        Err(Error::Request(RequestError::NoPrefixes {
            set: self.name().to_owned(),
        }))
    }

    #[cold]
    pub(crate) fn key_required(&self) -> Error {
        Error::Request(RequestError::KeyRequired {
            set: self.name().to_owned(),
        })
    }
}

impl Request<'_> {
    /// The same request for one key of its set: see [`set_key`](Self::set_key), which changes a request in place.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// let declaration = Declaration::new().add_set(
    ///     SetDeclaration::new("api")
    ///         .keyed(Keyed::new(100_000))
    ///         .add_limit(Limit::calls("requests", 1, Duration::from_secs(60))),
    /// );
    /// let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let api = segment.set("api")?;
    /// assert!(api.request().for_key("tenant-7")?.try_acquire()?.is_admitted());
    /// assert!(!api.request().for_key("tenant-7")?.try_acquire()?.is_admitted());
    /// assert!(api.request().for_key("tenant-8")?.try_acquire()?.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`set_key`](Self::set_key).
    #[inline]
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Result<Self, Error> {
        let mut request = self.clone();
        request.set_key(key)?;
        Ok(request)
    }

    /// Sets the key of a [keyed](crate::SetDeclaration::keyed) set that the request takes from: any string of 1 to
    /// 65,536 bytes. Keys are told apart by a 128-bit hash, seeded at random for each segment. It is computed here, so
    /// keep the request for a key that is used often.
    ///
    /// A key that no process has used takes no space. It gets a row of the table at its first decision, and keeps it
    /// until everything it has used is replenished and another key needs the row. If the table has no row for a new
    /// key, that is a refusal: [`RefusalReason::TableFull`](crate::RefusalReason::TableFull). Each key has a queue of
    /// its own.
    ///
    /// # Errors
    ///
    /// [`RequestError::NotKeyed`]; [`RequestError::InvalidKey`] if the key is empty or too long;
    /// [`RequestError::AddressRequired`] if the limits of the set count networks.
    #[inline]
    pub fn set_key(&mut self, key: impl AsRef<[u8]>) -> Result<(), Error> {
        self.wanted.client = Client::Key(self.set.identify(key.as_ref())?);
        Ok(())
    }

    /// The same request for an address, in a set whose limits count networks: see [`set_address`](Self::set_address).
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
    /// for (address, binding) in [
    ///     ("203.0.113.7", None),
    ///     ("203.0.113.7", None),
    ///     ("203.0.113.7", Some("address")), // takes nothing from the network either
    ///     ("203.0.113.8", None),
    ///     ("203.0.113.9", Some("network")),
    ///     ("203.0.114.9", None),
    /// ] {
    ///     let checked = logins.request().for_address(address.parse()?)?.check()?;
    ///     assert_eq!(checked.binding(), binding);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`set_address`](Self::set_address).
    pub fn for_address(&self, address: IpAddr) -> Result<Self, Error> {
        let mut request = self.clone();
        request.set_address(address)?;
        Ok(request)
    }

    /// Sets the address that the request takes from, in a keyed set whose limits count
    /// [networks](crate::Limit::prefix). Each limit counts what all addresses of the surrounding network take together.
    /// An IPv4-mapped IPv6 address is treated as the IPv4 address.
    ///
    /// Networks have no queues and hold nothing, so such a request can only be [checked](Self::check) or [peeked
    /// at](Self::peek).
    ///
    /// # Errors
    ///
    /// [`RequestError::NoPrefixes`] if the limits of the set do not count networks.
    pub fn set_address(&mut self, address: IpAddr) -> Result<(), Error> {
        self.set.require_networks()?;
        self.wanted.client = Client::Address(address);
        Ok(())
    }

    /// Requires that neither a key nor an address has been named.
    #[cfg(feature = "tower")]
    pub(crate) fn require_no_client(&self) -> Result<(), Error> {
        match self.wanted.client {
            Client::Everyone => Ok(()),
            Client::Key(_) | Client::Address(_) => Err(Error::Request(RequestError::AlreadyKeyed {
                set: self.set.name().to_owned(),
            })),
        }
    }

    /// Whether the request may be admitted from a batch that this process has drawn.
    #[inline(always)]
    pub(super) fn is_by_credit(&self) -> bool {
        self.set.engine_set().has_credit() && matches!(self.wanted.client, Client::Everyone)
    }

    /// The set, and the key if the set is keyed.
    #[inline(always)]
    pub(crate) fn target(&self) -> Result<Target<'_>, Error> {
        self.rows().ok_or_else(|| self.without_target())
    }

    /// Like [`target`](Self::target), but `None` for an address, or if the key is missing.
    #[inline(always)]
    pub(super) fn rows(&self) -> Option<Target<'_>> {
        let set = self.set.engine_set();
        match &self.wanted.client {
            Client::Key(key) => Some(Target { set, key: Some(key) }),
            Client::Everyone if !set.is_keyed() => Some(Target { set, key: None }),
            _ => None,
        }
    }

    /// Why there is no target.
    #[cold]
    pub(super) fn without_target(&self) -> Error {
        match self.wanted.client {
            Client::Address(_) => Error::Request(RequestError::CheckOnly {
                set: self.set.name().to_owned(),
            }),
            _ => self.set.key_required(),
        }
    }
}
