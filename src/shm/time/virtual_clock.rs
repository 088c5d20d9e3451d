//! Time that stands still until a process moves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::units::{LATEST_INSTANT, nanos_from_duration};

/// A clock for simulations and tests: it stands still until it is advanced. A clone is the same clock.
///
/// It is the wall clock and the monotonic clock at once, exact to the nanosecond, for the attachment that was opened
/// with it: see [`OpenOptions::virtual_clock`](crate::OpenOptions::virtual_clock). Instants after 2^63 nanoseconds
/// since the Unix epoch (the year 2262) are taken as that.
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
/// assert!(mail.check(&mail.request())?.is_admitted());
/// clock.advance_to(hour - Duration::from_nanos(1));
/// assert!(!mail.check(&mail.request())?.is_admitted());
/// clock.advance_to(hour);
/// assert!(mail.check(&mail.request())?.is_admitted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct VirtualClock {
    utc: Arc<AtomicU64>,
}

impl VirtualClock {
    /// A clock that stands at `utc`, the time since the Unix epoch.
    pub fn new(utc: Duration) -> Self {
        Self {
            utc: Arc::new(AtomicU64::new(instant(utc))),
        }
    }

    /// Moves the clock on to `utc`, the time since the Unix epoch. Never back: an instant that has passed changes
    /// nothing.
    pub fn advance_to(&self, utc: Duration) {
        self.utc.fetch_max(instant(utc), Ordering::Relaxed);
    }

    /// Where the clock stands, as the time since the Unix epoch.
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
