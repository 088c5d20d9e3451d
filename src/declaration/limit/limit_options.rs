//! Reading the options of a declared limit.

use super::amount::Amount;
use super::fleet_lease::FleetLease;
use super::time_zone::TimeZone;
use super::window::Window;
use super::{Algorithm, Limit};
use crate::choices::Scope;

/// The options of a [`Limit`] beyond its kind, capacity and window. See [`Limit::options`].
///
/// ```
/// # use std::time::Duration;
/// use shmlimit::{Algorithm, Limit};
///
/// let requests = Limit::calls("requests", 100, Duration::from_secs(60)).burst(10);
/// assert_eq!(requests.options().burst().map(ToString::to_string).as_deref(), Some("10"));
/// assert_eq!(requests.options().algorithm(), Some(Algorithm::Gcra));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LimitOptions<'a>(&'a Limit);

impl Limit {
    /// The options beyond kind, capacity and window.
    pub fn options(&self) -> LimitOptions<'_> {
        LimitOptions(self)
    }
}

impl<'a> LimitOptions<'a> {
    /// The algorithm; `None` for concurrency.
    pub fn algorithm(&self) -> Option<Algorithm> {
        self.0.effective_algorithm()
    }

    /// The burst, if declared.
    pub fn burst(&self) -> Option<&'a Amount> {
        self.0.burst.as_ref()
    }

    /// How much a leaky bucket drains per [`interval`](Self::interval), if declared that way.
    pub fn rate(&self) -> Option<&'a Amount> {
        self.0.rate.as_ref()
    }

    /// The time in which a leaky bucket drains its [`rate`](Self::rate), if declared that way.
    pub fn interval(&self) -> Option<Window> {
        self.0.interval
    }

    /// The maximum of an adaptive capacity, if declared.
    pub fn ceiling(&self) -> Option<&'a Amount> {
        self.0.ceiling.as_ref()
    }

    /// Whether each key of a keyed set has the limit for itself, or all keys have it together.
    pub fn scope(&self) -> Scope {
        self.0.scope.unwrap_or_default()
    }

    /// How hosts share the limit, if they do.
    pub fn fleet(&self) -> Option<&'a FleetLease> {
        self.0.fleet.as_ref()
    }

    /// The time zone of a calendar window, if declared.
    pub fn time_zone(&self) -> Option<&'a TimeZone> {
        self.0.time_zone.as_ref()
    }

    /// The size of a unit, if declared.
    pub fn unit(&self) -> Option<&'a str> {
        self.0.unit.as_deref()
    }
}
