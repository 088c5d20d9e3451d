//! Time that passes only when somebody waits for it, or moves it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::virtual_waits::{ServedBy, VirtualWaits};
use crate::mutex::lock;
use crate::shm::process::fork_identity::PerProcess;
use crate::units::{LATEST_INSTANT, nanos_from_duration};

/// A clock for simulations and tests: it stands still until it is advanced, or until somebody waits. A clone is the same
/// clock.
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
///
/// # Waiting
///
/// Timeouts are measured by this clock, and a wait takes no real time: it moves the clock to the next instant that
/// matters, which is when time alone serves it or when its timeout passes, whichever comes first. If several wait, in
/// any segments that follow the clock, the clock moves to the first of their instants, and no further until the one
/// whose time has come has looked again. (Tokio's paused time and Trio's `autojump_threshold` do the same.)
///
/// A request that waits for what others hold cannot know whether they are about to give it back. It moves the clock
/// once no wait has begun or ended for 20 ms of real time. If your program needs longer to give it back, turn
/// [`auto_advance`](Self::auto_advance) off.
///
/// ```
/// # use std::time::Duration;
/// # use shmlimit::{Declaration, Limit, OpenOptions, SetDeclaration, VirtualClock};
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("limits");
/// # let hour = Duration::from_secs(3600);
/// # let declaration = Declaration::new().add_set(SetDeclaration::new("mail").add_limit(Limit::calls("sent", 1, hour)));
/// let clock = VirtualClock::new(Duration::ZERO);
/// let segment = OpenOptions::new().virtual_clock(&clock).create(&path, &declaration)?;
/// let mail = segment.set("mail")?;
/// assert!(mail.request().check()?.is_admitted());
/// // Waits half an hour in vain, and then the other half with success: at once.
/// assert!(!mail.request().acquire(hour / 2)?.is_admitted());
/// assert_eq!(clock.now(), hour / 2);
/// assert!(mail.request().acquire(hour)?.is_admitted());
/// assert_eq!(clock.now(), hour);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct VirtualClock {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    utc: AtomicU64,
    stands_still: AtomicBool,
    /// Of this process: a child does not wait for the threads of its parent.
    waits: PerProcess<Mutex<VirtualWaits>>,
}

impl VirtualClock {
    /// A clock set to `utc`, the time since the Unix epoch.
    pub fn new(utc: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                utc: AtomicU64::new(instant(utc)),
                stands_still: AtomicBool::new(false),
                waits: PerProcess::new(),
            }),
        }
    }

    /// Whether waiting moves the clock and all its clones, as it does by default. If not, whoever waits does so until
    /// the clock is [advanced](Self::advance_to), so a thread that waits alone waits forever.
    #[must_use = "returns the clock"]
    pub fn auto_advance(self, advances: bool) -> Self {
        self.shared.stands_still.store(!advances, Ordering::Relaxed);
        self
    }

    /// Advances the clock to `utc`, the time since the Unix epoch. It never goes back: an instant in the past has no
    /// effect.
    pub fn advance_to(&self, utc: Duration) {
        self.move_to(instant(utc));
    }

    /// The next instant at which time alone serves somebody who waits by this clock in this process, or at which a
    /// timeout passes, since the Unix epoch; `None` if time ends no wait.
    ///
    /// It is for programs that move time themselves, with [`auto_advance`](Self::auto_advance) off: they advance the
    /// clock to this instant, or to that of their own next event if that is earlier, and poll their futures again.
    ///
    /// ```
    /// # use std::pin::pin;
    /// # use std::future::Future;
    /// # use std::task::{Context, Waker};
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, OpenOptions, SetDeclaration, VirtualClock};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// # let hour = Duration::from_secs(3600);
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("mail").add_limit(Limit::calls("sent", 1, hour)));
    /// let clock = VirtualClock::new(Duration::ZERO).auto_advance(false);
    /// let segment = OpenOptions::new().virtual_clock(&clock).create(&path, &declaration)?;
    /// let mail = segment.set("mail")?;
    /// assert!(mail.request().check()?.is_admitted());
    /// let mut waiting = pin!(mail.request().acquire_async(None));
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert!(waiting.as_mut().poll(&mut context).is_pending());
    /// let turn = clock.next_wake().expect("an instant");
    /// assert_eq!(turn, hour);
    /// clock.advance_to(turn);
    /// assert!(waiting.as_mut().poll(&mut context).is_ready());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_wake(&self) -> Option<Duration> {
        let next = self.with_waits(|waits| waits.next_after(self.nanos()));
        next.flatten().map(Duration::from_nanos)
    }

    /// The present time of the clock, since the Unix epoch.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.shared.utc.load(Ordering::Relaxed)
    }

    /// Whether only the program moves it.
    pub(crate) fn stands_still(&self) -> bool {
        self.shared.stands_still.load(Ordering::Relaxed)
    }

    /// Notes that a wait sleeps until `until`, on this clock, and moves the clock if nobody has to look first.
    /// Returns whether the clock has reached `until`. `wait` is an address that no other wait has.
    pub(crate) fn sleep(&self, wait: usize, until: u64, served_by: ServedBy) -> bool {
        // The clock never reaches a later instant.
        let until = if until > LATEST_INSTANT { u64::MAX } else { until };
        let next = self.with_waits(|waits| waits.sleep(wait, until, served_by, self.nanos()));
        if let Some(later) = next.flatten()
            && !self.stands_still()
        {
            self.move_to(later);
        }
        until <= self.nanos()
    }

    /// Whether a wait has to look: its instant has come, or it has named none.
    pub(crate) fn is_due(&self, wait: usize) -> bool {
        self.with_waits(|waits| waits.is_due(wait, self.nanos())) != Some(false)
    }

    /// Notes that a wait is over.
    pub(crate) fn end_sleep(&self, wait: usize) {
        self.with_waits(|waits| waits.end(wait));
    }

    /// `None` if the kernel cannot wipe a page on fork: then no segment can be opened either, and nobody waits.
    fn with_waits<T>(&self, act: impl FnOnce(&mut VirtualWaits) -> T) -> Option<T> {
        let waits = self.shared.waits.get().ok()?;
        Some(act(&mut lock(waits)))
    }

    fn move_to(&self, instant: u64) {
        self.shared.utc.fetch_max(instant, Ordering::Relaxed);
    }
}

fn instant(utc: Duration) -> u64 {
    nanos_from_duration(utc).map_or(LATEST_INSTANT, |nanos| nanos.min(LATEST_INSTANT))
}
