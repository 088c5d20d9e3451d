//! Limits that hosts share, in a declaration as a whole.

use std::collections::HashSet;

use super::location::Location;
use super::options::fleet::FleetOptions;
use super::{Declaration, SetDeclaration};
use crate::error::DeclarationError;

impl Declaration {
    /// The store in which hosts share the limits declared with [`Limit::fleet`](crate::Limit::fleet), such as
    /// `"redis://10.0.0.5:6379/0"`. It must not contain a user or password.
    ///
    /// It reserves room for a lease in every limit that could be shared, in sets that are not keyed, so that
    /// [`apply`](crate::Segment::apply) can share it later. A segment that was created without a store has no such
    /// room.
    ///
    /// ```
    /// use std::time::Duration;
    /// use shmlimit::declare::{FleetLease, Outage};
    /// use shmlimit::{Declaration, Limit, SetDeclaration};
    ///
    /// let tokens = Limit::rate("tokens", 2_000_000, Duration::from_secs(60))
    ///     .fleet(FleetLease::new("org/openai/tokens").outage(Outage::Safe));
    /// let declaration = Declaration::new()
    ///     .fleet_url("redis://10.0.0.5:6379/0")
    ///     .add_set(SetDeclaration::new("openai").add_limit(tokens));
    /// declaration.validate()?;
    /// # Ok::<(), shmlimit::DeclarationError>(())
    /// ```
    pub fn fleet_url(mut self, url: impl Into<String>) -> Self {
        let host = self.fleet.and_then(|fleet| fleet.host);
        self.fleet = Some(FleetOptions {
            url: url.into(),
            host,
        });
        self
    }

    /// The name of this host for people who look at the fleet, 1 to 64 bytes; the host's own name by default. It
    /// needs a [`fleet_url`](Self::fleet_url); the order of the calls does not matter.
    pub fn fleet_host(mut self, host: impl Into<String>) -> Self {
        let url = self.fleet.map(|fleet| fleet.url).unwrap_or_default();
        self.fleet = Some(FleetOptions {
            url,
            host: Some(host.into()),
        });
        self
    }

    /// Sets the fleet that a segment is part of.
    pub(crate) fn of_fleet(self, fleet: Option<FleetOptions>) -> Self {
        Self { fleet, ..self }
    }

    /// Validates how limits are shared, beyond each limit by itself.
    pub(super) fn check_fleet(&self) -> Result<(), DeclarationError> {
        if let Some(fleet) = &self.fleet {
            fleet.check()?;
        }
        let mut keys = HashSet::new();
        for set in &self.sets {
            for limit in &set.limits {
                let Some(fleet) = &limit.fleet else { continue };
                let place = || format!("set {:?} / limit {:?} / fleet / key", set.name, limit.name);
                if !keys.insert(fleet.key()) {
                    return Err(DeclarationError::Duplicate { place: place() });
                }
            }
        }
        Ok(())
    }

    /// Warnings about what is allowed but worth a second look, each a sentence that names the limit or field. Empty for
    /// most declarations.
    ///
    /// ```
    /// use std::time::Duration;
    /// use shmlimit::declare::FleetLease;
    /// use shmlimit::{Declaration, Limit, SetDeclaration};
    ///
    /// let calls = Limit::calls("calls", 6000, Duration::from_secs(60)).burst(10).fleet(FleetLease::new("org/calls"));
    /// let declaration = Declaration::new()
    ///     .fleet_url("redis://10.0.0.5")
    ///     .add_set(SetDeclaration::new("api").add_limit(calls));
    /// assert!(declaration.warnings()[0].contains("about 74 % of the rate"));
    /// ```
    pub fn warnings(&self) -> Vec<String> {
        let of_set = |set: &SetDeclaration| {
            let warnings = set.limits.iter().map(|limit| {
                limit.fleet_warning(&Location {
                    set: &set.name,
                    tier: None,
                    limit: Some(&limit.name),
                })
            });
            warnings.flatten().collect::<Vec<_>>()
        };
        let of_limits = self.sets.iter().flat_map(of_set);
        of_limits.chain(self.version_warning()).collect()
    }

    /// A warning if limits are shared without a version: a changed limit then stops the hosts that declare it.
    fn version_warning(&self) -> Option<String> {
        let mut limits = self.sets.iter().flat_map(|set| &set.limits);
        let shared = limits.find_map(|limit| limit.fleet.as_ref())?;
        self.segment.version().is_none().then(|| {
            format!(
                "fleet: without a version, a change of a limit that hosts share, such as {:?}, stops each host that makes \
                 it for as long as others declare the former limit: declare [segment] version = 1, and raise it with \
                 each change",
                shared.key()
            )
        })
    }

    /// The store that hosts share, if one is declared.
    pub fn fleet_options(&self) -> Option<&FleetOptions> {
        self.fleet.as_ref()
    }
}
