//! Time that stands still until somebody advances it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::units::{LATEST_INSTANT, nanos_from_duration};

/// A clock for simulations and tests: it stands still until it is advanced. A clone is the same clock.
///
/// It is both the wall clock and the monotonic clock, exact to the nanosecond, of the attachment that was opened with
/// it: see [`OpenOptions::virtual_clock`](crate::OpenOptions::virtual_clock). Instants later than 2^63 nanoseconds
/// after the Unix epoch (in the year 2262) are capped at that.
///
/// ```
/// use std::time::Duration;
/// use shmlimit::{Declaration, Limit, OpenOptions, SetDeclaration, VirtualClock};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("limits");
/// let hour = Duration::from_secs(3600);
/// let declaration = Declaration::new().add_set(SetDeclaration::new("mail").add_limit(Limit::calls("sent", 1, hour)));
/// let clock = VirtualClock::new(Duration::ZERO);
/// let segment = OpenOptions::new().virtual_clock(&clock).create(&path, &declaration)?;
/// let mail = segment.set("mail")?;
/// assert!(mail.request().check()?.is_admitted());
/// clock.advance_to(hour - Duration::from_nanos(1));
/// assert!(!mail.request().check()?.is_admitted());
/// clock.advance_to(hour);
/// assert!(mail.request().check()?.is_admitted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct VirtualClock {
    utc: Arc<AtomicU64>,
}

impl VirtualClock {
    /// A clock set to `utc`, the time since the Unix epoch.
    pub fn new(utc: Duration) -> Self {
        Self {
            utc: Arc::new(AtomicU64::new(instant(utc))),
        }
    }

    /// Advances the clock to `utc`, the time since the Unix epoch. It never goes back: an instant in the past has no
    /// effect.
    pub fn advance_to(&self, utc: Duration) {
        self.utc.fetch_max(instant(utc), Ordering::Relaxed);
    }

    /// The present time of the clock, since the Unix epoch.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.utc.load(Ordering::Relaxed)
    }
}

fn instant(utc: Duration) -> u64 {
    nanos_from_duration(utc).map_or(LATEST_INSTANT, |nanos| nanos.min(LATEST_INSTANT))
}
