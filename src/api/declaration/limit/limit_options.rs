//! What is declared of a limit, to read.

use super::amount::Amount;
use super::fleet_lease::FleetLease;
use super::window::Window;
use super::{Algorithm, Limit};

/// By what a [`Limit`] decides, beyond its kind, capacity and window: [`Limit::options`].
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
    /// By what it decides beyond that.
    pub fn options(&self) -> LimitOptions<'_> {
        LimitOptions(self)
    }
}

impl<'a> LimitOptions<'a> {
    /// How the limit decides; none for concurrency.
    pub fn algorithm(&self) -> Option<Algorithm> {
        self.0.effective_algorithm()
    }

    /// The burst, where one is declared.
    pub fn burst(&self) -> Option<&'a Amount> {
        self.0.burst.as_ref()
    }

    /// How much of a leaky bucket drains in an [`interval`](Self::interval), where it is declared so.
    pub fn rate(&self) -> Option<&'a Amount> {
        self.0.rate.as_ref()
    }

    /// In what time a leaky bucket drains by its [`rate`](Self::rate), where it is declared so.
    pub fn interval(&self) -> Option<Window> {
        self.0.interval
    }

    /// The most that an adaptive capacity rises to, where one is declared.
    pub fn ceiling(&self) -> Option<&'a Amount> {
        self.0.ceiling.as_ref()
    }

    /// How hosts share the limit, where they do.
    pub fn fleet(&self) -> Option<&'a FleetLease> {
        self.0.fleet.as_ref()
    }

    /// The size of a unit, where one is declared.
    pub fn unit(&self) -> Option<&'a str> {
        self.0.unit.as_deref()
    }
}
